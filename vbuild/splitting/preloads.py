"""Generated modules that load libraries of other wheels if no RPATH leads to them, and the packages that run them.

    site-packages/demo/_C.abi3.so               DT_RPATH $ORIGIN/../nvidia/cufft/lib: found there, nothing to do
    ~/.local/…/nvidia/cufft/lib/libcufft.so.11  the same environment, another folder: only the module finds it

The wheels of one environment are in different folders in the user site, with --target, with one folder per wheel (PEX,
Bazel), with editable installs, and on Fedora, where wheels with Root-Is-Purelib, such as NVIDIA's, are not in lib64.

The module checks whether a library of each wheel is where the RPATHs lead, by the unresolved path that the loader would
use. If not, it loads all of them, dependencies first, because a library in another place has RPATHs that may lead
nowhere. If one needs a library that is not listed, the loader's error names it: libcusparse alone does not find
libnvJitLink. The module looks among the loaded libraries, at the expected place, in the files of the distribution, and
then asks cuda-pathfinder, which also knows conda and toolkits, but takes the newest CUDA that it finds.

RTLD_LOCAL is enough: for a NEEDED name, glibc takes any loaded library with that SONAME, in whatever scope; RTLD_GLOBAL
would show its symbols to all others. This does not work for a library without SONAME, nor with musl, which knows a
library that was opened by a path only by that path.

A library that is nowhere may be in a folder of LD_LIBRARY_PATH, or of an RPATH that a packager wrote. So the module
then opens a file that needs libraries which left the wheel. If the loader misses one, an ImportError says in one line
what to install. The module warns about a library that it finds and cannot load: the loader's later error would not say
why.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from vbuild.elf.catalogue import by_soname
from vbuild.errors import RepackageError
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.companion import Companion
from vbuild.splitting.decisions import DecisionKind, second_name
from vbuild.splitting.official import OfficialWheel
from vbuild.splitting.package_init import MODULE, hooked, is_namespace, package_of, python_text
from vbuild.splitting.patches import FilePatch, PatchPlan
from vbuild.wheel.paths import installed_path

_SOURCE = '''\
# Made by vbuild split.
"""Load libraries of other packages first, where they are not at the places that this package's RPATHs lead to."""

import os

# a path of each wheel in each folder: all of its files are there, or none
_EXPECTED = (
{expected})
# path from here, what brings it, its name in cuda-pathfinder; first what others need
_LIBRARIES: "tuple[tuple[str, str, str], ...]" = (
{libraries})
# the same of libraries that those may turn out to need
_OTHERS: "tuple[tuple[str, str, str], ...]" = ({others})
# path of a file that needs what left the package
_USER = {user}


def _load(
    path: str,
    requirement: str,
    pathfinder: str,
    others: "dict[str, tuple[str, str, str]]",
) -> bool:
    """Load one library, unless it is loaded; return False if it is nowhere."""
    import ctypes
    from contextlib import suppress
    from importlib import import_module, metadata
    from warnings import warn

    name = os.path.basename(path)
    with suppress(OSError):
        ctypes.CDLL(name, os.RTLD_NOLOAD)
        return True
    places = [path] if os.path.exists(path) else []
    distribution = requirement.partition("==")[0]
    for found in () if places else metadata.distributions(name=distribution):
        with suppress(Exception):
            files = [file for file in found.files or () if file.name == name]
            places += filter(os.path.exists, (str(one.locate()) for one in files))
    while places:
        try:
            ctypes.CDLL(places[0])
        except OSError as error:
            needed = others.pop(str(error).partition(":")[0], None)
            if needed:
                _load(*needed, others)
                continue
            warn(f"{{name}} of {{distribution}}: {{error}}", RuntimeWarning, stacklevel=2)
        return True
    if pathfinder:
        with suppress(Exception):
            import_module("cuda.pathfinder").load_nvidia_dynamic_lib(pathfinder)
            return True
    return False


def _refuse(missing: "dict[str, str]", user: str) -> None:
    """Raise ImportError if the loader misses one of the libraries for the file *user*, too."""
    import ctypes
    from contextlib import suppress
    from importlib import metadata

    try:
        ctypes.CDLL(user)
    except OSError as error:
        for name, requirement in missing.items():
            if name in str(error):
                state = f"{{requirement.partition('==')[0]}} is not installed"
                with suppress(Exception):
                    version = metadata.version(requirement.partition("==")[0])
                    state = f"{{version}} is installed"
                message = f"{{name}} is missing: {{requirement}} has it, and {{state}}"
                raise ImportError(message) from None


