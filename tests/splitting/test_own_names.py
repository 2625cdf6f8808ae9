"""Two projects that bundle different libraries of one SONAME, which a process would take for each other."""

import subprocess
from collections.abc import Iterable, Mapping
from itertools import permutations
from pathlib import Path

import pytest

from tests.factories.extensions import MODULE, library, module
from tests.factories.site_packages import program_output, site_packages
from tests.factories.tools import needs
from tests.factories.wheels import contents, wheel
from vbuild.errors import RepackageError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split
from vbuild.verification.verify import verify

pytestmark = needs("gcc", "readelf")

SCRIPT = "CLASH_1 { global: clash; };"
SONAME = "libclash.so.2"
ANSWERS = {"pa": 111, "pb": 222}


def project(
    folder: Path,
    name: str,
    number: int,
    *,
    pythons: tuple[int, ...],
    code: str = "",
    place: str = "{0}.libs",
    more: Mapping[str, bytes | str] | None = None,
) -> list[Path]:
    source = f"int clash(void) {{ return {number}; }}"
    # the module asks for a version of the symbol, so its library is named in .gnu.version_r as well
    user = library(
        None,
        (SONAME,),
        source=MODULE + "int clash(void); int answer(void) { return clash(); }",
        runpath=f"$ORIGIN/../{place.format(name)}",
        stubs="int clash(void) { return 0; }",
        stub_script=SCRIPT,
    )
    files: dict[str, bytes | str] = {
        f"{name}/__init__.py": f"import ctypes\n{code}",
        f"{name}/_user.so": user,
        f"{place.format(name)}/{SONAME}": library(SONAME, source=source, script=SCRIPT),
        **(more or {}),
    }
    names = (f"{name}-1.0-cp3{python}-cp3{python}-manylinux_2_17_x86_64.whl" for python in pythons)
    return [
        wheel(folder, file, {**files, f"{name}/tag.txt": file}, modes={f"{name}/_user.so": 0o755}) for file in names
    ]


def done(folder: Path, wheels: list[Path]) -> Split:
    return split(wheels, folder / "thin", request=SplitRequest(smallest=0), indexes=lambda: Indexes(no_index=True))


def renamed(result: Split) -> dict[str, str]:
    return {move.path: move.own_name for move in result.libraries if move.own_name}


def answers(folder: Path, paths: Iterable[Path]) -> set[str]:
    """What the functions of both projects return in one process, imported in either order."""
    site = site_packages(folder / "site", *(path for path in paths if "cp312" not in path.name))
    loads = "; ".join(
        f"{name} = ctypes.CDLL(os.path.join({str(site)!r}, {name!r}, '_user.so'))" for name in ("{0}", "{1}")
    )
    shows = "print(pa.answer(), pb.answer())"
    return {
        program_output(site, f"import ctypes, os; {loads.format(*order)}; {shows}") for order in permutations(ANSWERS)
    }


@pytest.mark.parametrize("place", ["{0}.libs", "{0}/inner"])
@pytest.mark.parametrize("pythons", [(11,), (11, 12)], ids=["they stay", "they move"])
def test_each_project_loads_its_own(tmp_path: Path, pythons: tuple[int, ...], place: str) -> None:
    wheels = [
        path
        for name, number in ANSWERS.items()
        for path in project(tmp_path, name, number, pythons=pythons, place=place)
    ]
    result = done(tmp_path, wheels)
    assert answers(tmp_path, result.paths) == {"111 222"}
    own_names = renamed(result).values()
    assert len({*own_names}) == len(ANSWERS)
    for path in result.paths:
        assert not [finding for finding in verify(path, jobs=1).findings if finding.is_error]
        for member, data in contents(path).items():
            if data.startswith(b"\x7fELF"):
                (tmp_path / "x.so").write_bytes(data)
                read = subprocess.run(
                    ["readelf", "-dVW", tmp_path / "x.so"], check=True, capture_output=True, text=True
                ).stdout
                needed = [line for line in read.splitlines() if "NEEDED" in line or "SONAME" in line or "File:" in line]
                assert any(str(name) in line for line in needed for name in own_names), member
                assert not any(f"[{SONAME}]" in line or f"File: {SONAME} " in line for line in needed)
    again = split(
        [*result.paths], tmp_path / "again", request=SplitRequest(smallest=0), indexes=lambda: Indexes(no_index=True)
    )
    assert all(one.is_untouched for one in again.wheels)


def test_what_code_asks_for_by_its_name_keeps_it(tmp_path: Path) -> None:
    asks = f"library = ctypes.CDLL('{SONAME}')\n"
    result = done(
        tmp_path,
        [*project(tmp_path, "pa", 111, pythons=(11, 12), code=asks), *project(tmp_path, "pb", 222, pythons=(11, 12))],
    )
    assert renamed(result).keys() == {f"pb.libs/{SONAME}"}


def test_one_project_and_equal_libraries_keep_their_names(tmp_path: Path) -> None:
    alike = [path for name in ANSWERS for path in project(tmp_path, name, 111, pythons=(11,))]
    two_versions = [
        *project(tmp_path / "a", "pa", 111, pythons=(11,)),
        *project(tmp_path / "b", "pa", 222, pythons=(12,)),
    ]
    for wheels in (alike, two_versions):
        result = split(wheels, None, request=SplitRequest(share=False), indexes=lambda: Indexes(no_index=True))
        assert not renamed(result)


def private(folder: Path, wheels: list[Path], *keep: str) -> Split:
    request = SplitRequest(private=True, keep=keep)
    return split(wheels, folder / "private", request=request, indexes=lambda: Indexes(no_index=True))


OPENS = f"""
import os
opened = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "inner", "{SONAME}")).clash()
"""


