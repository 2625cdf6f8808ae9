"""The functions of ``import vbuild``: one for each command, with arguments as a person types them in Python.

`functions` has them all; `arguments` turns strings and paths into the values that the rooms below take, and `options`
has the keyword arguments that several functions share, each with its default.
"""
