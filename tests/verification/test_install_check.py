"""Results of a split that work, and all the ways in which they may not: really installed, loaded and imported."""

import os
from pathlib import Path

import pytest

from tests.factories.elf import object_file, program, rpath
from tests.factories.extensions import laid_out, library, module
from tests.factories.split_results import TAG, TO_LIBS, SplitResults, failures, notes
from vbuild.errors import RepackageError
from vbuild.verification.environments import Installer
from vbuild.verification.install_check import CheckStep, InstallCheck, InstallFinding

IMPORTS_C = "from demo import _c\n"
BOTH = tuple(Installer)


@pytest.fixture
def results(tmp_path: Path) -> SplitResults:
    return SplitResults(tmp_path)


@pytest.mark.nightly
def test_a_thin_wheel_and_its_libraries_work_with_each_installer(results: SplitResults) -> None:
    results.thin({"demo/__init__.py": IMPORTS_C, "demo/_c.so": module("liba-1a2b3c4d.so.1", rpath_=TO_LIBS)})
    results.libs(
        {
            "liba-1a2b3c4d.so.1": library("liba-1a2b3c4d.so.1", ("libb.so",)),
            "libb.so": library("libb.so"),
        }
    )
    expected = {
        "wheel": f"demo-1.0-{TAG}.whl",
        "ok": True,
        "resolved": 4,
        "loaded": ("demo/_c.so",),
        "imported": ("demo",),
        "failures": (),
        "notes": (),
    }
    told = results.check(*BOTH)
    assert [result.data() for result in told] == [{**expected, "installer": name} for name in ("pip", "uv")]
    assert [*told[0].lines(), *told[1].lines()] == [
        f"demo-1.0-{TAG}.whl: installed with pip, works: 4 libraries found, 1 file loaded, demo imported",
        f"demo-1.0-{TAG}.whl: installed with uv, works: 4 libraries found, 1 file loaded, demo imported",
    ]


@pytest.mark.nightly
def test_results_of_which_none_can_be_installed_are_refused(results: SplitResults) -> None:
    results.thin({"demo/__init__.py": ""})
    with pytest.raises(RepackageError) as caught:
        results.check(Installer.PIP)
    assert str(caught.value) == (
        f"demo-1.0-{TAG}.whl: cannot be installed: pip: No matching distribution found for demo-libs==0.1, "
        "of wheels; --allow-builds takes sdists, too"
    )
    with pytest.raises(RepackageError) as caught:
        results.check()
    assert str(caught.value) == (
        f"demo-1.0-{TAG}.whl: cannot be installed: uv: No solution found when resolving dependencies: Because "
        "demo-libs was not found in the provided package locations and demo==1.0 depends on demo-libs==0.1, we can "
        "conclude that demo==1.0 cannot be used."
    )


def test_a_wheel_that_lacks_a_dependency_fails_where_others_can_be_installed(results: SplitResults) -> None:
    results.thin({"demo.py": ""}, requires=["nowhere>=1"])
    results.thin({"other.py": ""}, name=f"other-1.0-{TAG}.whl", requires=[])
    lacking, other = results.check()
    assert [found.step for found in lacking.failures] == [CheckStep.INSTALL]
    assert next(lacking.lines()) == f"demo-1.0-{TAG}.whl: uv cannot install it"
    assert (other.ok, other.imported) == (True, ("other",))


def test_an_rpath_that_leads_to_the_wrong_folder_is_a_failure(results: SplitResults) -> None:
    results.thin({"demo/__init__.py": IMPORTS_C, "demo/_c.so": module("liba.so", rpath_="$ORIGIN/../demo.libs")})
    results.libs({"liba.so": library("liba.so")})
    result = results.only()
    lost = "liba.so: cannot open shared object file: No such file or directory"
    assert failures(result) == [
        ("resolve: demo/_c.so: needs liba.so, which is at demo_libs/lib/liba.so, but no RPATH leads there"),
        f"import: demo: not imported: ImportError: {lost}",
    ]
    assert not result.ok
    assert result.data()["failures"][1] == {"step": "import", "what": f"demo: not imported: ImportError: {lost}"}
    assert list(result.lines())[:2] == [
        f"demo-1.0-{TAG}.whl: installed with uv, 2 failures: 2 libraries found, 1 file loaded",
        f"    resolve failed: {result.failures[0].what}",
    ]


