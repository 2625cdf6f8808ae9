"""What a project's files say of how it is built, before anything is: what a recipe for it has to name.

    pyproject.toml          the backend, build requirements, requires-python
    *.egg-info, folders     the module that users import
    *.cu, CMakeLists.txt    CUDA, its own list of architectures, the libraries of the toolkit it includes or links
    setup.py                switches such as X_FORCE_BUILD, without which a finished wheel is downloaded, and what it
                            imports and its build requirements lack
    *.c, *.cpp, *.rs        run-time dispatch of its own, and headers of the system

Files are searched, not run: what a project computes is not found.
"""

import ast
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.build.headers import is_of_cuda, toolkit_library
from vbuild.build.job import recognised, wanted_python
from vbuild.build.own_library import made_before
from vbuild.build.plan import BuildBackend
from vbuild.config.requirements import required_project
from vbuild.config.table import Table
from vbuild.elf.catalogue import frameworks
from vbuild.errors import RecipeError

_LANGUAGES = {
    **dict.fromkeys((".c",), "C"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".c++", ".hpp"), "C++"),
    **dict.fromkeys((".cu", ".cuh"), "CUDA"),
    **dict.fromkeys((".f", ".for", ".f90", ".f95", ".f03"), "Fortran"),
    **dict.fromkeys((".rs",), "Rust"),
    **dict.fromkeys((".pyx", ".pxd"), "Cython"),
}
_HEADERS = (".h", ".hh", ".inc")
_SCRIPTS = (".py", ".cmake", ".toml", ".cfg", "CMakeLists.txt", "meson.build", "meson_options.txt", "meson.options")
_NOT_ITS_OWN = frozenset(
    {"tests", "test", "test cases", "docs", "doc", "examples", "benchmarks"}
    | {"build", "dist", "node_modules", "__pycache__", "site-packages"}
)
# bytes: a file that is larger is data
_LARGEST = 1 << 21

