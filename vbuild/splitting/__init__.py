"""``vbuild split``: shared libraries that wheels bundle become wheels of their own, or those that NVIDIA publishes.

Start with `split`, then `decisions`: what becomes of each library, for all wheels together, before a byte is written;
`builds` and `comparison` say which libraries are the same.
"""
