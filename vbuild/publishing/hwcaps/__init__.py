"""The layout hwcaps: one plain wheel with a copy of each library for every CPU level, among which glibc chooses.

Start with `plan`; `join` decides which files become copies.
"""
