"""``vbuild verify`` and ``vbuild bench``: whether wheels keep what they promise, and what each CPU level brings.

Start with `verify` and its results in `model`; `levels` judges instruction sets, `environments` installs wheels,
`level_runs` runs them at other levels.
"""
