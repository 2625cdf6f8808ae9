"""What a project's files say of how it is built, and the recipe that follows.

    pyproject.toml          build requirements, requires-python, hooks of hatchling that run on demand only
    *.egg-info, folders     the module that users import
    setup.py                known projects that it imports and does not require; switches such as X_FORCE_BUILD,
                            without which it downloads a finished wheel
    *.cu, CMakeLists.txt    CUDA, and the libraries of the toolkit that are included or linked
    *.c, *.cpp, *.rs        languages
    CIBUILDWHEEL            a script that builds for other machines where this variable is set alone
      -> ProjectSurvey, axes -> RecipeDraft -> keys that a recipe is read from, or the text of one

Files are searched, not run. What this does not find, a build says when it fails (`vbuild.build.advice`).
"""

import ast
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.build.advice import is_known, is_of_cuda, project_of, toolkit_library
from vbuild.build.job import wanted_python
from vbuild.config.requirements import required_project
from vbuild.config.table import Table, toml, toml_comment, toml_key
from vbuild.elf.catalogue import frameworks
from vbuild.errors import RecipeError
from vbuild.files.reading import read_text
from vbuild.hardware.driver import Dotted
from vbuild.toolchain.toolkit import releases

_LANGUAGES = {
    **dict.fromkeys((".c",), "C"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".c++", ".hpp"), "C++"),
    **dict.fromkeys((".cu", ".cuh"), "CUDA"),
    **dict.fromkeys((".f", ".for", ".f90", ".f95", ".f03"), "Fortran"),
    **dict.fromkeys((".rs",), "Rust"),
    **dict.fromkeys((".pyx", ".pxd"), "Cython"),
}
_HEADERS = (".h", ".hh", ".inc")
_SCRIPTS = (".py", ".cmake", ".toml", ".cfg", "CMakeLists.txt", "meson.build")
_NOT_ITS_OWN = frozenset(
    {"tests", "test", "test cases", "docs", "doc", "examples", "benchmarks"}
    | {"build", "dist", "node_modules", "__pycache__", "site-packages"}
)
_PLACES = ("src", "python", "lib")  # of a project's packages, if not at its top
_LARGEST = 1 << 21  # bytes: a file that is larger is data
_WIDTH = 120

# turns "download the wheel that fits" off, or compilation on; the comparison tells what to set it to
_FORCED = re.compile(
    r"""["'](?P<name>(?:[A-Z][A-Z0-9_]*_)?(?:FORCE_(?:BUILD|CUDA)|USE_(?:CYTHON|MYPYC)))["'](?=(?P<rest>[^\n]*))"""
)
_COMPILING = ("USE_CYTHON", "USE_MYPYC")
_SAYS_TRUE = re.compile(r"""==\s*["'](?P<value>\w+)["']""")
_ASKS_CIBUILDWHEEL = re.compile(r"[\"'{]CIBUILDWHEEL\b")
# compiles without a source in a language of ours: cffi, mypyc, Cython of .py, another tool
_EXTENDS = re.compile(r"\b(?:ext_modules|rust_extensions|cffi_modules|mypycify|cythonize)\b")
_COMPILERS = frozenset(
    {"cffi", "cython", "hatch-mypyc", "maturin", "meson-python", "mypy", "nuitka", "pythran", "scikit-build"}
    | {"scikit-build-core", "setuptools-rust"}
)
# that nvcc compiles something, be it called .cu or not
_KERNELS = re.compile(r"CUDAExtension|enable_language\s*\(\s*CUDA|LANGUAGES[^)]*\bCUDA\b|cuda_add_|\.cu\b|-x cu\b")
_AS_CUDA = re.compile(r"-x cu\b|\bLANGUAGE\s+CUDA\b")
# how scripts name the toolkit's libraries
_LINKED = re.compile(
    r"""\bCUDA::(?P<target>\w+)|\bCUDA_(?P<variable>[a-zA-Z]+)_LIBRAR(?:Y|IES)\b"""
    r"""|["']-(?P<tile>-?enable-tile)["']|["'](?:-l)?(?P<name>cu[a-z]+(?:Lt)?|nv[a-zA-Z]+|npp[a-z]*)["']"""
)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(?P<header>[\w./+-]+)>", re.MULTILINE)
_QUOTED = re.compile(
    r"""^[ \t]*(?:#[ \t]*include|cdef[ \t]+extern[ \t]+from)[ \t]*["']<?(?P<header>[\w./+-]+)""", re.MULTILINE
)
_OF_SETUPTOOLS = frozenset({"setuptools", "pkg_resources", "distutils", "_distutils_hack"})
_EXTENSIONS = frozenset({"torch.utils.cpp_extension"})