@pytest.mark.parametrize(("place", "code"), [("{0}.libs", ""), ("{0}/inner", OPENS)], ids=["needed", "opened as well"])
def test_private_names_part_wheels_that_are_split_apart(tmp_path: Path, place: str, code: str) -> None:
    given = [project(tmp_path, *pair, pythons=(11,), place=place, code=code) for pair in ANSWERS.items()]
    assert answers(tmp_path / "before", [path for wheels in given for path in wheels]) == {"111 111", "222 222"}
    results = [private(tmp_path / str(number), wheels) for number, wheels in enumerate(given)]
    assert answers(tmp_path, [path for result in results for path in result.paths]) == {"111 222"}
    if code:
        opened = program_output(tmp_path / "site", "import pa, pb; print(pa.opened, pb.opened)")
        assert opened == "111 222"
    for result in results:
        assert not result.companions
        assert [move.name for move in result.libraries if move.kind == "rename"] == [SONAME]
        again = private(tmp_path / "again" / result.paths[0].name, [*result.paths])
        assert all(one.is_untouched for one in again.wheels)


def test_the_names_of_equal_libraries_differ_if_those_that_they_load_do(tmp_path: Path) -> None:
    names = set()
    for name, number in ANSWERS.items():
        files = {
            f"{name}/_c.so": module("libtop.so.1", runpath=f"$ORIGIN/../{name}.libs"),
            f"{name}.libs/libtop.so.1": library("libtop.so.1", (SONAME,), runpath="$ORIGIN"),
            f"{name}.libs/{SONAME}": library(SONAME, source=f"int clash(void) {{ return {number}; }}"),
        }
        names |= {
            *renamed(private(tmp_path, [wheel(tmp_path, f"{name}-1.0-cp311-cp311-linux_x86_64.whl", files)])).values()
        }
    assert len(names) == 2 * len(ANSWERS)


def test_what_found_a_library_that_others_had_loaded_finds_its_own(tmp_path: Path) -> None:
    more: dict[str, bytes | str] = {"pa/plugin.so": library(None, (SONAME,)), "pa/x.h": ""}
    result = private(tmp_path, project(tmp_path, "pa", 111, pythons=(11,), more=more))
    plugin = site_packages(tmp_path / "site", *result.paths) / "pa/plugin.so"
    assert program_output(tmp_path / "site", f"import ctypes; print(ctypes.CDLL({str(plugin)!r}).clash())") == "111"


@pytest.mark.parametrize(
    ("files", "obstacle"),
    [
        ({"pa/open.py": "pattern = 'libclash.so.*'"}, "pa/open.py names it, and may open it by its path"),
        (
            {"pa/_opens.so": library(None, source=f'const char *name = "{SONAME}";')},
            "pa/_opens.so names it, and may open it by its path",
        ),
        (
            {"pa/_user.so": library(None, (SONAME,), source=f'const char *n = "{SONAME}";', runpath="$ORIGIN/inner")},
            "pa/_user.so names it, and may open it by its name",
        ),
        (
            {"pa/_user.so": library(None, (SONAME,), runpath="$ORIGIN/inner")},
            "the wheel has no module, program or code that opens a library, so other wheels may need it by its name",
        ),
        (
            {"pa/x.h": "", "pa/inner/libclash.so": library(SONAME)},
            "others may link with it, because the wheel has headers (pa/x.h)",
        ),
    ],
    ids=["a pattern", "in compiled code", "in what needs it", "for other wheels", "by linkers"],
)
def test_a_private_name_is_refused_to_what_may_be_opened_by_the_old_one(
    tmp_path: Path, files: dict[str, bytes | str], obstacle: str
) -> None:
    wheels = project(tmp_path, "pa", 111, pythons=(11,), place="{0}/inner", more=files)
    with pytest.raises(RepackageError) as refusal:
        private(tmp_path, wheels)
    assert str(refusal.value) == (
        f"{wheels[0].name}: pa/inner/{SONAME}: cannot get a name of its own: {obstacle}; --keep {SONAME} leaves it the "
        "one that it has"
    )
    assert not [*(tmp_path / "private").glob("*")]
    assert all(one.is_untouched for one in private(tmp_path, wheels, SONAME).wheels)


def test_one_line_says_how_many_libraries_cannot_get_a_private_name(tmp_path: Path) -> None:
    more: dict[str, bytes | str] = {
        "pa/open.py": "pattern = 'libcl*.so.*'",
        "pa/_c.so": module("libclose.so.1", "libclear.so.1", runpath="$ORIGIN/inner"),
        **{f"pa/inner/{name}": library(name) for name in ("libclose.so.1", "libclear.so.1")},
    }
    wheels = project(tmp_path, "pa", 111, pythons=(11,), place="{0}/inner", more=more)
    with pytest.raises(RepackageError, match=r"--keep libclash\.so\.2 leaves it .* \(2 more libraries like it\)$"):
        private(tmp_path, wheels)


def test_what_has_a_name_of_its_own_or_needs_none_keeps_it(tmp_path: Path) -> None:
    needs = ("libgraft-1a2b3c4d.so.1", "libcufft.so.11")
    files = {f"pa.libs/{name}": library(name, source="int there;") for name in (*needs, "libidle.so.1")}
    user = {"pa/_c.so": module(*needs, runpath="$ORIGIN/../pa.libs")}
    result = private(tmp_path, [wheel(tmp_path, "pa-1.0-cp311-cp311-linux_x86_64.whl", {**files, **user})])
    assert {move.name: move.reason for move in result.libraries if move.path.startswith("pa.libs")} == {
        "libgraft-1a2b3c4d.so.1": "its name has a hash already",
        "libcufft.so.11": "newer libraries of its name serve those that need older ones",
        "libidle.so.1": "nothing in the wheel needs it",
    }