# a name that turns "download the wheel that fits" off, or compilation on; how it is compared tells what to set it to
_FORCED = re.compile(
    r"""["'](?P<name>(?:[A-Z][A-Z0-9_]*_)?(?:FORCE_(?:BUILD|CUDA)|USE_(?:CYTHON|MYPYC)))["'](?=(?P<rest>[^\n]*))"""
)
_COMPILING = ("USE_CYTHON", "USE_MYPYC")
_HOOKS = ("HATCH_BUILD_HOOKS_ENABLE", "1")
_SAYS_TRUE = re.compile(r"""==\s*["'](?P<value>\w+)["']""")
_ARCHS = re.compile(r"(?:arch=compute_|code=sm_|\bsm_)(?P<number>\d{2,3}[af]?)")
_CUDA = re.compile(
    r"CUDAExtension|enable_language\s*\(\s*CUDA|LANGUAGES[^)]*\bCUDA\b|find_package\s*\(\s*CUDA|\bnvcc\b"
)
_DISPATCH = re.compile(
    r"__builtin_cpu_(?:supports|is|init)|__get_cpuid|\b__cpuid(?:ex|_count)?\b|is_x86_feature_detected!|target_clones"
    r"|\bgetauxval\s*\(|__attribute__\s*\(\(\s*(?:__)?target"
)
# of what is compiled that has no source in a language of ours: by cffi, mypyc, Cython of .py, a tool that is called
_EXTENDS = re.compile(r"\b(?:ext_modules|rust_extensions|cffi_modules|mypycify|cythonize)\b")
_COMPILERS = frozenset(
    {"cffi", "cython", "hatch-mypyc", "maturin", "meson-python", "mypy", "nuitka", "pythran", "scikit-build"}
    | {"scikit-build-core", "setuptools-rust"}
)
# modules that are not called as their project is
_PROJECTS = {"git": "gitpython", "skbuild": "scikit-build", "yaml": "pyyaml", "setuptools_rust": "setuptools-rust"}
_EXTENSIONS = frozenset({"torch.utils.cpp_extension"})
_PLACES = ("src", "python", "lib")  # in which a project has its packages, if not at its top
_BEFORE_REMOVAL = "setuptools<74"  # of distutils.msvccompiler
_OF_SETUPTOOLS = frozenset({"setuptools", "pkg_resources", "distutils", "_distutils_hack"})
_NATIVE = re.compile(r"-m(?:arch|tune|cpu)=native")
# that nvcc compiles something, be it called .cu or not
_KERNELS = re.compile(r"CUDAExtension|enable_language\s*\(\s*CUDA|LANGUAGES[^)]*\bCUDA\b|cuda_add_|\.cu\b|-x cu\b")
_AS_CUDA = re.compile(r"-x cu\b|\bLANGUAGE\s+CUDA\b")  # sources whose names do not say so
# how scripts name the toolkit's libraries; and variables that take its major version
_LINKED = re.compile(
    r"""\bCUDA::(?P<target>\w+)|\bCUDA_(?P<variable>[a-zA-Z]+)_LIBRAR(?:Y|IES)\b"""
    r"""|["']-(?P<tile>-?enable-tile)["']|["'](?:-l)?(?P<name>cu[a-z]+(?:Lt)?|nv[a-zA-Z]+|npp[a-z]*)["']"""
)
# what a build leaves out unless it is asked: an option of CMake or Meson, and a variable that setup.py reads
_OPTION = re.compile(
    r"""\boption\s*\(\s*(?P<cmake>\w+)\s+"[^"]*"\s+(?:OFF|FALSE|NO|0)\s*\)"""
    r"""|\boption\s*\(\s*'(?P<meson>\w+)'[^)]*?\bvalue\s*:\s*(?P<value>false|'disabled'|'auto')"""
    r"""|(?:environ\.get|getenv)\(\s*["'](?P<variable>\w+)["']\s*,\s*["'](?:0|OFF|False|false|no|)["']\s*\)(?P<rest>[^\n]*)""",
    re.IGNORECASE,
)
_ENABLES = frozenset({"use", "with", "enable", "enabled", "build", "have", "support", "backend", "kernels", "compile"})
_MAJOR = re.compile(r"""(?:environ(?:\.get\(|\[)|getenv\()\s*["'](?P<name>[A-Z0-9_]*CUDA_MAJOR(?:_VERSION)?)["']""")
# the C that Cython writes names its release, and compiles for Pythons up to one: tried with the headers of each
_GENERATED = re.compile(r"/\* Generated by Cython (?P<version>\d+\.\d+(?:\.\d+)?)")
_KNOWN_PYTHONS = (
    ("0.29.13", "<3.8"),
    ("0.29.24", "<3.10"),
    ("0.29.32", "<3.11"),
    ("0.29.35", "<3.12"),
    ("3.0.8", "<3.13"),
)
_BEFORE_RENAMING = "scikit-build-core<0.8"  # of cmake.minimum-version
_RENAMED = "its pyproject.toml has cmake.minimum-version, which newer releases refuse"
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(?P<header>[\w./+-]+)>", re.MULTILINE)
_QUOTED = re.compile(
    r"""^[ \t]*(?:#[ \t]*include|cdef[ \t]+extern[ \t]+from)[ \t]*["']<?(?P<header>[\w./+-]+)""", re.MULTILINE
)


