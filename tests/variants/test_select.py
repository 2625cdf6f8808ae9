import re
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.ranges import serving
from tests.factories.sources import served
from tests.factories.variants import (
    document,
    machine,
    metadata,
    tiny_wheel,
    variant,
    variant_wheel,
)
from vbuild.errors import FetchError, VariantError, VbuildError, WheelError
from vbuild.hardware.machine import Machine
from vbuild.variants.index import index
from vbuild.variants.model import VariantProvider
from vbuild.variants.select import machine_at, save_machine, select

V4 = document(variant("x86_64_v4", "x86_64 :: level :: v4"))


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder with a release of demo: plain, v3 and v4 wheels, indexed."""
    tiny_wheel(tmp_path, "demo-1.0-py3-none-any.whl")
    variant_wheel(tmp_path, "demo-1.0-py3-none-any-x86_64_v3.whl")
    variant_wheel(tmp_path, "demo-1.0-py3-none-any-x86_64_v4.whl", V4)
    index(tmp_path)
    return tmp_path


def test_a_machine_that_cannot_be_read_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "machine.toml").write_text("nothing")
    with pytest.raises(VbuildError, match=f"{re.escape(str(tmp_path / 'machine.toml'))}: .*Expected '='"):
        machine_at(tmp_path / "machine.toml")


def test_variants_do_not_count_without_their_index(release: Path) -> None:
    (release / "demo-1.0-variants.json").unlink()
    selection = select("demo", [release], machine=machine())
    assert selection.name.variant is None
    assert selection.ranking[-1].why == "no demo-1.0-variants.json alongside it, so variants do not count"


@pytest.mark.parametrize(
    ("python", "wanted", "fits"),
    [
        ("3.11.7", ">=3.11", True),
        ("3.11.7", ">=3.12", False),
        ("3.15.0rc1", ">=3.14", True),
        ("3.11.7", "what installers pass over", True),
    ],
)
def test_the_python_that_a_wheel_wants_has_to_be_the_machines(
    tmp_path: Path, python: str, wanted: str, *, fits: bool
) -> None:
    tiny_wheel(tmp_path, "demo-2.0-py3-none-any.whl", requires_python=wanted)
    tiny_wheel(tmp_path, "demo-2.0-cp27-none-any.whl")
    tiny_wheel(tmp_path, "demo-1.0-py3-none-any.whl")
    first, second, *_ = select("demo", [tmp_path], machine=machine(python=python)).data()["ranking"]
    why = (
        "no variant: after every variant that fits"
        if fits
        else f"Requires-Python is {wanted}, the machine has {python}"
    )
    assert (first["fits"], first["why"]) == (fits, why)
    assert (second["fits"], second["why"]) == (
        False,
        f"cp27-none is not a tag of this machine, which has Python {python}",
    )


def with_metadata(folder: Path, metadata: bytes | None) -> None:
    with zipfile.ZipFile(folder / "demo-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("demo-1.0.dist-info/WHEEL", "")
        if metadata is not None:
            archive.writestr("demo-1.0.dist-info/METADATA", metadata)


@pytest.mark.parametrize(
    "metadata",
    [b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nAuthor: \xff\n", None],
    ids=["no UTF-8", "no METADATA"],
)
def test_a_wheel_whose_metadata_say_nothing_of_python_fits(tmp_path: Path, metadata: bytes | None) -> None:
    with_metadata(tmp_path, metadata)
    assert select("demo", [tmp_path], machine=machine()).ranking[0].fits


def test_metadata_that_cannot_be_read_are_refused_with_the_name_of_their_wheel(tmp_path: Path) -> None:
    with_metadata(tmp_path, b"Name: demo\n")
    with pytest.raises(WheelError, match=r"^demo-1\.0-py3-none-any\.whl: no Metadata-Version$"):
        select("demo", [tmp_path], machine=machine())


def test_the_python_that_a_page_says_counts(tmp_path: Path) -> None:
    tiny_wheel(tmp_path, "demo-1.0-py3-none-any.whl")
    link = '<a data-requires-python="&gt;=3.99" href="demo-1.0-py3-none-any.whl">demo-1.0-py3-none-any.whl</a>'
    (tmp_path / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")
    with served(tmp_path) as url, pytest.raises(VariantError, match=r"Requires-Python is >=3\.99"):
        select("demo", [f"{url}/"], machine=machine())


TOASTER = document(
    variant("k1", "toaster :: arch :: k1"),
    metadata=metadata("toaster", toaster=VariantProvider(requires=("toasters",))),
)


def test_what_a_machines_file_says_of_a_namespace_that_vbuild_does_not_know_counts(tmp_path: Path) -> None:
    variant_wheel(tmp_path, "demo-1.0-py3-none-any-k1.whl", TOASTER)
    tiny_wheel(tmp_path, "demo-1.0-py3-none-any.whl")
    index(tmp_path)
    unknown = select("demo", [tmp_path], machine=machine())
    assert (unknown.name.variant, unknown.ranking[-1].why) == (
        None,
        (
            "toaster :: arch :: k1 is not supported: vbuild does not know what a machine has of toaster, and does not "
            "run its provider, toasters; if the machine has it, add [supported.toaster] with arch = ['k1'] to the file "
            "of --machine"
        ),
    )
    save_machine(machine(), tmp_path / "machine.toml")
    with (tmp_path / "machine.toml").open("a") as file:
        file.write("[supported.toaster]\narch = ['k2', 'k1']\n")
    described = machine_at(tmp_path / "machine.toml")
    assert select("demo", [tmp_path], machine=described).name.variant == "k1"
    out = select("demo", [tmp_path], machine=replace(described, without=("toaster",)))
    assert (out.name.variant, out.ranking[-1].why) == (
        None,
        "toaster :: arch :: k1 is not supported: left out, as asked",
    )


def test_a_namespace_of_the_policy_that_no_release_has_is_refused(tmp_path: Path) -> None:
    variant_wheel(tmp_path, "demo-1.0-py3-none-any-k1.whl", TOASTER)
    index(tmp_path)
    with pytest.raises(VariantError, match=r"no namespace 'x'; the releases looked at and vbuild have .*toaster"):
        select("demo", [tmp_path], machine=replace(machine(), without=("x",)))


def test_where_no_wheel_is_every_place_is_named(tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    with pytest.raises(VariantError, match=f"^demo: no wheel of it in {places[0]}, {places[1]}$"):
        select("demo", places, machine=machine())


def test_what_has_no_name_of_a_wheel_is_passed_over(release: Path) -> None:
    (release / "demo-0.whl").write_bytes(b"")
    assert select("demo", [release], machine=machine()).name.variant == "x86_64_v3"


def test_of_one_variant_the_better_tag_counts_then_the_higher_build_then_fewer_tags(tmp_path: Path) -> None:
    expected = [
        f"demo-1.0-{rest}.whl"
        for rest in (
            "10-cp311-cp311-linux_x86_64",
            "9-cp311-cp311-linux_x86_64",
            "cp311-cp311-linux_x86_64",
            "11-py311-none-any",
            "py3-none-any",
            "py2.py3-none-any",
        )
    ]
    for name in expected:
        tiny_wheel(tmp_path, name)
    found = select("demo", [tmp_path], machine=machine())
    assert [one.shown for one in found.ranking] == expected


@pytest.mark.parametrize("place", ["/simple", "/simple/demo/", "/dist/"])
def test_of_wheels_on_a_server_only_what_says_which_fits_is_transferred(
    release: Path, tmp_path: Path, place: str
) -> None:
    """A simple index, the page of a project, and a list of files as web servers make them."""
    index(release, simple=tmp_path / "served" / "simple")
    (tmp_path / "served" / "dist").symlink_to(release)
    with serving(tmp_path / "served") as server:
        selection = select("demo", [f"{server.url}{place}"], machine=machine())
    assert selection.name.variant == "x86_64_v3"
    assert selection.url.endswith(f"/{selection.wheel.name}")
    assert selection.data()["url"] == selection.url
    asked = [path.rpartition("/")[2] for path, headers in server.asked if "Range" not in headers]
    assert not [name for name in asked if name.endswith(".whl")]


def test_a_server_that_sends_no_parts_sends_the_whole_wheel(release: Path) -> None:
    with served(release) as url:
        assert select("demo", [url], machine=machine()).name.variant == "x86_64_v3"


def test_who_installs_may_leave_a_namespace_out_or_put_it_first(tmp_path: Path) -> None:
    tiny_wheel(tmp_path, "demo-1.0-py3-none-any.whl")
    both = metadata("nvidia", "x86_64", nvidia=VariantProvider.static({"gpu": ["one"]}))
    for label, text in (("gpu", "nvidia :: gpu :: one"), ("level", "x86_64 :: level :: v3")):
        variant_wheel(tmp_path, f"demo-1.0-py3-none-any-{label}.whl", document(variant(label, text), metadata=both))
    index(tmp_path)

    def chosen(on: Machine) -> str | None:
        return select("demo", [tmp_path], machine=Machine.parse(str(on))).name.variant

    here = machine()
    assert chosen(here) == "gpu"
    assert chosen(replace(here, namespace_order=("x86_64",))) == "level"
    assert chosen(replace(here, without=("nvidia",))) == "level"
    assert chosen(replace(here, without=("nvidia", "x86_64"))) is None
    with pytest.raises(VariantError, match=r"no namespace 'nvida'; .*; did you mean 'nvidia'"):
        chosen(replace(here, without=("nvida",)))


@pytest.mark.parametrize(
    ("tag", "why"),
    [
        ("cp311-abi3-manylinux_2_34_x86_64", "needs glibc 2.34, the machine has 2.28"),
        ("cp311-cp311-manylinux_2_34_x86_64.manylinux_2_31_x86_64", "needs glibc 2.31, the machine has 2.28"),
        ("cp38-cp38-manylinux_2_34_x86_64", "cp38-cp38 is not a tag of this machine, which has Python 3.11"),
        ("py3-none-win_amd64", "is for win_amd64, the machine is manylinux_2_28_x86_64"),
        ("py3-none-manylinux_2_34_aarch64", "is for manylinux_2_34_aarch64, the machine is manylinux_2_28_x86_64"),
    ],
)
def test_what_the_machine_lacks_for_a_tag_is_said_once_for_all_wheels(tmp_path: Path, tag: str, why: str) -> None:
    for version in ("1.0", "1.1", "1.2", "1.3"):
        tiny_wheel(tmp_path, f"demo-{version}-{tag}.whl")
    old = Machine.parse('python = "3.11"\nglibc = "2.28"\ncpu = "x86-64-v3"\n')
    with pytest.raises(VariantError) as refusal:
        select("demo", [tmp_path], machine=old)
    assert str(refusal.value) == f"demo: none of 4 wheels fits this machine: demo-1.3-{tag}.whl and 3 more: {why}"


def test_an_index_that_is_wrong_is_refused_with_its_path(release: Path) -> None:
    (release / "demo-1.0-variants.json").write_text("{}")
    with pytest.raises(VariantError) as refusal:
        select("demo", [release], machine=machine())
    assert str(refusal.value) == f'{release}/demo-1.0-variants.json: "$schema": missing; expected a string'


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("other", None, "other: no wheel of it in {folder}"),
        ("dmeo", None, "dmeo: no wheel of it in {folder}; did you mean 'demo'?"),
        ("demo", "3.0", "demo 3.0: no wheel of it in {folder}"),
        ("demo", "three", "no version 'three'; expected one as PEP 440 writes it"),
    ],
)
def test_what_is_not_there_is_refused(release: Path, name: str, version: str | None, message: str) -> None:
    with pytest.raises(VariantError) as refusal:
        select(name, [release], machine=machine(), version=version)
    assert str(refusal.value) == message.format(folder=release)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="nowhere: no such folder of wheels"):
        select("demo", [tmp_path / "nowhere"], machine=machine())


def test_a_folder_that_cannot_be_read_is_not_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="n: cannot be read: File name too long"):
        select("demo", [tmp_path / ("n" * 300)], machine=machine())
