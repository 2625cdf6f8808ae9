"""Wheels beside thin ones: what installers, the index's own check and packaging make of them, and what is in them."""

import email
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.metadata import Metadata as Judged

from tests.factories.clients import PIP, UV
from tests.factories.elf import shared_object
from tests.factories.wheels import contents, wheel
from vbuild.errors import RepackageError
from vbuild.splitting.companion import (
    Companion,
    LibsContents,
    libs_folder,
    licence_files,
    licence_lines,
    licence_texts,
)
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.metadata import Metadata, is_companion
from vbuild.wheel.write import write_wheel

PLATFORM = "manylinux_2_17_x86_64.manylinux2014_x86_64"
HEAD = "Metadata-Version: 2.1\nName: Foo.Bar\nVersion: 1.0\n"
MIT = "License: MIT License\n        \n        Permission is hereby granted\n"
TEXTS = {"LICENSE": b"Do as you like.\n", "third_party/COPYING.zlib": b"As is.\n"}


def like(more: str = "", *, head: str = HEAD) -> Metadata:
    return Metadata.parse(f"{head}{more}Requires-Python: >=3.9\nRequires-Dist: numpy\n\nLong description\n")


def sample(**changes: Any) -> Companion:
    """A -libs wheel of one library, as *changes* have it."""
    return alone(made_of(**changes))


def made_of(**changes: Any) -> LibsContents:
    known = {
        "files": {"foo_bar_libs/lib/libx-1a2b3c4d.so.1": "ab" * 32},
        "platform": PLATFORM,
        "licence": licence_lines([like("License-Expression: MIT\n")]),
        "texts": TEXTS,
    }
    return LibsContents("Foo.Bar", **{**known, **changes})


def alone(libs: LibsContents) -> Companion:
    return libs.wheel("1.0")


def written(folder: Path, companion: Companion, files: dict[str, bytes]) -> Path:
    """The wheel file that *companion* and *files* are."""
    with write_wheel(folder, companion.name) as writer:
        for path, data in (*files.items(), *companion.members):
            writer.write(path, data)
    return writer.path


def test_licences_of_several_projects_are_joined_in_whatever_order() -> None:
    mit = like("License-Expression: MIT\n")
    head = "Metadata-Version: 2.4\nName: other\nVersion: 2.0\n"
    both = like("License-Expression: GPL-3.0-only OR MIT\n", head=head)
    expected = ("License-Expression: (GPL-3.0-only OR MIT) AND (MIT)",)
    assert licence_lines([mit, both]) == licence_lines([both, mit]) == expected
    assert licence_lines([mit, mit]) == ("License-Expression: MIT",)
    old = like("License: BSD\nClassifier: License :: OSI Approved :: BSD License\n", head=head)
    assert licence_lines([old, mit]) == ("License: BSD", "Classifier: License :: OSI Approved :: BSD License")


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ("License-Expression: MIT\nLicense: old\nClassifier: License :: OSI Approved\n", ["License-Expression: MIT"]),
        (MIT, ["License: MIT License", "        ", "        Permission is hereby granted"]),
        (MIT.replace("\n", "\r\n"), ["License: MIT License", "        ", "        Permission is hereby granted"]),
        (
            "License: BSD\nClassifier: License :: OSI Approved :: BSD License\nClassifier: Topic :: Software\n",
            ["License: BSD", "Classifier: License :: OSI Approved :: BSD License"],
        ),
        ("", []),
    ],
    ids=["expression", "text", "text with CRLF", "classifier", "nothing"],
)
def test_the_licence_is_said_as_the_source_says_it(said: str, fields: list[str]) -> None:
    made = sample(licence=licence_lines([like(said)]), texts={})
    lines = made.metadata.decode().partition("\n\n")[0].split("\n")
    assert lines[4:-1] == fields
    assert lines[0] == ("Metadata-Version: 2.4" if "License-Expression" in said else "Metadata-Version: 2.1")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("said", ["License-Expression: MIT\n", MIT, ""], ids=["expression", "text", "nothing"])
