"""The main job on real projects with real compilers; the projects are small, so that a build takes about a second."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.projects import KERNEL, c_project, tree
from tests.factories.tools import needs
from tests.factories.variants import document, variant, variant_wheel
from vbuild.cli.render import release_lines
from vbuild.errors import VariantError, VbuildError
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import MatrixRequest, jobs_of, matrix
from vbuild.release.model import ReleaseResult
from vbuild.release.report import check

LEVELS = 'cpu = ["x86-64", "x86-64-v2", "x86-64-v3"]'
TEST = "[test]\ncommand = \"python -c 'import demo'\"\n"

BROKEN = "#ifdef __AVX2__\n#error no AVX2, please\n#endif\n"

pytestmark = [pytest.mark.network, pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64")]


def recipe(folder: Path, text: str, *, kernel: str = KERNEL) -> Path:
    """A recipe for a project that hard-codes -march=native, beside the project."""
    c_project(folder / "project", kernel=kernel)
    tree(folder, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n{text}'})
    return folder / "demo.toml"


def wheels(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.whl"))


def labels(release: ReleaseResult) -> list[str | None]:
    return [product.label for product in release.products]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReleaseResult]:
    folder = tmp_path_factory.mktemp("release")
    source = recipe(folder, f"[matrix]\n{LEVELS}\n{TEST}")
    # other tests may have built the same, in this process
    return folder / "dist", matrix(source, folder / "dist", MatrixRequest(jobs=2), store=BuildCache(fresh=True))


def test_one_recipe_gives_a_plain_wheel_and_one_for_each_level_above(built: tuple[Path, ReleaseResult]) -> None:
    folder, release = built
    assert labels(release) == [None, "x86_64_v2", "x86_64_v3"]
    assert not release.failures
    assert len(wheels(folder)) == 3
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".whl") == [
        "demo-1.0-variants.json",
        "provenance.json",
        "report.html",
        "report.json",
    ]


def test_the_code_is_what_the_labels_promise(built: tuple[Path, ReleaseResult], tmp_path: Path) -> None:
    disassembled = {}
    for product in built[1].products:
        with zipfile.ZipFile(product.wheel) as archive:
            library = next(name for name in archive.namelist() if ".so" in name)
            path = archive.extract(library, tmp_path)
        text = subprocess.run(["objdump", "-d", path], capture_output=True, text=True, check=True).stdout
        disassembled[product.label] = ("%ymm" in text, "%zmm" in text)
    assert disassembled == {None: (False, False), "x86_64_v2": (False, False), "x86_64_v3": (True, False)}


@pytest.mark.nightly
def test_a_plain_wheel_of_a_level_is_refused_below_it_and_features_are_compiled_for(tmp_path: Path) -> None:
    bf16 = """#ifdef __AVX512BF16__
    #include <immintrin.h>
    __m512 dots(__m512 s, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(s, a, b); }
    #endif
    """
    text = '[matrix]\nplain = "x86-64-v2"\ncpu = ["x86-64-v4", "x86-64-v4+avx512_bf16"]\n'
    release = matrix(recipe(tmp_path, text, kernel=KERNEL + bf16), tmp_path / "dist", store=BuildCache(fresh=True))
    assert labels(release) == [None, "x86_64_v4", "x86_64_v4_avx512_bf16"]
    assert [note.partition(":")[0] for note in release.notes] == ["plain", "x86_64_v4_avx512_bf16"]
    check(json.loads((tmp_path / "dist/report.json").read_text()))
    code = {}
    for product in release.products:
        folder = tmp_path / str(product.label)
        with zipfile.ZipFile(product.wheel) as archive:
            archive.extractall(folder)
        library = next(folder.rglob("*.so"))
        text = subprocess.run(["objdump", "-d", library], capture_output=True, text=True, check=True).stdout
        mark = subprocess.run(["readelf", "-n", library], capture_output=True, text=True, check=True).stdout
        code[product.label] = ("vdpbf16ps" in text, "%zmm" in text, re.findall("needed: (.*)", mark))
    assert code == {
        None: (False, False, ["x86-64-v2"]),
        "x86_64_v4": (False, True, ["x86-64-v4"]),
        "x86_64_v4_avx512_bf16": (True, True, ["x86-64-v4"]),
    }
    if qemu := shutil.which("qemu-x86_64"):
        load = f"import sys; sys.path.insert(0, {str(tmp_path / 'None')!r}); import demo"
        for cpu, ending in (("qemu64", "CPU ISA level is lower than required"), ("Nehalem", "")):
            run = [qemu, "-cpu", cpu, str(Path(sys.executable).resolve()), "-c", load]
            assert subprocess.run(run, capture_output=True, text=True, check=False).stderr.strip().endswith(ending)


def test_the_report_says_what_was_changed_proved_and_tested(built: tuple[Path, ReleaseResult]) -> None:
    folder, release = built
    report = json.loads((folder / "report.json").read_text())
    assert report == json.loads(json.dumps(release.data()))
    last = report["wheels"][-1]
    assert last["label"] == "x86_64_v3"
    assert last["verdict"]["isa"] == "ok"
    assert last["test"] in {"passed", "not run"}
    assert {"-march=native"} <= {flag for change in last["overrides"] for flag in change["removed"]}
    assert "-march=x86-64-v3" in last["environment"]["CFLAGS"]


@needs("qemu-x86_64")
def test_each_wheel_works_in_an_emulator_of_its_level(built: tuple[Path, ReleaseResult]) -> None:
    folder, release = built
    runs = [product.emulation for product in release.products]
    assert [(run.level, run.works, run.done) for run in runs if run] == [
        (level, True, "1 module imported, test passed") for level in ("v1", "v2", "v3")
    ]
    rows = [line.split()[-1] for line in release_lines(release) if "passed" in line]
    assert rows == ["v1", "v2", "v3"]
    entries = json.loads((folder / "report.json").read_text())["wheels"]
    assert [entry["emulation"]["illegal"] for entry in entries] == [[], [], []]


@pytest.mark.nightly
def test_what_is_the_same_is_not_built_again(built: tuple[Path, ReleaseResult], tmp_path: Path) -> None:
    again = matrix(built[0].parent / "demo.toml", tmp_path / "again")
    assert again.kept_wheels == again.targets == 3
    entries = [replace(product.entry(), is_built=True, is_kept=False) for product in again.products]
    assert entries == [product.entry() for product in built[1].products]
    (built[0].parent / "project" / "new.txt").write_text("")
    assert not matrix(built[0].parent / "demo.toml", tmp_path / "third").kept_wheels


@pytest.mark.nightly
def test_what_was_edited_while_it_was_built_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "project" / "new.txt"
    build = f"[build]\nbefore-build = ['echo >> {file}']\n"
    source = recipe(tmp_path, f"[matrix]\ncpu = ['x86-64']\n{build}")
    first = matrix(source, tmp_path / "dist")
    assert first.notes == (f"{tmp_path}/project: edited while it was built: nothing of it is kept",)
    file.unlink()  # as it was when the first run began
    assert not matrix(source, tmp_path / "dist").kept_wheels


@pytest.mark.nightly
def test_a_target_built_alone_joins_those_that_are_there(tmp_path: Path) -> None:
    source = recipe(tmp_path, f"[matrix]\n{LEVELS}\n")
    for label in ("plain", "x86_64_v2", "x86_64_v3"):
        matrix(source, tmp_path / "dist", MatrixRequest(only=[label]))
    assert len(wheels(tmp_path / "dist")) == 3
    index = json.loads((tmp_path / "dist/demo-1.0-variants.json").read_text())
    assert list(index["variants"]) == ["x86_64_v2", "x86_64_v3"]


def test_a_failed_target_is_named_and_the_others_are_finished(tmp_path: Path) -> None:
    source = recipe(
        tmp_path, f"[matrix]\n{LEVELS}\n", kernel=f"{BROKEN}void kernel(float *a, const float *b) {{ *a = *b; }}\n"
    )
    release = matrix(source, tmp_path / "dist", MatrixRequest(jobs=2))
    assert labels(release) == [None, "x86_64_v2"]
    [failure] = release.failures
    assert failure.target.label == "x86_64_v3"
    assert "no AVX2, please" in failure.error
    assert failure.log
    assert failure.log.parent == tmp_path / "dist/logs"
    assert "no AVX2, please" in failure.log.read_text()
    assert len(wheels(tmp_path / "dist")) == 2
    assert json.loads((tmp_path / "dist/report.json").read_text())["failures"][0]["label"] == "x86_64_v3"


def test_code_above_the_claimed_level_is_not_published(tmp_path: Path) -> None:
    asm = 'void kernel(float *a, const float *b) { __asm__("vpaddd %ymm0, %ymm1, %ymm2"); *a = *b; }\n'
    source = recipe(tmp_path, '[matrix]\ncpu = ["x86-64", "x86-64-v2"]\n', kernel=asm)
    release = matrix(source, tmp_path / "dist")
    assert not release.products
    assert wheels(tmp_path / "dist") == []
    assert all("kernel" in failure.error for failure in release.failures)


@pytest.mark.nightly
def test_a_build_that_leaves_its_modules_out_is_no_variant(tmp_path: Path) -> None:
    source = recipe(tmp_path, '[matrix]\ncpu = ["x86-64-v3"]\n')
    setup = "from setuptools import setup\nsetup(name='demo', version='1.0', py_modules=['demo'])\n"
    tree(tmp_path / "project", {"pyproject.toml": "", "setup.py": setup, "demo.py": ""})
    release = matrix(source, tmp_path / "dist")
    assert labels(release) == [None]
    assert "no compiled code for x86-64-v3" in release.failures[0].error


@pytest.mark.nightly
def test_a_failing_test_keeps_the_wheel_back(tmp_path: Path) -> None:
    source = recipe(tmp_path, '[matrix]\ncpu = ["x86-64"]\n[test]\ncommand = "python -c \'import demo, nothing\'"\n')
    release = matrix(source, tmp_path / "dist")
    assert wheels(tmp_path / "dist") == []
    assert "No module named 'nothing'" in release.failures[0].error


@pytest.mark.nightly
def test_free_axes_reach_the_build_and_the_metadata(tmp_path: Path) -> None:
    source = recipe(
        tmp_path,
        """