class ProjectSurvey(Struct, frozen=True, kw_only=True):
    """What the files of a project say; each of *languages*, *libraries* and *headers* once, sorted.

    *requires* are the projects that its build requirements, the *lines*, name. *module* is what users import, or "" if
    that is not certain. *archs* are the GPUs of its own list, as in ``80``. *libraries* are those of the CUDA toolkit,
    as ``matrix.cuda[].libraries`` has them, and *switches* the variables that make it build here what it would
    download, or compile what it would leave to Python. *options* are those of its build system, or variables, that
    leave CUDA out unless they are set, each with the value that does.

    *imported* is what setup.py cannot do without and *requires* lacks, *tried* what it imports if it is there, and
    *decisive* what of that chooses how it is built. *generated* is the oldest release of Cython that made C of it which
    nothing makes again, or "". *added* holds a requirement to
    releases that take the project, each with the reason. *majors* are variables that want the major version of CUDA.
    *before* makes a library of kernels that setup.py links, and nothing else makes.
    *dispatch* are files that ask the CPU, *native* those that build for the building machine. *headers* are those in
    angle brackets that are not its own.
    """

    backend: BuildBackend
    requires: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    requires_python: str = ""
    module: str = ""
    languages: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    switches: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    dispatch: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    imported: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()
    generated: str = ""
    added: tuple[tuple[str, str], ...] = ()
    majors: tuple[str, ...] = ()
    before: str = ""
    has_extensions: bool = False
    has_kernels: bool = False
    calls_cuda: bool = False

    @property
    def has_cuda(self) -> bool:
        return "CUDA" in self.languages

    @property
    def only_calls_cuda(self) -> bool:
        """Whether it needs the toolkit's libraries, and no code for GPUs is compiled: some bring files for run time."""
        return self.calls_cuda and not self.has_kernels

    @property
    def pythons(self) -> str:
        """The specifier of the Pythons that it takes: those that it wants, and for which its C was made."""
        known = (
            pythons
            for oldest, pythons in _KNOWN_PYTHONS
            if self.generated and _release(self.generated) < _release(oldest)
        )
        return ",".join(filter(None, [self.requires_python, next(known, "")]))

    @property
    def is_compiled(self) -> bool:
        """Whether there is any source that a compiler takes, or a tool that makes some."""
        return bool(self.languages or self.switches or self.has_extensions or _COMPILERS.intersection(self.requires))


def surveyed(project: Path, name: str) -> ProjectSurvey:
    """What the files in the folder *project* say, whose distribution is called *name*."""
    found, files = _Found(), tuple(_files(project))
    for path in files:
        found.look(path, path.relative_to(project).as_posix())
    lines, has_hooks, is_renamed = _stated(project)
    requires = tuple(dict.fromkeys(each for line in lines if (each := required_project(line))))
    # with other sources it compiles by itself, and a switch for Cython makes those anew
    by_itself = found.languages - {"Cython"}
    switches = {name: value for name, value in found.switches.items() if not (by_itself and name.endswith(_COMPILING))}
    if has_hooks:
        switches |= [_HOOKS]
    imported, tried = tuple(_imported(project, requires)), dict.fromkeys(_imported(project, (), _is_tried))
    if any(header.startswith("numpy/") for header in found.headers) and "numpy" not in {*requires, *imported}:
        imported = (*imported, "numpy")
    decisive = dict.fromkeys(_imported(project, (), _decides))
    before = made_before(project, files)
    return ProjectSurvey(
        backend=recognised(project),
        requires=requires,
        lines=lines,
        requires_python=wanted_python(project),
        module=_module(project, name),
        languages=tuple(sorted(found.languages)),
        archs=tuple(sorted(found.archs, key=lambda arch: (int(arch.rstrip("af")), arch))),
        libraries=tuple(sorted({each for name in (*found.headers, *found.linked) if (each := toolkit_library(name))})),
        switches=tuple(sorted(switches.items())),
        options=tuple(sorted((option, on) for option, on in found.options.items() if _is_of_cuda(option, name))),
        dispatch=tuple(sorted(found.dispatch)),
        native=tuple(sorted(found.native)),
        headers=tuple(sorted(found.headers - found.own)),
        imported=imported,
        tried=tuple(each for each in tried if each not in {*imported, *requires}),
        decisive=tuple(each for each in decisive if each not in {*imported, *requires}),
        generated="" if "cython" in {*requires, *imported} else min(found.generated, key=_release, default=""),
        added=((_BEFORE_RENAMING, _RENAMED),) if is_renamed else (),
        majors=tuple(sorted(found.majors)),
        before=before,
        has_extensions=found.has_extensions,
        # some have the script of a kernel that they no longer have
        has_kernels=bool(before) or (found.has_kernels and ("CUDA" in found.languages or found.has_others)),
        calls_cuda=any(map(is_of_cuda, (*found.headers, *found.quoted))),
    )


