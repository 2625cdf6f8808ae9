"""What a split wrote, put together by hand, and what its check says of it."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.factories.wheels import wheel
from vbuild.index_client.configuration import Indexes
from vbuild.verification.environments import Installer
from vbuild.verification.install_check import InstallCheck, check

TAG = "cp{0}{1}-cp{0}{1}-manylinux_2_17_x86_64".format(*sys.version_info)
LIBS = "py3-none-manylinux_2_17_x86_64"
TO_LIBS = "$ORIGIN/../demo_libs/lib"
ALONE = Indexes(no_index=True)


@dataclass(frozen=True)
class SplitResults:
    """The folder that a split wrote, and what its check comes to."""

    folder: Path
    wheels: list[Path] = field(default_factory=list)

    def thin(
        self,
        files: Mapping[str, bytes | str],
        *,
        name: str = f"demo-1.0-{TAG}.whl",
        requires: Sequence[str] = ("demo-libs==0.1",),
    ) -> None:
        metadata = "".join(f"Requires-Dist: {line}\n" for line in requires)
        self.wheels.append(wheel(self.folder / "thin", name, files, metadata=metadata))

    def libs(
        self, files: Mapping[str, bytes | str], *, tag: str = LIBS, more: Mapping[str, bytes | str] | None = None
    ) -> None:
        about = f"Wheel-Version: 1.0\nGenerator: vbuild split\nRoot-Is-Purelib: false\nTag: {tag}\n"
        whole = {**{f"demo_libs/lib/{name}": data for name, data in files.items()}, **(more or {})}
        whole["demo_libs-0.1.dist-info/WHEEL"] = about
        self.wheels.append(wheel(self.folder / "thin", f"demo_libs-0.1-{tag}.whl", whole))

    def beside(
        self, name: str, files: Mapping[str, bytes | str] | None = None, *, requires: Sequence[str] = ()
    ) -> None:
        """A wheel of somebody else's that installers find."""
        metadata = "".join(f"{line}\n" for line in requires)
        wheel(self.folder / "thin", name, files, metadata=metadata)

    def check(self, *using: Installer, absent: Sequence[str] = ()) -> tuple[InstallCheck, ...]:
        return check(self.wheels, indexes=lambda: ALONE, absent=absent, using=using or (Installer.UV,))

    def only(self, *, absent: Sequence[str] = ()) -> InstallCheck:
        (result,) = self.check(absent=absent)
        return result


def failures(result: InstallCheck) -> list[str]:
    return [f"{found.step}: {found.what}" for found in result.failures]


def notes(result: InstallCheck) -> list[str]:
    return [f"{found.step}: {found.what}" for found in result.notes]
