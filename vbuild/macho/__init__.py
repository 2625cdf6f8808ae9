"""Mach-O files of macOS: what each says to the loader (`read`), which file loads which (`linkage`), its `code`."""