_CUDA_LIBRARIES = (
    *("cudart", "cublas*", "cufft*", "curand", "cusolver*", "cusparse*", "nvrtc*", "nvJitLink", "npp*", "nvjpeg"),
    *("cudnn*", "nccl"),
)


class ProjectSurvey(Struct, frozen=True, kw_only=True):
    """What the files of a project say.

    *requires* are the projects that its build requirements, the *lines*, name, and *imported* those that they lack.
    *module* is what users import, if that is certain. *switches* are variables that make it build here what it
    would download, or leave to Python.
    """

    requires: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    requires_python: str = ""
    module: str = ""
    languages: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    switches: tuple[tuple[str, str], ...] = ()
    imported: tuple[str, ...] = ()
    has_extensions: bool = False
    has_kernels: bool = False
    calls_cuda: bool = False

    @property
    def has_cuda(self) -> bool:
        return "CUDA" in self.languages

    @property
    def only_calls_cuda(self) -> bool:
        return self.calls_cuda and not self.has_kernels

    @property
    def is_compiled(self) -> bool:
        return bool(self.languages or self.switches or self.has_extensions or _COMPILERS.intersection(self.requires))

    def switched(self, *, has_cuda: bool) -> dict[str, str]:
        return {name: value for name, value in self.switches if has_cuda or not name.endswith("FORCE_CUDA")}


def surveyed(project: Path, name: str) -> ProjectSurvey:
    sources = _Sources()
    for path in _files(project):
        sources.look(path, path.relative_to(project).as_posix())
    lines, has_hooks = _stated(project)
    requires = tuple(dict.fromkeys(required for line in lines if (required := required_project(line))))
    # other sources it compiles anyway, and a switch for Cython generates those anew
    by_itself = sources.languages - {"Cython"}
    switches = {name: text for name, text in sources.switches.items() if not (by_itself and name.endswith(_COMPILING))}
    if has_hooks:
        switches["HATCH_BUILD_HOOKS_ENABLE"] = "1"
    imported = tuple(dict.fromkeys(_imported(project, requires)))
    if any(header.startswith("numpy/") for header in sources.headers) and "numpy" not in {*requires, *imported}:
        imported = (*imported, "numpy")
    libraries = {library for name in (*sources.headers, *sources.linked) if (library := toolkit_library(name))}
    return ProjectSurvey(
        requires=requires,
        lines=lines,
        requires_python=wanted_python(project),
        module=_module(project, name),
        languages=tuple(sorted(sources.languages)),
        libraries=tuple(sorted(libraries)),
        switches=tuple(sorted(switches.items())),
        imported=imported,
        has_extensions=sources.has_extensions,
        # some have the script of a kernel that they no longer have
        has_kernels=sources.has_kernels and ("CUDA" in sources.languages or sources.has_others),
        calls_cuda=any(map(is_of_cuda, (*sources.headers, *sources.quoted))),
    )


class _Sources:
    def __init__(self) -> None:
        self.languages: set[str] = set()
        self.switches: dict[str, str] = {}
        self.headers: set[str] = set()
        self.quoted: set[str] = set()
        self.linked: set[str] = set()
        self.has_extensions = self.has_kernels = self.has_others = False

    def look(self, path: Path, name: str) -> None:
        is_script = path.name.endswith(_SCRIPTS)
        language = _LANGUAGES.get(path.suffix.lower())
        is_header = path.suffix in {*_HEADERS, ".hpp", ".cuh"}
        if language and not is_header:
            self.languages.add(language)
        if not (is_script or is_header or language):
            return
        text = _text(path)
        self.quoted |= {match["header"] for match in _QUOTED.finditer(text)}
        if not is_script and language != "Cython":
            self.headers |= {match["header"] for match in _INCLUDE.finditer(text)}
        if not is_script:
            return
        for match in _FORCED.finditer(text):
            compared = _SAYS_TRUE.search(match["rest"])
            self.switches.setdefault(match["name"], compared["value"] if compared else "1")
        self.has_extensions |= bool(_EXTENDS.search(text))
        if not (name.endswith(".py") and "/" in name):
            self.has_kernels |= bool(_KERNELS.search(text))
            self.has_others |= bool(_AS_CUDA.search(text))
            for match in _LINKED.finditer(text):
                library = match["target"] or match["name"] or (match["variable"] or "").lower()
                self.linked.add("tileiras" if match["tile"] else library)


