"""The whole of `vbuild cibuildwheel`: real runs of cibuildwheel, in podman."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.factories.cibuildwheel_projects import LEVELS, OFFLINE, inside, project
from tests.factories.containers import needs_podman
from tests.factories.gpu_projects import PROJECTS
from tests.factories.projects import tree
from tests.factories.tools import needs
from vbuild.hardware.machine import Machine
from vbuild.recipe.model import TrialResult
from vbuild.release.cibuildwheel import cibuildwheel, foreseen_runs
from vbuild.release.model import ReleaseResult
from vbuild.verification.verify import verify

pytestmark = [
    pytest.mark.nightly,
    needs_podman,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the levels are those of x86-64"),
]

IDENTIFIER = "cp311-manylinux_x86_64"
OPTIONS = '''
[tool.cibuildwheel]
environment = { PIP_NO_INDEX = "1", CFLAGS = "-DNDEBUG -funroll-loops" }
before-build = """
echo it is the project that begins > /project/begun
"""
repair-wheel-command = "test -f begun && auditwheel repair -w {dest_dir} {wheel} && echo repaired with $CFLAGS"
test-command = "python -c 'import demo; assert demo.total() == 120'"
'''


@dataclass(frozen=True, slots=True)
class Made:
    """A project, the folder of its release, what was told while that was made, and what cibuildwheel printed."""

    project: Path
    folder: Path
    release: ReleaseResult
    steps: tuple[str, ...]
    output: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("cibuildwheel")
    source = project(folder / "project", OPTIONS + LEVELS)
    steps: list[str] = []
    output: list[bytes] = []
    with inside(source):
        release = cibuildwheel(
            source / "dist", on_progress=lambda target, step: steps.append(f"{target} {step}"), echo=output.append
        )
    return Made(source, source / "dist", release, tuple(steps), b"".join(output).decode())


def test_every_variant_becomes_a_wheel_of_the_projects_own_cibuildwheel(made: Made) -> None:
    assert made.release.failures == ()
    tags = "cp311-cp311-manylinux1_x86_64.manylinux_2_5_x86_64"
    assert [product.wheel.name for product in made.release.products] == [
        f"demo-1.0-{tags}.whl",
        f"demo-1.0-{tags}-x86_64_v2.whl",
        f"demo-1.0-{tags}-x86_64_v3.whl",
    ]
    assert {product.target.python for product in made.release.products} == {IDENTIFIER}
    assert made.release.notes == ()


def test_each_wheels_code_is_for_its_level(made: Made) -> None:
    for product, level in zip(made.release.products, ("v1", "v1", "v3"), strict=True):
        verdict = verify(product.wheel, cpu=product.target.cpu)
        assert not verdict.failed
        # the kernel has no use for what v2 adds; the mark that the linker leaves says what it is for
        assert [library.level for library in verdict.libraries] == [level]
        notes = subprocess.check_output(["readelf", "-n", extension(product.wheel, made.folder)], text=True)
        assert [name for name in ("x86-64-v2", "x86-64-v3") if name in notes][-1:] == [
            name for name in (str(product.target.cpu),) if name != "x86-64"
        ]


def extension(wheel: Path, folder: Path) -> Path:
    """The extension module in *wheel*, beside *folder*."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".so"))
        return Path(archive.extract(name, folder.parent.parent / f"{wheel.stem}.files"))


def test_the_projects_own_options_stay_in_force(made: Made) -> None:
    assert made.output.count("repaired with -DNDEBUG -funroll-loops") == 3
    assert all(" -DNDEBUG -funroll-loops" in line for line in made.output.splitlines() if " -c kernel.c" in line)
    here = Machine.here().cpu
    for product in made.release.products:
        runs = here is not None and here.runs(product.target.cpu)
        assert product.trial is (TrialResult.PASSED if runs else TrialResult.NOT_RUN)


def test_release_index_and_report_are_in_the_folder_and_nothing_else(made: Made) -> None:
    wheels = {product.wheel.name for product in made.release.products}
    others = {"demo-1.0-variants.json", "report.json", "report.html", "provenance.json"}
    assert {path.name for path in made.folder.iterdir()} == wheels | others
    report = json.loads((made.folder / "report.json").read_text())
    assert [wheel["label"] for wheel in report["wheels"]] == [None, "x86_64_v2", "x86_64_v3"]
    assert {wheel["python"] for wheel in report["wheels"]} == {IDENTIFIER}
    assert "PATH" in report["wheels"][0]["environment"]
    assert all(0 < wheel["build_seconds"] < 60 for wheel in report["wheels"])
    variants = json.loads((made.folder / "demo-1.0-variants.json").read_text())
    assert set(variants["variants"]) == {"x86_64_v2", "x86_64_v3"}
    # the project is as it was
    assert {path.name for path in made.project.iterdir()} == {
        "pyproject.toml",
        "setup.py",
        "demo.c",
        "kernel.c",
        "dist",
    }


