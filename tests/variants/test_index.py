import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.factories.variants import document, tiny_wheel, variant, variant_wheel
from tests.factories.wheels import wheel
from vbuild.errors import VariantError, WheelError
from vbuild.variants.document import Document
from vbuild.variants.index import index
from vbuild.variants.model import NULL

V2 = document(variant("x86_64_v2", "x86_64 :: level :: v2"))


def test_each_release_gets_one_file_with_all_its_labels(tmp_path: Path) -> None:
    tiny_wheel(tmp_path, "demo-1.0-py3-none-any.whl")
    variant_wheel(tmp_path, "demo-1.0-py3-none-any-x86_64_v2.whl", V2)
    variant_wheel(tmp_path, "demo-1.0-py3-none-any-x86_64_v3.whl")
    variant_wheel(tmp_path, "demo-1.0-1-cp311-cp311-linux_x86_64-x86_64_v3.whl")
    variant_wheel(tmp_path, "Demo.Two-2.0.0-py3-none-any-null.whl", document(NULL))
    assert [item.data() for item in index(tmp_path)] == [
        {
            "index": "demo-1.0-variants.json",
            "labels": ["x86_64_v2", "x86_64_v3"],
            "wheels": 3,
            "changed": True,
        },
        {"index": "demo_two-2.0.0-variants.json", "labels": ["null"], "wheels": 1, "changed": True},
    ]
    found = Document.parse((tmp_path / "demo-1.0-variants.json").read_bytes())
    assert found == document(*V2.variants, *document().variants)


SAME = "demo-1.0-cp311-cp311-linux_x86_64-x86_64_v3.whl"
FIRST = "demo-1.0-py3-none-any-x86_64_v3.whl"
INCONSISTENT = [
    (
        SAME,
        document(variant("x86_64_v3", "x86_64 :: level :: v4")),
        (
            f"{SAME} and {FIRST}: the label 'x86_64_v3' stands for different properties: "
            "x86_64 :: level :: v4 and x86_64 :: level :: v3 (PEP 825, variant label)"
        ),
    ),
    (
        "demo-1.0-py3-none-any-v2.whl",
        V2,
        (
            "demo-1.0-py3-none-any-v2.whl: variant.json: describes 'x86_64_v2'; "
            "expected only 'v2', as in the file name (PEP 825)"
        ),
    ),
    (
        "demo-1.0-py3-none-any.whl",
        V2,
        (
            "demo-1.0-py3-none-any.whl: variant.json: in a wheel whose file name has no variant label; expected none "
            "(PEP 825)"
        ),
    ),
    (
        "demo-1.0-py3-none-any-v2.whl",
        None,
        (
            "demo-1.0-py3-none-any-v2.whl: variant.json: missing; expected it to describe the variant 'v2' of the "
            "file name (PEP 825)"
        ),
    ),
]


@pytest.mark.parametrize(("filename", "found", "message"), INCONSISTENT)
def test_nothing_is_written_for_wheels_that_are_inconsistent(
    filename: str, found: Document | None, message: str, tmp_path: Path
) -> None:
    variant_wheel(tmp_path, FIRST)
    variant_wheel(tmp_path, "another-1.0-py3-none-any-x86_64_v3.whl")
    tiny_wheel(tmp_path, filename, variant_json=found.pack() if found else None)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(VariantError) as refusal:
        index(tmp_path)
    assert str(refusal.value) == message
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_no_member_but_variant_json_is_read_unless_all_are_compared(tmp_path: Path) -> None:
    members: dict[str, Any] = {"demo.py": bytes(9999), "demo-1.0.dist-info/variant.json": document().pack()}
    path = wheel(tmp_path, FIRST, **members)
    spoiled = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith("variant.json"):
                start = info.header_offset + 30 + len(info.filename)
                spoiled[start : start + info.compress_size] = b"\xff" * info.compress_size
    path.write_bytes(spoiled)
    with pytest.raises(WheelError, match=f"{FIRST}: .*: damaged: its deflate stream is broken"):
        index(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FIRST]
    assert index(tmp_path, verify=False)[0].labels == ("x86_64_v3",)


def test_a_wheel_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    path = variant_wheel(tmp_path, FIRST)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(WheelError, match=FIRST):
        index(tmp_path)


def test_a_folder_that_cannot_be_written_gets_nothing(tmp_path: Path) -> None:
    variant_wheel(tmp_path, FIRST)
    (tmp_path / "demo-1.0-variants.json").mkdir()
    with pytest.raises(VariantError) as refusal:
        index(tmp_path)
    assert str(refusal.value) == f"{tmp_path}/demo-1.0-variants.json: cannot be written: Is a directory"
    assert len(list(tmp_path.iterdir())) == 2
    shutil.rmtree(tmp_path / "demo-1.0-variants.json")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VariantError, match="nowhere: no such folder of wheels"):
        index(tmp_path / "nowhere")


def test_a_simple_index_is_written_of_all_of_it_and_keeps_what_is_not_removed(tmp_path: Path) -> None:
    dist, site = tmp_path / "dist", tmp_path / "site"
    first = variant_wheel(dist, "demo-1.0-py3-none-any-x86_64_v3.whl")
    (made,) = index(dist, simple=site)
    assert {file.name for file in (site / "demo").iterdir()} >= {first.name, made.path.name}
    first.unlink()
    made.path.unlink()
    second = variant_wheel(dist, "other-1.0-py3-none-any-x86_64_v3.whl")
    index(dist, simple=site)
    assert (site / "demo" / first.name).exists()
    index(dist, simple=site, remove=["demo"])
    assert not (site / "demo").exists()
    assert (site / "other" / second.name).exists()


def test_where_a_simple_index_cannot_be_written_nothing_is(tmp_path: Path) -> None:
    dist, site = tmp_path / "dist", tmp_path / "site"
    variant_wheel(dist, "demo-1.0-py3-none-any-x86_64_v3.whl")
    site.mkdir()
    (site / "other.txt").write_text("something else")
    with pytest.raises(WheelError):
        index(dist, simple=site)
    assert not [*dist.glob("*.json")]
