"""Wheels with real binaries, and what is said to be in them."""

import io
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.factories.elf import MODULE, SUM, object_file, shared_object
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.linked_libraries import DEEP, files
from tests.factories.tools import needs
from tests.factories.variants import document, variant
from tests.factories.wheels import everything, hashed, poked, wheel
from vbuild.errors import WheelError
from vbuild.gpu_code.fatbin import FatbinKind
from vbuild.inspection.inspect import inspect
from vbuild.inspection.model import Contents

NAME = "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
HOST = shared_object(MODULE + SUM, "-Wl,-soname,libdemo.so.1", needs="libother.so.2")
GPU = device_library(
    fatbin(entry(arch=80), entry(arch=90), entry(FatbinKind.PTX, 90)), fatbin(entry(arch=80), entry(FatbinKind.PTX, 90))
)
SCHEMA = json.loads(Path(__file__).with_name("contents.schema.json").read_text())


def made(folder: Path, files: Mapping[str, bytes | str], *, name: str = NAME, metadata: str = "") -> Contents:
    return inspect(wheel(folder, name, files, metadata=metadata))


def valid(contents: Contents) -> Any:
    """The JSON of *contents*, which the schema describes."""
    data = json.loads(json.dumps(contents.data()))
    Draft202012Validator(SCHEMA).validate(data)
    return data


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_a_wheel_without_compiled_code_is_its_files(tmp_path: Path) -> None:
    contents = made(tmp_path, {"demo/__init__.py": "x = 1\n", "demo/LICENSE": "free"}, name="demo-1.0-py3-none-any.whl")
    assert (contents.project, contents.version, contents.tags) == ("demo", "1.0", ("py3-none-any",))
    assert (contents.libraries, contents.devices, contents.gpu_size) == ((), (), 0)
    assert contents.files == 5
    assert {others.suffix: others.size for others in contents.others}[".py"] == 6
    assert valid(contents)["gpu"] == {"bytes": 0, "share": 0.0, "containers": 0, "entries": 0, "code": [], "gpus": []}


def test_a_cubin_in_a_file_of_its_own_is_gpu_code(tmp_path: Path) -> None:
    several = {f"demo/{number}.cubin": cubin(90, 256) for number in range(3)}
    contents = made(tmp_path, several | {"demo/sm_80.cubin": cubin(90, 128)})
    files, wrong = contents.device_files
    assert (files.kind, list(map(str, files.archs)), files.files, files.size) == ("cubin", ["sm_90"], 3, 768)
    assert (wrong.files, [pinned.why for pinned in wrong.gpu.pinned]) == (
        1,
        ["is for sm_90, though its name says sm_80"],
    )
    assert (contents.libraries, contents.gpu_size) == ((), 896)
    assert {str(outlook.device): outlook.kept for outlook in contents.outlooks} == {"sm_90": 896}
    valid(contents)


def test_a_library_for_32_bits_has_no_gpu_code_to_look_for(tmp_path: Path) -> None:
    small = b"\x7fELF\x01\x01\x01".ljust(16, b"\0") + bytes([3, 0, 40, 0, 1]).ljust(36, b"\0")
    (library,) = made(tmp_path, {"demo/arm.so": small}).libraries
    assert (library.outline.machine, library.outline.bits, bool(library.gpu)) == ("armv7l", 32, False)


@needs("ar", "gcc")
def test_static_libraries_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.o").write_bytes(b"some object")
    subprocess.run(["ar", "rcs", "demo.a", "a.o"], cwd=tmp_path, check=True)
    archive = (tmp_path / "demo.a").read_bytes()
    contents = made(
        tmp_path / "w", {"demo/demo.a": archive, "demo/notes.a": "not an archive, whatever its name".ljust(60)}
    )
    assert [(found.path, found.size) for found in contents.archives] == [("demo/demo.a", len(archive))]
    valid(contents)


