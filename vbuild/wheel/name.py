"""A wheel's file name as a value: what it says, and what may never be part of a path.

    {distribution}-{version}(-{build})?-{python}-{abi}-{platform}(-{variant label})?.whl

A build tag starts with a digit and a Python tag does not: that tells the two kinds of six-part names apart.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention
https://peps.python.org/pep-0825/
"""

import math
import re
from typing import Self

from msgspec import Struct
from msgspec.structs import replace
from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.errors import WheelError, at

_SUFFIX = ".whl"
VARIANTS_JSON = "-variants.json"
"""How the names of the files end that list the variants of a release (PEP 825, index-level metadata)."""
_FEWEST, _MOST = 5, 7
# names have dozens of tags, and a name of ten kilobytes could stand for a million
MOST_TAGS = 1 << 12
_TAGS = r"\w+(\.\w+)*"
_PYTHON = r"(?!\d)\w+(\.(?!\d)\w+)*"
_RULES = (
    ("distribution", "name", r"[A-Za-z0-9]([\w.]*[A-Za-z0-9])?", "letters, digits, _ and . between letters or digits"),
    ("version", "version", r"[\w.!+]+", "a version as PEP 440 writes it"),
    ("build", "build tag", r"\d[\w.]*", "a digit, then letters, digits, _ and ."),
    ("python", "Python tag", _PYTHON, "letters, digits and _, joined by dots, not starting with a digit"),
    ("abi", "ABI tag", _TAGS, "letters, digits and _, joined by dots"),
    ("platform", "platform tag", _TAGS, "letters, digits and _, joined by dots"),
    ("variant", "variant label", r"[0-9a-z_.]+", "only a-z, 0-9, _ and . (PEP 825)"),
)
_CHECKS = tuple((part, title, re.compile(rule, re.ASCII), expected) for part, title, rule, expected in _RULES)


class WheelName(Struct, frozen=True):
    """The parts of a wheel's file name, spelled as there."""

    distribution: str
    version: str
    build: str | None
    python: str
    abi: str
    platform: str
    variant: str | None = None

    def __post_init__(self) -> None:
        """Refuse parts that no wheel may carry: the name becomes a path."""
        for part, title, rule, expected in _CHECKS:
            text = getattr(self, part)
            if text is not None and not rule.fullmatch(text):
                raise WheelError(f"{title} {text!r}: expected {expected}")
        tags = math.prod(text.count(".") + 1 for text in (self.python, self.abi, self.platform))
        if tags > MOST_TAGS:
            raise WheelError(f"stands for {tags} compatibility tags; expected {MOST_TAGS} at most")
        try:
            Version(self.version)
        except ValueError as error:  # too many digits for an int is one as well
            raise WheelError(f"version {self.version!r}: expected a version as PEP 440 writes it") from error

    @classmethod
    def parse(cls, filename: str) -> Self:
        """Read *filename*, which is not a path; `WheelError` if it is not a wheel's."""
        with at(repr(filename)):
            if not filename.endswith(_SUFFIX):
                raise WheelError("not a wheel's file name: expected it to end in .whl")
            parts = filename.removesuffix(_SUFFIX).split("-")
            if not _FEWEST <= len(parts) <= _MOST:
                raise WheelError(f"not a wheel's file name: {len(parts)} parts between dashes, expected 5, 6 or 7")
            has_build = len(parts) == _MOST or (len(parts) > _FEWEST and parts[2][:1].isdigit())
            build = parts.pop(2) if has_build else None
            variant = parts.pop() if len(parts) > _FEWEST else None
            distribution, version, python, abi, platform = parts
            return cls(distribution, version, build, python, abi, platform, variant)

    def __str__(self) -> str:
        parts = (self.distribution, self.version, self.build, self.python, self.abi, self.platform, self.variant)
        return "-".join(part for part in parts if part is not None) + _SUFFIX

    def labelled(self, label: str) -> Self:
        """The same wheel under the variant *label*; `WheelError` if PEP 825 forbids the label."""
        return replace(self, variant=label)

    def plain(self) -> Self:
        return replace(self, variant=None)

    def normalised(self) -> Self:
        return replace(self, distribution=escaped(self.distribution), version=str(Version(self.version)))

    @property
    def release(self) -> str:
        """``{distribution}-{version}``, both normalised."""
        name = self.normalised()
        return f"{name.distribution}-{name.version}"

    @property
    def variants_json(self) -> str:
        return f"{self.release}{VARIANTS_JSON}"

    @property
    def dist_info(self) -> str:
        """The ``.dist-info`` folder of a new wheel of this name, spelled as the file: installers refuse another."""
        return f"{self.distribution}-{self.version}.dist-info"

    @property
    def project(self) -> str:
        return canonicalize_name(self.distribution)

    @property
    def tags(self) -> frozenset[Tag]:
        return parse_tag(f"{self.python}-{self.abi}-{self.platform}")

    @property
    def machines(self) -> tuple[str, ...]:
        """Those of ``x86_64`` and ``aarch64``, which have CPU levels, among its platforms."""
        return tuple(machine for machine in ("x86_64", "aarch64") if re.search(rf"_{machine}(?:\.|$)", self.platform))

    @property
    def systems(self) -> frozenset[str]:
        """Those of linux, windows and macos among its platforms; none for any platform."""
        starts = {"linux": ("linux", "manylinux", "musllinux"), "windows": ("win",), "macos": ("macosx",)}
        tags = self.platform.split(".")
        return frozenset(name for name, start in starts.items() if any(tag.startswith(start) for tag in tags))

    @property
    def build_order(self) -> tuple[int, str] | tuple[()]:
        """The build tag as it sorts: leading number, then the rest."""
        if self.build is None:
            return ()
        digits = re.match(r"\d+", self.build, re.ASCII)
        number = digits[0] if digits else ""
        return int(number), self.build.removeprefix(number)


def escaped(name: str) -> str:
    """The project *name* as in file names."""
    return canonicalize_name(name).replace("-", "_")