def test_a_chosen_variant_is_held_against_nothing_and_has_the_same_bytes(made: Made, tmp_path: Path) -> None:
    with inside(made.project):
        release = cibuildwheel(tmp_path / "again", ["--only", IDENTIFIER], variants=["x86_64_v2"])
        (run,) = foreseen_runs(["--only", IDENTIFIER], variants=["x86_64_v2"])
    (product,) = release.products
    assert product.wheel.read_bytes() == made.release.products[1].wheel.read_bytes()
    assert (run.identifiers, str(run)) == ((IDENTIFIER,), "x86_64_v2")


def test_other_folders_packages_and_the_recipes_own_settings(tmp_path: Path) -> None:
    text = (
        OFFLINE
        + LEVELS.replace(', "x86-64-v2"', "")
        + """
[tool.vbuild.build]
env = { GREETING = "it's \\"here\\"" }
before-build = ["echo \\"$GREETING\\" > greeting", "gcc --version"]
keep-flags = ["kernel.c"]
[tool.vbuild.repair]
command = "cat packages/demo/greeting && auditwheel repair --plat manylinux_2_34_x86_64 -w {dest_dir} {wheel}"
"""
    )
    kernel = "void kernel(float *a, const float *b) { for (int i = 0; i < 16; i++) a[i] += b[i]; }\n"
    setup = """
from setuptools import Extension, setup
setup(ext_modules=[Extension("demo", ["demo.c", "kernel.c"], extra_compile_args=["-O2", "-mavx2"])])
"""
    project(tmp_path / "packages" / "demo", text, kernel=kernel, setup=setup)
    output: list[bytes] = []
    with inside(tmp_path):
        release = cibuildwheel(tmp_path / "dist", ["packages/demo"], variants=["x86_64_v3"], echo=output.append)
    (product,) = release.products
    assert (
        product.wheel.name
        == "demo-1.0-cp311-cp311-manylinux1_x86_64.manylinux_2_34_x86_64.manylinux_2_5_x86_64-x86_64_v3.whl"
    )
    assert 'it\'s "here"\n' in b"".join(output).decode()
    assert product.trial is TrialResult.NONE
    assert product.overrides == ()


PER_FILE = """
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class Build(build_ext):
    def build_extension(self, ext):
        compile = self.compiler._compile
        def one(obj, src, ext_name, cc_args, extra, pp_opts):
            own = ["-mavx2"] if src == "kernel.c" else []
            compile(obj, src, ext_name, cc_args, [*extra, *own], pp_opts)
        self.compiler._compile = one
        super().build_extension(ext)

setup(cmdclass={"build_ext": Build},
      ext_modules=[Extension("demo", ["demo.c", "kernel.c"], extra_compile_args=["-O3"])])
"""


@pytest.mark.parametrize("guard", ["", 'if (__builtin_cpu_supports("avx2")) '], ids=["unguarded", "guarded"])
def test_a_file_whose_flags_put_code_above_the_level_is_built_again_without_them(guard: str, tmp_path: Path) -> None:
    source = project(tmp_path / "project", OFFLINE + LEVELS, kernel=CALLED, setup=PER_FILE)
    module = source / "demo.c"
    module.write_text(module.read_text().replace("    kernel(a, b);", f"    {guard}kernel(a, b);"))
    with inside(source):
        release = cibuildwheel(tmp_path / "dist", variants=["plain", "x86_64_v3"])
    assert release.failures == ()
    why = "nothing shows that code above the level runs only after a check of the CPU"
    said = f"plain: built again without -mavx2 of kernel.c: {why}"
    assert list(release.notes) == ([] if guard else [said])
    plain, v3 = release.products
    dump = subprocess.run(
        ["objdump", "-d", extension(plain.wheel, tmp_path / "x" / "y")], capture_output=True, text=True, check=True
    )
    assert ("%ymm" in dump.stdout) is bool(guard)
    assert release.kept_flags == ((("-mavx2", ("kernel.c",)),) if guard else ())
    assert plain.trial is v3.trial is TrialResult.NONE


HIDDEN = """
__attribute__((target("avx2")))
static void wide(float *a, const float *b) { for (int i = 0; i < 16; i++) a[i] += b[i]; }
void kernel(float *a, const float *b) { if (*(volatile const char *)"x" == 'x') wide(a, b); else *a = 1; }
"""


