import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.ranges import serving
from tests.factories.sources import served
from tests.factories.variants import V3, document, machine, metadata, tiny_wheel, variant, variant_wheel
from vbuild.errors import FetchError, VariantError
from vbuild.hardware.machine import Machine
from vbuild.variants.index import index
from vbuild.variants.metadata import VariantProvider
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


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ("x86-64-v4", "demo-1.0-py3-none-any-x86_64_v4.whl"),
        ("x86-64-v3", "demo-1.0-py3-none-any-x86_64_v3.whl"),
        ("x86-64-v2", "demo-1.0-py3-none-any.whl"),
        ("armv8.2-a", "demo-1.0-py3-none-any.whl"),
    ],
)
def test_a_machine_gets_the_best_variant_that_it_supports(release: Path, cpu: str, expected: str) -> None:
    assert select("demo", [release], machine=machine(cpu)).wheel.name == expected


@pytest.mark.parametrize("name", ["info.json", "info"])
def test_a_machine_is_described_in_toml_or_in_what_conda_says(release: Path, name: str) -> None:
    virtual = [["__archspec", "1", "zen2"], ["__glibc", "2.36", "0"]]
    (release / name).write_text(json.dumps({"platform": "linux-64", "virtual_packages": virtual}))
    described = machine_at(release / name)
    assert select("demo", [release], machine=described).name.variant == "x86_64_v3"
    save_machine(described, release / "machine.toml")
    assert machine_at(release / "machine.toml") == described


def test_the_ranking_says_why(release: Path) -> None:
    assert select("Demo", [release], machine=machine()).data() == {
        "wheel": "demo-1.0-py3-none-any-x86_64_v3.whl",
        "label": "x86_64_v3",
        "name": "demo",
        "version": "1.0",
        "ranking": [
            {
                "wheel": "demo-1.0-py3-none-any-x86_64_v3.whl",
                "label": "x86_64_v3",
                "fits": True,
                "why": f"{V3} is number 1 of 3 that the machine supports",
            },
            {
                "wheel": "demo-1.0-py3-none-any.whl",
                "label": None,
                "fits": True,
                "why": "no variant: after every variant that fits",
            },
            {
                "wheel": "demo-1.0-py3-none-any-x86_64_v4.whl",
                "label": "x86_64_v4",
                "fits": False,
                "why": "x86_64 :: level :: v4 is not supported: the machine has v3, v2, v1",
            },
        ],
    }


def test_variants_do_not_count_without_their_index(release: Path) -> None:
    (release / "demo-1.0-variants.json").unlink()
    selection = select("demo", [release], machine=machine())
    assert selection.name.variant is None
    assert selection.ranking[-1].why == "no demo-1.0-variants.json alongside it, so variants do not count"


def test_a_version_of_which_nothing_fits_gives_way_to_an_older_one(release: Path) -> None:
    tiny_wheel(release, "demo-2.0-cp27-none-any.whl")
    tiny_wheel(release, "demo-1.5-py3-none-any.whl", requires_python=">=3.99")
    selection = select("demo", [release], machine=machine())
    assert [(found.name.version, found.why) for found in selection.ranking][:2] == [
        ("2.0", "none of its tags is the machine's: cp27-none-any"),
        ("1.5", "Requires-Python is >=3.99, the machine has 3.11.7"),
    ]
    assert selection.name.version == "1.0"


def test_one_version_can_be_asked_for(release: Path) -> None:
    tiny_wheel(release, "demo-2.0-py3-none-any.whl")
    assert select("demo", [release], machine=machine(), version="1.0.0").name.version == "1.0"


def test_of_one_file_name_the_first_folder_counts(release: Path, tmp_path: Path) -> None:
    tiny_wheel(tmp_path / "more", "demo-1.0-py3-none-any.whl")
    found = select("demo", [tmp_path / "more", release], machine=machine("x86-64"))
    assert found.wheel == tmp_path / "more" / "demo-1.0-py3-none-any.whl"


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


def test_where_nothing_fits_every_wheel_says_why(tmp_path: Path) -> None:
    variant_wheel(tmp_path, "demo-1.0-py3-none-any-x86_64_v4.whl", V4)
    tiny_wheel(tmp_path, "demo-1.0-cp27-none-any.whl")
    index(tmp_path)
    with pytest.raises(VariantError) as refusal:
        select("demo", [tmp_path], machine=machine())
    assert str(refusal.value) == (
        "demo: none of 2 wheels fits this machine: "
        "demo-1.0-py3-none-any-x86_64_v4.whl: x86_64 :: level :: v4 is not supported: the machine has v3, v2, v1; "
        "demo-1.0-cp27-none-any.whl: none of its tags is the machine's: cp27-none-any"
    )


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