def asking_cibuildwheel(project: Path) -> str:
    """The script of *project* that asks whether cibuildwheel builds it, by its path in there, or ""."""
    scripts = (path for path in _files(project) if path.name.endswith(_SCRIPTS))
    asking = (path.relative_to(project).as_posix() for path in scripts if _ASKS_CIBUILDWHEEL.search(_text(path)))
    return next(asking, "")


def _files(project: Path) -> Iterator[Path]:
    """The files of *project*: not what is hidden, in a virtual environment, or built of it."""
    for parent, folders, files in os.walk(project):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name.lower() not in _NOT_ITS_OWN
            and not Path(parent, name, "pyvenv.cfg").exists()
        )
        yield from (Path(parent, name) for name in sorted(files))


def _text(path: Path) -> str:
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST:
            return ""
        return read_text(path, errors="replace")
    except OSError:
        return ""


def _stated(project: Path) -> tuple[tuple[str, ...], bool]:
    """The build requirements in pyproject.toml, and whether hatchling has hooks on demand only, as for mypyc."""
    file = project / "pyproject.toml"
    try:
        table = Table.load(file) if file.is_file() else Table({})
    except RecipeError:  # the backend says what is wrong with it
        table = Table({})
    listed = _at(table.raw("build-system")).get("requires")
    lines = [text for text in listed if isinstance(text, str)] if isinstance(listed, list) else []
    hooks = _at(table.raw("tool"), "hatch", "build", "targets", "wheel", "hooks").values()
    has_hooks = any(isinstance(hook, dict) and hook.get("enable-by-default") is False for hook in hooks)
    return tuple(lines), has_hooks


def _at(table: object, *keys: str) -> Mapping[str, object]:
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


def _imported(project: Path, requires: Iterable[str]) -> Iterator[str]:
    """The known projects that setup.py imports at its top and *requires* lacks.

    Of frameworks also what a handler of errors imports. Unknown projects are left to the user: anyone can register
    a free name, and the build would run their code.
    """
    try:
        tree = ast.parse(_text(project / "setup.py"))
    except (SyntaxError, ValueError):  # of Python 2, for one: the build says so
        return
    extends = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in _EXTENSIONS)
    for node in (*tree.body, *extends):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in (module.partition(".")[0] for module in names):
            paths = [project / folder / name for folder in ("", *_PLACES)]
            is_own = any(path.is_dir() or path.with_name(f"{name}.py").is_file() for path in paths)
            needed = project_of(name)
            if name in _OF_SETUPTOOLS or name in sys.stdlib_module_names or is_own or not is_known(needed):
                continue
            if not any(_brings(required, needed) for required in requires):
                yield needed


def _brings(required: str, needed: str) -> bool:
    """Whether *required* is *needed*, or named after it, as ``oldest-supported-numpy``; not for frameworks."""
    if needed in frameworks():
        return required == needed
    return set(needed.split("-")) <= set(required.split("-"))


def _module(project: Path, name: str) -> str:
    plain = canonicalize_name(name).replace("-", "_")
    places = [project, *(project / folder for folder in _PLACES)]
    for file in (*project.glob("*.egg-info/top_level.txt"), *project.glob("*/*.egg-info/top_level.txt")):
        listed = [line.strip() for line in _text(file).splitlines() if line.strip().isidentifier()]
        if not listed:
            break
        if same := [module for module in listed if module.lower() == plain]:
            return same[0]
        public = [module for module in listed if not module.startswith("_") and module not in _NOT_ITS_OWN]
        # some are namespaces, or compiled on other systems only
        endings = ("", ".py", *_LANGUAGES)
        is_there = any(
            (folder / f"{module}{end}").exists() for module in public for folder in places for end in endings
        )
        return public[0] if len(public) == 1 and is_there else ""
    packages = (path.parent.name for folder in places for path in folder.glob("*/__init__.py"))
    return next((package for package in packages if package.lower() == plain and package.isidentifier()), "")


class DraftKey(Struct, frozen=True):
    """A key of a recipe; one that *is_offered* is commented out."""

    table: str
    key: str
    value: Any
    comment: str = ""
    is_offered: bool = False

    def __str__(self) -> str:
        text = f"{toml_key(self.key)} = {toml(self.value)}"
        text = f"# {text}" if self.is_offered else text
        if not self.comment:
            return text
        comment = toml_comment(self.comment)
        line = f"{text}  {comment}"
        return line if len(line) <= _WIDTH else f"{comment}\n{text}"


