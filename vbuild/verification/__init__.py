"""``vbuild verify`` and ``vbuild bench``: whether wheels keep what they promise, and what each CPU level brings.

Start with `verify` and its results in `model`; `levels` has the verdict on instruction sets. `environments` installs
a wheel with pip and uv, `level_runs` runs it as a processor of another level does.
"""
