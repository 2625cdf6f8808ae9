"""The program that runs in containers, run here: with the compilers of this machine, and whatever Pythons it has."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.cibuildwheel_runs import LEVELS, described, runs_of
from tests.factories.once import once
from tests.factories.projects import KERNEL, tree
from tests.factories.tools import needs
from vbuild.build.cibuildwheel.container import MOUNT, SAID
from vbuild.build.cibuildwheel.making import ContainerSetup


@once
def _program(python: str) -> bytes:
    """The path of the program that *python* is, which may be a script that leads to it; empty if it does not run."""
    command = [python, "-c", "import sys; print(sys.executable)"]
    return subprocess.run(command, capture_output=True, check=False).stdout.strip()


PYTHONS = {
    version: program.decode()
    for version in ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
    for path in [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    if path and (program := _program(str(path)))
}
IDENTIFIER = "cp311-manylinux_x86_64"

pytestmark = [needs("gcc"), pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are those of x86-64")]


class Container:
    """A folder that stands for a container: the kit in it, compiler wrappers, and the environment that a build has
    there.
    """

    def __init__(self, folder: Path, *, text: str = LEVELS, label: str = "x86_64_v3") -> None:
        project = described(folder / "project", text)
        self.run = next(run for run in runs_of(project) if str(run) == label)
        self.kit = ContainerSetup.in_folder(folder / "kit")
        self.kit.add(self.run)
        self.place = folder / "kit" / "runs" / self.run.name
        self.wrappers = folder / "launchers"
        self.project = project
        self.change(wrappers=str(self.wrappers), project=str(project))

    def change(self, **settings: object) -> None:
        """Other *settings* than those of a real container."""
        file = self.place / "settings.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))

    def prepare(self, python: str | Path = sys.executable, **environment: str) -> subprocess.CompletedProcess[str]:
        """The program, run by *python*."""
        program = self.kit.folder / "vbuild" / "build" / "cibuildwheel" / "container.py"
        path = environment.pop("PATH", os.environ["PATH"])
        variables = {"PATH": f"{self.wrappers}:{path}", "CIBUILDWHEEL_BUILD_IDENTIFIER": IDENTIFIER, **environment}
        command = [str(python), "-I", "-S", "-B", str(program), str(self.place)]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    def call(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A *command* of a build, behind the compiler wrappers."""
        variables = {"PATH": f"{self.wrappers}:{os.environ['PATH']}", **environment}
        return subprocess.run(
            command, cwd=self.project, env=variables, capture_output=True, text=True, check=False, timeout=60
        )

    def log(self, name: str) -> Path:
        return self.place / "logs" / IDENTIFIER / name


