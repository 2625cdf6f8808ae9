"""A release from recipe to report: each step of ``vbuild matrix``, ``cibuildwheel``, ``collect`` and ``lock``.

Start with `matrix`, which has the steps in their order.
"""
