"""What machines have: CPU levels, GPUs, drivers. How they are written, ordered, and found.

Start with `cpu`, the one table of levels and their features, `architectures`, the one of
GPUs, whose products `gpu` names, and `machine`, a whole machine as a value.
"""