@needs("qemu-x86_64")
def test_wheels_of_a_container_are_imported_and_tested_in_an_emulator_of_their_level(tmp_path: Path) -> None:
    recipe = f"{OFFLINE}{LEVELS}[tool.vbuild.test]\ncommand = 'python -c \"import demo; assert demo.total() == 120\"'\n"
    source = project(tmp_path / "project", recipe)
    with inside(source):
        release = cibuildwheel(tmp_path / "dist", variants=["plain"])
    assert release.failures == ()
    (product,) = release.products
    assert product.trial is TrialResult.NONE
    assert product.emulation
    assert (product.emulation.level, product.emulation.imported, product.emulation.is_tested) == ("v1", ("demo",), True)
    (source / "kernel.c").write_text(HIDDEN)
    allowed = f"{source.joinpath('pyproject.toml').read_text()}[tool.vbuild.verify]\nallow = ['wide']\n"
    (source / "pyproject.toml").write_text(allowed)
    with inside(source):
        release = cibuildwheel(tmp_path / "again", variants=["plain"])
    assert "code above x86-64 runs on a processor without it, as qemu-x86_64" in release.failures[0].error


CALLED = """
void kernel(float *a, const float *b) { for (int i = 0; i < 16; i++) a[i] += b[i]; }
"""
LIMITED = """
from setuptools import Extension, setup
extension = Extension(
    "demo", ["demo.c", "kernel.c"], define_macros=[("Py_LIMITED_API", "0x03090000")], py_limited_api=True
)
setup(ext_modules=[extension], options={"bdist_wheel": {"py_limited_api": "cp39"}})
"""


def test_a_wheel_for_the_stable_abi_is_built_once_and_is_no_failure_for_later_pythons(tmp_path: Path) -> None:
    text = OFFLINE + 'build = ["cp39-manylinux_x86_64", "cp311-manylinux_x86_64"]\naudit-command = ""\n' + LEVELS
    source = project(tmp_path / "project", text, setup=LIMITED)
    with inside(source):
        del os.environ["CIBW_BUILD"]
        release = cibuildwheel(tmp_path / "dist", variants=["plain", "x86_64_v3"])
    assert (release.failures, release.notes) == ((), ())
    tags = "cp39-abi3-manylinux1_x86_64.manylinux_2_5_x86_64"
    assert [product.wheel.name for product in release.products] == [
        f"demo-1.0-{tags}.whl",
        f"demo-1.0-{tags}-x86_64_v3.whl",
    ]
    assert {product.target.python for product in release.products} == {"cp39-manylinux_x86_64"}


INTERRUPTED = """
import sys
from pathlib import Path
from vbuild.release.cibuildwheel import cibuildwheel
cibuildwheel(Path(sys.argv[1]), variants=["plain"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_container_is_left_by_a_run_that_was_stopped(number: signal.Signals, tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    which = f"grep ' /run/.containerenv ' /proc/self/mountinfo > /host{mark}.part"
    before_all = f"{which} && mv /host{mark}.part /host{mark} && sleep 600"
    source = project(tmp_path / "project", f'[tool.cibuildwheel]\nbefore-all = "{before_all}"\n' + LEVELS)
    with inside(source):
        command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "dist")]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            deadline = time.monotonic() + 60
            while not mark.exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            there = containers()
            process.send_signal(number)
            said, _ = process.communicate(timeout=60)
        assert b"KeyboardInterrupt" in said
        mount = mark.read_text()
        assert [identity for identity in there if identity in mount]
        assert not [identity for identity in containers() if identity in mount]
    assert not (tmp_path / "dist").exists()


def containers() -> list[str]:
    """The identities of all containers that there are now."""
    command = ["podman", "ps", "--all", "--no-trunc", "--format", "{{.ID}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.network
@pytest.mark.slow
def test_one_build_for_all_gpus_becomes_the_wheel_of_each_group(tmp_path: Path) -> None:
    folder = tree(
        tmp_path / "tally",
        {
            str(path.relative_to(PROJECTS / "setuptools-cuda")): path.read_text()
            for path in (PROJECTS / "setuptools-cuda").rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        },
    )
    pyproject = folder / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + OFFLINE)
    with inside(folder):
        release = cibuildwheel(tmp_path / "dist")
    assert release.failures == ()
    assert [product.label for product in release.products] == [None, "sm80", "sm90", "sm120"]
    sizes = {product.label: product.size for product in release.products}
    assert max(sizes.values()) == sizes[None]
    codes = {str(product.target): str(product.target.gpus) for product in release.products}
    assert codes == {"plain": "None", "sm80": "sm_80,sm_86,sm_89", "sm90": "sm_90,sm_90a", "sm120": "sm_120+PTX"}
    assert release.lists
    assert "-march=native" in release.removed
    for product in release.products:
        assert not verify(product.wheel, cpu=product.target.cpu).failed
        with zipfile.ZipFile(product.wheel) as archive:
            assert not [name for name in archive.namelist() if "libcuda.so" in name]


def test_a_run_with_the_same_files_is_not_run_again(made: Made) -> None:
    before = {product.wheel: product.wheel.read_bytes() for product in made.release.products}
    output: list[bytes] = []
    with inside(made.project):
        again = cibuildwheel(made.folder, echo=output.append)
    assert output == []
    assert [product.is_built for product in again.products] == [False, False, False]
    assert {product.wheel: product.wheel.read_bytes() for product in again.products} == before