class RecipeDraft(Struct, frozen=True):
    keys: tuple[DraftKey, ...]

    def values(self) -> dict[str, Any]:
        tables: dict[str, Any] = {}
        for key in self.keys:
            if not key.is_offered:
                (tables.setdefault(key.table, {}) if key.table else tables)[key.key] = key.value
        return tables

    def text(self, prefix: str = "") -> str:
        lines: list[str] = []
        table = ""
        for key in self.keys:
            if key.table != table:
                table = key.table
                lines.append(f"\n[{prefix}{table}]")
            lines.append(str(key))
        return "\n".join(lines).lstrip("\n") + "\n"


def drafted(survey: ProjectSurvey, matrix: Mapping[str, Any]) -> RecipeDraft:
    return RecipeDraft((*_matrix(survey, matrix), *_others(survey, matrix)))


def _matrix(survey: ProjectSurvey, matrix: Mapping[str, Any]) -> Iterator[DraftKey]:
    for key, value in matrix.items():
        if key == "cuda":
            entries = [{**entry, **_libraries(survey, entry["toolkit"])} for entry in value]
            contents = "each group, and a plain one for all" if "gpus" in value[0] else "each, and a plain one"
            yield DraftKey("matrix", key, entries, f"a wheel for {contents}")
        else:
            yield DraftKey("matrix", key, value, "the plain wheel is built as well" if key == "cpu" else "")
    if "python" not in matrix:
        stated = f", and it wants {survey.requires_python}" if survey.requires_python else ""
        offered = ["3.12", "3.13", "3.14"]
        yield DraftKey("matrix", "python", offered, f"the Python that runs vbuild otherwise{stated}", is_offered=True)
    if survey.only_calls_cuda and "cuda" not in matrix:
        entry = {"toolkit": "13.0", **_libraries(survey)}
        yield DraftKey("matrix", "cuda", [entry], "it calls CUDA's libraries, and has no kernels", is_offered=True)
    if survey.has_cuda and "cuda" not in matrix:
        groups = {"sm80": "80,86,89", "sm90": "90", "sm100": "100", "sm120": "120+ptx"}
        entry = {"toolkit": "13.0", "gpus": groups, **_libraries(survey)}
        yield DraftKey("matrix", "cuda", [entry], "it has CUDA code", is_offered=True)


def _libraries(survey: ProjectSurvey, version: str = "13.0") -> dict[str, Any]:
    """Those of the toolkit *version*: of CUDA 12 some are part of the runtime."""
    release = releases().get(Dotted.parse(version))
    libraries = [name for name in survey.libraries if release is None or release.projects(name)]
    return {"libraries": libraries} if libraries else {}


def _others(survey: ProjectSurvey, matrix: Mapping[str, Any]) -> Iterator[DraftKey]:
    has_cuda = "cuda" in matrix
    if switches := survey.switched(has_cuda=has_cuda):
        comment = (
            "or it takes a finished wheel from elsewhere, leaves CUDA out where there is no GPU, or compiles nothing"
        )
        yield DraftKey("build", "env", switches, comment)
    if survey.imported:
        comment = "setup.py imports it, or a source includes it, and the project does not say so"
        yield DraftKey("build", "requires", [*survey.imported], comment)
    if has_cuda and "gpus" in matrix["cuda"][0]:
        comment = "what is asked for takes the place of a list of its own"
        yield DraftKey("build", "cuda", {"archs": "complete"}, comment)
    if has_cuda and not {*survey.requires, *survey.imported}.intersection(frameworks()):
        # they take gigabytes; a framework brings them
        patterns = [f"lib{name}.so.*" for name in _CUDA_LIBRARIES]
        comment = "NVIDIA's packages have them, which it requires where it uses them"
        yield DraftKey("repair", "exclude", patterns, comment)
        yield DraftKey("split", "rpath", value=True, comment="and finds there")
        yield DraftKey("split", "share", value=False)
    if survey.module:
        # importing a module of torch may need a GPU's driver, and it brings gigabytes
        is_offered = has_cuda or "torch" in survey.requires
        command = shlex.join(["python", "-c", f"import {survey.module}"])
        yield DraftKey("test", "command", command, "runs with each wheel", is_offered)
