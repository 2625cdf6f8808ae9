"""Changed ELF files: GPU code and symbols cut out, and libraries renamed (relinked), each followed by its own check.

Start with `cutting`; what has to hold of its result is in `cut_check`. Names and search paths: `relink` and
`relink_check`.
"""
