"""`import vbuild` as a library's user meets it: what it gives, what it costs, what type checkers say, and its page."""

import ast
import doctest
import inspect
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vbuild
from tests.factories.fatbins import device_library, entry, fatbin
from tests.factories.mirrors import lock_of
from tests.factories.projects import c_project
from tests.factories.tools import needs
from tests.factories.variants import machine
from tests.factories.wheels import wheel
from vbuild.api import repackaging
from vbuild.cli.main import main
from vbuild.errors import VbuildError

ROOT = Path(__file__).parents[2]
FAT = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
PURE = "pure-1.0-py3-none-any.whl"
# functions for what a command does with an option, or with another kind of argument
MODES = {
    "install_check": "split",
    "select_image": "select",
    "lock_machines": "lock",
    "run_levels": "verify",
    "slim_environment": "slim",
    "slim_images": "slim",
    "index_channel": "index",
    "undo_slim": "slim",
    "verify_mirror": "mirror",
}
VERBS = [
    "matrix",
    "init",
    "lock",
    "cibuildwheel",
    "collect",
    "slim",
    "split",
    "stamp",
    "repair",
    "select",
    "doctor",
    "verify",
    "bench",
    "inspect",
    "index",
    "publish",
    "check",
    "mirror",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with what the page's examples name."""
    chance = random.Random(7)
    code = device_library(fatbin(*(entry(arch=arch, code=chance.randbytes(1 << 16)) for arch in (80, 90))))
    wheel(tmp_path, FAT, {"demo/_C.so": code})
    wheel(tmp_path, PURE)
    lock_of(tmp_path / "pylock.toml", tmp_path / FAT)
    (tmp_path / "speed.py").write_text("print('nothing 2 ms')\n", encoding="utf-8")
    (tmp_path / "machine.toml").write_text(str(machine("x86-64-v3")), encoding="utf-8")
    c_project(tmp_path / "project")
    recipe = 'name = "demo"\n[source]\npath = "project"\n[matrix]\ncpu = ["x86-64", "x86-64-v2"]\n'
    (tmp_path / "demo.toml").write_text(recipe, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.network
@needs("gcc")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64")
@pytest.mark.nightly  # it builds, slims and splits what the tests of rooms do
@pytest.mark.usefixtures("folder")
def test_every_example_of_the_page_gives_what_it_shows() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "api.md", "docs/reference/api.md", 0)
    said: list[str] = []
    assert doctest.DocTestRunner().run(example, out=said.append).failed == 0, "".join(said)
    called = set(re.findall(r"vbuild\.(\w+)\(", "\n".join(blocks)))
    assert called == {*VERBS, *MODES} - {"cibuildwheel"}  # which takes containers


def test_there_is_a_function_for_each_verb_with_what_it_raises() -> None:
    functions_there = [name for name in vbuild.__all__ if inspect.isfunction(getattr(vbuild, name))]
    assert [name for name in functions_there if name not in MODES] == VERBS
    for name in functions_there:
        assert "Error`" in str(getattr(vbuild, name).__doc__)
        assert MODES.get(name, name) in main.commands


def test_all_names_are_there_and_listed_and_others_are_an_error() -> None:
    assert dir(vbuild) == sorted(vbuild.__all__)
    assert all(getattr(vbuild, name) is not None for name in vbuild.__all__)
    with pytest.raises(AttributeError, match="module 'vbuild' has no attribute 'slimm'"):
        vbuild.slimm  # type: ignore[attr-defined]  # noqa: B018 - it is the reading that fails


def test_type_checkers_see_the_names_that_there_are() -> None:
    tree = ast.parse((ROOT / "vbuild" / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        f"{node.module}:{name.name}"
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom) and node.module != "importlib"
        for name in node.names
    }
    names = vars(vbuild)["_PLACES"]
    assert seen == {f"vbuild.{module}:{name}" for name, module in names.items()}


def test_importing_vbuild_imports_nothing_and_needs_no_packages() -> None:
    program = (
        "import sys; before = set(sys.modules); sys.path.insert(0, sys.argv[1]); import vbuild; "
        "print(sorted(set(sys.modules) - before), vbuild.__version__, vbuild.DISTRIBUTION)"
    )
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", program, ROOT], capture_output=True, text=True, check=True)
    assert ran.stdout == f"['vbuild'] {vbuild.__version__} vbuild-wheels\n"


def test_a_function_imports_no_verb_before_it_is_called() -> None:
    program = "import sys, vbuild; vbuild.slim; print([name for name in sys.modules if name.startswith('vbuild.')])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    api = {"vbuild.api", "vbuild.api.request", "vbuild.api.arguments", "vbuild.api.repackaging"}
    assert set(ast.literal_eval(ran.stdout)) == {*api, "vbuild.errors"}


@pytest.mark.usefixtures("folder")
def test_an_option_that_does_not_exist_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'gpu'"):
        vbuild.slim(FAT, gpu=["sm_90"])  # type: ignore[call-arg]


def test_texts_paths_and_lists_of_them_are_the_same(folder: Path) -> None:
    several = [
        vbuild.slim(FAT, gpus="90,80"),
        vbuild.slim(folder / FAT, gpus=["sm_80", "9.0"]),
        vbuild.slim([FAT], gpus=("80", "90")),
    ]
    assert len({(one.name, one.unpacked, str(one.libraries)) for (one,) in several}) == 1
    assert sorted(folder.glob("*.whl")) == [folder / FAT, folder / PURE]


def test_options_of_wheels_are_none_of_what_is_installed(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'drop'"):
        vbuild.slim_environment(tmp_path, gpus="90", drop=["*.a"])  # type: ignore[call-arg]


@pytest.mark.usefixtures("folder")
def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(VbuildError, match="base goes with layouts oci only"):
        vbuild.publish(PURE, layouts=["variants"], base="image")
    with pytest.raises(VbuildError, match="exact goes with share only"):
        vbuild.split(PURE, share=False, exact=True)
    with pytest.raises(VbuildError, match="libs is for libraries that leave a wheel, and with private they stay"):
        vbuild.split(PURE, private=True, libs="x")
    with pytest.raises(VbuildError, match="move is for libraries that leave a wheel, and with private they stay"):
        vbuild.split(PURE, private=True, move="*")
    with pytest.raises(VbuildError, match="publisher goes with attestations only"):
        vbuild.verify(PURE, publisher="https://example.org/demo")
    with pytest.raises(VbuildError, match="metadata goes with label only"):
        vbuild.stamp(PURE, "out", remove=True, metadata="demo.toml")
    with pytest.raises(VbuildError, match="remove goes with simple only"):
        vbuild.index("out", remove="demo==1.0")
    with pytest.raises(VbuildError, match="expected gpus for one wheel, or variants for a family"):
        vbuild.slim(FAT, gpus="90", variants={"sm90": "90"})
    with pytest.raises(VbuildError, match="gpus goes with cpu only"):
        vbuild.select("pure", ".", gpus=90)
    with pytest.raises(VbuildError, match="expected either label or remove"):
        vbuild.stamp(PURE, "out")


def test_results_are_what_the_commands_print_as_json(folder: Path) -> None:
    (slimmed,) = repackaging.slim(FAT, "one", gpus="90")
    command = [sys.executable, "-m", "vbuild", "slim", FAT, "--gpu", "90", "-o", "two"]
    subprocess.run(command, check=True, capture_output=True)
    assert slimmed.path
    assert slimmed.path.read_bytes() == (folder / "two" / FAT).read_bytes()


def test_provenance_names_the_options_and_the_wheel_that_was_given(folder: Path) -> None:
    vbuild.slim(FAT, "slim", gpus=iter(["90"]), strip="debug", provenance=True)
    vbuild.split(FAT, "thin", share=False, provenance=True)
    for made, options_given in (("slim", {"gpus": ["90"], "strip": "debug"}), ("thin", {"share": "False"})):
        definition = json.loads((folder / made / f"{FAT}.provenance.json").read_text())["predicate"]["buildDefinition"]
        assert definition["externalParameters"]["options"] == options_given
        assert [each["name"] for each in definition["resolvedDependencies"]] == [FAT]


CONSUMER = """
from pathlib import Path

import vbuild

results: tuple[vbuild.Slimmed, ...] = vbuild.slim("x.whl", gpus=["sm_90"], output_dir="out")
sizes: list[int | None] = [result.packed for result in results]
release: vbuild.ReleaseResult = vbuild.matrix(Path("recipe.toml"), "dist", jobs=2, only=["plain"])
stamped: Path = vbuild.stamp("x.whl", "out", label="v3", properties=["x86_64 :: level :: v3"])
chosen: vbuild.Selection = vbuild.select("x", ["dist"], machine="machine.toml")
laid: tuple[vbuild.PublishedLayout, ...] = vbuild.publish("dist", "site", layouts=["hwcaps"], url="https://x.example")
vbuild.slim("x.whl", "out", gpus="90", force=True)
try:
    verdict: vbuild.Verdict = vbuild.verify("x.whl", cpu="x86-64-v3")
except vbuild.VbuildError as error:
    text: str = str(error)
"""
WRONG = """
import vbuild

vbuild.slim("x.whl", gpu=["sm_90"])
vbuild.slim("x.whl", ptx="all")
vbuild.publish("dist", layouts=["deb"])
vbuild.nothing
"""


@pytest.mark.nightly  # mypy reads all of vbuild without a cache
def test_a_program_that_uses_vbuild_passes_mypy_and_mistakes_do_not(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(CONSUMER, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "right.py", "wrong.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = re.findall(r"^(\w+\.py):(\d+): error: .*\[([a-z-]+)\]$", ran.stdout, re.MULTILINE)
    assert errors == [
        ("wrong.py", "4", "call-arg"),
        ("wrong.py", "5", "arg-type"),
        ("wrong.py", "6", "list-item"),
        ("wrong.py", "7", "attr-defined"),
    ], ran.stdout + ran.stderr
