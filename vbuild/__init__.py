"""vbuild builds wheels as families of hardware variants and repackages the ones that exist."""

__version__ = "0.1.0"
