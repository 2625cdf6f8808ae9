"""What ``vbuild check`` finds in a folder of wheels or an index of them.

Start with `files`, which reads each file once.
"""
