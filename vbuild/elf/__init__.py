"""ELF files: reading them, and proving which code runs on which processor, also of files that `pe` and `macho` read.

What a file says to the loader: start with `image`, its bytes, and `read`. Which code needs which CPU feature: start
with `isa`, the disassembly. Whether code above a level is guarded by a test of the CPU (run-time dispatch): start
with `dispatch`, which asks `reach` for x86-64 and `arm_reach` for aarch64. The room ``surgery`` makes files smaller.
"""
