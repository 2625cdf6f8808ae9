"""Values for compiled files of every format, which the rooms `elf`, `pe` and `macho` read.

Start with `outline`, what a file says to the loader of its system, and `linkage`, which file of a wheel loads which.
"""
