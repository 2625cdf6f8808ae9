"""Libraries that a wheel needs and does not bring: which package has them, in which folder, and how it is asked for.

libcublas.so.12   CUDA 12 by its name              nvidia-cublas-cu12, folder as in RECORD of the release
libcurand.so.10   CUDA 11, 12 and 13 have it       by the rest of the wheel, its requirements, its name; or --cuda
libtorch_cpu.so   torch/lib                        whoever loads it has torch already
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import Struct
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from vbuild.elf.catalogue import CatalogueEntry, by_soname, cuda_of, framework
from vbuild.errors import RepackageError, at
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.official import Officials, OfficialWheel
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.requirements import required


class Neighbour(Struct, frozen=True):
    """A package beside the wheel in site-packages that has *library*, and the *folders* to search for it.

    *wheel* is the official release that the folders were read from, and *entry* what is known of the library there; a
    framework has neither, and is called *project*.
    """

    project: str
    library: str
    folders: tuple[str, ...]
    wheel: OfficialWheel | None = None
    entry: CatalogueEntry | None = None


@dataclass(slots=True, eq=False)
class Neighbours:
    """Finds the packages that bring what wheels need; each is asked for once."""

    officials: Officials
    request: SplitRequest
    _majors: dict[Bundle, int | None] = field(default_factory=dict)

    def closure(self, wheel: OfficialWheel) -> tuple[OfficialWheel, ...]:
        """*wheel* and all official wheels that it requires."""
        return self.officials.closure(wheel)

    def having(self, bundle: Bundle, name: str) -> Neighbour | None:
        """The package that has the library *name* for *bundle*; None where nobody knows one.

        `RepackageError` where the library is part of several CUDA versions, and nothing says which is meant.
        """
        if found := framework(name):
            return Neighbour(found.project, name, (found.folder,))
        entries = by_soname(name)
        if not entries:
            return None
        with at(bundle.wheel.path.name):
            entry = self._entry(bundle, name, entries)
            wheel = self.officials.wheel(entry.project, self._specifier(bundle, entry))
        home = [library.path.rpartition("/")[0] for library in wheel.libraries if library.soname == name]
        if not home:
            raise RepackageError(
                f"{bundle.wheel.path.name}: needs {name}, which {wheel.project}=={wheel.version} does not have; "
                "expected another release of it to be required, or --cuda VERSION"
            )
        beside = [folder for other in self.officials.closure(wheel) for folder in other.folders]
        return Neighbour(entry.project, name, tuple(dict.fromkeys([*home, *beside])), wheel, entry)

    def _entry(self, bundle: Bundle, name: str, entries: tuple[CatalogueEntry, ...]) -> CatalogueEntry:
        if len(entries) == 1:
            return entries[0]
        major = self.request.cuda[0] if self.request.cuda else self._major(bundle)
        for entry in entries:
            if entry.cuda == major:
                return entry
        majors = " and ".join(str(entry.cuda) for entry in entries)
        raise RepackageError(f"needs {name}, which CUDA {majors} have; say which one with --cuda")

    def _major(self, bundle: Bundle) -> int | None:
        """The CUDA major that *bundle* is for: by what it needs, by what it requires, by its name."""
        if bundle not in self._majors:
            self._majors[bundle] = _said(bundle)
        return self._majors[bundle]

    def _specifier(self, bundle: Bundle, entry: CatalogueEntry) -> SpecifierSet:
        """The releases that may be meant: those required already, of the CUDA version that is asked for."""
        asked = required(bundle.wheel.metadata(), entry.project) or SpecifierSet()
        if entry.extra and len(self.request.cuda) > 1 and entry.cuda == self.request.cuda[0]:
            cuda = ".".join(map(str, self.request.cuda))
            return asked & self.officials.pinned(cuda, entry.project)
        return asked


def _said(bundle: Bundle) -> int | None:
    names = {name for piece in bundle.pieces.values() for name in piece.loading.outline.needed}
    if (major := cuda_of(names)) is not None:
        return major
    metadata = bundle.wheel.metadata()
    projects = [canonicalize_name(metadata.name), *_projects(metadata.requires_dist)]
    found = {
        major for major in (11, 12, 13) for project in projects if project.endswith((f"-cu{major}", f"-cuda{major}"))
    }
    return found.pop() if len(found) == 1 else None


def _projects(lines: tuple[str, ...]) -> Iterator[str]:
    for line in lines:
        try:
            yield canonicalize_name(Requirement(line).name)
        except InvalidRequirement:
            continue
