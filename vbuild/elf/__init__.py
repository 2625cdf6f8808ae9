"""ELF files: what a file says to the loader (start with `image`, its bytes, and `read`), its code and its symbols.

The room ``surgery`` makes files smaller.
"""
