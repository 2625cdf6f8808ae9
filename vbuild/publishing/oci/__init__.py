"""The layout oci: a container image for each variant. Start with `plan`; `model` has images as values.

`slimming` cuts the GPU code in images that exist.
"""
