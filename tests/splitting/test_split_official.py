"""`vbuild split` and official packages: what is theirs, byte for byte, becomes a requirement; all else stays."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.factories.cuda_packages import (
    LINKER,
    VERSION,
    all_packages,
    calling_libcufft,
    libcufft,
    libnvjitlink,
    serving_packages,
)
from tests.factories.elf import judged_by
from tests.factories.official_wheels import FFT
from tests.factories.ranges import Serving
from tests.factories.repaired_wheels import NAME, hashed, release
from tests.factories.site_packages import loader_complaints, program_output, site_packages
from tests.factories.tools import needs
from tests.factories.wheels import contents
from vbuild.elf.read import Loading
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import LibraryMove, Split
from vbuild.splitting.split import split

pytestmark = needs("gcc", "ldd")

FILES: dict[str, bytes | str] = {"demo/__init__.py": "from demo import _c\n", "demo/_c.so": calling_libcufft()}
LIBRARIES = {"libcufft.so.11": libcufft(), "libnvJitLink.so.12": libnvjitlink()}
METADATA = "demo-1.0.dist-info/METADATA"
LINUX = 'platform_system == "Linux" and platform_machine == "x86_64"'
ONLY = (NAME,)


@pytest.fixture(scope="module")
def cuda_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """An index of what `all_packages` makes."""
    folder = tmp_path_factory.mktemp("cuda_index")
    with serving_packages(folder, *all_packages(folder / "made")) as server:
        yield server


def thinned(cuda_index: Serving, folder: Path, *wheels: Path, **asked: object) -> Split:
    request = SplitRequest(smallest=0, **asked)  # type: ignore[arg-type]
    return split(wheels, folder / "thin", request=request, indexes=lambda: cuda_index.indexes)


def one(cuda_index: Serving, folder: Path, *, metadata: str = "", **asked: object) -> Split:
    """What becomes of one wheel with the two official libraries."""
    return thinned(cuda_index, folder, *release(folder, FILES, LIBRARIES, names=ONLY, metadata=metadata), **asked)


def moves(result: Split) -> dict[str, LibraryMove]:
    """What became of each library, by its name before it was bundled."""
    return {re.sub("-[0-9a-f]{8}", "", move.name): move for move in result.libraries}


def needed(data: bytes) -> tuple[str, ...]:
    return Loading.parse(data).outline.needed


def test_official_libraries_become_requirements_and_the_package_works(cuda_index: Serving, tmp_path: Path) -> None:
    result = one(cuda_index, tmp_path)
    after = contents(tmp_path / "thin" / NAME)
    assert not [path for path in after if path.startswith("demo.libs/")]
    assert {name: (move.kind, move.target, move.evidence) for name, move in moves(result).items()} == {
        "libcufft.so.11": (DecisionKind.REPLACE, f"{FFT}=={VERSION}", "sections"),
        "libnvJitLink.so.12": (DecisionKind.REPLACE, f"{LINKER}==12.4.127", "sections"),
    }
    assert f"Requires-Dist: {FFT}=={VERSION}; {LINUX}\n" in after[METADATA].decode()
    packages = all_packages(tmp_path / "made")
    installed = site_packages(tmp_path / "site", *result.paths, *packages[:2])
    assert loader_complaints(installed) == []
    assert program_output(installed, "import ctypes, demo; print(ctypes.CDLL(demo._c.__file__).answer())") == "7"


def test_the_names_of_libraries_and_of_their_versions_change_together(cuda_index: Serving, tmp_path: Path) -> None:
    one(cuda_index, tmp_path)
    after = contents(tmp_path / "thin" / NAME)["demo/_c.so"]
    loading = Loading.parse(after)
    assert "libcufft.so.11" in needed(after)
    assert {taken.library: taken.versions for taken in loading.taken}["libcufft.so.11"] == ("CUFFT_11",)
    assert "libcufft-" not in judged_by("readelf", after, "--wide", "--version-info")
    assert loading.outline.rpath == ("$ORIGIN/../nvidia/cufft/lib", "$ORIGIN/../nvidia/nvjitlink/lib")
    assert loading.outline.runpath == ()


def test_the_bill_of_materials_says_where_libraries_are_now_and_others_stay(
    cuda_index: Serving, tmp_path: Path
) -> None:
    bill = "demo-1.0.dist-info/sboms/auditwheel.cdx.json"
    thinned(cuda_index, tmp_path, *release(tmp_path, {**FILES, bill: '{"of": "auditwheel"}'}, LIBRARIES, names=ONLY))
    after = contents(tmp_path / "thin" / NAME)
    assert after[bill] == b'{"of": "auditwheel"}'
    told = json.loads(after["demo-1.0.dist-info/sboms/vbuild.cdx.json"])
    text = json.dumps(told)
    assert told["bomFormat"] == "CycloneDX"
    for part in (f"pkg:pypi/{FFT}@{VERSION}", f"pkg:pypi/{LINKER}@12.4.127", hashed("libcufft.so.11", libcufft())):
        assert part in text


def test_official_packages_are_required_in_the_version_that_was_bundled(cuda_index: Serving, tmp_path: Path) -> None:
    """All that were bundled: the wheel was tested with those, and not with what they would bring themselves."""
    lines = (f"{FFT}=={VERSION}; {LINUX}", f"{LINKER}==12.4.127; {LINUX}")
    assert one(cuda_index, tmp_path).wheels[0].requires == lines


# what METADATA requires before, the fate, and what it requires after
REQUIRED: Mapping[str, tuple[str, DecisionKind, list[str]]] = {
    "the same": (f"{FFT}=={VERSION}", DecisionKind.REPLACE, [f"{FFT}=={VERSION}"]),
    "a range that has it": (f"{FFT}>=11", DecisionKind.REPLACE, [f"{FFT}>=11", f"{FFT}=={VERSION}; {LINUX}"]),
    "another version": (f"{FFT}==11.0.8.91", DecisionKind.KEEP, [f"{FFT}==11.0.8.91"]),
    "another machine's": (
        f'{FFT}==11.0.8.91; platform_machine == "aarch64"',
        DecisionKind.REPLACE,
        [f'{FFT}==11.0.8.91; platform_machine == "aarch64"', f"{FFT}=={VERSION}; {LINUX}"],
    ),
    "what only an extra asks for": (
        f"{FFT}==11.0.8.91; extra == 'gpu'",
        DecisionKind.REPLACE,
        [f"{FFT}==11.0.8.91; extra == 'gpu'", f"{FFT}=={VERSION}; {LINUX}"],
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", REQUIRED)
def test_what_a_wheel_requires_already_is_respected(cuda_index: Serving, tmp_path: Path, what: str) -> None:
    line, kind, after = REQUIRED[what]
    move = moves(result := one(cuda_index, tmp_path, metadata=f"Requires-Dist: {line}\n"))["libcufft.so.11"]
    assert move.kind == kind
    if kind is DecisionKind.KEEP:
        conflict = f"not replaced: it is that of {FFT} {VERSION}, but METADATA requires {line}"
        assert move.reason == f"{conflict}; no other wheel has it"
    said = contents(result.paths[0])[METADATA].decode()
    lines = re.findall("^Requires-Dist: (.*)$", said, re.MULTILINE)
    assert [text for text in lines if LINKER not in text] == after


def test_a_library_that_stays_keeps_what_it_needs_reachable(cuda_index: Serving, tmp_path: Path) -> None:
    """libcufft.so.11 is of another release than METADATA wants: it stays, and what it loads is the official one."""
    result = one(cuda_index, tmp_path, metadata=f"Requires-Dist: {FFT}==11.0.8.91\n")
    assert moves(result)["libnvJitLink.so.12"].kind is DecisionKind.REPLACE
    assert any(line.startswith(f"{LINKER}==12.4.127") for line in result.wheels[0].requires)
    linkers = all_packages(tmp_path / "made")[1]
    assert loader_complaints(site_packages(tmp_path / "site", *result.paths, linkers)) == []