def _preload() -> None:
    folder = os.path.dirname(__file__)
    if all(os.path.exists(f"{{folder}}/{{path}}") for path in _EXPECTED):
        return
    known = (*_LIBRARIES, *_OTHERS)
    rows = [(f"{{folder}}/{{row[0]}}", row[1], row[2]) for row in known]
    others = {{os.path.basename(row[0]): row for row in rows[len(_LIBRARIES) :]}}
    missing: dict[str, str] = {{}}
    for row in rows[: len(_LIBRARIES)]:
        if not _load(*row, others):
            missing[os.path.basename(row[0])] = row[1]
    if missing and _USER:
        _refuse(missing, f"{{folder}}/{{_USER}}")


_preload()
'''


class PreloadedLibrary(Struct, frozen=True):
    """A library of another wheel: its installed path, which ends in its SONAME, and the *requirement* that brings it.

    *pathfinder* is its name in cuda-pathfinder, or None.
    """

    path: str
    requirement: str
    pathfinder: str | None = None


def preload_source(
    package: str,
    libraries: Sequence[PreloadedLibrary],
    *,
    others: Iterable[PreloadedLibrary] = (),
    user: str | None = None,
) -> str:
    """Return the source of a module that loads *libraries*, dependencies first, for the package in the folder
    *package*.

    If one of them is nowhere, and the file at the installed path *user* cannot be opened, the module says so. It loads
    one of *others* if a library turns out to need it: no metadata says which official libraries need each other.
    """
    up = "../" * len(package.split("/"))
    rest = sorted(others, key=lambda other: other.path)
    first, more = _rows(up, libraries), _rows(up, rest)
    places = {(library.path.rpartition("/")[0], library.requirement): library.path for library in (*libraries, *rest)}
    more = [row for row in more if row not in first]
    return _SOURCE.format(
        expected="".join(f"    {python_text(up + path)},\n" for path in places.values()),
        libraries="".join(first),
        others="".join(["\n" * bool(more), *more]),
        user=python_text(up + user if user else ""),
    )


def _rows(up: str, libraries: Iterable[PreloadedLibrary]) -> list[str]:
    rows: dict[str, None] = {}
    for library in libraries:
        values = (up + library.path, library.requirement, library.pathfinder or "")
        rows["    (\n" + "".join(f"        {python_text(text)},\n" for text in values) + "    ),\n"] = None
    return list(rows)


def in_order(needs: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Return the keys of *needs*, each after those that it needs; a circle begins anywhere."""
    ordered: dict[str, None] = {}
    for start in sorted(needs):
        stack = [start]
        seen = {start}
        while stack:
            missing = [name for name in sorted(needs[stack[-1]]) if name in needs and name not in seen | ordered.keys()]
            if missing:
                seen.add(missing[0])
                stack.append(missing[0])
            else:
                ordered[stack.pop()] = None
    return tuple(ordered)


def hooks(
    consumers: Iterable[str],
    files: Collection[str],
    *,
    namespaces: Collection[str] = frozenset(),
    sources: Mapping[str, str] | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders of packages that have to run a preload module for *consumers*, and consumers without one.

    *files* are all installed paths of the wheel, *namespaces* the packages among them that other wheels have, too. For
    a private module outside packages, a package that names it in its *sources*, texts by path, runs the module.
    """
    packages: set[str] = set()
    unserved = []
    for consumer in consumers:
        name = consumer.partition(".")[0]
        users = [consumer]
        if name.startswith("_") and "/" not in name:
            word = re.compile(rf"\b{re.escape(name)}\b")
            users += (path for path, text in (sources or {}).items() if word.search(text))
        own = {package for path in users if (package := package_of(path, files, namespaces=namespaces))}
        packages |= own
        if not own:
            unserved.append(consumer)
    return tuple(sorted(packages)), tuple(sorted(unserved))


class PreloadFiles(Struct, frozen=True):
    """The new files of a wheel by member path, and a warning for each package or consumer without a module."""

    files: dict[str, bytes]
    warnings: tuple[str, ...] = ()


def preload_files(
    bundle: Bundle,
    plan: PatchPlan,
    companion: Companion | None,
    *,
    closure: Callable[[OfficialWheel], Iterable[OfficialWheel]],
) -> PreloadFiles:
    """Return the preload modules for the libraries of *bundle* that are in other wheels after *plan*.

    *companion* is the -libs wheel of its shared libraries, *closure* returns an official wheel and all that it
    requires.
    """
    patches = [file.patch for file in plan.staying[bundle]]
    libraries = [*_moved(bundle, plan, companion), *_of_other_packages(patches)]
    roots = [patch.binary.path for patch in patches if patch.relink.rpath is not None and not patch.binary.is_bundled]
    stubs = {path for path, decision in plan.decisions.by_bundle[bundle].items() if decision.leaves_stub}
    roots += [path for path in stubs if not bundle.binaries[path].is_bundled]
    if not (libraries and roots):
        return PreloadFiles({})
    members = {path: member for member in bundle.wheel.members if (path := installed_path(member.path))}
    inits = {path: bundle.wheel.read(member) for path, member in members.items() if path.endswith("/__init__.py")}
    sources = {path: data.decode(errors="replace") for path, data in inits.items()}
    namespaces = {path.rpartition("/")[0] for path, text in sources.items() if is_namespace(text)}
    packages, unserved = hooks(roots, members.keys(), namespaces=namespaces, sources=sources)
    others = [*_possible_dependencies(patches, closure)]
    user = next((path for path in sorted(roots) if path in stubs or _needs_moved(bundle, plan, path)), None)
    if packages:
        # what opens a stub belongs to the packages, wherever the stub is
        unserved = tuple(path for path in unserved if path not in stubs)
    warnings = [f"{path}: in no package whose __init__.py could preload its libraries" for path in unserved]
    files: dict[str, bytes] = {}
    for package in packages:
        init = members[f"{package}/__init__.py"].path
        try:
            changed = hooked(inits[f"{package}/__init__.py"])
        except RepackageError as error:
            warnings.append(f"{init}: does not preload the libraries of its package: {error}")
            continue
        module = preload_source(package, libraries, others=others, user=user).encode()
        files |= {init: changed, f"{init.rpartition('/')[0]}/{MODULE}.py": module}
    return PreloadFiles(files, tuple(warnings))


def _needs_moved(bundle: Bundle, plan: PatchPlan, path: str) -> bool:
    edges = bundle.graph.needs(path)
    return any(plan.decisions.of(bundle, edge.provider).is_gone for edge in edges if edge.provider)


def _possible_dependencies(
    patches: Iterable[FilePatch], closure: Callable[[OfficialWheel], Iterable[OfficialWheel]]
) -> Iterator[PreloadedLibrary]:
    """Yield all libraries of the official wheels that any file needs: they need one another."""
    for patch in patches:
        wheels = (*patch.official, *(package.wheel for package in patch.packages if package.wheel))
        for official in (other for wheel in wheels for other in closure(wheel)):
            for library in official.libraries:
                yield PreloadedLibrary(library.path, official.project, _pathfinder(library.soname))


def _moved(bundle: Bundle, plan: PatchPlan, companion: Companion | None) -> Iterator[PreloadedLibrary]:
    """Yield the libraries that left the wheel, dependencies first."""
    decisions = {
        path: decision
        for path, decision in plan.decisions.by_bundle[bundle].items()
        if decision.kind in {DecisionKind.REPLACE, DecisionKind.SHARE}
    }
    needs = {path: {edge.provider for edge in bundle.graph.needs(path) if edge.provider} for path in decisions}
    for path in in_order(needs):
        decision = decisions[path]
        if decision.provenance:
            library = decision.provenance.library
            yield PreloadedLibrary(library.path, decision.provenance.wheel.project, _pathfinder(library.soname))
        elif decision.pool and companion:
            folder = plan.libs_folders[decision.pool]
            binary = bundle.binaries[path]
            yield PreloadedLibrary(f"{folder}/{binary.name}", companion.requirement)
            if decision.leaves_stub:
                yield PreloadedLibrary(f"{folder}/{second_name(binary)}", companion.requirement)


def _of_other_packages(patches: Iterable[FilePatch]) -> Iterable[PreloadedLibrary]:
    libraries: dict[PreloadedLibrary, None] = {}
    for patch in patches:
        for package in patch.packages:
            for library in package.wheel.libraries if package.wheel else ():
                if library.soname in patch.binary.loading.outline.needed:
                    libraries[PreloadedLibrary(library.path, package.project, _pathfinder(library.soname))] = None
    return libraries


def _pathfinder(soname: str) -> str | None:
    return next((entry.pathfinder for entry in by_soname(soname) if entry.pathfinder), None)
