"""The bill of materials of wheels that vbuild makes: as its schema has it, true of the bytes, and kept so."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from jsonschema import Draft202012Validator

from tests.factories import hwcaps_wheels
from tests.factories.extensions import library, module
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.projects import setuptools_project, tree
from tests.factories.releases import V3
from tests.factories.repaired_wheels import NAME, hashed
from tests.factories.repaired_wheels import release as repaired_release
from tests.factories.tools import needs
from tests.factories.variants import variant
from tests.factories.wheels import contents, wheel
from vbuild.gpu_code.fatbin import FatbinKind
from vbuild.index_client.configuration import Indexes
from vbuild.inspection.inspect import inspect
from vbuild.inspection.text import summary
from vbuild.publishing.local import Local
from vbuild.publishing.publish import publish
from vbuild.publishing.suffix import Suffix
from vbuild.release.builder import billed
from vbuild.release.cache import BuildCache
from vbuild.release.collect import collect
from vbuild.release.matrix import matrix
from vbuild.sbom.model import Making, Material, MaterialRole
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.slim import slim
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.split import split
from vbuild.variants.stamp import stamped, unstamped
from vbuild.verification.verify import verify

BILL = "sboms/vbuild.cdx.json"
FAT = device_library(
    fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 14)) for arch in (80, 90, 120)), entry(FatbinKind.PTX, 120))
)
DEMO = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
COUNTS = "int count(void); int answer(void) { return count(); }"
TOP = library("libtop.so.1", source="int count(void) { return 41; }")
FILES: dict[str, bytes | str] = {
    "demo/__init__.py": "from demo import _c\n",
    "demo/_c.so": module("libtop.so.1", source=COUNTS),
}
SCHEMA = Path(__file__).parents[1] / "inspection/contents.schema.json"
ALONE = Indexes(no_index=True)

pytestmark = needs("gcc")


def bill(path: Path) -> dict[str, Any]:
    """The bill of the wheel at *path*, which the schema is content with, and which says what the wheel is."""
    members = contents(path)
    [text] = [data.decode() for name, data in members.items() if name.endswith(f".dist-info/{BILL}")]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    assert isinstance(found, dict)
    said = {
        properties(part)["path"]: digest(part)
        for part in found["components"]
        if part.get("scope") != "excluded" and "path" in properties(part)
    }
    compiled = {name: data for name, data in members.items() if data.startswith(b"\x7fELF")}
    assert said == {name: hashlib.sha256(data).hexdigest() for name, data in compiled.items()}
    assert findings(path) == []
    return found


def properties(part: dict[str, Any]) -> dict[str, str]:
    return {each["name"].removeprefix("vbuild:"): each["value"] for each in part.get("properties", ())}


def digest(part: dict[str, Any]) -> str:
    return str(part["hashes"][0]["content"])


def findings(path: Path) -> list[str]:
    """What `vbuild verify` has against the bill."""
    return [finding.what for finding in verify(path).findings if finding.rule == "sbom"]


def part(found: dict[str, Any], name: str) -> dict[str, Any]:
    [component] = [each for each in found["components"] if each["name"] == name]
    assert isinstance(component, dict)
    return component


def fat(folder: Path, files: dict[str, bytes | str] | None = None) -> Path:
    return wheel(folder, DEMO, {"demo/__init__.py": "", "demo/_C.so": FAT, **(files or {})})


def slimmed(path: Path, folder: Path, gpus: str = "90", **cuts: Any) -> Path:
    share = Share(Share.parse(f"any={gpus}").gpus)
    [result] = slim([path], folder, shares=[share], cuts=Cuts(**cuts))
    assert result.path
    return result.path


def thinned(folder: Path, *wheels: Path, **asked: Any) -> list[Path]:
    result = split(wheels, folder, request=SplitRequest(smallest=0, **asked), indexes=lambda: ALONE)
    return [one.path for one in result.wheels if one.path]


def test_a_slimmed_wheel_tells_which_gpus_it_was_for_and_is_for(tmp_path: Path) -> None:
    found = bill(slimmed(fat(tmp_path), tmp_path / "out"))
    cut = part(found, "_C.so")
    [before] = cut["pedigree"]["ancestors"]
    assert digest(before) == hashlib.sha256(FAT).hexdigest()
    assert properties(before) == {"changed": "vbuild slim", "gpus": "sm_80, sm_90, sm_120, PTX for sm_120"}
    assert properties(cut)["gpus"] == "sm_90"
    assert found["metadata"]["component"]["purl"] == "pkg:pypi/demo@1.0"


def test_every_cut_adds_to_the_past_and_a_dropped_library_is_in_it(tmp_path: Path) -> None:
    other = module()
    first = slimmed(fat(tmp_path, {"demo/more.so": other}), tmp_path / "one", "80,90")
    second = slimmed(first, tmp_path / "two", "90", drop=("demo/more.so",), force=True)
    found = bill(second)
    past = part(found, "_C.so")["pedigree"]["ancestors"]
    assert [digest(each) for each in past] == [
        hashlib.sha256(data).hexdigest() for data in (FAT, contents(first)["demo/_C.so"])
    ]
    assert properties(part(found, "more.so")) == {"fate": "dropped", "path": "demo/more.so"}
    assert digest(part(found, "more.so")) == hashlib.sha256(other).hexdigest()


def test_a_family_has_a_bill_in_each_and_none_where_nobody_wants_one(tmp_path: Path) -> None:
    shares = [Share.parse("sm80=80"), Share.parse("sm90=90")]
    made = slim([fat(tmp_path)], tmp_path / "out", shares=shares)
    assert [properties(part(bill(each.path), "_C.so"))["gpus"] for each in made if each.path] == ["sm_80", "sm_90"]
    bare = slimmed(fat(tmp_path), tmp_path / "bare", bill=False)
    assert not [name for name in contents(bare) if "sboms" in name]


def test_one_that_is_there_is_kept_true_even_where_nobody_wants_one(tmp_path: Path) -> None:
    first = slimmed(fat(tmp_path), tmp_path / "one", "80,90")
    found = bill(slimmed(first, tmp_path / "two", "90", bill=False, force=True))
    assert [properties(each)["gpus"] for each in part(found, "_C.so")["pedigree"]["ancestors"]] == [
        "sm_80, sm_90, sm_120, PTX for sm_120",
        "sm_80, sm_90",
    ]


def test_the_same_wheel_has_the_same_bill_whenever_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = slimmed(fat(tmp_path), tmp_path / "one")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.chdir(tmp_path)
    assert slimmed(Path(DEMO), Path("two")).read_bytes() == first.read_bytes()


def test_a_stamp_changes_nothing_in_it(tmp_path: Path) -> None:
    made = slimmed(fat(tmp_path), tmp_path / "out")
    stamp = stamped(made, tmp_path / "stamped", variant=variant("x86_64_v3", "x86_64 :: level :: v3"))
    assert bill(stamp) == bill(made)
    assert bill(unstamped(stamp, tmp_path / "plain")) == bill(made)


def test_a_split_says_where_libraries_are_and_what_was_edited(tmp_path: Path) -> None:
    wheels = repaired_release(tmp_path, FILES, {"libtop.so.1": TOP})
    [thin, _] = thinned(tmp_path / "thin", *wheels)
    found = bill(thin)
    name = hashed("libtop.so.1", TOP)
    moved = part(found, name)
    before = contents(tmp_path / NAME)
    assert digest(moved) == hashlib.sha256(before[f"demo.libs/{name}"]).hexdigest()
    assert moved["purl"].startswith("pkg:pypi/demo-libs@1.0?")
    assert properties(moved) == {"fate": "moved", "path": f"demo.libs/{name}", "target": f"demo_libs/lib/{name}"}
    [edited] = part(found, "_c.so")["pedigree"]["ancestors"]
    assert (digest(edited), properties(edited)) == (
        hashlib.sha256(before["demo/_c.so"]).hexdigest(),
        {"changed": "vbuild split"},
    )


def test_inspect_reads_it(tmp_path: Path) -> None:
    wheels = repaired_release(tmp_path, {**FILES, "demo/_C.so": FAT}, {"libtop.so.1": TOP})
    cut = [slimmed(each, tmp_path / "slim") for each in wheels]
    contents_of = inspect(thinned(tmp_path / "thin", *cut)[0])
    data = json.loads(json.dumps(contents_of.data()))
    said = data["sbom"]
    assert (said["files"], said["changed"], said["builds"]) == (2, ["demo/_C.so", "demo/_c.so"], 0)
    assert [(gone["path"], gone["fate"]) for gone in said["gone"]] == [
        (f"demo.libs/{hashed('libtop.so.1', TOP)}", "moved")
    ]
    Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(
        json.loads(json.dumps(contents_of.data()))
    )
    assert "SBOM 2 compiled, 2 changed, 1 moved" in [*summary(contents_of)]
    assert contents_of.warnings == ()


def test_a_split_adds_to_what_slim_wrote_and_leaves_it_out_where_asked(tmp_path: Path) -> None:
    wheels = repaired_release(tmp_path, {**FILES, "demo/_C.so": FAT}, {"libtop.so.1": TOP})
    cut = [slimmed(each, tmp_path / "slim") for each in wheels]
    found = bill(thinned(tmp_path / "thin", *cut, bill=False)[0])
    assert properties(part(found, "_C.so")["pedigree"]["ancestors"][0])["changed"] == "vbuild slim"
    assert properties(part(found, hashed("libtop.so.1", TOP)))["fate"] == "moved"
    bare = thinned(tmp_path / "bare", *wheels, bill=False)[0]
    assert not [name for name in contents(bare) if "sboms" in name]


def test_published_under_another_name_it_is_of_that_name(tmp_path: Path) -> None:
    made = slimmed(fat(tmp_path, {"demo-1.0.data/platlib/more.so": module()}), tmp_path / "dist")
    stamped(made, tmp_path / "dist", variant=variant(V3, "x86_64 :: level :: v3"))
    publish([tmp_path / "dist"], tmp_path / "site", layouts=[Suffix(), Local()])
    [suffixed] = (tmp_path / "site" / "suffix").glob("demo_x86_64_v3*.whl")
    assert bill(suffixed)["metadata"]["component"]["purl"] == "pkg:pypi/demo-x86-64-v3@1.0"
    local = next((tmp_path / "site" / "local").rglob("demo-1.0+*.whl"))
    found = bill(local)
    assert found["metadata"]["component"]["purl"] == "pkg:pypi/demo@1.0%2Bx86.64.v3"
    assert len(part(found, "_C.so")["pedigree"]["ancestors"]) == 1


def test_a_wheel_of_python_alone_keeps_its_build_under_another_name(tmp_path: Path) -> None:
    build = Making((Material(MaterialRole.COMPILER, "gcc", "13"),), (("cpu", "x86-64"),))
    pure = billed(wheel(tmp_path / "plain", "demo-1.0-py3-none-any.whl", {"demo/__init__.py": ""}), tmp_path, build)
    stamped(pure, tmp_path / "dist", variant=variant(V3, "x86_64 :: level :: v3"))
    publish([tmp_path / "dist"], tmp_path / "site", layouts=[Suffix()])
    [suffixed] = (tmp_path / "site" / "suffix").glob("*.whl")
    assert bill(suffixed)["formulation"] == bill(pure)["formulation"]


def test_joined_of_levels_it_has_the_past_and_the_builds_of_each(tmp_path: Path) -> None:
    wheels = hwcaps_wheels.hwcaps_release(
        tmp_path / "plain",
        {level: {**hwcaps_wheels.package(level), "demo/extra.so": module()} for level in ("v1", "v3")},
    )
    builds = [Making((Material(MaterialRole.COMPILER, f"gcc for {path.name}", "13"),)) for path in wheels]
    made = [billed(path, tmp_path / "billed", build) for path, build in zip(wheels, builds, strict=True)]
    cut = [slimmed(path, tmp_path / "slim", drop=("demo/extra.so",)) for path in made]
    found = bill(hwcaps_wheels.join(tmp_path / "out", cut))
    assert properties(part(found, "extra.so"))["fate"] == "dropped"
    names = {each["name"] for formula in found["formulation"] for each in formula["components"]}
    assert names == {f"gcc for {path.name}" for path in wheels}
    assert len([each for each in found["components"] if "path" in properties(each)]) > 1


def test_what_is_slimmed_split_and_published_tells_all_that_was_done_to_it(tmp_path: Path) -> None:
    wheels = repaired_release(tmp_path, {**FILES, "demo/_C.so": FAT}, {"libtop.so.1": TOP})
    build = Making((Material(MaterialRole.COMPILER, "gcc", "13"),), (("cpu", "x86-64"),))
    cut = [slimmed(billed(each, tmp_path / "billed", build), tmp_path / "slim") for each in wheels]
    thin = thinned(tmp_path / "thin", *cut)
    for each in thin:
        stamped(each, tmp_path / "dist", variant=variant(V3, "x86_64 :: level :: v3"))
    publish([tmp_path / "dist"], tmp_path / "site", layouts=[Suffix(), Local()])
    site = tmp_path / "site"
    found = [bill(path) for path in (*site.glob("suffix/*.whl"), *site.glob("local/*/*.whl"))]
    assert len(found) == 2 * len(wheels)
    for whole in found:
        changes = {
            path: [properties(one)["changed"] for one in part(whole, path)["pedigree"]["ancestors"]]
            for path in ("_C.so", "_c.so")
        }
        assert changes == {"_C.so": ["vbuild slim"], "_c.so": ["vbuild split"]}
        assert properties(part(whole, hashed("libtop.so.1", TOP)))["fate"] == "moved"
        assert [properties(formula)["cpu"] for formula in whole["formulation"]] == ["x86-64"]


@pytest.mark.nightly
@pytest.mark.network
def test_a_built_wheel_tells_its_source_its_compiler_and_its_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITLAB_CI", raising=False)
    monkeypatch.setenv("RUNNER_ENVIRONMENT", "github-hosted")
    setuptools_project(tmp_path / "project")
    text = '[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n'
    tree(tmp_path, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n{text}'})
    made = matrix(tmp_path / "demo.toml", tmp_path / "dist", store=BuildCache(tmp_path / "store"))
    [plain, leveled] = [bill(product.wheel) for product in made.products]
    [formula] = leveled["formulation"]
    told = properties(formula)
    assert (told["cpu"], "-march=x86-64-v3" in told["flags:CFLAGS"]) == ("x86-64-v3", True)
    roles = {properties(each)["role"] for each in formula["components"]}
    assert roles == {"source", "compiler", "build requirement"}
    assert str(tmp_path) not in json.dumps([plain, leveled])
    stated = (tmp_path / "dist" / "provenance.json").read_text(encoding="utf-8")
    assert {each["name"]: each["digest"]["sha256"] for each in json.loads(stated)["subject"]} == {
        product.wheel.name: hashlib.sha256(product.wheel.read_bytes()).hexdigest() for product in made.products
    }
    assert '"name": "demo.toml"' in stated
    assert str(tmp_path) not in stated
    assert '"id"' not in stated
    monkeypatch.setenv("GITHUB_ACTIONS", "true")  # where it was collected, it was not built
    collected = collect([tmp_path / "dist"], tmp_path / "collected")
    kept = json.loads((tmp_path / "collected" / "provenance.json").read_text(encoding="utf-8"))
    assert kept["subject"] == json.loads(stated)["subject"]
    assert "demo.toml" in {each["name"] for each in kept["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert "id" not in kept["predicate"]["runDetails"]["builder"]
    assert [bill(product.wheel) for product in collected.products] == [plain, leveled]


@pytest.mark.nightly
@pytest.mark.network
def test_a_recipe_may_want_no_bill(tmp_path: Path) -> None:
    setuptools_project(tmp_path / "project")
    text = '[matrix]\ncpu = ["x86-64"]\n[repair]\nsbom = false\n'
    tree(tmp_path, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n{text}'})
    made = matrix(tmp_path / "demo.toml", tmp_path / "dist", store=BuildCache(tmp_path / "store"))
    [product] = made.products
    assert not [name for name in contents(product.wheel) if name.endswith(BILL)]