def test_the_licence_is_what_metadata_says_and_where_its_texts_are(tmp_path: Path) -> None:
    metadata = "License-Expression: MIT AND BSD-3-Clause\nLicense-File: LICENSE\nClassifier: License :: OSI Approved\n"
    files = {
        f"demo-1.0.dist-info/{name}": name for name in ("licenses/LICENSE", "licenses/a/COPYING", "NOTICE.txt", "top")
    }
    contents = made(tmp_path, files, metadata=metadata)
    assert str(contents.licence) == "MIT AND BSD-3-Clause"
    assert contents.licence.files == ("demo-1.0.dist-info/licenses/LICENSE", "demo-1.0.dist-info/NOTICE.txt")
    assert contents.licence.components == ("demo-1.0.dist-info/licenses/a/COPYING",)
    assert contents.licence.classifiers == ("License :: OSI Approved",)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ("", "not stated"),
        ("License: Apache 2.0\n\n and more\n", "Apache 2.0"),
        (
            "License: Copyright (c) 2001 A, Inc. 2003, B.\n All rights reserved.\n \n You may\n copy it. And",
            "You may copy it.",
        ),
        ("License: MIT License\n Copyright (c) 2001 A\n", "MIT License"),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License\n", "MIT License"),
        ("License: Copyright A\n", "not stated"),
        (
            "License: =====\n The Kiwi licensing terms\n =====\n Kiwi is licensed\n as BSD. And",
            "Kiwi is licensed as BSD.",
        ),
        ("License: # Software License Agreement\n \n This is a contract. And\n", "This is a contract."),
        ("Classifier: License :: OSI Approved :: MIT License\n", "MIT License"),
    ],
)
def test_an_older_licence_is_said_in_one_line(tmp_path: Path, metadata: str, said: str) -> None:
    assert str(made(tmp_path, {}, metadata=metadata).licence) == said


def test_the_variant_is_what_its_document_says(tmp_path: Path) -> None:
    name = NAME.replace(".whl", "-v3.whl")
    stamped = document(variant("v3", "x86_64 :: level :: v3")).pack()
    contents = made(tmp_path, {"demo-1.0.dist-info/variant.json": stamped}, name=name)
    assert valid(contents)["variant"] == {"label": "v3", "properties": ["x86_64 :: level :: v3"]}


@pytest.mark.parametrize(
    ("files", "warning"),
    [
        (
            {},
            (
                "demo-1.0.dist-info/variant.json: missing; expected it to describe the variant 'v3' of the file name "
                "(PEP 825)"
            ),
        ),
        (
            {"demo-1.0.dist-info/variant.json": "{"},
            "demo-1.0.dist-info/variant.json: not JSON: Expecting property name enclosed in double quotes",
        ),
    ],
)
def test_a_variant_that_cannot_be_read_is_a_warning(tmp_path: Path, files: dict[str, str], warning: str) -> None:
    contents = made(tmp_path, files, name=NAME.replace(".whl", "-v3.whl"))
    assert contents.variant is None
    (found,) = contents.warnings
    assert found.startswith(warning)
    valid(contents)


def test_a_damaged_library_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    contents = made(tmp_path, {"demo/bad.so": HOST[:100], "demo/good.so": HOST})
    ((path, why),) = [(damaged.path, damaged.why) for damaged in contents.damaged]
    assert path == "demo/bad.so"
    assert why.startswith("program header table at 0x40, ")
    assert [library.path for library in contents.libraries] == ["demo/good.so"]
    valid(contents)


def test_a_member_that_is_not_what_record_says_is_damaged(tmp_path: Path) -> None:
    path = wheel(tmp_path, NAME, {"demo/bad.so": HOST, "demo/good.so": GPU}, compression=0)
    place = path.read_bytes().find(HOST) + len(HOST) // 2
    contents = inspect(poked(path, place, b"\xff\xff\xff\xff"))
    ((member, why),) = [(damaged.path, damaged.why) for damaged in contents.damaged]
    assert member == "demo/bad.so"
    assert why.startswith("damaged: CRC-32 is ")
    assert [library.path for library in contents.libraries] == ["demo/good.so"]


