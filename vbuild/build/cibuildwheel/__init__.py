"""Builds that cibuildwheel makes in its containers: one run of it for each variant.

Start with `runs`, which plans; `making` runs. `container` is copied into the container and uses the standard library
only.
"""
