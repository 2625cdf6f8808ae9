"""Native dependencies that cannot be had: one clear line, a log where there is one, and nothing half-made."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.factories.native_libraries import Works, cmake_library, library, script_library, step
from tests.factories.projects import tree
from tests.factories.tools import needs
from vbuild.build.native import NativeCache
from vbuild.errors import BuildError, FetchError
from vbuild.files.cache import DAY, Cache, Part
from vbuild.hardware.cpu import Cpu

pytestmark = [
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are those of x86-64"),
    needs("gcc", "make"),
]


def _refused(works: Works, text: str) -> str:
    with pytest.raises(BuildError) as refused:
        works.built(text, "x86-64")
    return str(refused.value)


def test_a_build_that_fails_says_where_its_log_is_and_leaves_nothing(tmp_path: Path) -> None:
    works = Works.at(tmp_path / "works")
    said = _refused(works, step(script_library(tmp_path / "depth"), "script", "before-build = ['echo so; exit 3']"))
    log = works.logs / "native-depth-x86_64_v1.log"
    assert said == f"native depth: sh failed with status 3; its log is {log}, which ends:\nso"
    assert log.read_text().endswith("so\n")
    assert [path.name for path in works.root.iterdir()] == [".locks"]


def test_a_failure_is_told_to_everybody_and_made_once(tmp_path: Path) -> None:
    works = Works.at(tmp_path / "works")
    counted = f"before-build = ['echo tried >> {tmp_path}/count; exit 1']"
    native_builder = works.native_builder(step(script_library(tmp_path / "depth"), "script", counted))
    prefixes = [one.prefix for one in native_builder.steps(Cpu.parse("x86-64"))]
    for _ in range(2):
        with pytest.raises(BuildError, match="sh failed with status 1"):
            native_builder.build(prefixes)
    assert (tmp_path / "count").read_text() == "tried\n"


@pytest.mark.nightly
def test_a_build_that_is_killed_is_built_again(tmp_path: Path) -> None:
    works = Works.at(tmp_path / "works")
    folder = script_library(tmp_path / "depth")
    # installs half of it, and waits
    half = f"before-build = ['mkdir -p $DESTDIR$PREFIX/lib; touch {tmp_path}/begun; test -e {tmp_path}/go || sleep 60']"
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.factories.native_libraries import Works, step\n"
        "from vbuild.process.run import keep_watch\nkeep_watch()\n"
        "Works.at(Path(sys.argv[1])).built(step(Path(sys.argv[2]), 'script', sys.argv[3]), 'x86-64')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", program, str(works.folder), str(folder), half]
    with subprocess.Popen(command, env=environment) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert [path.name for path in works.root.iterdir()] == [".locks"]
    (tmp_path / "go").touch()
    (prefix,) = Works.at(tmp_path / "other", root=works.root).built(step(folder, "script", half), "x86-64")
    assert library(prefix).is_file()
    assert list(works.logs.iterdir())
    works.built(step(folder, "script", half), "x86-64")
    assert not list(works.logs.iterdir())


def test_what_does_not_heed_destdir_fails_instead_of_writing_into_the_system(tmp_path: Path) -> None:
    text = step(
        script_library(tmp_path / "depth"), "script", "script = ['mkdir -p $PREFIX/lib', 'cp depth.c $PREFIX/lib']"
    )
    said = _refused(Works.at(tmp_path / "works"), text)
    assert said.startswith("native depth: sh failed with status 1; its log is ")
    assert "/dev/null" in said


def test_a_script_that_installs_nothing_is_refused(tmp_path: Path) -> None:
    works = Works.at(tmp_path / "works")
    said = _refused(works, step(script_library(tmp_path / "depth"), "script", "script = ['true']"))
    assert said == (
        "native depth: installed nothing; expected files below $DESTDIR$PREFIX, where install targets of make, cmake "
        f"and meson go by themselves; its log is {works.logs / 'native-depth-x86_64_v1.log'}"
    )


def test_a_script_that_installs_elsewhere_is_refused_with_what_is_there(tmp_path: Path) -> None:
    lines = "script = ['mkdir -p $DESTDIR/usr/lib $DESTDIR$PREFIX/lib', 'cp depth.c $DESTDIR/usr/lib']"
    said = _refused(Works.at(tmp_path / "works"), step(script_library(tmp_path / "depth"), "script", lines))
    assert said.startswith(
        "native depth: installed usr/lib/depth.c below $DESTDIR; expected files below $DESTDIR$PREFIX, where "
    )


def test_a_library_that_is_damaged_is_refused(tmp_path: Path) -> None:
    lines = "script = ['mkdir -p $DESTDIR$PREFIX/lib', \"printf '\\\\177ELF' > $DESTDIR$PREFIX/lib/libx.so\"]"
    said = _refused(Works.at(tmp_path / "works"), step(script_library(tmp_path / "depth"), "script", lines))
    assert said.startswith("native depth: lib/libx.so: ")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("build", "file", "advice"),
    [
        ("autotools", "configure", "before-build = ['autoreconf -fi'], or the project's own way to make one"),
        ("cmake", "CMakeLists.txt", "source.subdirectory for one further down"),
        ("meson", "meson.build", "source.subdirectory for one further down"),
    ],
)
def test_a_source_of_another_build_system_is_refused(tmp_path: Path, build: str, file: str, advice: str) -> None:
    programs = tmp_path / "programs"
    for name in ("cmake", "meson", "ninja"):
        tree(programs, {name: "#!/bin/sh\n"})
        (programs / name).chmod(0o755)
    env = f"env = {{ PATH = '{programs}:{os.environ['PATH']}' }}"
    said = _refused(Works.at(tmp_path / "works"), step(script_library(tmp_path / "depth"), build, env))
    assert said == f"native depth: no {file} in its source, which has depth.c, depth.h; expected it, or {advice}"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ("autotools", "native depth: no make on PATH; expected it to be installed"),
        ("cmake", "native depth: no cmake on PATH; expected it to be installed, or requires = ['cmake']"),
        ("meson", "native depth: no meson on PATH; expected it to be installed, or requires = ['meson']"),
    ],
)
def test_a_missing_program_is_named_before_anything_is_built(tmp_path: Path, build: str, message: str) -> None:
    text = step(cmake_library(tmp_path / "depth"), build, f"env = {{ PATH = '{tmp_path}' }}")
    with pytest.raises(BuildError) as refused:
        Works.at(tmp_path / "works").native_builder(text).steps(Cpu.parse("x86-64"))
    assert str(refused.value) == message


def test_another_machine_is_refused(tmp_path: Path) -> None:
    native_builder = Works.at(tmp_path / "works").native_builder(step(script_library(tmp_path / "depth"), "script"))
    with pytest.raises(BuildError) as refused:
        native_builder.steps(Cpu.parse("armv8-a"))
    assert str(refused.value) == (
        "native depth: cannot be built for aarch64 on x86_64; expected wheels for this machine, or a project without "
        "native dependencies"
    )


def test_a_subdirectory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = script_library(tmp_path / "depth")
    text = step(folder, "script").replace(f'path = "{folder}"', f'path = "{folder}", subdirectory = "gone"')
    assert (
        _refused(Works.at(tmp_path / "works"), text)
        == f"native depth: {folder}: no folder 'gone' in it; expected that of source.subdirectory"
    )


def test_a_source_that_no_mirror_has_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VBUILD_DEBIAN_MIRROR", (tmp_path / "empty").as_uri())
    source = f'source = {{ debian = "depth", version = "1.0", sha256 = "{"0" * 64}" }}'
    text = step(tmp_path, "script").replace(f'source = {{ path = "{tmp_path}" }}', source)
    with pytest.raises(FetchError) as refused:
        Works.at(tmp_path / "works").built(text, "x86-64")
    assert str(refused.value).startswith(
        "native depth: Debian source depth 1.0: no depth_1.0.orig.tar.xz, .gz or .bz2 on "
    )


def test_a_shelf_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    works = Works.at(tmp_path / "works", root=tmp_path / "file")
    said = _refused(works, step(script_library(tmp_path / "depth"), "script"))
    why = "cannot be written to: Not a directory; point XDG_CACHE_HOME at a folder that can be"
    assert said == f"native depth: {tmp_path / 'file'}: {why}"


def test_what_nobody_uses_is_swept_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    works = Works.at(tmp_path / "works")
    text = step(script_library(tmp_path / "depth"), "script")
    one, three = works.built(text, "x86-64", "x86-64-v3")
    shelf, cache = NativeCache(works.root), Cache(Part.NATIVE, works.root)
    assert cache.sweep(most=0).count == 0
    assert shelf.has(one)
    assert shelf.has(three)
    os.utime(one.folder.parent, (time.time() - 40 * DAY,) * 2)
    assert cache.sweep().count == 1
    assert not one.folder.parent.exists()
    assert shelf.has(three)
    assert not shelf.has(dataclasses.replace(three, folder=works.root / "gone-0/prefix"))
