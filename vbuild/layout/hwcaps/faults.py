"""Why a build's copy of a compiled file cannot be the one that processors of its level load; None where it can.

kind       the loader chooses among shared libraries of x86-64, not among programs
SONAME     one for all levels: it is the name by which a library that is loaded already is known
exports    whatever the baseline's copy gives, by name and version; more does no harm, since only what was built
           beside it asks for that. Of a wheel that was added what somebody may take is enough (`missed`)
code       no instruction above the level, by disassembly
platform   no library, and no version of a symbol, that the wheel's tags do not promise
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from re import Pattern

from vbuild.binary.elf import Elf
from vbuild.binary.interface import Versioned
from vbuild.binary.policy import Platform
from vbuild.hardware.cpu import Cpu
from vbuild.layout.hwcaps.build import BASELINE, Copy, short
from vbuild.linkage.graph import Via
from vbuild.linkage.names import hashed, plain
from vbuild.splitting.bundle import Piece
from vbuild.splitting.naming import is_meant, is_pattern
from vbuild.verdict.levels import Claim, Levels
from vbuild.verdict.model import Severity

MOVED = "libvb_"
"""How the names begin of libraries to which stubs lead."""

_MACHINE = "x86_64"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Judge:
    """What is looked at with disassembly; *allow* are names of functions, or paths, that may go above the level."""

    allow: Sequence[Pattern[str]] = ()
    executor: Executor | None = None

    def fault(self, base: Copy, copy: Copy, *, taken: Container[Versioned] | None = None) -> str | None:
        """What is wrong with *copy*, which stands for *base* on newer processors.

        With *taken*, what the wheel's files take, it may lack what nobody would miss.
        """
        exports = partial(_exports, taken=taken)
        checks: tuple[Callable[[Copy, Copy], str | None], ...] = (_kind, _soname, _modules, exports, self._code)
        return next((fault for check in checks if (fault := check(base, copy))), None)

    def common_fault(self, copy: Copy) -> str | None:
        """What is wrong with *copy*, which the baseline has not, and which every processor must be able to run."""
        fault = self._judged(copy, BASELINE)
        return fault and f"only the wheel for {copy.build.cpu} has it, and {fault}"

    def _code(self, base: Copy, copy: Copy) -> str | None:
        fault = self._judged(copy, copy.build.cpu)
        # what the baseline's code has too, no flag has caused
        return fault and self._judged(copy, copy.build.cpu, base.build.elf(base.path))

    def _judged(self, copy: Copy, cpu: Cpu, other: Elf | None = None) -> str | None:
        claim = Claim(cpu, is_explicit=True)
        elf = copy.build.elf(copy.path)
        levels = Levels(
            {copy.path: elf}, claim, baseline=lambda _: other, allow=tuple(self.allow), executor=self.executor
        )
        found = (finding for _, findings in levels.verdicts() for finding in findings)
        return next((finding.what for finding in found if finding.severity is Severity.ERROR), None)


def _kind(base: Copy, copy: Copy) -> str | None:
    for one in (base, copy):
        outline = one.piece.loading.outline
        if outline.machine != _MACHINE:
            return f"code for {outline.machine}: glibc knows levels of x86-64 only"
        if one.piece.loading.is_program or outline.type != "ET_DYN":
            return "a program, or no shared library: differs between levels, and the loader chooses libraries only"
    return None


def _soname(base: Copy, copy: Copy) -> str | None:
    one, other = (each.piece.loading.outline.soname for each in (base, copy))
    # tools that bundle put the file's name there, hash and all
    is_bundled = hashed(base.piece.name) and hashed(copy.piece.name)
    if one == other or (one and other and is_bundled and short(one) == short(other)):
        return None
    return f"SONAME {_plain(other)}, and {_plain(one)} in the baseline's; expected one for all levels"


def _plain(soname: str | None) -> str:
    return plain(soname) if soname else "none"


def _modules(base: Copy, copy: Copy) -> str | None:
    one, other = (set(each.piece.loading.modules) for each in (base, copy))
    if one == other:
        return None
    names = ", ".join(sorted(one ^ other))
    return f"one of this and the baseline's is the Python module {names}; expected the same modules at all levels"


def _exports(base: Copy, copy: Copy, *, taken: Container[Versioned] | None) -> str | None:
    lacking: Sequence[Versioned] = copy.interface.lacking(base.interface)
    if taken is not None:
        is_needed = bool(base.build.bundle.graph.consumers(base.path))
        lacking = missed(lacking, base.piece, taken, is_needed=is_needed)
    if not lacking:
        return None
    return f"exports no {shown(lacking)}, which the baseline's does; expected the same symbols at all levels"


def shown(names: Sequence[object]) -> str:
    """The first of *names*, and how many more there are: ``a, b, c and 4 more``."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(str, names[:_SHOWN])) + more


def missed(
    lacking: Iterable[Versioned], base: Piece, taken: Container[Versioned], *, is_needed: bool
) -> list[Versioned]:
    """What of the symbols *lacking* in a copy of *base* somebody may take; *taken* are those that the wheel's files do.

    Nobody else knows a bundled library, whose name has a hash. A module that *is_needed* by no library is asked for
    PyInit_ by Python, for names of C by ctypes: those of C++ come and go with what is linked in of libstdc++.
    """
    if hashed(base.name) and not base.name.startswith(MOVED):
        return [one for one in lacking if one in taken]
    if base.loading.modules and not is_needed:
        return [one for one in lacking if not one.is_mangled]
    return list(lacking)


def pattern_fault(copy: Copy, place: str) -> str | None:
    """Who opens libraries by a pattern that finds the one at *place*, too: by its path, and so the baseline's."""
    for name, files in copy.build.bundle.named.items():
        for file in sorted(files) if is_pattern(name) else ():
            if is_meant(name, place, by=file):
                return f"{file} opens what {name} finds, by its path: no copy for a level would be chosen"
    return None


def platform_fault(copy: Copy, platforms: Sequence[Platform], *, own: Callable[[str], bool]) -> str | None:
    """What *copy* takes that a system of *platforms* need not have; libraries that are the wheel's *own* aside."""
    promising = [platform for platform in platforms if platform.promises]
    for library, version in _taken(copy):
        if own(library):
            continue
        for platform in promising:
            if not platform.has(library):
                return f"needs {library}, which {platform.tag} does not promise"
            if version and not platform.has_version(version):
                return f"needs {version} of {library}, which {platform.tag} does not promise"
    return None


def _taken(copy: Copy) -> Iterator[tuple[str, str | None]]:
    loading = copy.piece.loading
    outside = {
        edge.name
        for edge in copy.build.bundle.graph.needs(copy.path)
        if edge.provider is None and edge.via is not Via.DRIVER
    }
    yield from ((name, None) for name in loading.outline.needed if name in outside)
    for taken in loading.taken:
        yield from ((taken.library, version) for version in taken.versions if taken.library in outside)
