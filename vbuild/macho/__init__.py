"""Mach-O files of macOS: what each says to the loader (`read`), and which file of a wheel loads which (`linkage`).

`code` is what the proof of instruction sets takes.
"""