class _Found:
    """What the files looked at so far have."""

    def __init__(self) -> None:
        self.languages: set[str] = set()
        self.archs: set[str] = set()
        self.switches: dict[str, str] = {}
        self.options: dict[str, str] = {}
        self.dispatch: set[str] = set()
        self.native: set[str] = set()
        self.headers: set[str] = set()
        self.own: set[str] = set()
        self.quoted: set[str] = set()
        self.linked: set[str] = set()
        self.majors: set[str] = set()
        self.generated: set[str] = set()
        self.has_extensions = self.has_kernels = self.has_others = False

    def look(self, path: Path, name: str) -> None:
        is_script = path.name.endswith(_SCRIPTS)
        language = _LANGUAGES.get(path.suffix.lower())
        is_header = path.suffix in {*_HEADERS, ".hpp", ".cuh"}
        if is_header:
            parts = name.split("/")
            self.own |= {"/".join(parts[index:]) for index in range(len(parts))}
        elif language:
            self.languages.add(language)
        if not (is_script or is_header or language):
            return
        text = _text(path)
        if is_script:
            self._look_at_script(text, name)
        self.quoted |= {match["header"] for match in _QUOTED.finditer(text)}
        if not is_script and language != "Cython":
            if match := _GENERATED.match(text):
                self.generated.add(match["version"])
            self.headers |= {match["header"] for match in _INCLUDE.finditer(text)}
            if _DISPATCH.search(text):
                self.dispatch.add(name)

    def _look_at_script(self, text: str, name: str) -> None:
        for match in _FORCED.finditer(text):
            said = _SAYS_TRUE.search(match["rest"])
            self.switches.setdefault(match["name"], said["value"] if said else "1")
        if _EXTENDS.search(text):
            self.has_extensions = True
        if _NATIVE.search(text):
            self.native.add(name)
        if not (name.endswith(".py") and "/" in name):
            self.has_kernels |= bool(_KERNELS.search(text))
            self.has_others |= bool(_AS_CUDA.search(text))
            for match in _OPTION.finditer(text) if "/" not in name else ():
                self._add_option(match)
            for match in _LINKED.finditer(text):
                self.linked.add(
                    "tileiras" if match["tile"] else match["target"] or match["name"] or match["variable"].lower()
                )
        if _CUDA.search(text):
            self.archs |= {match["number"] for match in _ARCHS.finditer(text)}
        self.majors |= {match["name"] for match in _MAJOR.finditer(text)}

    def _add_option(self, match: re.Match[str]) -> None:
        if match["cmake"]:
            self.options[match["cmake"]] = "ON"
        elif match["meson"]:
            self.options[match["meson"]] = "true" if match["value"] == "false" else "enabled"
        elif not match["variable"].endswith("FORCE_CUDA"):
            said = _SAYS_TRUE.search(match["rest"])
            self.options[match["variable"]] = said["value"] if said else "1"


def _is_of_cuda(option: str, project: str) -> bool:
    """Whether *option* turns on CUDA alone, by its words: ``DEMO_ENABLE_CUDA`` of *project*, not ``CUDA_DEBUG``."""
    own = {*canonicalize_name(project).split("-"), canonicalize_name(project).replace("-", "")}
    return {*option.lower().split("_")} - _ENABLES - own in ({"cuda"}, {"gpu"}, {"cuda", "gpu"})


