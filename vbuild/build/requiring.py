"""What a wheel requires of the packages that it was built against, and whose libraries it uses.

    [matrix.requires] torch = "2.15"   Requires-Dist: torch==2.15.*          1.0+torch2.15
    numpy = "2.4"                      Requires-Dist: numpy>=1.23,<3         1.0+numpy2.4
    numpy = "1.26"                     Requires-Dist: numpy>=1.26,<2         1.0+numpy1.26
    NEEDED libtorch.so                 Requires-Dist: torch==2.15.*          if the project requires no torch

NumPy says which is the oldest that takes what is built against it, in numpyconfig.h.
https://numpy.org/doc/stable/dev/depending_on_numpy.html

Libraries of frameworks (torch, tensorflow), and those of CUDA that these require, are loaded when the frameworks are
imported. None of them is bundled.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.build.environment import BuildEnvironment
from vbuild.config.requirements import read_requirement
from vbuild.elf.catalogue import by_soname, framework, frameworks
from vbuild.elf.code import Elf
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError, BuildError
from vbuild.files.reading import read_text
from vbuild.hardware.driver import Dotted
from vbuild.recipe.matrix import releases_of, specifier_of
from vbuild.sbom.keeping import LARGEST, is_bill, renamed_bill
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.metadata import Metadata, Renaming
from vbuild.wheel.write import write_wheel

_NUMPY_TARGET = re.compile(r"#\s*define NPY_FEATURE_VERSION NPY_(\d+)_(\d+)_API_VERSION")
_NUMPY_HEADERS = ("numpy/_core/include/numpy/numpyconfig.h", "numpy/core/include/numpy/numpyconfig.h")
_NUMPY_2 = 2
_MODULE = b"PyInit_"
_CUDA = re.compile(r"^cuda\b[^=\n]*= *(?:None|'(?P<version>(?P<major>\d+)\.\d+)')", re.MULTILINE)


def outside_libraries(wheel: Path) -> tuple[str, ...]:
    """The libraries that *wheel* needs of frameworks, and of CUDA along with these."""
    with open_wheel(wheel) as source:
        needed = dict.fromkeys(_needed(source))
    if not any(map(framework, needed)):
        return ()
    return tuple(name for name in needed if framework(name) or by_soname(name))


def pins(environment: BuildEnvironment, specified: Mapping[str, str]) -> dict[str, str]:
    """A specifier for each project *specified* for, and each framework."""
    packages = environment.packages
    specifiers = {}
    for project in (*specified, *(name for name in frameworks() if name not in specified)):
        if version := packages.get(project):
            specifiers[project] = _pin(project, specified.get(project), Version(version), environment.site)
    return specifiers


def check_cuda(environment: BuildEnvironment, toolkit: Dotted) -> None:
    for project in frameworks():
        file = environment.site / project / "version.py"
        match = _CUDA.search(read_text(file, errors="replace")) if file.is_file() else None
        if match is None:
            continue
        problem = f"{project} {environment.packages.get(project, '')} of the build requirements is built"
        if match["major"] is None:
            raise BuildError(f"{problem} without CUDA; expected one with CUDA {toolkit.major}, or no matrix.cuda")
        if int(match["major"]) != toolkit.major:
            there = match["version"]
            raise BuildError(f"{problem} for CUDA {there}, not {toolkit}; expected matrix.cuda[].toolkit = '{there}'")


def with_requirements(
    wheel: Path, folder: Path, *, pins: Mapping[str, str], requires: Mapping[str, str], label: str = ""
) -> Path:
    """*wheel* in *folder*, held to *pins* for what it *requires*, with *label* in its version; or itself.

    It also requires the frameworks whose libraries it needs; `BuildError` if its requirements exclude these.
    """
    projects = {owner.project for name in outside_libraries(wheel) if (owner := framework(name))}
    with open_wheel(wheel) as source:
        before = source.metadata()
        lines = list(before.requires_dist)
        known = {canonicalize_name(requirement.name) for line in lines if (requirement := read_requirement(line))}
        lines = [_narrowed(line, {name: pins[name] for name in requires if name in pins}) for line in lines]
        lines += [f"{name}{pins[name]}" for name in sorted({*requires, *projects} - known) if name in pins]
        if not requires and lines == list(before.requires_dist):
            return wheel
        name = source.name.normalised()
        if label:
            separator = "." if Version(name.version).local else "+"
            name = type(name)(
                name.distribution, f"{name.version}{separator}{label}", name.build, name.python, name.abi, name.platform
            )
        way = Renaming(source.name, name, source.dist_info)
        metadata = Metadata(way.metadata(before).headers.replacing("Requires-Dist", lines))
        path = f"{name.dist_info}/METADATA"
        with write_wheel(folder, name, like=source) as writer:
            for member in source.members:
                if (target := way.path(member.path)) == path:
                    writer.write(path, str(metadata).encode())
                elif target is not None and is_bill(target) and member.size <= LARGEST:  # auditwheel's
                    writer.write(target, renamed_bill(source.read(member), source.name, name))
                elif target is not None:
                    writer.copy(source, member, path=target)
    return writer.path


def for_platform(wheel: Path, folder: Path) -> Path:
    """*wheel*, in *folder*, named for Linux if its backend called it one for any machine; else *wheel* itself.

    That is so of wheels with libraries for ctypes.
    """
    with open_wheel(wheel) as source:
        if source.name.platform != "any":
            return wheel
        machines = set[str]()
        for member in source.members:
            if source.head(member, len(MAGIC)) == MAGIC:
                data = source.read(member)
                machines.add("" if _MODULE in data else Elf.parse(data).machine)
        if len(machines) != 1 or not all(machines):
            return wheel
        name = replace(source.name, platform=f"linux_{machines.pop()}")
        tags = [f"{python}-{abi}-{name.platform}" for python in name.python.split(".") for abi in name.abi.split(".")]
        file = source.wheel_file()
        headers = file.headers.replacing("Tag", tags).changing("Root-Is-Purelib", lambda _: "false")
        folder.mkdir(parents=True, exist_ok=True)
        with write_wheel(folder, name, like=source) as writer:
            for member in source.members:
                if member.path == f"{name.dist_info}/WHEEL":
                    writer.write(member.path, str(type(file)(headers)).encode())
                elif Renaming(source.name, name, source.dist_info).path(member.path) is not None:
                    writer.copy(source, member, path=member.path)
    return writer.path


def _pin(project: str, value: str | None, version: Version, site: Path) -> str:
    if project == "numpy":
        if version.major < _NUMPY_2:
            return f">={version.major}.{version.minor},<{version.major + 1}"
        texts = (read_text(path) for name in _NUMPY_HEADERS if (path := site / name).is_file())
        match = next((match for text in texts if (match := _NUMPY_TARGET.search(text))), None)
        return f">={f'{match[1]}.{match[2]}' if match else f'{version.major}.{version.minor}'},<{version.major + 1}"
    if value and len(releases_of(value)) > 1:
        return specifier_of(value)
    release = value or f"{version.major}.{version.minor}"
    return f"=={release}" if release == version.public else f"=={release}.*"


def _narrowed(line: str, pins: Mapping[str, str]) -> str:
    requirement = read_requirement(line)
    if requirement is None or requirement.url or (pin := pins.get(canonicalize_name(requirement.name))) is None:
        return line
    both = requirement.specifier & SpecifierSet(pin)
    exact = next(
        (clause.version.removesuffix(".*") for clause in SpecifierSet(pin) if clause.operator in {"==", ">="}), None
    )
    if exact and "==" in pin and not _overlaps(requirement.specifier, exact):
        raise BuildError(f"requires {line}, and it was built against {exact}; expected a value that it admits")
    requirement.specifier = SpecifierSet(pin) if requirement.specifier == SpecifierSet() else both
    return str(requirement)


def _overlaps(specifier: SpecifierSet, release: str) -> bool:
    return any(specifier.contains(f"{release}{more}", prereleases=True) for more in ("", ".0", ".1", ".99"))


def _needed(wheel: Wheel) -> Iterator[str]:
    for member in wheel.members:
        if wheel.head(member, len(MAGIC)) == MAGIC:
            with wheel.mapped(member) as data:
                try:
                    yield from Elf.parse(data).needed
                except BinaryError:  # a broken file for a test; verify reports it
                    continue
