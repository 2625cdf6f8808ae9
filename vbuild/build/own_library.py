"""A library of kernels that setup.py links, and that nobody makes: its maintainer calls nvcc by hand, before pip.

    setup.py            Extension("demo.core", ["core.cpp"], libraries=["demo"])
    demo.h, kernels.cu  the library's header, and sources that no script names
      -> nvcc -lib -Xcompiler -fPIC -o libdemo.a kernels.cu

A Makefile or a CMakeLists.txt may say more of it than can be read here: then it stays to the maintainer.
"""

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from vbuild.build.headers import toolkit_library
from vbuild.files.reading import read_text

# the archive is in the project's tree; its code calls the CUDA runtime, which setup.py does not name
LDFLAGS = "-L. -Wl,--no-as-needed -lcudart"

_SCRIPTS = ("Makefile", "makefile", "GNUmakefile", "CMakeLists.txt", "meson.build")
_HEADERS = (".h", ".hpp", ".cuh")
# bytes: a file that is larger is data
_LARGEST = 1 << 21
_MAIN = re.compile(r"\bmain\s*\(")


def made_before(project: Path, files: Iterable[Path]) -> str:
    """The command that makes the library of kernels that setup.py of *project* links; "" if it links none.

    *files* are the project's own.
    """
    if any((project / name).exists() for name in _SCRIPTS):
        return ""
    script = text_of(project / "setup.py")
    names = [each for each in _linked(script) if _has_header(project, each) and not toolkit_library(each)]
    sources = [path.relative_to(project).as_posix() for path in files if path.suffix == ".cu"]
    unnamed = [each for each in sources if Path(each).name not in script and not _is_program(project / each)]
    if len(names) != 1 or not unnamed:
        return ""
    return f"nvcc -lib -Xcompiler -fPIC -o {shlex.quote(f'lib{names[0]}.a')} {shlex.join(unnamed)}"


def _linked(script: str) -> Iterator[str]:
    """The libraries that *script*, a setup.py, names in its calls."""
    try:
        tree = ast.parse(script)
    except (SyntaxError, ValueError):  # of Python 2, for one: the build says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "libraries" and isinstance(node.value, ast.List | ast.Tuple):
            texts = (each.value for each in node.value.elts if isinstance(each, ast.Constant))
            yield from (text for text in texts if isinstance(text, str))


def _has_header(project: Path, name: str) -> bool:
    return any(
        (project / place / f"{name}{suffix}").is_file() for place in ("", "include", "src") for suffix in _HEADERS
    )


def _is_program(path: Path) -> bool:
    return bool(_MAIN.search(re.sub(r"//[^\n]*|/\*.*?\*/", "", text_of(path), flags=re.DOTALL)))


def text_of(path: Path) -> str:
    """The text of a source; "" for a link, for a file that is too large to be one, and if it cannot be read."""
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST:
            return ""
        return read_text(path, errors="replace")
    except OSError:
        return ""