def test_a_library_that_nothing_brings_is_a_failure_that_says_who_has_it(results: SplitResults) -> None:
    needs = ("libcufft.so.11", "libtorch_cpu.so", "libnowhere.so.1")
    results.thin({"demo/_c.so": module(*needs)}, requires=[])
    assert failures(results.only())[:3] == [
        ("resolve: demo/_c.so: needs libcufft.so.11, which is in none of these wheels; part of nvidia-cufft-cu12"),
        "resolve: demo/_c.so: needs libtorch_cpu.so, which is in none of these wheels; part of torch",
        "resolve: demo/_c.so: needs libnowhere.so.1, which is in none of these wheels",
    ]


def test_what_no_rpath_led_to_before_the_split_is_noted(results: SplitResults) -> None:
    results.thin({"demo/__init__.py": IMPORTS_C, "demo/_c.so": module("libnowhere.so.1")}, requires=[])
    result = results.only(absent=["libnowhere.so.1"])
    assert result.ok
    assert notes(result) == [
        "resolve: demo/_c.so: needs libnowhere.so.1, which no RPATH led to before either",
        "load: demo/_c.so: not loaded: needs libnowhere.so.1, which no RPATH led to before either",
        "import: demo: not imported: needs libnowhere.so.1, which no RPATH led to before either",
    ]


@pytest.mark.nightly
def test_a_module_whose_package_loads_what_no_rpath_leads_to_can_be_loaded_after_it(results: SplitResults) -> None:
    opens = "import ctypes, pathlib\nctypes.CDLL(pathlib.Path(__file__).with_name('liba.so'))\n" + IMPORTS_C
    files = {"demo/_c.so": module("liba.so"), "demo/liba.so": library("liba.so")}
    results.thin({"demo/__init__.py": opens, **files}, requires=[])
    assert not results.only().ok
    result = results.only(absent=["liba.so"])
    assert (result.ok, result.loaded, result.imported) == (True, ("demo/_c.so", "demo/liba.so"), ("demo",))
    assert notes(result) == [
        "resolve: demo/_c.so: needs liba.so, which no RPATH led to before either",
        (
            "load: demo/_c.so: can be loaded only after `import demo`: liba.so: cannot open shared object file: "
            "No such file or directory"
        ),
    ]


def test_a_runpath_that_hides_an_inherited_rpath_is_a_failure(results: SplitResults) -> None:
    results.thin({"demo/_c.so": module("liba.so", rpath_=TO_LIBS)})
    results.libs({"liba.so": library("liba.so", ("libb.so",), runpath="$ORIGIN/x"), "libb.so": library("libb.so")})
    assert failures(results.only()) == [
        ("resolve: demo/_c.so: needs libb.so, which is at demo_libs/lib/libb.so, but no RPATH leads there")
    ]


def test_a_version_that_a_library_does_not_have_is_a_failure(results: SplitResults) -> None:
    calls = "void f(void); void *g(void) { return f; }"
    newer = library(None, ("liba.so",), source=calls, rpath_=TO_LIBS, stubs="void f(void) {}", stub_script="V2 { f; };")
    results.thin({"demo/_c.so": newer})
    results.libs({"liba.so": library("liba.so", source="void f(void) {}", script="V1 { f; };")})
    (failure,) = failures(results.only())
    assert failure == (
        "load: demo/_c.so: not loaded: demo/../demo_libs/lib/liba.so: version `V2' not found (required by demo/_c.so)"
    )


def test_a_symbol_that_a_module_lacks_is_a_failure(results: SplitResults) -> None:
    results.thin({"demo/_c.so": module(source="void f(void); void *g(void) { return f; }")}, requires=[])
    assert failures(results.only()) == ["load: demo/_c.so: not loaded: demo/_c.so: undefined symbol: f"]


def test_a_symbol_that_a_plugin_lacks_is_for_its_host_to_provide(results: SplitResults) -> None:
    plugin = library("libplugin.so", source="void f(void); void *g(void) { return f; }")
    results.thin({"demo/__init__.py": "", "demo/libplugin.so": plugin}, requires=[])
    result = results.only()
    assert (result.ok, result.loaded) == (True, ())
    assert notes(result) == [
        (
            "load: demo/libplugin.so: not loaded: demo/libplugin.so: undefined symbol: f: the program that "
            "opens it has to provide that"
        )
    ]


def test_a_module_that_takes_symbols_of_what_its_package_loads_is_noted(results: SplitResults) -> None:
    opens = (
        "import ctypes, pathlib\n"
        "ctypes.CDLL(pathlib.Path(__file__).with_name('libhost.so'), ctypes.RTLD_GLOBAL)\n"
        "from demo import _c\n"
    )
    host = library("libhost.so", source="void f(void) {}")
    files = {"demo/_c.so": module(source="void f(void); void *g(void) { return f; }"), "demo/libhost.so": host}
    results.thin({"demo/__init__.py": opens, **files}, requires=[])
    result = results.only()
    assert (result.ok, result.loaded, result.imported) == (True, ("demo/_c.so", "demo/libhost.so"), ("demo",))
    assert notes(result) == [
        "load: demo/_c.so: can be loaded only after `import demo`: demo/_c.so: undefined symbol: f"
    ]