def test_a_wheel_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"PK")
    with pytest.raises(WheelError, match="not a zip archive"):
        inspect(path)


@settings(max_examples=40)
@given(st.integers(0, len(GPU) - 1), st.binary(min_size=1, max_size=8))
def test_flipped_bytes_are_told_or_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, place: int, new: bytes
) -> None:
    data = GPU[:place] + new + GPU[place + len(new) :]
    contents = made(tmp_path_factory.mktemp("w"), {"demo/gpu.so": data})
    assert len(contents.libraries) + len(contents.damaged) <= 1
    valid(contents)


@pytest.mark.nightly
def test_what_loads_what_is_told_where_it_is_asked_for(tmp_path: Path) -> None:
    whole = everything(NAME, files())
    path = wheel(tmp_path, NAME, whole)
    assert "closure" not in valid(inspect(path))
    closure = valid(inspect(path, closure=True))["closure"]
    nodes = {node["path"]: node for node in closure["nodes"]}
    assert closure["nodes"][0]["path"] == f"demo.libs/{DEEP}"
    assert nodes[f"demo.libs/{DEEP}"]["original"] == {"name": "libdeep.so.1", "digest": "1a2b3c4d"}
    top = nodes["demo.libs/libtop.so"]
    assert (top["role"], top["soname"], top["mentioned"]) == ("library", "libtop.so", ["libmore.so"])
    assert (top["runpath"], top["hash"]) == (["$ORIGIN"], hashed(whole["demo.libs/libtop.so"]))
    assert top["needed"][0] == {"name": DEEP, "via": "own", "provider": f"demo.libs/{DEEP}", "projects": []}
    assert {"library": "libc.so.6", "versions": ["GLIBC_2.2.5"]} in top["requires"]
    assert len(closure["chains"][f"demo.libs/{DEEP}"]) == 2
    assert closure["unneeded"] == ["demo.libs/libidle.so"]


def test_a_cubin_or_an_object_file_is_nothing_that_the_loader_loads(tmp_path: Path) -> None:
    whole = {"demo/kernel.cubin": cubin(90, 256), "demo/a.o": object_file("int a;"), "demo/a.so": HOST}
    contents = inspect(wheel(tmp_path, NAME, whole), closure=True)
    assert contents.closure
    assert [node.path for node in contents.closure.nodes] == ["demo/a.so"]


def test_a_library_whose_versions_are_damaged_is_left_out_of_the_closure_alone(tmp_path: Path) -> None:
    section = ELFFile(io.BytesIO(HOST)).get_section_by_name(".gnu.version_r")
    assert section
    versions = section["sh_offset"]
    # the place of the library's name among the names, behind their end
    bad = HOST[: versions + 4] + b"\xff\xff\xff\x7f" + HOST[versions + 8 :]
    path = wheel(tmp_path, NAME, {"demo/bad.so": bad, "demo/good.so": GPU})
    contents = inspect(path, closure=True)
    assert [library.path for library in contents.libraries] == [item.path for item in inspect(path).libraries]
    assert contents.closure
    assert [node.path for node in contents.closure.nodes] == ["demo/good.so"]
    (warning,) = contents.warnings
    assert warning.startswith("demo/bad.so: left out of the closure: ")
    valid(contents)


@pytest.mark.nightly
@settings(max_examples=40)
@given(st.integers(0, len(HOST) - 1), st.binary(min_size=1, max_size=8))
def test_flipped_bytes_in_a_closure_are_told_or_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, place: int, new: bytes
) -> None:
    data = HOST[:place] + new + HOST[place + len(new) :]
    contents = inspect(wheel(tmp_path_factory.mktemp("w"), NAME, {"demo/a.so": data}), closure=True)
    assert len(contents.libraries) + len(contents.damaged) <= 1
    valid(contents)
