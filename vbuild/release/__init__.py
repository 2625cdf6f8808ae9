"""A release from recipe to report: each step of ``vbuild matrix``, ``cibuildwheel``, ``collect`` and ``lock``.

Start with `matrix`, then `pipeline`, which has the steps in their order. `builder` makes the wheel of a target,
`finishing` cuts, stamps, verifies and tests it, `publication` puts all into the folder of results.
"""
