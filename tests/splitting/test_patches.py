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
from vbuild.splitting.other_packages import LibraryPackage, PackageFinder
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
    homes = dict.fromkeys(decision.pools, HOME)
    orders = PatchMaker(decision, homes, finder, uneditable=still, cleans=cleans)
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


def test_a_library_that_no_wheel_brings_is_led_to_where_rpaths_are_asked_for(look: BundleReader) -> None:
    files = {"demo/_c.so": module("libtorch_cpu.so", "libnobody.so.1"), "demo/_d.so": module("libnobody.so.1")}
    found = ordered(look, files, cleans=True)
    assert found["demo/_c.so"].relink == Relink(rpath=("$ORIGIN/../torch/lib",))
    assert found["demo/_c.so"].packages == (LibraryPackage("torch", "libtorch_cpu.so", ("torch/lib",)),)
    assert found["demo/_d.so"].is_empty
    assert all(order.is_empty and not order.packages for order in ordered(look, files).values())
    both = repaired({"demo/_c.so": module("libdeep.so", "libtorch_cpu.so")}, {"libdeep.so": DEEP})
    led = ("$ORIGIN/../demo_libs/lib", "$ORIGIN/../torch/lib")
    assert ordered(look, both, cleans=True)["demo/_c.so"].relink == Relink(rpath=led)


def test_a_library_here_that_no_path_finds_is_led_to_where_rpaths_are_asked_for(look: BundleReader) -> None:
    files = {
        "demo/_c.so": module("libdeep.so"),
        "demo/_d.so": module("libdeep.so", rpath_="$ORIGIN/lib"),
        "demo/lib/libdeep.so": DEEP,
    }
    found = ordered(look, files, keep=("libdeep.so",), cleans=True)
    assert found["demo/_c.so"].relink == Relink(rpath=("$ORIGIN/lib",))
    assert found["demo/_d.so"].is_empty
    assert ordered(look, files, keep=("libdeep.so",))["demo/_c.so"].is_empty


def test_a_file_asks_by_their_names_for_libraries_that_it_asked_for_by_paths(look: BundleReader) -> None:
    ways = [f"$ORIGIN/../demo.libs/{soname}" for soname in LIBRARIES]
    files = {"demo/_c.so": module(*ways), **{f"demo.libs/{soname}": data for soname, data in LIBRARIES.items()}}
    order = ordered(look, files)["demo/_c.so"]
    assert order.relink == Relink(renamed=tuple(zip(ways, LIBRARIES, strict=True)), rpath=("$ORIGIN/../demo_libs/lib",))


def test_a_file_whose_library_leaves_a_stub_is_led_to_its_new_place_first(look: BundleReader) -> None:
    """The old folder has something to load still: the stub."""
    files: dict[str, bytes | str] = {
        "demo/__init__.py": "import os\npath = os.path.join(os.path.dirname(__file__), 'lib', 'libdeep.so')\n",
        "demo/_c.so": module("libtop.so", "libdeep.so", rpath_="$ORIGIN/lib"),
        "demo/lib/libdeep.so": DEEP,
        "demo/lib/libtop.so": library("libtop.so", ("libdeep.so",), rpath_="$ORIGIN"),
    }
    found = ordered(look, files)
    assert found["demo/_c.so"].relink.rpath == ("$ORIGIN/../demo_libs/lib", "$ORIGIN/lib")
    assert [*found] == ["demo/_c.so", f"{HOME}/libdeep.so", f"{HOME}/libtop.so"]
    assert found[f"{HOME}/libtop.so"].is_empty


def test_a_library_that_moves_leads_to_what_it_opens_and_to_where_its_entries_led(look: BundleReader) -> None:
    opens = '#include <dlfcn.h>\nvoid *open_it(void) { return dlopen("libplug.so.3", RTLD_NOW); }'
    files = {
        "demo/_c.so": module("libtop.so", "libplug.so.3", rpath_="$ORIGIN/lib"),
        "demo/lib/libtop.so": library("libtop.so", source=opens, rpath_="$ORIGIN/../../other/lib"),
        "demo/lib/libplug.so.3": library("libplug.so.3"),
    }
    found = ordered(look, files)
    assert found[f"{HOME}/libtop.so"].relink == Relink(rpath=("$ORIGIN/../../other/lib", "$ORIGIN"))
    assert found[f"{HOME}/libplug.so.3"].is_empty
    only = ordered(
        look, {**files, "demo/lib/libtop.so": library("libtop.so", rpath_="$ORIGIN/../../other/lib:/opt:/opt")}
    )
    assert only[f"{HOME}/libtop.so"].is_empty
    apart = ordered(look, {**files, "demo/lib/libtop.so": library("libtop.so", rpath_="$ORIGIN/../other/lib")})
    assert apart[f"{HOME}/libtop.so"].relink == Relink(rpath=("$ORIGIN/../../demo/other/lib",))


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
