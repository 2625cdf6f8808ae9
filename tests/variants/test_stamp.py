import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories.tools import needs_judge
from tests.factories.variants import variant
from tests.factories.wheels import wheel
from vbuild.errors import VariantError, VbuildError, WheelError
from vbuild.hardware.machine import Machine
from vbuild.variants.document import Declaration, Document
from vbuild.variants.index import index
from vbuild.variants.model import NULL, Property, VariantProvider
from vbuild.variants.providers import metadata_for
from vbuild.variants.select import select
from vbuild.variants.stamp import declaration_at, described, stamped, unstamped

LEVEL_3 = Property.parse("x86_64 :: level :: v3")
V3 = variant("x86_64_v3", "x86_64 :: level :: v3")


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_stamping_twice_replaces_the_first_stamp(tmp_path: Path) -> None:
    plain = wheel(tmp_path)
    once = stamped(plain, tmp_path / "once", variant=variant("old", "x86_64 :: level :: v2"))
    twice = stamped(once, tmp_path / "twice", variant=V3)
    assert twice.read_bytes() == stamped(plain, tmp_path / "direct", variant=V3).read_bytes()


def test_half_a_stamp_is_removed_too(tmp_path: Path) -> None:
    plain = wheel(tmp_path / "in")
    labelled = plain.rename(plain.with_name("demo-1.0-py3-none-any-x86_64_v3.whl"))
    described_ = wheel(tmp_path / "in", files={"demo-1.0.dist-info/variant.json": "{}"})
    for number, half in enumerate((labelled, described_)):
        path = unstamped(half, tmp_path / f"back{number}")
        assert path.name == "demo-1.0-py3-none-any.whl"
        assert members(path) == members(labelled)


def test_an_unnormalised_name_is_normalised_in_the_file_name_only(tmp_path: Path) -> None:
    path = stamped(wheel(tmp_path, "Demo.Two-1.0.0-py3-none-any.whl"), tmp_path / "out", variant=V3)
    assert path.name == "demo_two-1.0.0-py3-none-any-x86_64_v3.whl"
    assert "Demo.Two-1.0.0.dist-info/variant.json" in members(path)


@pytest.mark.parametrize(
    ("name", "namespace"),
    [("demo-1.0-py3-none-any.whl", "x86_64"), ("demo-1.0-cp311-cp311-manylinux_2_17_aarch64.whl", "aarch64")],
)
def test_a_null_wheel_needs_no_metadata(tmp_path: Path, name: str, namespace: str) -> None:
    path = stamped(wheel(tmp_path, name), tmp_path / "out", variant=NULL)
    assert path.name.endswith("-null.whl")
    document = Document.parse(members(path)["demo-1.0.dist-info/variant.json"])
    assert document.metadata.namespaces == (namespace,)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "demo-1.0-cp311-cp311-manylinux_2_17_aarch64.whl",
            "x86_64 :: level :: v3",
            "x86_64 :: level :: v3 is for x86_64, and the wheel for aarch64",
        ),
        (
            "demo-1.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
            "aarch64 :: version :: 8.2a",
            "aarch64 :: version :: 8.2a is for aarch64, and the wheel for x86_64",
        ),
        (
            "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
            "x86_64 :: level :: v9",
            "no CPU level 'v9' of 'x86_64'; expected v1, v2, v3, v4",
        ),
    ],
)
def test_a_level_that_no_machine_of_the_wheel_has_is_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(VbuildError) as refusal:
        stamped(wheel(tmp_path, name), tmp_path / "out", variant=variant("a", text))
    assert str(refusal.value) == f"{name}: {message}"
    assert not list(tmp_path.glob("out/*"))


