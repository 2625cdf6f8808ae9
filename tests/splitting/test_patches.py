"""The edits that follow from fates: new folders for what went, and nothing for a file that loads none of it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.factories.bundle_reader import BundleReader
from tests.factories.elf import patchelfed
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import NAME, hashed, repaired
from tests.factories.tools import needs
from vbuild.elf.surgery.relink import Relink
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.decisions import decide
from vbuild.splitting.official import OfficialEvidence, OfficialLibrary, Officials, OfficialWheel, Provenance
from vbuild.splitting.other_packages import PackageFinder
from vbuild.splitting.patches import FilePatch, PatchMaker
from vbuild.splitting.request import SplitRequest

pytestmark = needs("gcc")

OTHER = NAME.replace("311", "312")
TOP, DEEP = library("libtop.so", ("libdeep.so",)), library("libdeep.so")
LIBRARIES = {"libtop.so": TOP, "libdeep.so": DEEP}
HOME = "demo_libs/lib"
REQUEST = SplitRequest(smallest=0)


@pytest.fixture
def look(tmp_path: Path) -> Iterator[BundleReader]:
    with ExitStack() as stack:
        yield BundleReader(tmp_path, stack)


def official(project: str, soname: str) -> Provenance:
    """The proof that a library is the one of *project*, an official wheel, called *soname* there."""
    found = OfficialLibrary(f"nvidia/{project}/lib/{soname}", "", 1)
    return Provenance(OfficialWheel(project, "1.0", "x.whl", (found,), ()), found, OfficialEvidence.IDENTICAL, 0)


def ordered(
    look: BundleReader,
    files: Mapping[str, bytes | str],
    *,
    keep: tuple[str, ...] = (),
    uneditable: tuple[str, ...] = (),
) -> dict[str, FilePatch]:
    """The orders for the first of two wheels with *files*, and for what both share, by new path."""
    bundles = [look.at(files, name) for name in (NAME, OTHER)]
    request = SplitRequest(smallest=0, keep=keep)
    decision = decide(bundles, request)
    officials = Officials("x86_64", indexes=lambda: Indexes(no_index=True))
    still: list[tuple[Bundle, str]] = [(bundle, path) for bundle in bundles for path in uneditable]
    orders = PatchMaker(
        decision, dict.fromkeys(decision.pools, HOME), PackageFinder(officials, request), uneditable=still
    )
    for_pool = [order for pool in decision.pools for order in orders.for_pool(pool)]
    return {order.path: order for order in (*orders.for_bundle(bundles[0]), *for_pool)}


def test_a_file_that_loads_what_moves_is_led_there(look: BundleReader) -> None:
    files = {"demo/sub/_c.so": module("libtop.so"), "demo/_d.so": module("libm.so.6")}
    found = ordered(look, repaired(files, LIBRARIES))
    assert found["demo/sub/_c.so"].relink == Relink(rpath=("$ORIGIN/../../demo_libs/lib",))
    assert found["demo/_d.so"].is_empty
    assert found[f"{HOME}/{hashed('libtop.so', TOP)}"].is_empty


def test_a_library_that_moves_finds_its_neighbours_by_itself_where_it_has_a_runpath(look: BundleReader) -> None:
    files = repaired({"demo/_c.so": module("libtop.so")}, LIBRARIES)
    path = f"demo.libs/{hashed('libtop.so', TOP)}"
    data = files[path]
    assert isinstance(data, bytes)
    files[path] = patchelfed(data, "--set-rpath", "$ORIGIN/../demo.libs:/opt/lib")
    order = ordered(look, files)[f"{HOME}/{hashed('libtop.so', TOP)}"]
    assert order.relink == Relink(rpath=("$ORIGIN", "/opt/lib"))


def test_a_folder_that_still_has_libraries_stays_in_the_rpath(look: BundleReader) -> None:
    free = library("libfree.so")
    files = repaired({"demo/_c.so": module("libtop.so", "libfree.so")}, {**LIBRARIES, "libfree.so": free})
    relink = ordered(look, files, keep=("libfree*",))["demo/_c.so"].relink
    assert relink.rpath == ("$ORIGIN/../demo.libs", "$ORIGIN/../demo_libs/lib")


def test_a_library_that_stays_and_needs_one_that_moves_is_led_there(look: BundleReader) -> None:
    files = repaired({"demo/_c.so": module("libtop.so")}, LIBRARIES)
    found = ordered(look, files, keep=("libtop*",))
    path = f"demo.libs/{hashed('libtop.so', TOP)}"
    assert found[path].relink.rpath == ("$ORIGIN/../demo_libs/lib",)
    assert found["demo/_c.so"].is_empty


def test_a_frozen_file_gets_no_order(look: BundleReader) -> None:
    files = repaired({"demo/_c.so": module("libtop.so")}, LIBRARIES)
    assert ordered(look, files, uneditable=("demo/_c.so",))["demo/_c.so"].is_empty


def test_a_file_is_led_to_the_official_library_and_to_those_that_this_one_loads(look: BundleReader) -> None:
    """Each by its official name; they need one another, and the second the first."""
    libraries = {
        "liba.so.1": library("liba.so.1", ("libb.so.2",)),
        "libb.so.2": library("libb.so.2", ("liba.so.1", "libd.so.3")),
        "libd.so.3": library("libd.so.3"),
    }
    files = repaired({"demo/_c.so": module("liba.so.1"), "demo/_d.so": module("libd.so.3")}, libraries)
    names = {soname: hashed(soname, data) for soname, data in libraries.items()}
    look.origins = {name: official(soname[3], soname) for soname, name in names.items()}
    found = ordered(look, files)
    first = found["demo/_c.so"]
    assert first.relink == Relink(
        renamed=((names["liba.so.1"], "liba.so.1"),),
        rpath=tuple(f"$ORIGIN/../nvidia/{project}/lib" for project in "abd"),
    )
    assert [wheel.project for wheel in first.official] == ["a", "b", "d"]
    assert first.packages == ()
    second = found["demo/_d.so"]
    assert second.relink == Relink(renamed=((names["libd.so.3"], "libd.so.3"),), rpath=("$ORIGIN/../nvidia/d/lib",))
    assert [wheel.project for wheel in second.official] == ["d"]
