"""Compilers and CUDA toolkits of this machine, and the wrapper programs that put a level's flags into each command.

Start with `compilers` and `rewriting`, which decides the arguments; `toolkit_provision` finds or fetches a toolkit.
The wrappers are copied out and run by other Pythons: `compiler_wrapper`, `rewriting`, `nvcc` and what they import use
the standard library only.
"""
