"""Wheels, indexes and requests that `vbuild split` cannot work with: one clear line, or a library left as it was.

Never a traceback, and nothing half-written: whatever is refused leaves the folder empty.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.cuda_packages import calling_libcufft, libcufft, libnvjitlink
from tests.factories.damage import poked
from tests.factories.elf import object_file, patchelfed
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import NAME, hashed, release, repaired
from tests.factories.tools import needs
from tests.factories.wheels import contents, wheel
from vbuild.errors import VbuildError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split

pytestmark = needs("gcc", "ldd")

OTHER = NAME.replace("311", "312")
ALONE = Indexes(no_index=True)


COUNT = library("libcount.so.1", source="int count(void) { return 42; }")
BUNDLED = f"demo.libs/{hashed('libcount.so.1', COUNT)}"
FILES: dict[str, bytes | str] = {
    "demo/__init__.py": "from demo import _c\n",
    "demo/_c.so": module("libcount.so.1", source="int count(void); int answer(void) { return count(); }"),
}
CUDA = {"libcufft.so.11": libcufft(), "libnvJitLink.so.12": libnvjitlink()}
CUDA_FILES: dict[str, bytes | str] = {"demo/_c.so": calling_libcufft()}


def thinned(folder: Path, *wheels: Path, indexes: Indexes = ALONE, **asked: object) -> Split:
    request = SplitRequest(**{"smallest": 0, **asked})  # type: ignore[arg-type]
    return split(wheels, folder / "thin", request=request, indexes=lambda: indexes)


def refused(folder: Path, *wheels: Path, indexes: Indexes = ALONE, **asked: object) -> str:
    """What is said where *wheels* are refused; nothing is written then."""
    with pytest.raises(VbuildError) as error:
        thinned(folder, *wheels, indexes=indexes, **asked)
    assert not list(folder.glob("thin/*"))
    return str(error.value)


def test_a_bundled_library_of_the_driver_is_an_error_with_the_fix(tmp_path: Path) -> None:
    name = "libcuda.so.1"
    driver = library(name)
    fat = release(tmp_path, {"demo/_c.so": module(name)}, {name: driver}, names=(NAME,))
    assert refused(tmp_path, *fat) == (
        f"{NAME}: demo.libs/{hashed(name, driver)}: bundles {name}, which has to be that of the machine's own driver; "
        f"leave it out with `auditwheel repair --exclude {name}`"
    )


SOUND = patchelfed(COUNT, "--set-soname", hashed("libcount.so.1", COUNT))
DAMAGED: Mapping[str, tuple[bytes, str]] = {
    "half of it": (
        SOUND[: len(SOUND) // 2],
        "section header table at 0x4000, 0x680 bytes long, runs past the end, 0x23fc",
    ),
    "a file header": (SOUND[:64], "program header table at 0x40, 0x230 bytes long, runs past the end, 0x40"),
    "32-bit by its header alone": (poked(SOUND, 4, 1, size=1), "section headers of 0x0 bytes each, expected 0x28"),
    "program headers at the end of time": (
        poked(SOUND, 0x20, (1 << 63) - 1),
        "program header table at 0x7fffffffffffffff, 0x230 bytes long, runs past the end, 0x47f9",
    ),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_library_stays_and_is_named(tmp_path: Path, what: str) -> None:
    damaged, why = DAMAGED[what]
    files = {**repaired(FILES, {"libcount.so.1": COUNT}), "demo.libs/damaged.so": damaged}
    fat = [wheel(tmp_path, name, files) for name in (NAME, OTHER)]
    result = thinned(tmp_path, *fat)
    for account in result.wheels:
        (warning,) = account.warnings
        assert warning == f"demo.libs/damaged.so: cannot be read: {why}"
    # all else is done as if it were not there
    assert [(move.path, move.kind) for move in result.libraries] == [(BUNDLED, DecisionKind.SHARE)]
    assert contents(tmp_path / "thin" / NAME)["demo.libs/damaged.so"] == damaged


def test_a_consumer_that_is_damaged_keeps_nothing_but_is_named(tmp_path: Path) -> None:
    """What cannot be read cannot say what it needs, nor be led anywhere: no loader takes it either."""
    files = repaired(FILES, {"libcount.so.1": COUNT})
    module_ = files["demo/_c.so"]
    assert isinstance(module_, bytes)
    cut = {**files, "demo/_d.so": module_[:3000]}
    result = thinned(tmp_path, *(wheel(tmp_path, name, cut) for name in (NAME, OTHER)))
    assert [warning.partition(":")[0] for warning in result.wheels[0].warnings] == ["demo/_d.so"]


def test_an_object_file_and_an_empty_one_pass(tmp_path: Path) -> None:
    files = {**repaired(FILES, {"libcount.so.1": COUNT}), "demo/a.o": object_file("int x;"), "demo/b.so": b""}
    result = thinned(tmp_path, *(wheel(tmp_path, name, files) for name in (NAME, OTHER)))
    after = contents(tmp_path / "thin" / NAME)
    assert (after["demo/a.o"], after["demo/b.so"]) == (files["demo/a.o"], b"")
    assert result.companions


def test_a_name_that_no_path_can_have_stays_as_it_is(tmp_path: Path) -> None:
    """NEEDED of a path, and of nothing: neither leads into the wheel."""
    odd = patchelfed(module("libcount.so.1"), "--add-needed", "/opt/lib/libx.so.1", "--add-needed", "")
    files = repaired({**FILES, "demo/_c.so": odd}, {"libcount.so.1": COUNT})
    result = thinned(tmp_path, *(wheel(tmp_path, name, files) for name in (NAME, OTHER)))
    assert {move.kind for move in result.libraries} <= {DecisionKind.SHARE, DecisionKind.KEEP}


def test_where_there_is_no_index_that_is_said(tmp_path: Path) -> None:
    fat = release(tmp_path, CUDA_FILES, CUDA, names=(NAME,))
    said = refused(tmp_path, *fat)
    assert said.startswith(
        f"{NAME}: has libraries with names of official ones, and no index says if they are: demo.libs/"
    )
    assert said.endswith(
        ": pip is configured with no-index and without find-links: there is nowhere to look; "
        "--no-replace leaves them where they are"
    )


def test_a_library_that_no_index_has_stays_and_it_is_said_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    links = Indexes(no_index=True, find_links=((tmp_path / "empty").as_uri(),))
    result = thinned(tmp_path, *release(tmp_path, CUDA_FILES, CUDA, names=(NAME,)), indexes=links)
    assert {move.kind for move in result.libraries} == {DecisionKind.KEEP}
    assert all("no release of nvidia-" in move.reason for move in result.libraries)
