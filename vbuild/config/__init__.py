"""What people write by hand, read so that each mistake is reported with its place: TOML tables and requirements.

Start with `table`, which hands out the keys of a table one by one and refuses those that nobody has asked for.
"""
