"""How Python is started: by one module, and so that it imports nothing from the current folder."""

import ast
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import vbuild
from vbuild.process.python import isolated, with_own_packages

PACKAGE = Path(vbuild.__file__).parent
# the second also runs on Pythons that cannot import vbuild, in containers of cibuildwheel
_OPTIONS = {"-c", "-m", "-I"}
STARTING = [PACKAGE / "process/python.py", PACKAGE / "build/cibuildwheel/container.py"]


def test_python_is_started_by_one_module_alone() -> None:
    sources = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py") if path not in STARTING}
    found = [f"{path.relative_to(PACKAGE)}:{line}" for path in sources for line in starts(sources[path])]
    assert found == [], "expected isolated() or with_own_packages() of vbuild.process.python"


@pytest.fixture(autouse=True)
def _among_a_strangers_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("json", "linecache"):  # Python 3.13 and newer import the second for -c
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')\n")


def test_a_python_that_is_started_imports_nothing_from_the_current_folder() -> None:
    for command in (isolated("-c", "import json"), with_own_packages("-c", "import json")):
        subprocess.run(command, check=True)


def starts(source: str) -> Iterator[int]:
    """The lines of *source* where a command seems to start Python: this one, or an option of Python behind a path."""
    if not any(text in source for text in ("sys.executable", *(f'"{option}"' for option in _OPTIONS))):
        return  # most modules start nothing, and to parse them all takes seconds
    for node in ast.walk(ast.parse(source)):
        words = node.elts if isinstance(node, ast.List | ast.Tuple) else []
        if len(words) > 1 and ast.unparse(words[0]) == "sys.executable":
            yield words[0].lineno
        for path, word in pairwise(words):
            is_constant = isinstance(path, ast.Constant) or ast.unparse(path).isupper()
            if not is_constant and isinstance(word, ast.Constant) and word.value in _OPTIONS:
                yield word.lineno