def test_a_library_from_outside_of_the_environment_is_a_failure(results: SplitResults) -> None:
    cuda = laid_out(results.folder / "cuda", {"libcufft.so.11": library("libcufft.so.11")})
    results.thin({"demo/_c.so": module("libcufft.so.11", rpath_=str(cuda))}, requires=[])
    assert failures(results.only()) == [
        (f"resolve: demo/_c.so: needs libcufft.so.11, and is led out of the environment, to {cuda}/libcufft.so.11"),
    ]


def test_the_variables_of_the_loader_help_nobody(results: SplitResults, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = laid_out(results.folder / "cuda", {"libcufft.so.11": library("libcufft.so.11")})
    monkeypatch.setenv("LD_LIBRARY_PATH", str(cuda))
    results.thin({"demo/__init__.py": IMPORTS_C, "demo/_c.so": module("libcufft.so.11")}, requires=[])
    assert [found.step for found in results.only().failures] == [CheckStep.RESOLVE, CheckStep.IMPORT]


def test_what_needs_the_driver_is_not_loaded_without_one(results: SplitResults) -> None:
    results.thin({"demo/__init__.py": IMPORTS_C, "demo/_c.so": module("libnvcudla.so")}, requires=[])
    result = results.only()
    assert result.ok
    assert notes(result) == [
        "load: demo/_c.so: not loaded: needs libnvcudla.so, which comes with the driver",
        "import: demo: not imported: needs libnvcudla.so, which comes with the driver",
    ]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import numpy_of_nowhere\n", "ModuleNotFoundError: No module named 'numpy_of_nowhere'"),
        ("raise RuntimeError('one\\nno GPU here')\n", "RuntimeError: no GPU here"),
        ("raise SystemExit(1)\n", "SystemExit: 1"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n", "the process ended with SIGILL"),
        ("import os\nos._exit(3)\n", "the process ended with status 3"),
    ],
)
def test_an_import_that_fails_for_another_reason_is_noted(source: str, said: str, results: SplitResults) -> None:
    results.thin({"demo/__init__.py": source}, requires=[])
    result = results.only()
    assert (result.ok, result.imported) == (True, ())
    assert notes(result) == [f"import: demo: not imported: {said}"]


def test_a_missing_library_behind_another_error_is_a_failure(results: SplitResults) -> None:
    source = f"try:\n    {IMPORTS_C}except ImportError as error:\n    raise RuntimeError('reinstall demo') from error\n"
    results.thin({"demo/__init__.py": source, "demo/_c.so": module("liba.so")}, requires=[])
    assert failures(results.only())[-1] == "import: demo: not imported: RuntimeError: reinstall demo"


def test_a_crash_is_a_failure(results: SplitResults) -> None:
    crash = "void abort(void); __attribute__((constructor)) static void start(void) { abort(); }"
    files: dict[str, bytes | str] = {"demo/__init__.py": IMPORTS_C, "demo/_c.so": module(source=crash)}
    results.thin(files, requires=[])
    assert failures(results.only()) == [
        "load: demo/_c.so: not loaded: the process ended with SIGABRT",
        "import: demo: not imported: the process ended with SIGABRT",
    ]


def test_a_module_that_crashes_alone_and_not_after_its_package_is_noted(results: SplitResults) -> None:
    opens = "import os\nos.environ['DEMO_READY'] = '1'\n" + IMPORTS_C
    asks = "char *getenv(const char *); void abort(void); __attribute__((constructor)) static void start(void) "
    crash = asks + '{ if (!getenv("DEMO_READY")) abort(); }'
    results.thin({"demo/__init__.py": opens, "demo/_c.so": module(source=crash)}, requires=[])
    result = results.only()
    assert (result.ok, result.loaded, result.imported) == (True, ("demo/_c.so",), ("demo",))
    assert notes(result) == ["load: demo/_c.so: can be loaded only after `import demo`: the process ended with SIGABRT"]


