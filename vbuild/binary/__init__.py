"""What compiled files have in common, whether they are ELF, PE or Mach-O: sections, pointers, who loads whom.

The rooms `elf`, `pe` and `macho` read their formats into these values, so that other rooms need not know the format.
Start with `outline`, what a file says to the loader of its system, and `linkage`, which file of a wheel loads which.
"""
