"""Files that are written whole or not at all, files of strangers, the cache, hashes, and sizes as people read them.

Start with `atomic` for writing, and with `reading` for what strangers made.
"""
