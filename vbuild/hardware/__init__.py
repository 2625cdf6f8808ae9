"""What machines have: CPU levels, GPUs, drivers. How they are written, ordered, and found on the machine one is on.

Start with `cpu`, the one table of levels and their features, and `machine`, a whole machine as a value.
"""
