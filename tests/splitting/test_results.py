"""The account of a split: every library once for each thing that becomes of it, every wheel before and after."""

import random
from pathlib import Path

from tests.factories.elf import shared_object
from tests.factories.extensions import module
from tests.factories.repaired_wheels import NAME, hashed, release
from tests.factories.tools import needs
from vbuild.cli.render import split_lines
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import CompanionResult, EditedLibrary, LibraryMove, Split, SplitWheel
from vbuild.splitting.split import split

pytestmark = needs("gcc")

WIDTH = 80
THIRD = NAME.replace("311", "313")
BIG, SMALL = (
    shared_object(
        f"const unsigned char data[] = {{{','.join(map(str, random.Random(7).randbytes(size)))}}};",
        f"-Wl,-soname,lib{name}.so",
    )
    for name, size in (("big", 60_000), ("small", 10))
)


def one(folder: Path) -> Split:
    """Three wheels with two libraries; one wheel asks whether the small one is loaded."""
    libraries = {"libbig.so": BIG, "libsmall.so": SMALL}
    files: dict[str, bytes | str] = {"demo/_c.so": module("libbig.so", "libsmall.so", runpath="/opt/lib")}
    named = {"demo/a.py": f"CDLL('{hashed('libsmall.so', SMALL)}', RTLD_NOLOAD)"}
    given = [*release(folder, files, libraries), *release(folder, {**files, **named}, libraries, names=(THIRD,))]
    return split(given, None, request=SplitRequest(smallest=0), indexes=lambda: Indexes(no_index=True))


def test_only_what_is_published_counts(tmp_path: Path) -> None:
    result = one(tmp_path)
    assert result.of({NAME}).companions == result.companions
    assert [wheel.name for wheel in result.of({NAME}).wheels] == [NAME]
    assert result.of(()).companions == ()


def test_long_names_fit_a_terminal() -> None:
    long = "a_project_with_a_name_that_nobody_would_want_to_type"
    wheel = f"{long}-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64-x86_64_v3_of_all.whl"
    libraries = tuple(
        LibraryMove(
            name=f"lib{long}-1a2b3c4d.so.{number}.12.345",
            path=f"{long}.libs/lib{long}-1a2b3c4d.so.{number}.12.345",
            size=9_000_000,
            packed=3_000_000,
            wheels=(wheel, wheel),
            kind=kind,
            target=f"{long.replace('_', '-')}-libs==0.123456789012345" if kind is DecisionKind.SHARE else None,
            reason="" if kind is DecisionKind.SHARE else f"{long}/sub/module.py names it, and may open it by its path",
        )
        for number, kind in enumerate((DecisionKind.SHARE, DecisionKind.SHARE, DecisionKind.KEEP, DecisionKind.KEEP))
    )
    edited = EditedLibrary(
        f"{long}/_core/_c.abi3.so", ("$ORIGIN/../../a/lib", f"$ORIGIN/../{long}_libs/lib"), {}, ("/opt/x: a folder",)
    )
    thinned = SplitWheel(
        wheel=Path(wheel),
        path=Path(wheel),
        before=6_000_000,
        packed=10_000,
        unpacked_before=18_000_000,
        unpacked=20_000,
        edited=(edited,),
        requires=(f'{long}-libs==0.123; platform_system == "Linux" and platform_machine == "x86_64"',),
        warnings=("demo/_c.so: left as it was, because it cannot be edited: no section headers: expected some",),
    )
    beside = CompanionResult(
        name=f"{long}_libs-0.123-py3-none-manylinux_2_17_x86_64.whl",
        path=None,
        packed=None,
        unpacked=9_000_000,
        files=("x", "y"),
        wheels=(wheel,),
    )
    lines = [*split_lines(Split(wheels=(thinned,), companions=(beside,), libraries=libraries))]
    # one word, a path or a file name, is what somebody copies
    assert [line for line in lines if len(line) > WIDTH and " " in line.strip()] == []
    said = " ".join(" ".join(lines).split())
    for part in (wheel, libraries[0].name, libraries[-1].reason, thinned.warnings[0], edited.removed[0]):
        assert part in said
