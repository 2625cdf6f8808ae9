"""Files that are written whole or not at all, the user's cache, hashes, and sizes in the words that people read.

Start with `atomic`. `cache` is the one place that knows what vbuild keeps from run to run, and for how long.
"""