def _files(project: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(project):
        folders[:] = sorted(name for name in folders if _is_its_own(Path(place, name)))
        yield from (Path(place, name) for name in sorted(files))


def _is_its_own(folder: Path) -> bool:
    """Whether *folder* is of the project's sources: not hidden, no virtual environment, not what was built of it."""
    name = folder.name.lower()
    return not name.startswith(".") and name not in _NOT_ITS_OWN and not (folder / "pyvenv.cfg").exists()


def _text(path: Path) -> str:
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _stated(project: Path) -> tuple[tuple[str, ...], bool, bool]:
    """The build requirements as pyproject.toml says them.

    And whether hatchling has hooks that it runs on demand only, as projects have them that compile with mypyc; and
    whether scikit-build-core has a key that was renamed, and is not asked to read it as it was.
    """
    file = project / "pyproject.toml"
    table = Table({})
    if file.is_file():
        try:
            table = Table.load(file)
        except RecipeError:  # the backend says what is wrong with it
            table = Table({})
    system = table.raw("build-system")
    listed = system.get("requires", []) if isinstance(system, dict) else []
    lines = [text for text in listed if isinstance(text, str) and required_project(text)]
    hooks = _at(table.raw("tool"), "hatch", "build", "targets", "wheel", "hooks")
    has_hooks = any(isinstance(hook, dict) and hook.get("enable-by-default") is False for hook in hooks.values())
    settings = _at(table.raw("tool"), "scikit-build")
    is_renamed = "minimum-version" in _at(settings, "cmake") and "minimum-version" not in settings
    return tuple(lines), has_hooks, is_renamed


def _at(table: object, *keys: str) -> Mapping[str, object]:
    """The table below *table* that *keys* lead to; an empty one if there is none."""
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


def _imported(
    project: Path, requires: Iterable[str], is_block: Callable[[ast.stmt], bool] | None = None
) -> Iterator[str]:
    """The projects that setup.py imports at once and whatever happens, and that *requires* lacks, each once.

    With *is_block*, those that it imports in such blocks at its top. Of frameworks also what a function or a
    handler of errors imports to compile extensions: some projects handle a missing torch themselves, and say how to
    install it.
    """
    try:
        tree = ast.parse(_text(project / "setup.py"))
    except (SyntaxError, ValueError):  # of Python 2, for one: the build says so
        return
    seen = {*_OF_SETUPTOOLS, *sys.stdlib_module_names}
    if any(map(_removed, tree.body)):
        yield _BEFORE_REMOVAL
    extends = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in _EXTENSIONS)
    inside = (each for node in tree.body if is_block and is_block(node) for each in ast.walk(node))
    for node in (*tree.body, *extends, *inside):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in (each.partition(".")[0] for each in names):
            places = [project / place / name for place in ("", *_PLACES)]
            is_own = any(place.is_dir() or place.with_name(f"{name}.py").is_file() for place in places)
            needed = _PROJECTS.get(name, canonicalize_name(name))
            if name not in seen and not is_own and not _provided(needed, requires):
                yield needed
            seen.add(name)


def _is_tried(node: ast.stmt) -> bool:
    return isinstance(node, ast.Try)


def _decides(node: ast.stmt) -> bool:
    """Whether *node* tries something, and calls another ``setup`` where that fails."""
    if not isinstance(node, ast.Try):
        return False
    calls = (
        each.func for part in (*node.handlers, *node.orelse) for each in ast.walk(part) if isinstance(each, ast.Call)
    )
    return any(isinstance(called, ast.Name) and called.id.endswith("setup") for called in calls)


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _provided(needed: str, requires: Iterable[str]) -> bool:
    """Whether the module of *needed* is one of *requires*, or of a project that is named after it: ``py-cpuinfo``."""
    words = set(needed.split("-"))
    return any(each == needed or (needed not in frameworks() and words < set(each.split("-"))) for each in requires)


def _removed(node: ast.stmt) -> bool:
    """Whether *node* imports a module of distutils that newer releases of setuptools lack."""
    if isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{each.name}" for each in node.names} | {node.module}
    else:
        names = {each.name for each in node.names} if isinstance(node, ast.Import) else set()
    return "distutils.msvccompiler" in names


def _module(project: Path, name: str) -> str:
    """The module that users of *name* import, where its files leave no doubt."""
    plain = canonicalize_name(name).replace("-", "_")
    listed: list[str] = []
    for file in (*project.glob("*.egg-info/top_level.txt"), *project.glob("*/*.egg-info/top_level.txt")):
        listed = [line.strip() for line in _text(file).splitlines() if line.strip().isidentifier()]
        break
    places = [project, *(project / name for name in _PLACES)]
    if listed:
        same = [each for each in listed if each.lower() == plain]
        shown = [each for each in listed if not each.startswith("_") and each not in _NOT_ITS_OWN]
        # some are of a namespace, or of what is compiled on other systems only
        there = [
            each
            for each in shown
            if any((place / f"{each}{suffix}").exists() for place in places for suffix in ("", ".py", *_LANGUAGES))
        ]
        return (same or (there if len(shown) == 1 else []) or [""])[0]
    packages = (path.parent.name for place in places for path in place.glob("*/__init__.py"))
    return next((package for package in packages if package.lower() == plain), "")
