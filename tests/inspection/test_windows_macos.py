"""Wheels for Windows and macOS, and what is said of the libraries in them."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.factories.macho_files import ARM64, BUNDLE, X86_64, fat, macho
from tests.factories.pe_files import pe_file
from tests.factories.wheels import wheel
from vbuild.inspection.inspect import inspect
from vbuild.inspection.model import Contents
from vbuild.inspection.page import page
from vbuild.inspection.text import closure_lines, details, summary

WINDOWS, MACOS = "demo-1.0-cp312-cp312-win_amd64.whl", "demo-1.0-cp312-cp312-macosx_11_0_universal2.whl"
HASH = "0fa7eb792d3fbcf2233e4ea47e9144b9"
SCHEMA = json.loads(Path(__file__).with_name("contents.schema.json").read_text())
INIT = "import os\nos.add_dll_directory(os.path.join(os.path.dirname(__file__), os.pardir, 'demo.libs'))\n"


def windows(folder: Path) -> Contents:
    files: dict[str, bytes | str] = {
        "demo/__init__.py": INIT,
        "demo/_c.pyd": pe_file(
            name="_c.pyd",
            needed=["KERNEL32.dll", f"x-{HASH}.dll", "cudart64_12.dll", "lost.dll"],
            delayed=["USER32.dll"],
            exports=["PyInit__c"],
            text=b"x.dll\0",
        ),
        f"demo.libs/x-{HASH}.dll": pe_file(name="x.dll", exports=["x"]),
        "demo/tool.data": pe_file(flags=0x22),
        "demo/short.dll": pe_file()[:300],
        "demo/text.txt": b"MZ is no program" + bytes(60),
    }
    return inspect(wheel(folder, WINDOWS, files), closure=True)


def macos(folder: Path) -> Contents:
    module = [
        macho(cpu=cpu, kind=BUNDLE, needed=["@loader_path/.dylibs/liba.dylib"], exports=["PyInit__c"], local=["in"])
        for cpu in (X86_64, ARM64)
    ]
    archive = b"!<arch>\n" + b"a.o/".ljust(48) + b"4".ljust(10) + b"`\nabcd"
    files = {
        "demo/_c.so": fat((X86_64, module[0]), (ARM64, module[1])),
        "demo/.dylibs/liba.dylib": macho(name="/DLC/demo/.dylibs/liba.dylib", needed=["/usr/lib/libSystem.B.dylib"]),
        "demo/lib.a": fat((X86_64, archive), (ARM64, archive)),
        "demo/Class.class": b"\xca\xfe\xba\xbe\0\0\0\x41" + bytes(60),
    }
    return inspect(wheel(folder, MACOS, files), closure=True)


def valid(contents: Contents) -> Any:
    data = json.loads(json.dumps(contents.data()))
    Draft202012Validator(SCHEMA).validate(data)
    return data


def test_a_windows_wheel_is_read_by_magic_and_its_dlls_are_found(tmp_path: Path) -> None:
    contents = windows(tmp_path)
    data = valid(contents)
    assert {library["path"] for library in data["libraries"]} == {
        "demo/_c.pyd",
        f"demo.libs/x-{HASH}.dll",
        "demo/tool.data",
    }
    assert [damaged["path"] for damaged in data["damaged"]] == ["demo/short.dll"]
    (module,) = (library for library in data["libraries"] if library["path"] == "demo/_c.pyd")
    assert (module["format"], module["machine"], module["delayed"]) == ("pe", "amd64", ["USER32.dll"])
    ways = {need["name"]: need["via"] for node in data["closure"]["nodes"] for need in node["needed"]}
    assert ways == {
        "KERNEL32.dll": "platform",
        "USER32.dll": "platform",
        f"x-{HASH}.dll": "added",
        "cudart64_12.dll": "outside",
        "lost.dll": "missing",
    }
    text = "\n".join(closure_lines(contents))
    assert f"x.dll, hash {HASH}" in text.replace("\n              ", " ")
    assert "may open    x" not in text
    assert "nvidia-cuda-runtime" in text
    assert f'<td class="path">x-{HASH}.dll\n' in page(contents)
    needs = next(line for line in summary(contents) if line.startswith("needs"))
    assert needs == "needs    cudart64_12.dll, lost.dll"


def test_a_macos_wheel_is_read_half_by_half(tmp_path: Path) -> None:
    contents = macos(tmp_path)
    data = valid(contents)
    assert data["damaged"] == []
    module = next(library for library in data["libraries"] if library["path"] == "demo/_c.so")
    assert (module["machine"], [half["machine"] for half in module["halves"]]) == ("universal2", ["x86_64", "arm64"])
    assert [archive["path"] for archive in data["archives"]] == ["demo/lib.a"]
    assert [need["via"] for node in data["closure"]["nodes"] for need in node["needed"] if need["provider"]] == ["own"]
    assert list(data["wanted"]) == ["/usr/lib/libSystem.B.dylib"]
    assert not any(line.startswith("needs") for line in summary(contents))
    lines = list(details(contents.libraries[0], ()))
    assert [line for line in lines if line.startswith("  arm64")]
    assert [one.name for one in contents.bundled] == ["liba.dylib"]


@pytest.mark.parametrize("made", [windows, macos])
def test_the_page_draws_all_bytes_of_each_library(made: Any, tmp_path: Path) -> None:
    contents = made(tmp_path)
    text = page(contents)
    assert all(f">{library.path}<" in text for library in contents.libraries)
    assert "arm64" in text or contents.wheel == WINDOWS
