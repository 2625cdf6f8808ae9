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
    cleans: bool = False,
) -> dict[str, FilePatch]:
    """The orders for the first of two wheels with *files*, and for what both share, by new path."""
    bundles = [look.at(files, name) for name in (NAME, OTHER)]
    request = SplitRequest(smallest=0, keep=keep)
    decision = decide(bundles, request)
    officials = Officials("x86_64", indexes=lambda: Indexes(no_index=True))
    still: list[tuple[Bundle, str]] = [(bundle, path) for bundle in bundles for path in uneditable]
    finder = PackageFinder(officials, request)
    orders = PatchMaker(decision, finder, uneditable=still, cleans=cleans)
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


def test_a_file_asks_by_their_names_for_libraries_that_it_asked_for_by_paths(look: BundleReader) -> None:
    ways = [f"$ORIGIN/../demo.libs/{soname}" for soname in LIBRARIES]
    files = {"demo/_c.so": module(*ways), **{f"demo.libs/{soname}": data for soname, data in LIBRARIES.items()}}
    order = ordered(look, files)["demo/_c.so"]
    assert order.relink == Relink(renamed=tuple(zip(ways, LIBRARIES, strict=True)), rpath=("$ORIGIN/../demo_libs/lib",))


def test_an_entry_that_leads_to_where_the_official_library_will_be_stays_where_it_is(look: BundleReader) -> None:
    name = "liba.so.1"
    look.origins = {name: official("a", name)}
    files = {
        "demo/_c.so": module(name, "libdeep.so", rpath_="$ORIGIN/../nvidia/a/lib:$ORIGIN/lib"),
        f"nvidia/a/lib/{name}": library(name),
        "demo/lib/libdeep.so": DEEP,
    }
    order = ordered(look, files, keep=("libdeep.so",))["demo/_c.so"]
    assert order.relink == Relink()
    assert [wheel.project for wheel in order.official] == ["a"]