[matrix]
cpu = ["x86-64"]
priority = ["blas", "x86_64"]
[matrix.axes.blas.openblas]
properties = ["blas :: library :: openblas"]
env = { CFLAGS = "-DBLAS=1" }
[matrix.axes.blas.mkl]
properties = ["blas :: library :: mkl"]
env = { CFLAGS = "-DBLAS=2" }
[variant.providers.blas]
static-properties.library = ["mkl", "openblas"]
""",
        kernel="int blas = BLAS; void kernel(float *a, const float *b) { *a = *b + blas; }\n",
    )
    release = matrix(source, tmp_path / "dist")
    assert labels(release) == [None, "openblas", "mkl"]
    index = json.loads((tmp_path / "dist/demo-1.0-variants.json").read_text())
    assert index["default-priorities"] == {"namespace": ["blas", "x86_64"]}
    assert "-DBLAS=2" in dict(release.products[2].plan.environment)["CFLAGS"]


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare")
def test_a_wheel_above_this_machine_is_built_and_its_test_not_run(tmp_path: Path) -> None:
    source = recipe(tmp_path, f"[matrix]\n{LEVELS}\n{TEST}")
    cpuinfo = tmp_path / "cpuinfo"
    flags = "fpu lm sse sse2 pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm mmx fxsr cmov cx8 syscall nx"
    cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t\t: {flags}\n\n")
    inside = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/cpuinfo && exec "$@"', str(cpuinfo)]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts are not permitted here")
    command = [
        *inside,
        sys.executable,
        "-m",
        "vbuild",
        "matrix",
        str(source),
        "-o",
        str(tmp_path / "dist"),
        "--json",
    ]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert {wheel["label"]: wheel["test"] for wheel in report["wheels"]} == {
        None: "passed",
        "x86_64_v2": "passed",
        "x86_64_v3": "not run",
    }


@pytest.mark.nightly
def test_two_pythons_that_give_one_file_are_told_apart_or_refused(tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(twin)], check=True)
    pythons = json.dumps([sys.executable, str(twin / "bin/python")])
    source = recipe(tmp_path, f'[matrix]\ncpu = ["x86-64"]\npython = {pythons}\n')
    release = matrix(source, tmp_path / "dist")
    assert len(release.products) == 1
    assert "gives the same file" in release.failures[0].error


def test_a_dry_run_shows_every_flag_and_writes_nothing(tmp_path: Path) -> None:
    jobs = jobs_of(recipe(tmp_path, f"[matrix]\n{LEVELS}\n"))
    assert [str(job.target) for job in jobs] == ["plain", "x86_64_v2", "x86_64_v3"]
    assert all(f"-march={job.target.cpu}" in dict(job.plan.environment)["CFLAGS"] for job in jobs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.toml", "project"]


def refusal(source: Path, folder: Path, **options: object) -> str:
    with pytest.raises(VbuildError) as caught:
        matrix(source, folder, MatrixRequest(**options))  # type: ignore[arg-type]
    assert not folder.exists()
    return str(caught.value).replace(str(source.parent), "DIR")


def test_a_dry_run_with_zig_fetches_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = recipe(tmp_path, f'[matrix]\n{LEVELS}\n[build]\nhost = "zig"\n')
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    jobs = jobs_of(source)
    assert [job.compilers.zig_target for job in jobs] == ["x86_64-linux-gnu.2.17"] * 3
    assert {path.name for path in (tmp_path / "cache").glob("vbuild/*")} <= {"CACHEDIR.TAG", "probes"}


def test_an_unknown_target_is_refused(tmp_path: Path) -> None:
    source = recipe(tmp_path, f"[matrix]\n{LEVELS}\n")
    said = refusal(source, tmp_path / "dist", only=["x86_64_v9"])
    assert (
        said == "DIR/demo.toml: no target 'x86_64_v9'; there are plain, x86_64_v2, x86_64_v3; did you mean 'x86_64_v3'?"
    )


@pytest.mark.nightly
def test_a_wheel_of_another_project_is_a_failure(tmp_path: Path) -> None:
    source = recipe(tmp_path, '[matrix]\ncpu = ["x86-64"]\n')
    source.write_text(source.read_text().replace('"demo"', '"other"'))
    setup = (
        "from setuptools import setup\nsetup(name=str('demo'), version='1.0', py_modules=['demo'])\n"  # only when run
    )
    tree(tmp_path / "project", {"pyproject.toml": "", "setup.py": setup, "demo.py": ""})
    [failure] = matrix(source, tmp_path / "dist").failures
    assert failure.error.startswith("demo-1.0-")
    assert failure.error.endswith(": not of other, which the recipe builds")


@pytest.mark.parametrize("compiler", ["nowhere-gcc", "/nowhere/gcc"])
def test_a_missing_compiler_is_refused_before_anything_is_built(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = recipe(tmp_path, f"[matrix]\n{LEVELS}\n")
    monkeypatch.setenv("CC", compiler)
    said = refusal(source, tmp_path / "dist")
    assert f"CC={compiler}: no such compiler" in said


def test_wheels_that_contradict_the_folder_are_refused_and_the_folder_stays(tmp_path: Path) -> None:
    other = document(variant("other", "x86_64 :: level :: v2"))
    variant_wheel(tmp_path / "dist", "demo-1.0-py3-none-any-other.whl", other)
    before = {path.name: path.read_bytes() for path in (tmp_path / "dist").iterdir()}
    source = recipe(tmp_path, '[matrix]\ncpu = ["x86-64-v2"]\n')
    with pytest.raises(
        VariantError, match=r"other\.whl: the labels 'x86_64_v2' and 'other' stand for the same properties"
    ):
        matrix(source, tmp_path / "dist", MatrixRequest(only=["x86_64_v2"]))
    assert {path.name: path.read_bytes() for path in (tmp_path / "dist").iterdir()} == before


@pytest.mark.nightly
def test_ctrl_c_leaves_no_wheel_and_no_process(tmp_path: Path) -> None:
    slow = "import time\nprint('sleeping', flush=True)\ntime.sleep(60)\n"
    source = recipe(tmp_path, f"[matrix]\n{LEVELS}\n")
    setup = tmp_path / "project/backend.py"
    setup.write_text(slow + setup.read_text())
    marker = str(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "vbuild", "matrix", source, "-o", tmp_path / "dist", "--jobs", "2"],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not _running(marker, besides=process.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGINT
    assert said == "vbuild: interrupted: nothing half-done was left behind\n"
    assert not list((tmp_path / "dist").rglob("*.whl"))
    assert not _running(marker, besides=process.pid)


def _running(marker: str, *, besides: int) -> list[int]:
    """The processes whose working folder or command line is below *marker*."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and int(folder.name) not in {besides, os.getpid()}:
                where = str((folder / "cwd").readlink())
                if where.startswith(marker):
                    found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.nightly
