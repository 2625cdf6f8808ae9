"""Another Python, on this or another kind of Linux machine, in the words that installers and markers have for it.

cp315-cp315-manylinux_2_34_aarch64   uv   --python-version 3.15 --python-platform aarch64-manylinux_2_34
                                     pip  --python-version 3.15 --implementation cp --abi cp315 --platform …
"""

import re
import sys
from collections.abc import Mapping
from typing import Self

from msgspec import Struct

from vbuild.elf.policy import PlatformPolicy
from vbuild.wheel.name import WheelName

# the glibc of machines that people have, and the minor versions that uv has a name for
_USUAL_GLIBC, _NAMED_GLIBC = 28, (28, *range(31, 41))
_OLDEST_GLIBC, _MUSL = 5, ("musllinux_1_2", "musllinux_1_1")
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_CPYTHON = re.compile(r"cp(?P<major>\d)(?P<minor>\d+)")
_OTHER = re.compile(r"(?P<implementation>[a-z]+)(?P<major>\d)(?P<minor>\d+)")


def platforms_of(name: WheelName) -> tuple[PlatformPolicy, ...]:
    """The Linux platforms that the wheel called *name* is for."""
    return tuple(platform for tag in sorted(name.platform.split(".")) if (platform := PlatformPolicy.parse(tag)))


class LoadTarget(Struct, frozen=True):
    """A Python that is not this one: what it is, the ABI of its modules, and where it runs."""

    implementation: str
    version: str
    abi: str
    platform: PlatformPolicy

    @classmethod
    def of(cls, name: WheelName) -> Self | None:
        """The Python that the wheel called *name* is for; None where it is for another system than Linux."""
        if not (platforms := platforms_of(name)):
            return None
        platform = max(platforms, key=lambda found: found.glibc or (0, 0))
        tag = min(name.tags, key=str)
        this = sys.version_info[:2]
        if match := _CPYTHON.fullmatch(tag.interpreter):
            own = (int(match["major"]), int(match["minor"]))
            version = max(own, this) if tag.abi == "abi3" else own
            abi = tag.abi if tag.abi.startswith("cp") else "cp{}{}".format(*version)
            return cls("cp", "{}.{}".format(*version), abi, platform)
        if not tag.interpreter.startswith("py") and (match := _OTHER.fullmatch(tag.interpreter)):
            return cls(match["implementation"], f"{match['major']}.{match['minor']}", tag.abi, platform)
        return cls("cp", "{}.{}".format(*this), "cp{}{}".format(*this), platform)

    @property
    def uv_platform(self) -> str | None:
        """What uv calls the platform; None where it has no name for it, or for the interpreter."""
        machine = self.platform.machine
        if machine not in {"x86_64", "aarch64"} or self.abi != f"cp{self.version.replace('.', '')}":
            return None
        if self._is_musl:
            return f"{machine}-unknown-linux-musl"
        return f"{machine}-manylinux_2_{next((minor for minor in _NAMED_GLIBC if minor >= self._glibc), 40)}"

    def markers(self) -> Mapping[str, str]:
        """The values that environment markers have there, where they may be others than here."""
        return {
            "python_version": self.version,
            "python_full_version": f"{self.version}.0",
            "platform_machine": self.platform.machine,
        }

    def for_uv(self) -> list[str]:
        return ["--python-version", self.version, "--python-platform", str(self.uv_platform)]

    def for_pip(self) -> list[str]:
        # pip takes environment markers from the Python that runs it, whatever it is told here
        words = ["--python-version", self.version, "--implementation", self.implementation, "--abi", self.abi]
        return words + [f"--platform={tag}_{self.platform.machine}" for tag in self._platform_tags()]

    def _platform_tags(self) -> list[str]:
        """Every tag, newest first, for pip does not know that a newer glibc runs what is for an older one."""
        if self._is_musl:
            return [*_MUSL, "linux"]
        tags = [(f"manylinux_2_{minor}", _LEGACY.get(minor)) for minor in range(self._glibc, _OLDEST_GLIBC - 1, -1)]
        return [tag for pair in tags for tag in pair if tag] + ["linux"]

    @property
    def _is_musl(self) -> bool:
        return self.platform.tag.startswith("musllinux")

    @property
    def _glibc(self) -> int:
        return max((self.platform.glibc or (2, 0))[1], _USUAL_GLIBC)
