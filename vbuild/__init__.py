"""vbuild builds wheels as families of hardware variants and repackages the ones that exist."""

__version__ = "0.1.0"

# what is installed: on the package index, the name of the command and of the import is another project's
DISTRIBUTION = "vbuild-wheels"