def test_a_requirement_that_was_guessed_and_makes_the_build_fail_is_left_out(tmp_path: Path) -> None:
    extended = """
from setuptools import Extension, setup
modules = [Extension("demo", ["demo.c"])]
try:
    import numpy
    modules.append(Extension("fast", ["fast.c"], include_dirs=[numpy.get_include()]))
except ImportError:
    pass
setup(name="demo", version="1", ext_modules=modules)
"""
    module = '#include <Python.h>\nstatic struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "demo", "", -1, 0};\n'
    module += "PyMODINIT_FUNC PyInit_demo(void) { return PyModule_Create(&module); }\n"
    fast = "#include <Python.h>\n#include <numpy/arrayobject.h>\nint f(void) { return NPY_OWNDATA; }\n"
    pyproject = '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "demo"\nversion = "1"\n'
    files = {"setup.py": extended, "demo.c": module, "fast.c": fast, "pyproject.toml": pyproject}
    request = MatrixRequest(only=["plain"])
    release = matrix(tree(tmp_path / "demo", files), tmp_path / "out", request, store=BuildCache(fresh=True))
    assert release.failures == ()
    note, debug = release.notes
    assert note == "built without numpy, which vbuild had added: with it, the build fails"
    assert re.fullmatch(r"plain: debug information left out: [\d.]+ kB of [\d.]+ kB .build.debug = 'keep'.", debug)
