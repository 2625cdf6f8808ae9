"""The loader of a base wheel: which plugin it takes, what it loads from there, and what it refuses, in a Python."""

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.factories.clients import masked
from tests.factories.level_wheels import INIT, labelled_wheel, level_release, level_wheel, needs_level
from tests.factories.tools import needs
from vbuild.errors import RepackageError
from vbuild.publishing.extras import Extras
from vbuild.publishing.extras_plugin import PluginBackend, loader, variable, with_loader
from vbuild.publishing.publish import publish
from vbuild.variants.model import Property

pytestmark = [needs("gcc"), needs_level("v3")]

V3, V4 = "levels_x86_64_v3_plugin", "levels_x86_64_v4_plugin"
ASK = "import levels; from levels import _vbuild_backend as found; print(levels.level(), found.backend())"
PLAIN = "or set LEVELS_BACKEND=plain"


def backend(label: str = "cu12", *properties: str) -> PluginBackend:
    return PluginBackend("demo", label, tuple(map(Property.parse, properties)))


def site(folder: Path, wheels: Path, *names: str) -> Path:
    """The folder with what is in the wheels called *names* among *wheels*, as installers lay it out."""
    for name in names:
        [path] = wheels.glob(f"{name}-*.whl")
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
    return folder


def published(folder: Path, *levels: str, version: str = "1.0") -> Path:
    """The layout of the wheels of *levels*."""
    level_release(folder / "dist", *levels, version=version)
    publish([folder / "dist"], folder / "out", layouts=[Extras()])
    return folder / "out" / "extras"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base and plugins of levels 1.0 for v1, v3 and v4."""
    return published(tmp_path_factory.mktemp("published"))


def asked(*folders: Path, code: str = ASK, prefix: Sequence[str] = (), **variables: str) -> str:
    """What a Python says to *code* with *folders* on its path; of an error the last line."""
    known = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "LEVELS"))}
    env = {**known, "PYTHONPATH": os.pathsep.join(map(str, folders)), **variables}
    run = subprocess.run([*prefix, sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    return run.stdout.strip() if not run.returncode else run.stderr.splitlines()[-1]


def test_without_a_plugin_the_modules_are_the_packages_own(wheels: Path, tmp_path: Path) -> None:
    assert asked(site(tmp_path, wheels, "levels")) == "v1 plain"


@pytest.mark.parametrize("name", ["", "x86-64-v3", "x86_64_v3", " X86_64.V3 "])
def test_with_a_plugin_its_modules_are_loaded_under_their_names(wheels: Path, tmp_path: Path, name: str) -> None:
    place = site(tmp_path, wheels, "levels", V3)
    assert asked(place, LEVELS_BACKEND=name) == "v3 x86-64-v3"
    where = "import levels._core as c; print(c.__name__, c.__file__, c.level.__module__)"
    [name, file, module] = asked(place, code=where, LEVELS_BACKEND=name).split()
    assert (name, module, Path(file).parent) == ("levels._core", "levels._core", place / V3)


def test_plain_is_the_package_without_its_plugins(wheels: Path, tmp_path: Path) -> None:
    assert asked(site(tmp_path, wheels, "levels", V3, V4), LEVELS_BACKEND="plain") == "v1 plain"


def test_of_levels_that_are_installed_the_cpu_takes_its_best(wheels: Path, tmp_path: Path) -> None:
    place = site(tmp_path / "site", wheels, "levels", V3, V4)
    assert asked(place, prefix=masked("x86-64-v3", tmp_path)) == "v3 x86-64-v3"
    assert asked(place, LEVELS_BACKEND="x86_64_v3") == "v3 x86-64-v3"


def test_a_plugin_that_the_cpu_does_not_run_is_refused_with_what_it_lacks(wheels: Path, tmp_path: Path) -> None:
    place = site(tmp_path / "site", wheels, "levels", V4)
    here = masked("x86-64-v3", tmp_path)
    lacks = "x86-64-v4 needs avx512bw avx512cd avx512dq avx512f avx512vl"
    none = "this CPU runs none of the backends installed"
    said = f"ImportError: levels 1.0: {none}, {lacks}: install another one, {PLAIN}"
    assert asked(place, prefix=here) == asked(place, prefix=here, LEVELS_BACKEND="x86-64-v4") == said
    assert asked(place, prefix=here, LEVELS_BACKEND="plain") == "v1 plain"


def test_what_is_asked_for_and_not_installed_is_named_with_the_way_to_it(wheels: Path, tmp_path: Path) -> None:
    place = site(tmp_path, wheels, "levels", V3)
    assert asked(place, LEVELS_BACKEND="x86_64_v4") == (
        f"ImportError: levels 1.0: x86-64-v4 is not installed: pip install 'levels[x86-64-v4]==1.0', {PLAIN}"
    )
    assert asked(place, LEVELS_BACKEND="cu12") == (
        f"ImportError: levels 1.0: LEVELS_BACKEND=cu12 is none of x86-64-v4, x86-64-v3: name one of them, {PLAIN}"
    )


def test_a_plugin_of_another_version_is_refused_and_the_right_one_named(wheels: Path, tmp_path: Path) -> None:
    newer = published(tmp_path, "v1", "v3", version="1.1")
    place = site(tmp_path / "newer-plugin", newer, V3)
    assert asked(site(place, wheels, "levels")) == (
        "ImportError: levels 1.0: its plugin levels-x86-64-v3-plugin 1.1 is of another build: "
        f"pip install --force-reinstall --no-deps levels==1.0 levels-x86-64-v3-plugin==1.0, {PLAIN}"
    )
    place = site(tmp_path / "newer-base", newer, "levels")
    assert "levels 1.1: its plugin levels-x86-64-v3-plugin 1.0 is of" in asked(site(place, wheels, V3))
    assert asked(place, LEVELS_BACKEND="plain") == "v1 plain"


def test_a_plugin_for_another_build_of_the_same_version_is_refused(wheels: Path, tmp_path: Path) -> None:
    for level in ("v1", "v3"):
        level_wheel(tmp_path / "dist", level, {"levels/__init__.py": INIT, "levels/more.py": f"again = {level!r}"})
    publish([tmp_path / "dist"], tmp_path / "out", layouts=[Extras()])
    place = site(site(tmp_path / "site", wheels, "levels"), tmp_path / "out" / "extras", V3)
    assert "levels 1.0: its plugin levels-x86-64-v3-plugin 1.0 is of another build" in asked(place)


def test_what_is_called_as_a_plugin_and_is_of_no_build_is_refused(wheels: Path, tmp_path: Path) -> None:
    place = site(tmp_path, wheels, "levels")
    (place / V3).mkdir()
    (place / V3 / "__init__.py").touch()
    assert "levels 1.0: its plugin levels-x86-64-v3-plugin None is of another build" in asked(place)


def test_backends_that_no_cpu_tells_apart_are_chosen_by_name(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {"levels/__init__.py": "from levels._core import level\n"}
    level_wheel(tmp_path / "dist", found={**files, "levels/_core.py": "def level(): return 'cpu'\n"})
    for major in ("12", "13"):
        code = {**files, "levels/_core.py": f"def level(): return 'cuda {major}'\n"}
        labelled_wheel(tmp_path / "dist", f"cu{major}", [f"x86_64 :: other :: {major}"], code)
    publish([tmp_path / "dist"], tmp_path / "out", layouts=[Extras()])
    plugins = [f"levels_cu{major}_plugin" for major in ("12", "13")]
    place = site(tmp_path / "site", tmp_path / "out" / "extras", "levels", *plugins)
    assert asked(place) == (
        f"ImportError: levels 1.0: cu12, cu13 are all installed: name one of them in LEVELS_BACKEND, {PLAIN}"
    )
    assert asked(place, LEVELS_BACKEND="cu13") == "cuda 13 cu13"


def test_what_an_uninstalled_plugin_left_behind_is_none(wheels: Path, tmp_path: Path) -> None:
    place = site(tmp_path, wheels, "levels")
    (place / V4 / "__pycache__").mkdir(parents=True)
    assert asked(place) == "v1 plain"


def test_a_plugin_may_lie_in_another_folder_of_the_path(wheels: Path, tmp_path: Path) -> None:
    folders = site(tmp_path / "one", wheels, "levels"), site(tmp_path / "two", wheels, V3)
    assert asked(*folders) == asked(*reversed(folders)) == "v3 x86-64-v3"


def test_a_cpu_of_which_the_system_says_nothing_is_taken_at_its_users_word(wheels: Path, tmp_path: Path) -> None:
    inside = masked("x86-64-v3", tmp_path)
    (tmp_path / "cpuinfo-x86-64-v3").write_text("processor: 0\n")
    assert asked(site(tmp_path / "site", wheels, "levels", V3), prefix=inside) == "v3 x86-64-v3"


def test_modules_that_are_loaded_so_can_be_pickled_reloaded_and_listed(wheels: Path, tmp_path: Path) -> None:
    place = site(tmp_path, wheels, "levels", V3)
    code = "import pickle, levels; print(pickle.loads(pickle.dumps(levels.level))())"
    assert asked(place, code=code) == "v3"
    code = "import importlib, levels; importlib.reload(levels); importlib.reload(levels._core); print(levels.level())"
    assert asked(place, code=code) == "v3"
    code = "import pkgutil, levels; print(*sorted(module.name for module in pkgutil.iter_modules(levels.__path__)))"
    assert asked(place, code=code) == "_core _vbuild_backend"


def test_modules_in_python_run_as_programs_and_from_a_zip(tmp_path: Path) -> None:
    program = "from levels import level\nif __name__ == '__main__': print('as', level())\n"
    for label, properties in ((None, []), ("cu12", ["x86_64 :: other :: 12"])):
        core = f"def level(): return {label!r}\n"
        files: dict[str, bytes | str] = {"levels/__init__.py": "from levels._core import level\n"}
        files |= {"levels/_core.py": core, "levels/__main__.py": program, "levels/tool.py": f"{program}# {label}\n"}
        labelled_wheel(tmp_path / "dist", label, properties, files)
    publish([tmp_path / "dist"], tmp_path / "out", layouts=[Extras()])
    place = site(tmp_path / "site", tmp_path / "out" / "extras", "levels", "levels_cu12_plugin")
    code = "import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
    assert [asked(place, code=code.format(name)) for name in ("levels", "levels.tool")] == ["as cu12"] * 2
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", place))
    where = "import inspect, levels._core as c; print(c.level(), c.__file__, inspect.getsource(c))"
    [level, file, *source] = asked(archive, code=where).split()
    assert (level, file) == ("cu12", f"{archive}/levels_cu12_plugin/_core.py")
    assert source[-1] == "'cu12'"
    assert asked(archive, code=code.format("levels"), LEVELS_BACKEND="plain") == "as None"


def test_the_loader_is_python_39_without_dependencies_and_its_text_depends_on_nothing_else(tmp_path: Path) -> None:
    backends = [backend("cu12", "nvidia :: cuda_version_lower_bound :: 12"), backend("v3", "x86_64 :: level :: v3")]
    code = loader(backends, version="1.0", build="0", folder="")
    assert code == loader(list(reversed(backends)), version="1.0", build="0", folder="")
    tree = ast.parse(code, feature_version=(3, 9))
    imported = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert imported == ["os", "sys", "importlib", "importlib.machinery"]
    (tmp_path / "loader.py").write_bytes(code)
    run = [sys.executable, "-W", "error", "-m", "py_compile", str(tmp_path / "loader.py")]
    assert not subprocess.run(run, check=False).returncode


@pytest.mark.parametrize(
    ("properties", "flags", "rest"),
    [
        (["x86_64 :: level :: v1"], "", ""),
        (["x86_64 :: level :: v2"], "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3", ""),
        (
            ["x86_64 :: level :: v3", "nvidia :: sm_arch :: 90_real"],
            "abm avx avx2 bmi1 bmi2 cx16 f16c fma lahf_lm movbe pni popcnt sse4_1 sse4_2 ssse3 xsave",
            "nvidia :: sm_arch :: 90_real",
        ),
        (["aarch64 :: version :: 9.0a"], "", "aarch64 :: version :: 9.0a"),
        (
            ["x86_64 :: level :: v2", "x86_64 :: sha_ni :: on"],
            "cx16 lahf_lm pni popcnt sha_ni sse4_1 sse4_2 ssse3",
            "",
        ),
    ],
    ids=["v1", "v2", "v3 and a GPU", "Arm", "a single feature"],
)
def test_a_backend_needs_flags_for_its_level_and_says_what_else(properties: list[str], flags: str, rest: str) -> None:
    found = backend("any", *properties)
    assert (found.flags, found.rest) == (flags, rest)


def test_the_variable_is_spelled_as_shells_take_it() -> None:
    assert [variable("my-lib.x"), variable("3to2")] == ["MY_LIB_X_BACKEND", "_3TO2_BACKEND"]


def test_the_loader_is_imported_before_anything_else() -> None:
    source = b"from __future__ import annotations\nimport demo._c\n"
    assert with_loader(source) == (
        b"from __future__ import annotations\nfrom . import _vbuild_backend  # noqa: F401\nimport demo._c\n"
    )
    with pytest.raises(RepackageError, match="leave --layout extras out"):
        with_loader(b"def (")
