"""Builds that cibuildwheel makes in its containers: one run of it for each variant.

Start with `runs`, what is run with which variables; `making` does it. `container` is a program of its own: it is
copied into the container and uses the standard library only.
"""
