"""Compilers and CUDA toolkits of this machine, and the wrapper programs that put a level's flags into each command.

Start with `compilers`, and `compiler_program`, which decides the arguments; `toolkit_provision` finds or fetches a
toolkit. `compiler_wrapper`, `compiler_program`, `nvcc` and what they import use the standard library only: they are
copied out and run by other Pythons.
"""
