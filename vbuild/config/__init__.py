"""What people write by hand, read so that each mistake is reported with its place: TOML tables and requirements.

Start with `table`, which refuses keys that nobody has asked for.
"""
