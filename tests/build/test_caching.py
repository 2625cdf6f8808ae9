"""ccache behind the compiler wrappers: what was compiled in one folder is found again from another."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.tools import needs
from vbuild.build.wrappers import Ccache, ccache
from vbuild.errors import BuildError

GCC = shutil.which("gcc") or "gcc"
SOURCE = '#include <h.h>\n#include "a.h"\nconst char *where(void) { return __FILE__; }\n'


def tree(stage: Path) -> Path:
    """A project below *stage*, which is a new folder for every run, and a header of its build environment."""
    source = stage / "builds" / "plain" / "tree" / "src"
    (stage / "environments").mkdir(parents=True)
    (stage / "environments" / "h.h").write_text("int header(void);\n")
    source.mkdir(parents=True)
    (source / "a.h").write_text("#define A 1\n")
    (source / "a.c").write_text(SOURCE)
    (source / "a.cu").write_text(f'extern "C" {{\n{SOURCE}}}\n__global__ void kernel(int *a) {{ *a = A; }}\n')
    return source.parent


def compiled(stage: Path, environment: Mapping[str, str], *command: str) -> bytes:
    """The object of a source in a new tree below *stage*, as *command* compiles it: by absolute paths, with -g."""
    project = tree(stage)
    cache = ccache("ccache", stage, environment)
    assert cache
    words = [word.format(project=project) for word in command]
    words = [*cache.prefix(command[:1]), *words, "-O2", f"-I{stage}/environments", "-o", "a.o"]
    subprocess.run(words, cwd=project, env={**environment, **cache.variables}, check=True)
    return (project / "a.o").read_bytes()


def hits(environment: Mapping[str, str]) -> int:
    """How often ccache has found what it was asked for, in the cache of *environment*."""
    ran = subprocess.run(["ccache", "--print-stats"], env=environment, capture_output=True, text=True, check=True)
    return sum(
        int(number) for number in re.findall(r"^(?:direct|preprocessed)_cache_hit\t(\d+)$", ran.stdout, re.MULTILINE)
    )


@pytest.fixture
def empty(tmp_path: Path) -> dict[str, str]:
    """An environment whose ccache is empty."""
    outside = {name: text for name, text in os.environ.items() if not name.startswith("CCACHE_")}
    return {**outside, "CCACHE_DIR": str(tmp_path / "ccache")}


@needs("ccache", "gcc")
def test_ccache_finds_from_another_folder_what_it_has_compiled(empty: dict[str, str], tmp_path: Path) -> None:
    command = (GCC, "-g", "-c", "{project}/src/a.c", "-ffile-prefix-map={project}=.")
    first = compiled(tmp_path / "one", empty, *command)
    assert hits(empty) == 0
    second = compiled(tmp_path / "another", empty, *command)
    assert hits(empty) == 1
    assert first == second
    assert str(tmp_path / "one" / "builds").encode() not in second


@needs("ccache", "nvcc")
@pytest.mark.parametrize("archs", [("80",), ("80", "90")])
def test_ccache_finds_what_nvcc_has_compiled(archs: tuple[str, ...], empty: dict[str, str], tmp_path: Path) -> None:
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    mapping = ("-Xcompiler", "-ffile-prefix-map={project}=.")
    command = (str(shutil.which("nvcc")), *codes, "-c", "{project}/src/a.cu", *mapping)
    objects = [compiled(tmp_path / name, empty, *command) for name in ("one", "another")]
    assert hits(empty) == 1
    assert objects[0] == objects[1]


def programs(folder: Path, *names: str) -> dict[str, str]:
    """An environment whose PATH has nothing but programs called *names*, which answer as ccache does."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f'#!/bin/sh\necho "{folder}/cache"\n')
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def test_auto_takes_what_is_on_path(tmp_path: Path) -> None:
    cache = ccache("auto", tmp_path, programs(tmp_path / "bin", "ccache"))
    assert cache
    assert cache.program == tmp_path / "bin/ccache"
    assert ccache("auto", tmp_path, programs(tmp_path / "empty")) is None


def test_none_and_a_cache_in_the_users_own_cc_leave_it_at_that(tmp_path: Path) -> None:
    environment = programs(tmp_path / "bin", "ccache")
    assert ccache("none", tmp_path, environment) is None
    assert ccache("auto", tmp_path, {**environment, "CC": "/usr/bin/sccache gcc"}) is None


def test_a_cache_that_is_not_there_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        ccache("ccache", tmp_path, programs(tmp_path / "bin"))
    assert str(caught.value) == (
        "build.cache: no ccache on PATH; install it: apt-get install ccache, or dnf install ccache"
    )


@needs("ccache")
def test_a_ccache_that_cannot_write_is_passed_over_or_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = f"{tmp_path}/file/ccache"
    environment = {"PATH": str(Path(str(shutil.which("ccache"))).parent), "CCACHE_DIR": folder}
    assert ccache("auto", tmp_path, environment) is None
    with pytest.raises(BuildError) as caught:
        ccache("ccache", tmp_path, environment)
    assert str(caught.value).endswith(
        f"/ccache: its folder {folder} cannot be written to: Not a directory; set CCACHE_DIR"
    )


@needs("ccache")
def test_a_ccache_whose_folder_has_no_absolute_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": ""}
    with pytest.raises(BuildError) as caught:
        ccache("ccache", tmp_path, environment)
    program = shutil.which("ccache")
    assert str(caught.value) == f"build.cache: {program}: its folder 'ccache' is not an absolute path; set CCACHE_DIR"
    assert not list(tmp_path.iterdir())


def test_a_ccache_that_does_not_run_is_refused_with_what_it_says(tmp_path: Path) -> None:
    environment = programs(tmp_path / "bin", "ccache")
    (tmp_path / "bin/ccache").write_text("#!/bin/sh\necho no such configuration >&2\nexit 1\n")
    with pytest.raises(BuildError) as caught:
        ccache("ccache", tmp_path, environment)
    assert str(caught.value) == f"build.cache: {tmp_path}/bin/ccache: no such configuration"


def test_what_a_cache_does_not_help_is_left_alone(tmp_path: Path) -> None:
    cache = Ccache(tmp_path / "ccache", {})
    (tmp_path / "ccache").write_text("")
    (tmp_path / "masked-gcc").symlink_to(tmp_path / "ccache")
    assert cache.prefix(("/bin/gcc",)) == (str(tmp_path / "ccache"),)
    assert cache.prefix(("/bin/zig", "cc")) == ()
    assert cache.prefix((str(tmp_path / "masked-gcc"),)) == ()
