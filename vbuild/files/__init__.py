"""Files that are written whole or not at all, files of strangers, the cache, hashes, and sizes as people read them.

Start with `atomic` for writing, and with `reading` for what strangers made. `cache` is the one place that knows what
vbuild keeps from run to run, and for how long.
"""