def test_uv_installs_what_was_stamped(tmp_path: Path) -> None:
    plain = wheel(tmp_path / "dist", files={"demo/__init__.py": ""})
    path = stamped(plain, tmp_path / "dist", variant=variant("x86_64_v1", "x86_64 :: level :: v1"))
    install = ["pip", "install", "--preview-features", "wheel-variants", "--no-index", "--target"]
    command = [sys.executable, "-m", "uv", *install, str(tmp_path / "site"), str(path)]
    environment = {"UV_CACHE_DIR": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    assert (tmp_path / "site/demo-1.0.dist-info/variant.json").is_file()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("static", [None, {"level": ["v4", "v3", "v2", "v1"], "avx512_bf16": ["on"], "aes": ["on"]}])
@pytest.mark.parametrize(
    "asked",
    [
        ("v1", "v1+avx512_bf16"),
        ("v1", "v1+aes", "v1+aes+avx512_bf16"),
        ("v2+aes", "v2+avx512_bf16", "v1"),
        ("v1+avx512_bf16",),
    ],
)
def test_uv_and_vbuild_choose_the_same_of_wheels_that_differ_by_a_feature(
    tmp_path: Path, asked: tuple[str, ...], static: dict[str, list[str]] | None
) -> None:
    dist = tmp_path / "dist"
    plain = wheel(dist, files={"demo/__init__.py": ""})
    about = metadata_for(["x86_64"], {"x86_64": VariantProvider.static(static)} if static else {})
    for text in asked:
        level, *extras = text.split("+")
        properties = (f"x86_64 :: level :: {level}", *(f"x86_64 :: {extra} :: on" for extra in extras))
        stamped(plain, dist, variant=variant(text.replace("+", "_"), *properties), metadata=about)
    index(dist)
    install = ["pip", "install", "--preview-features", "wheel-variants", "--no-index", "--find-links", str(dist)]
    command = [sys.executable, "-m", "uv", *install, "--target", str(tmp_path / "site"), "demo"]
    environment = {"UV_CACHE_DIR": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    described_in = tmp_path / "site/demo-1.0.dist-info/variant.json"
    label = next(iter(json.loads(described_in.read_text())["variants"])) if described_in.is_file() else None
    assert select("demo", [dist], machine=Machine.here()).name.variant == label
    # uv's own provider answers for levels alone
    assert ("_" in (label or "")) == (static is not None)


@needs_judge("twine")
def test_wheel_unpack_and_twine_take_what_was_stamped(tmp_path: Path) -> None:
    metadata = "Summary: A demo.\nDescription-Content-Type: text/plain\n\nA demo.\n"
    path = stamped(wheel(tmp_path, metadata=metadata), tmp_path / "out", variant=V3)
    subprocess.run(
        [sys.executable, "-m", "wheel", "unpack", "-d", tmp_path / "unpacked", path], check=True, capture_output=True
    )
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", path], capture_output=True, text=True, check=False
    )
    assert "PASSED" in checked.stdout


def test_a_declaration_that_is_wrong_is_refused_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "variant.toml"
    path.write_text("")
    with pytest.raises(VariantError, match=rf"^{re.escape(str(path))}: variant: missing; expected a table$"):
        declaration_at(path)


def test_a_hash_label_is_that_of_variantlib() -> None:
    assert described([LEVEL_3], label=None, declaration=None).label == "fa7c1393"


def test_a_spoilt_member_is_found(tmp_path: Path) -> None:
    spoilt = wheel(tmp_path, files={"demo/_C.so": "as RECORD has it"})
    data = spoilt.read_bytes()
    with zipfile.ZipFile(spoilt) as archive:
        record = archive.read("demo-1.0.dist-info/RECORD").decode()
    wheel(tmp_path, files={"demo/_C.so": "as RECORD has nt"}, record=record)
    assert spoilt.read_bytes() != data
    with pytest.raises(WheelError, match=r"demo/_C\.so: does not match its hash in RECORD"):
        stamped(spoilt, tmp_path / "out", variant=V3)
    labelled = spoilt.rename(spoilt.with_name("demo-1.0-py3-none-any-x86_64_v3.whl"))
    with pytest.raises(WheelError, match=r"demo/_C\.so: does not match its hash in RECORD"):
        unstamped(labelled, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def refused(tmp_path: Path) -> dict[str, tuple[type[VbuildError], str]]:
    plain = wheel(tmp_path)
    blas = variant("mkl", "blas :: library :: mkl")
    declared = Declaration.parse('[variant.default-priorities]\nnamespace = ["x86_64"]')
    damaged = tmp_path / "broken-1.0-py3-none-any.whl"
    damaged.write_bytes(plain.read_bytes()[:200])
    shutil.copy(stamped(plain, tmp_path / "kept", variant=V3), tmp_path)
    attempts: dict[str, Callable[[], object]] = {
        "no provider": lambda: stamped(plain, tmp_path / "out", variant=blas),
        "onto itself": lambda: stamped(tmp_path / "demo-1.0-py3-none-any-x86_64_v3.whl", tmp_path, variant=V3),
        "nothing to remove": lambda: unstamped(plain, tmp_path / "out"),
        "unknown label": lambda: described((), label="v9", declaration=declared),
        "illegal label": lambda: described([LEVEL_3], label="V3", declaration=None),
        "null with properties": lambda: described([LEVEL_3], label="null", declaration=None),
        "label without properties": lambda: described((), label="v3", declaration=None),
        "no such file": lambda: declaration_at(tmp_path / "missing.toml"),
        "damaged": lambda: stamped(damaged, tmp_path / "out", variant=V3),
    }
    found = {}
    for name, attempt in attempts.items():
        with pytest.raises(VbuildError) as caught:
            attempt()
        found[name] = (caught.type, str(caught.value).replace(str(tmp_path), "DIR"))
    assert not (tmp_path / "out").exists()
    return found


def test_refusals_say_what_is_wrong_and_leave_nothing(tmp_path: Path) -> None:
    assert refused(tmp_path) == {
        "no provider": (
            VariantError,
            "demo-1.0-py3-none-any.whl: no provider of blas; give static-properties or requires (PEP 850)",
        ),
        "onto itself": (
            WheelError,
            "DIR/demo-1.0-py3-none-any-x86_64_v3.whl: would overwrite the wheel it is made from; choose another folder",
        ),
        "nothing to remove": (
            VariantError,
            (
                "demo-1.0-py3-none-any.whl: no variant label and no variant.json; "
                "expected a variant wheel to remove them from"
            ),
        ),
        "unknown label": (VariantError, "no variant 'v9' in the [variant.variants] table, which has none"),
        "illegal label": (
            VariantError,
            "variant label 'V3' may only hold a-z, 0-9, _ and . (PEP 825, variant label)",
        ),
        "null with properties": (
            VariantError,
            "variant label 'null' stands for no properties, got x86_64 :: level :: v3 (PEP 825, variant label)",
        ),
        "label without properties": (
            VariantError,
            "variant 'v3' has no properties; only the label 'null' may (PEP 825, variant label)",
        ),
        "no such file": (VariantError, "DIR/missing.toml: cannot be read: No such file or directory"),
        "damaged": (WheelError, "broken-1.0-py3-none-any.whl: not a zip archive, or truncated: no end record"),
    }
