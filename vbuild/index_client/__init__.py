"""Package indexes, asked as pip is configured to: which files they list, and files fetched by hash or in part.

Start with `configuration`, the indexes of this user, then `packages`, which searches and downloads. `located` has the
values. Modules that talk HTTP are imported when something is fetched.
"""
