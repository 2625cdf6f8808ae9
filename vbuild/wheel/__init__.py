"""Wheels as files: names, RECORD and METADATA as values, archives read and written; nothing about what is in them.

Start with `archive`, which opens a wheel, and `write`, which streams a new one.
"""