@pytest.mark.parametrize("texts", [{}, TEXTS], ids=["no texts", "texts"])
def test_packaging_is_content(tmp_path: Path, said: str, texts: dict[str, bytes]) -> None:
    metadata = like(said)
    path = f"{libs_folder('Foo.Bar')}/libx.so.1"
    data = shared_object("int x;")
    files = {path: hashlib.sha256(data).hexdigest()}
    requires = ('nvidia-cufft-cu12==11.2.1.3; platform_system == "Linux"',)
    libs = alone(LibsContents("Foo.Bar", files, PLATFORM, licence_lines([metadata]), texts, requires))
    file = written(tmp_path, libs, {path: data})
    judged = Judged.from_email(libs.metadata)
    assert judged.name == libs.project
    assert judged.requires_python is None
    assert [*(judged.license_files or [])] == [*texts]
    with open_wheel(file, check=True) as source:
        assert is_companion(source.metadata(), source.wheel_file())
        assert set(libs.wheel_file.decode().splitlines()[3:]) >= {f"Tag: {tag}" for tag in libs.name.tags}
    dist_info = {name for name in contents(file) if name.startswith(f"{libs.name.dist_info}/licenses/")}
    assert dist_info == {f"{libs.name.dist_info}/licenses/{text}" for text in texts}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_installers_put_libraries_where_rpaths_lead(tmp_path: Path, installer: str) -> None:
    path, data = f"{libs_folder('Foo.Bar')}/libx.so.1", shared_object("int x;")
    tag = "linux_x86_64"
    files = {path: hashlib.sha256(data).hexdigest()}
    libs = alone(LibsContents("Foo.Bar", files, tag, texts=TEXTS))
    wheel(tmp_path, "foo_bar-1.0-py3-none-any.whl", {"foo.py": ""}, metadata=f"Requires-Dist: {libs.requirement}\n")
    written(tmp_path, libs, {path: data})
    target = tmp_path / "site"
    install = (
        [*PIP, "install"]
        if installer == "pip"
        else [UV, "pip", "install", "--offline", "--no-config", "--python", sys.executable]
    )
    command = [*install, "--no-index", "--find-links", str(tmp_path), "--target", str(target), "foo.bar"]
    subprocess.run(command, check=True, capture_output=True)
    assert (target / path).read_bytes() == data
    assert (target / "foo.py").exists()
    found = email.message_from_bytes((target / libs.name.dist_info / "METADATA").read_bytes())
    assert found["Name"] == "foo-bar-libs"
    assert (target / libs.name.dist_info / "licenses/third_party/COPYING.zlib").read_bytes() == b"As is.\n"


def test_the_texts_of_licences_go_along() -> None:
    assert dict(sample().members)[f"{sample().name.dist_info}/licenses/LICENSE"] == b"Do as you like.\n"


def test_texts_in_the_dist_info_folder_and_beside_libraries_are_found(tmp_path: Path) -> None:
    texts = {
        "demo-1.0.dist-info/licenses/LICENSE": "A",
        "demo-1.0.dist-info/licenses/third_party/zlib.txt": "B",
        "demo-1.0.dist-info/LICENSE": "C",
        "demo-1.0.dist-info/COPYING": "D",
        "demo-1.0.dist-info/AUTHORS.rst": "E",
        "demo.libs/LICENCE.libx": "F",
        "demo.libs/NOTICE": "G",
    }
    others = {
        "demo.libs/libx-1a2b3c4d.so.1": "x",
        "demo/LICENSE": "not beside a library",
        "demo.libs/licenses.json": "{}",
        "demo.libs/readme.txt": "",
        "demo-1.0.dist-info/entry_points.txt": "",
    }
    with open_wheel(wheel(tmp_path, files={**texts, **others})) as source:
        assert {member.path for member in licence_files(source)} == set(texts)
        assert licence_texts(source) == {
            "LICENSE": b"A",
            "third_party/zlib.txt": b"B",
            "demo/LICENSE": b"C",
            "COPYING": b"D",
            "AUTHORS.rst": b"E",
            "demo.libs/LICENCE.libx": b"F",
            "demo.libs/NOTICE": b"G",
        }


def test_a_wheel_of_nothing_is_refused() -> None:
    with pytest.raises(RepackageError) as caught:
        sample(files={})
    assert str(caught.value) == "foo-bar-libs: no library to put in, expected one at least"
