"""A release from recipe to report: each step of ``vbuild matrix``, ``cibuildwheel``, ``collect`` and ``lock``.

Start with `matrix`, which has the steps in their order. `builder` makes the portable wheel of a target, `finishing`
slims, stamps, verifies and tests it, `publication` puts all into the folder of results.
"""
