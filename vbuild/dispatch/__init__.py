"""Which code needs which CPU features, and whether it runs only after a test of the processor (run-time dispatch).

`judge` is the door: ``Dispatch(files).judged(path, level)``. It asks `isa`, the disassembly, what code needs, and
`reach` (x86-64) or `arm_reach` (aarch64) by which ways it is reached.
"""