@pytest.mark.nightly
def test_loading_begins_with_what_python_code_names_and_what_nothing_else_needs(results: SplitResults) -> None:
    opens = 'const char *opens = "libmentioned.so";'
    names = ("libnamed.so", "libmentioned.so", "liblonely.so", "libone.so")
    results.thin(
        {
            "demo/__init__.py": "NAME = 'libnamed.so'\n",
            "demo/_c.so": module("libnamed.so", "libdeep.so", "libmentioned.so", rpath_="$ORIGIN"),
            "demo/libnamed.so": library("libnamed.so", source=opens),
            "demo/libdeep.so": library("libdeep.so"),
            "demo/libmentioned.so": library("libmentioned.so"),
            "demo/liblonely.so": library("liblonely.so"),
            # two that need one another and nobody else
            "demo/libone.so": library("libone.so", ("libother.so",), rpath_="$ORIGIN"),
            "demo/libother.so": library("libother.so", ("libone.so",), rpath_="$ORIGIN"),
        },
        requires=[],
    )
    assert results.only().loaded == ("demo/_c.so", *(f"demo/{name}" for name in sorted(names)))


def test_programs_are_resolved_and_not_loaded(results: SplitResults) -> None:
    tool = program("int main(void) { return 0; }", *rpath(TO_LIBS, new=False))
    results.thin({"demo/tool": tool, "demo-1.0.data/scripts/tool": tool}, requires=[])
    result = results.only()
    assert (result.ok, result.resolved, result.loaded) == (True, 2, ())


def test_of_many_failures_the_first_are_shown() -> None:
    many = tuple(InstallFinding(CheckStep.LOAD, f"demo/_{number}.so: lost") for number in range(15))
    lines = list(InstallCheck("demo.whl", Installer.UV, failures=many).lines())
    assert (len(lines), lines[0], lines[-1]) == (
        14,
        "demo.whl: installed with uv, 15 failures: 0 libraries found",
        "    and 3 more",
    )


def test_files_that_the_loader_cannot_take_are_left_alone(results: SplitResults) -> None:
    files: dict[str, bytes | str] = {"demo/broken.so": b"\x7fELF", "demo/extra.o": object_file("int extra;")}
    results.thin({"demo/__init__.py": "", "demo/notes.so": b"text", **files}, requires=[])
    result = results.only()
    assert (result.ok, result.loaded) == (True, ())
    assert [note.partition(": ELF of class 0x0")[0] for note in notes(result)] == ["resolve: demo/broken.so"]


def test_packages_in_a_namespace_are_imported_and_folders_of_data_are_not(results: SplitResults) -> None:
    paths = [
        "space/demo/__init__.py",
        "space/demo/inner/__init__.py",
        "single.py",
        "data/run.py",
        "no-name/__init__.py",
    ]
    results.thin(dict.fromkeys(paths, ""), requires=[])
    assert results.only().imported == ("single", "space.demo")


@pytest.mark.nightly
def test_each_variant_of_a_name_is_installed_under_its_plain_name(results: SplitResults) -> None:
    for label, value in (("v2", "import demo_libs"), ("v3", "raise RuntimeError('v3')")):
        results.thin({"demo/__init__.py": value}, name=f"demo-1.0-{TAG}-{label}.whl")
    results.libs({}, more={"demo_libs/__init__.py": ""})
    found = results.check(*BOTH)
    assert [(result.wheel.rpartition("-")[2], result.installer, result.imported) for result in found] == [
        ("v2.whl", Installer.PIP, ("demo",)),
        ("v2.whl", Installer.UV, ("demo",)),
        ("v3.whl", Installer.PIP, ()),
        ("v3.whl", Installer.UV, ()),
    ]
    assert notes(found[2]) == notes(found[3]) == ["import: demo: not imported: RuntimeError: v3"]


@pytest.mark.parametrize(
    ("tag", "why"),
    [
        (
            "cp320-cp320-manylinux_2_17_x86_64",
            "no Python on this machine takes cp320-cp320; uv python install may bring one",
        ),
        (
            "py3-none-manylinux_2_28_s390x",
            (
                f"for s390x, and this machine is {os.uname().machine}: nothing was run; expected a machine of s390x, "
                "with its Python"
            ),
        ),
        ("cp311-cp311-win_amd64", "for win_amd64, expected a Linux wheel: nothing was run"),
    ],
)
def test_a_wheel_that_no_python_here_takes_is_not_checked(tag: str, why: str, results: SplitResults) -> None:
    results.thin({"demo.py": ""}, name=f"demo-1.0-{tag}.whl")
    result = results.only()
    assert (result.ok, result.installer) == (True, None)
    assert list(result.lines()) == [f"demo-1.0-{tag}.whl: not checked", f"    install: {why}"]


@pytest.mark.nightly
def test_a_pip_configured_to_install_elsewhere_does_not_here(
    results: SplitResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_TARGET", str(results.folder / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(results.folder / "elsewhere"))
    results.thin({"demo.py": ""}, requires=[])
    (result,) = results.check(Installer.PIP)
    assert (result.ok, result.imported) == (True, ("demo",))
    assert not (results.folder / "elsewhere").exists()
