"""Two projects that bundle different libraries of one SONAME, which a process would take for each other."""

import subprocess
from itertools import permutations
from pathlib import Path

import pytest

from tests.factories.extensions import library
from tests.factories.site_packages import program_output, site_packages
from tests.factories.tools import needs
from tests.factories.wheels import contents, wheel
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
    **more: str,
) -> list[Path]:
    source = f"int clash(void) {{ return {number}; }}"
    # the module asks for a version of the symbol, so its library is named in .gnu.version_r as well
    user = library(
        None,
        (SONAME,),
        source="int clash(void); int answer(void) { return clash(); }",
        runpath=f"$ORIGIN/../{place.format(name)}",
        stubs="int clash(void) { return 0; }",
        stub_script=SCRIPT,
    )
    files: dict[str, bytes | str] = {
        f"{name}/__init__.py": f"import ctypes\n{code}",
        f"{name}/_user.so": user,
        f"{place.format(name)}/{SONAME}": library(SONAME, source=source, script=SCRIPT),
        **more,
    }
    names = (f"{name}-1.0-cp3{python}-cp3{python}-manylinux_2_17_x86_64.whl" for python in pythons)
    return [
        wheel(folder, file, {**files, f"{name}/tag.txt": file}, modes={f"{name}/_user.so": 0o755}) for file in names
    ]


def done(folder: Path, wheels: list[Path]) -> Split:
    return split(wheels, folder / "thin", request=SplitRequest(smallest=0), indexes=lambda: Indexes(no_index=True))


def renamed(result: Split) -> dict[str, str]:
    return {move.path: move.own_name for move in result.libraries if move.own_name}


def answers(folder: Path, result: Split) -> set[str]:
    """What the functions of both projects return in one process, imported in either order."""
    site = site_packages(folder / "site", *(path for path in result.paths if "cp312" not in path.name))
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
    assert answers(tmp_path, result) == {"111 222"}
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
