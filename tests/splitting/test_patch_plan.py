"""The patches of all wheels, made before a byte is written: what is in each file then, and what is refused."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.factories.bundle_reader import BundleReader
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import NAME, repaired
from tests.factories.tools import needs
from vbuild.errors import VbuildError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.official import Officials
from vbuild.splitting.other_packages import PackageFinder
from vbuild.splitting.patches import Patcher, PatchPlan, plan_patches
from vbuild.splitting.request import SplitRequest

pytestmark = needs("gcc")

OTHER = NAME.replace("311", "312")
TOP, DEEP = library("libtop.so", ("libdeep.so",)), library("libdeep.so")
LIBRARIES = {"libtop.so": TOP, "libdeep.so": DEEP}


@pytest.fixture
def look(tmp_path: Path) -> Iterator[BundleReader]:
    with ExitStack() as stack:
        yield BundleReader(tmp_path, stack)


def two(look: BundleReader, files: Mapping[str, bytes | str]) -> list[Bundle]:
    return [look.at(files, name) for name in (NAME, OTHER)]


def planned(
    look: BundleReader,
    bundles: Sequence[Bundle],
    *,
    room: Path | None = None,
    libs: str | None = None,
    edits: int = 9,
) -> PatchPlan:
    request = SplitRequest(smallest=0, libs=libs)
    packages = PackageFinder(Officials("x86_64", indexes=lambda: Indexes(no_index=True)), request)
    return plan_patches(bundles, request, packages=packages, patcher=Patcher(look.stack, room, _left=edits))


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("", "demo/_c.so: cannot be written to be relinked"),
        ("const char table[2000000] = {1};", "cannot be unpacked"),
    ],
    ids=["small", "large"],
)
def test_a_file_for_which_there_is_no_room_is_named(look: BundleReader, tmp_path: Path, source: str, what: str) -> None:
    bundles = two(look, repaired({"demo/_c.so": module("libtop.so", source=source)}, LIBRARIES))
    with pytest.raises(VbuildError) as error:
        planned(look, bundles, room=tmp_path / "nowhere")
    assert str(error.value) == f"{NAME}: {what}: No such file or directory"