def registers(file: Path) -> str:
    code = subprocess.run(["objdump", "-d", file], capture_output=True, text=True, check=True).stdout
    return str(max(re.findall(r"%([xyz]mm)", code)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("version", [version for version in PYTHONS if version != "3.8"])
def test_every_python_of_an_image_puts_the_wrappers_there(version: str, tmp_path: Path) -> None:
    container = Container(tmp_path)
    tree(container.project, {"kernel.c": KERNEL})
    # no other Python on PATH: it has to run the compiler wrappers itself
    path = str(_tools(tmp_path))
    ran = container.prepare(PYTHONS[version], PATH=path)
    assert (ran.returncode, ran.stderr) == (0, "")
    ran = container.call("gcc", "-O2", "-march=native", "-c", "kernel.c", PATH=f"{container.wrappers}:{path}")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert registers(container.project / "kernel.o") == "ymm"
    told = container.kit.record(container.run, IDENTIFIER)
    assert [override.removed for override in told.overrides] == [("-march=native",)]
    assert [override.sources for override in told.overrides] == [("kernel.c",)]
    assert len(told.calls) == 1
    assert told.started is not None


def _tools(folder: Path) -> Path:
    """A folder with the programs that compile, and no Python."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("gcc", "cc", "as", "ld", "sh"):
        (tools / name).symlink_to(Path(shutil.which(name) or "").resolve())
    return tools


@pytest.mark.skipif("3.8" not in PYTHONS, reason="no Python 3.8 on this machine")
def test_an_old_python_hands_over_to_a_newer_one_on_path(tmp_path: Path) -> None:
    container = Container(tmp_path)
    ran = container.prepare(PYTHONS["3.8"], PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert (ran.returncode, ran.stderr) == (0, "")
    wrapper = (container.wrappers / "gcc").read_text()
    assert "python3.8" not in wrapper
    assert container.call("gcc", "--version").returncode == 0


def test_each_compiler_on_path_has_a_wrapper_and_nothing_else_has(tmp_path: Path) -> None:
    container = Container(tmp_path)
    container.prepare()
    names = {path.name for path in container.wrappers.iterdir()}
    assert {"gcc", "auditwheel", "rustc-launcher"} <= names
    assert not names & {"python", "python3", "pip", "ld", "as"}
    # once more, as for the next identifier: its own compiler wrappers are no compilers
    again = container.prepare()
    assert (again.returncode, again.stderr) == (0, "")
    assert {path.name for path in container.wrappers.iterdir()} == names
    assert container.call("gcc", "--version").returncode == 0


@pytest.mark.nightly
def test_wrappers_are_the_same_file_where_they_do_the_same_and_another_where_not(tmp_path: Path) -> None:
    places = iter(range(9))

    def wrapper(level: str, keep: str = "", **environment: str) -> tuple[bytes, int]:
        text = LEVELS + (f'[tool.vbuild.build]\nkeep-flags = ["{keep}"]\n' if keep else "")
        container = Container(tmp_path / str(next(places)), text=text, label=level)
        # as in containers, in which these are all in the same place
        container.change(wrappers=str(tmp_path / "launchers"), project="/project")
        container.wrappers = tmp_path / "launchers"
        assert container.prepare(**environment).returncode == 0
        file = container.wrappers / "gcc"
        return file.read_bytes(), file.stat().st_mtime_ns

    v3 = wrapper("x86_64_v3")
    assert wrapper("x86_64_v3") == v3
    other = tree(tmp_path, {"bin/gcc": '#!/bin/sh\nexec /usr/bin/gcc "$@"\n'}) / "bin"
    (other / "gcc").chmod(0o755)
    others = [wrapper("plain"), wrapper("x86_64_v3", keep="kernel.c")]
    others.append(wrapper("x86_64_v3", PATH=f"{other}:{os.environ['PATH']}"))
    for bytes_of, modified in others:
        assert bytes_of != v3[0]
        assert modified != v3[1]


@pytest.mark.sampled(1)
@needs("ccache")
@pytest.mark.parametrize("check", ["content", "mtime", "%compiler% -v"])
def test_a_cache_of_the_project_takes_no_result_of_another_level(check: str, tmp_path: Path) -> None:
    variables = {"CCACHE_DIR": str(tmp_path / "cache"), "CCACHE_COMPILERCHECK": check, "CCACHE_NODIRECT": "1"}
    found = []
    for place, level in enumerate(("plain", "x86_64_v3", "plain", "x86_64_v3")):
        container = Container(tmp_path / str(place), label=level)
        # as in containers, in which these are all in the same place
        container.wrappers, container.project = tmp_path / "launchers", tmp_path / "source"
        container.change(wrappers=str(container.wrappers), project=str(container.project))
        assert container.prepare().returncode == 0
        tree(container.project, {"kernel.c": KERNEL})
        if check.endswith("-v"):  # which is the same for all levels
            assert container.run.plan is not None
            variables["CCACHE_NAMESPACE"] = dict(container.run.plan.environment)["CCACHE_NAMESPACE"]
        ran = container.call("ccache", "gcc", "-O3", "-c", "kernel.c", **variables)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert container.kit.record(container.run, IDENTIFIER).calls
        found.append(registers(container.project / "kernel.o"))
    assert found == ["xmm", "ymm", "xmm", "ymm"]
    statistics = container.call("ccache", "--print-stats", **variables).stdout
    assert "preprocessed_cache_hit\t2\n" in statistics


def test_a_rustc_wrapper_of_the_project_stays_in_use(tmp_path: Path) -> None:
    container = Container(tmp_path)
    container.prepare(VBUILD_RUSTC_WRAPPER="echo wrapped")
    ran = container.call("rustc-launcher", "rustc", "--target", "x86_64-unknown-linux-gnu", "lib.rs")
    assert ran.stdout.startswith("wrapped rustc --target x86_64-unknown-linux-gnu lib.rs -C target-cpu=x86-64-v3")


def test_libraries_are_marked_with_the_level(tmp_path: Path) -> None:
    container = Container(tmp_path)
    container.prepare()
    tree(container.project, {"kernel.c": KERNEL})
    ran = container.call("gcc", "-shared", "-fPIC", "kernel.c", "-o", "kernel.so")
    assert ran.returncode == 0
    notes = subprocess.check_output(["readelf", "-n", container.project / "kernel.so"], text=True)
    assert "x86-64-v3" in notes


def test_auditwheel_gets_what_a_level_needs_behind_its_command_and_nothing_otherwise(tmp_path: Path) -> None:
    container = Container(tmp_path, text=LEVELS + '[tool.vbuild.repair]\nexclude = ["lib a.so*"]\n')
    container.prepare()
    tree(tmp_path, {"bin/auditwheel": '#!/bin/sh\nprintf "<%s>" "$@"\n'})
    (tmp_path / "bin" / "auditwheel").chmod(0o755)
    path = f"/usr/sbin:{container.wrappers}:{tmp_path}/bin:{os.environ['PATH']}"
    added = "<--disable-isa-ext-check><--exclude=lib a.so*>"
    for words, expected in (
        (("repair", "-w", "a b", "x.whl"), f"<repair>{added}<-w><a b><x.whl>"),
        (("-v", "repair", "repair"), f"<-v><repair>{added}<repair>"),
        (("show", "x.whl"), "<show><x.whl>"),
    ):
        assert container.call("auditwheel", *words, PATH=path).stdout == expected


def test_another_machine_is_refused(tmp_path: Path) -> None:
    container = Container(tmp_path)
    container.change(machine="aarch64")
    ran = container.prepare()
    assert (ran.returncode, ran.stderr) == (1, f"{SAID}the image is of x86_64, expected aarch64: set CIBW_ARCHS\n")
    assert not container.wrappers.exists()


def test_a_compiler_that_does_not_know_the_level_is_refused(tmp_path: Path) -> None:
    container = Container(tmp_path)
    # what gcc 10 says of itself
    tree(tmp_path, {"bin/cc": '#!/bin/sh\necho "#define __GNUC__ 10"\necho "#define __x86_64__ 1"\n'})
    (tmp_path / "bin" / "cc").chmod(0o755)
    ran = container.prepare(PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert ran.returncode == 1
    assert ran.stderr == (
        f"{SAID}gcc 10 of the image does not know -march=x86-64-v3; expected gcc 11 or clang 12, or newer: "
        f"choose another image, such as manylinux_2_28\n"
    )
    # unless the project has named another
    assert container.prepare(PATH=f"{tmp_path}/bin:{os.environ['PATH']}", CC="/usr/bin/gcc -pthread").returncode == 0


def test_an_environment_that_lost_what_was_added_is_one_line(tmp_path: Path) -> None:
    container = Container(tmp_path)
    container.change(wrappers=str(tmp_path / "elsewhere"))
    ran = container.prepare()
    assert ran.returncode == 1
    assert ran.stderr == (
        f"{SAID}what vbuild adds to the environment option of cibuildwheel is lost: a line break or a comment in the "
        f"project's ends it; expected one line\n"
    )


def test_logs_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    container = Container(tmp_path)
    shutil.rmtree(container.place / "logs")
    (container.place / "logs").touch()
    ran = container.prepare()
    assert ran.returncode == 1
    assert (
        ran.stderr
        == f"{SAID}{container.place}/logs/{IDENTIFIER} cannot be written from the container: Not a directory; {MOUNT}\n"
    )


CUDA = """
[tool.vbuild.matrix]
cpu = ["x86-64", "x86-64-v3"]
[[tool.vbuild.matrix.cuda]]
toolkit = "13.0"
gpus = { cu13_turing = "75", cu13_ampere = "80+ptx" }
"""
FAT = "x86_64_v3_cu13_turing, x86_64_v3_cu13_ampere"


def cuda_container(folder: Path, nvcc: str) -> Container:
    """A container for GPUs whose toolkit has *nvcc* as its compiler."""
    container = Container(folder, text=CUDA, label=FAT)
    toolkit = tree(folder / "cuda-13.0", {"bin/nvcc": nvcc, "bin/ptxas": "", "include/cuda.h": ""})
    (toolkit / "bin" / "nvcc").chmod(0o755)
    settings = container.run.settings()["nvcc"]
    container.change(nvcc={**settings, "nvcc": str(toolkit / "bin" / "nvcc")})
    return container


def test_nvcc_has_a_wrapper_in_a_double_of_its_toolkit(tmp_path: Path) -> None:
    container = cuda_container(tmp_path, '#!/bin/sh\necho "$@"\n')
    ran = container.prepare()
    assert (ran.returncode, ran.stderr) == (0, "")
    double = container.wrappers / "cuda"
    assert (double / "include" / "cuda.h").is_file()
    ran = container.call(str(double / "bin" / "nvcc"), "-c", "a.cu")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "-gencode=arch=compute_75,code=[sm_75]" in ran.stdout
    assert "-gencode=arch=compute_80,code=[sm_80,compute_80]" in ran.stdout
    told = container.kit.record(container.run, IDENTIFIER)
    assert [(command.theirs, command.ours) for command in told.commands] == [((), ("sm_75", "sm_80", "compute_80"))]


def test_a_toolkit_that_is_not_there_in_the_container_is_one_line(tmp_path: Path) -> None:
    container = cuda_container(tmp_path, "")
    (tmp_path / "cuda-13.0" / "bin" / "nvcc").unlink()
    ran = container.prepare()
    assert ran.returncode == 1
    assert ran.stderr == (
        f"{SAID}{tmp_path}/cuda-13.0/bin/nvcc cannot be run in the container; expected the toolkit of the host there\n"
    )


@pytest.mark.skipif("3.9" not in PYTHONS, reason="no Python 3.9 on this machine")
def test_gpus_need_a_python_that_runs_the_wrapper_of_nvcc(tmp_path: Path) -> None:
    container = cuda_container(tmp_path, "")
    ran = container.prepare(PYTHONS["3.9"], PATH=str(_tools(tmp_path)))
    assert ran.returncode == 1
    assert ran.stderr == (
        f"{SAID}the wrapper of nvcc needs Python 3.11, and the image has none: expected one in /opt/python or on PATH\n"
    )


FULL = """
import resource, sys
from pathlib import Path
from vbuild.build.cibuildwheel.making import ContainerSetup
from vbuild.errors import BuildError
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
try:
    ContainerSetup.in_folder(Path(sys.argv[1]))
except BuildError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # whoever measures this process writes when it ends
"""


def test_a_kit_for_which_there_is_no_room_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for kit, why in ((tmp_path / "kit", "File too large"), (tmp_path / "file" / "kit", "Not a directory")):
        command = [sys.executable, "-B", "-c", FULL, str(kit)]
        ran = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
        expected = "expected room for what containers run: point TMPDIR at a folder that has it"
        assert (ran.stderr, ran.stdout) == ("", f"{kit}: {why}; {expected}\n")


def test_a_run_without_wrappers_is_not_in_the_kit(tmp_path: Path) -> None:
    project = described(tmp_path / "project", LEVELS)
    (bare,) = runs_of(project, "cp311-manylinux_aarch64")
    kit = ContainerSetup.in_folder(tmp_path / "kit")
    kit.add(bare)
    assert not (tmp_path / "kit" / "runs").exists()
    told = kit.record(bare, "cp311-manylinux_aarch64")
    assert (told.overrides, told.commands, told.calls, told.started) == ((), (), (), None)
