"""Wheels that a split makes beside others: told by their WHEEL, which says what generated them, and by their names."""

from packaging.utils import canonicalize_name

from vbuild.wheel.distinfo import Metadata, WheelFile

GENERATOR = "vbuild split"
LIBS, DEV = "-libs", "-dev"


def is_companion(metadata: Metadata, wheel_file: WheelFile) -> bool:
    """Whether a wheel that says this was made beside others: a split leaves it as it is."""
    is_ours = wheel_file.headers.value("Generator") == GENERATOR
    return is_ours and canonicalize_name(metadata.name).endswith((LIBS, DEV))
