"""What is in a wheel, as values.

    Contents -> LibraryContents -> BinaryOutline (the loader's facts), GpuCode (by architecture)
             -> DeviceFiles, Archive, Duplicate, Licence
             -> Copies (for CPU levels)
             -> Closure (which library loads which), if asked for

`Contents.data()` is the JSON of ``vbuild inspect --json``. Sizes are bytes: packed as in the wheel, else as installed.
"""

import posixpath
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct, to_builtins
from msgspec import field as named
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.binary.outline import BinaryOutline, Format
from vbuild.elf.catalogue import plain
from vbuild.elf.linkage import baseline_of, level_of
from vbuild.gpu_code.coverage import Coverage
from vbuild.gpu_code.model import Compression
from vbuild.hardware.architectures import Device
from vbuild.hardware.cpu import X86_64_LEVELS
from vbuild.hardware.gpu import GpuCodeKind, arch_order
from vbuild.inspection.closure import Closure
from vbuild.inspection.gpu_code import GpuCode, Outlook, Portion, Sort, devices
from vbuild.macho.linkage import is_system
from vbuild.sbom.model import Bill, Treatment
from vbuild.variants.model import Variant
from vbuild.wheel.licence import Licence, Prohibition

VERSION = 1

# the tag of a Python, or the version of a library, in the name of a file
_TAG_OR_VERSION = re.compile(r"\.(?:abi3|cpython-[\w-]+|cp\d+-\w+)(?=\.(?:so|pyd)$)|(?<=\.so)(?:\.\d+)+$")
_BUNDLED = re.compile(r"(^|/)([^/]+\.libs|\.dylibs)/")


OTHERS = ""
"""All sections without GPU code, among densities."""


class LibraryContents(Struct, frozen=True):
    """A compiled file of a wheel: a shared library, extension module, program or object file.

    *densities* are packed bytes for each byte of sections, `OTHERS` and sorts of GPU code, if they were measured.
    """

    path: str
    size: int
    packed_size: int
    outline: BinaryOutline
    gpu: GpuCode
    densities: dict[str | Sort, float] = {}

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def level(self) -> str | None:
        """The CPU level whose processors load it, ``v3``; None if every processor may load it."""
        return level_of(self.path)

    @property
    def gpu_share(self) -> float:
        return self.gpu.size / self.size if self.size else 0.0

    @property
    def is_bundled(self) -> bool:
        """Whether a repair tool put it into a folder next to the package."""
        return _BUNDLED.search(self.path) is not None

    def data(self, devices: tuple[Device, ...]) -> dict[str, Any]:
        outline, gpu = self.outline, self.gpu
        return {
            "path": self.path,
            "bytes": self.size,
            "packed_bytes": self.packed_size,
            **outline.data(),
            "bundled": self.is_bundled,
            "halves": [{"bytes": half.size, **half.outline.data()} for half in outline.halves],
            "gpu": {
                "bytes": gpu.size,
                "share": round(self.gpu_share, 4),
                "containers": gpu.containers,
                "entries": gpu.entries,
                "code": [portion.data() for portion in gpu.portions],
                "pinned": gpu.pinned,
                "notes": gpu.notes,
                "gpus": [gpu.outlook(device).data() for device in devices],
            }
            if gpu or gpu.notes
            else None,
        }


class DeviceFiles(Struct, frozen=True):
    """Files of GPU code alone, of one *kind* for the same *archs*.

    *kind* is that of an entry, or "fatbin" or "bundle" for what has several entries.
    """

    kind: str
    archs: tuple[Device, ...]
    files: int
    size: int
    packed_size: int
    first: str
    gpu: GpuCode

    def data(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "archs": list(map(str, self.archs)),
            "files": self.files,
            "bytes": self.size,
            "packed_bytes": self.packed_size,
            "first": self.first,
            "pinned": self.gpu.pinned,
        }


class Damaged(Struct, frozen=True):
    """A compiled file that cannot be read."""

    path: str
    size: int = named(name="bytes")
    packed_size: int = named(name="packed_bytes")
    why: str


class Archive(Struct, frozen=True):
    """A static library: object files that only a linker reads."""

    path: str
    size: int = named(name="bytes")
    packed_size: int = named(name="packed_bytes")


class Advice(Struct, frozen=True):
    """What a dry run of *command* saves, in bytes as installed; and of a wheel, about, in packed bytes."""

    command: str
    saves: int
    packed_saves: int = 0


class Duplicate(Struct, frozen=True):
    """Files with the same hash in RECORD; *wasted* and *packed_wasted* are the bytes of all but the first."""

    hash: str
    size: int = named(name="bytes")
    wasted: int = named(name="wasted_bytes")
    packed_wasted: int = named(name="packed_wasted_bytes")
    paths: tuple[str, ...]


class Others(Struct, frozen=True):
    """The files with one suffix that are not compiled."""

    suffix: str
    files: int
    size: int = named(name="bytes")
    packed_size: int = named(name="packed_bytes")

    @property
    def name(self) -> str:
        return f"*{self.suffix}" if self.suffix else "no suffix"


class ArchitectureSize(Struct, frozen=True):
    """The GPU code of one kind for one architecture in all libraries."""

    arch: Device
    kind: str
    compressions: tuple[Compression, ...]
    entries: int
    size: int

    def data(self) -> dict[str, Any]:
        return {
            "arch": str(self.arch),
            "kind": self.kind,
            "compressions": self.compressions,
            "entries": self.entries,
            "bytes": self.size,
        }


class Change(Struct, frozen=True):
    """A compiled file, or all other files with one suffix, in an old and a new wheel; sizes are bytes as installed.

    A size is None in the wheel that lacks it. *gained* and *lost* are the architectures of GPU code of what both have.
    """

    path: str
    before: int | None = named(name="bytes_before")
    after: int | None = named(name="bytes_after")
    gained: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def growth(self) -> int:
        return (self.after or 0) - (self.before or 0)


class Flaw(Struct, frozen=True):
    """One sentence on *files* files, of which *path* is the first; *label* is damaged, note or warning."""

    label: str
    text: str
    path: str
    files: int

    def __str__(self) -> str:
        more = f" and {self.files - 1} more" if self.files > 1 else ""
        return f"{self.path}{more}: {self.text}" if self.text else self.path


class LevelCopy(Struct, frozen=True):
    level: str
    path: str
    size: int = named(name="bytes")
    packed_size: int = named(name="packed_bytes")


class Copies(Struct, frozen=True):
    """A library at *path* that every processor may load, and its *copies* by level, its own first."""

    path: str
    copies: tuple[LevelCopy, ...]

    def at(self, level: str) -> LevelCopy | None:
        """The copy for *level*, or None if its processors load the copy for a lower level."""
        return next((copy for copy in self.copies if copy.level == level), None)


class LevelSize(Struct, frozen=True):
    level: str
    files: int
    size: int = named(name="bytes")
    packed_size: int = named(name="packed_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is in a wheel; the largest library first. *forbidden* are words of its licence that forbid changes.

    Of what is installed *wheel* is the place, and *packages* have the contents of each. *slim* is the command that
    makes it smaller, with braces for the place and options, or empty.
    """

    wheel: str
    project: str
    version: str
    tags: tuple[str, ...]
    variant: Variant | None
    packed_size: int
    size: int
    files: int
    licence: Licence
    forbidden: Prohibition | None = None
    libraries: tuple[LibraryContents, ...] = ()
    device_files: tuple[DeviceFiles, ...] = ()
    damaged: tuple[Damaged, ...] = ()
    archives: tuple[Archive, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()
    others: tuple[Others, ...] = ()
    warnings: tuple[str, ...] = ()
    closure: Closure | None = None
    bill: Bill | None = None
    packages: "tuple[Contents, ...]" = ()
    slim: str = "vbuild slim {} -o slim"
    devices: tuple[Device, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", devices(self.gpu_codes))

    def slimmed_by(self, option: str) -> str:
        return self.slim.replace("{}", f"{shlex.quote(self.wheel)} {option}")

    @property
    def gpu_libraries(self) -> tuple[LibraryContents, ...]:
        return tuple(library for library in self.libraries if library.gpu)

    @property
    def idle_cuda(self) -> tuple[LibraryContents, ...]:
        """Libraries of NVIDIA's own packages that no library here needs; code may open them by name all the same."""
        needed = {name for library in self.libraries for name in library.outline.needed}
        own = (library for library in self.libraries if library.path.startswith("nvidia/"))
        return tuple(library for library in own if needed.isdisjoint({library.name, library.outline.soname}))

    @property
    def gpu_codes(self) -> tuple[GpuCode, ...]:
        """The GPU code of each library, and of each group of device files."""
        return (*(library.gpu for library in self.gpu_libraries), *(files.gpu for files in self.device_files))

    @property
    def gpu_size(self) -> int:
        return sum(gpu.size for gpu in self.gpu_codes)

    @property
    def architectures(self) -> tuple[ArchitectureSize, ...]:
        """The GPU code by architecture, lowest first."""
        groups: dict[tuple[Device, str], list[Portion]] = {}
        for portion in (portion for gpu in self.gpu_codes for portion in gpu.portions):
            groups.setdefault((portion.sort.arch, portion.sort.kind), []).append(portion)
        return tuple(
            ArchitectureSize(
                arch,
                kind,
                tuple(sorted({portion.sort.compression for portion in portions})),
                sum(portion.entries for portion in portions),
                sum(portion.size for portion in portions),
            )
            for (arch, kind), portions in sorted(groups.items(), key=lambda item: (arch_order(item[0][0]), item[0][1]))
        )

    @property
    def outlooks(self) -> tuple[Outlook, ...]:
        """How the code of all files runs on each GPU that runs some of it."""
        return tuple(
            sum((gpu.outlook(device) for gpu in self.gpu_codes), Outlook(Coverage(device))) for device in self.devices
        )

    @property
    def bundled(self) -> tuple[LibraryContents, ...]:
        """The libraries that a repair tool put next to the package; none behind a stub, no copies for CPU levels."""
        # a stub has no code, and needs the one library that it leads to
        behind_stubs = {
            outline.needed[0]
            for library in self.libraries
            if not library.is_bundled
            and (outline := library.outline).format is Format.ELF
            and len(outline.needed) == 1
            and outline.sections
            and all(section.name != ".text" for section in outline.sections)
        }
        return tuple(
            library
            for library in self.libraries
            if library.is_bundled and library.level is None and library.name not in behind_stubs
        )

    @property
    def copies(self) -> tuple[Copies, ...]:
        """The libraries that have copies for CPU levels, by path."""
        baselines = sorted({baseline_of(library.path) for library in self.libraries if library.level})
        copies: dict[str, list[LevelCopy]] = {baseline: [] for baseline in baselines}
        for library in self.libraries:
            if (baseline := baseline_of(library.path)) in copies:
                level = library.level or X86_64_LEVELS[0]
                copies[baseline].append(LevelCopy(level, library.path, library.size, library.packed_size))
        return tuple(
            Copies(baseline, tuple(sorted(group, key=lambda copy: copy.level))) for baseline, group in copies.items()
        )

    @property
    def levels(self) -> tuple[LevelSize, ...]:
        """The bytes of the copies for each CPU level, the baseline first; empty without copies."""
        by_level: dict[str, list[LevelCopy]] = {}
        for copy in (copy for copies in self.copies for copy in copies.copies):
            by_level.setdefault(copy.level, []).append(copy)
        return tuple(
            LevelSize(level, len(group), sum(copy.size for copy in group), sum(copy.packed_size for copy in group))
            for level, group in sorted(by_level.items())
        )

    @property
    def provided(self) -> dict[str, str]:
        """The paths of the libraries by the name that others need them under: SONAME, else file name."""
        linked = (library for library in self.libraries if library.outline.is_loadable and library.level is None)
        # Windows goes by the names of files alone
        return {
            (library.outline.soname if library.outline.format is not Format.PE else None) or library.name: library.path
            for library in linked
        }

    @property
    def wanted(self) -> dict[str, int]:
        """What the libraries need from outside of the wheel, and how many of them need it."""
        provided = {*self.provided, *(library.outline.plain(library.name) for library in self.libraries)}
        wanted = Counter(
            name
            for library in self.libraries
            for name in library.outline.needed
            if name not in provided and (is_system(name) or library.outline.plain(name) not in provided)
        )
        return dict(sorted(wanted.items()))

    def is_like(self, other: "Contents") -> bool:
        """Whether both are of one project."""
        return canonicalize_name(self.project) == canonicalize_name(other.project)

    def changes_from(self, old: "Contents") -> tuple[Change, ...]:
        """What has another size than in *old*, or GPU code for others, the largest change first."""
        parts, new_parts = old.parts, self.parts
        changes = []
        for path in parts.keys() | new_parts.keys():
            before, archs = parts.get(path, (None, set()))
            after, new_archs = new_parts.get(path, (None, set()))
            is_in_both = before is not None and after is not None
            gained, lost = (new_archs - archs, archs - new_archs) if is_in_both else (set(), set())
            if before != after or gained or lost:
                changes.append(Change(path, before, after, tuple(sorted(gained)), tuple(sorted(lost))))
        return tuple(sorted(changes, key=lambda change: (-abs(change.growth), change.path)))

    @property
    def parts(self) -> dict[str, tuple[int | None, set[str]]]:
        """The sizes and architectures of what it has, by path without hashes, versions and tags of Pythons in names."""
        parts: dict[str, tuple[int | None, set[str]]] = {others.name: (others.size, set()) for others in self.others}
        for group in self.device_files:
            name = f"{group.kind} for {' '.join(map(str, group.archs))}"
            parts[group.first if name in parts else name] = group.size, set()
        files: tuple[LibraryContents | Archive | Damaged, ...] = (*self.libraries, *self.archives, *self.damaged)
        for file in files:
            path = posixpath.join(posixpath.dirname(file.path), _TAG_OR_VERSION.sub("", plain(file.path)))
            sorts = [portion.sort for portion in file.gpu.portions] if isinstance(file, LibraryContents) else ()
            archs = {
                str(sort.arch) if sort.code is GpuCodeKind.MACHINE else f"{sort.arch} {sort.kind}" for sort in sorts
            }
            parts[file.path if path in parts else path] = file.size, archs
        return parts

    @property
    def flaws(self) -> tuple[Flaw, ...]:
        """What is damaged or left alone, and warnings; what several files have in common is one flaw."""
        every = [
            *(Flaw("damaged", damaged.why, damaged.path, 1) for damaged in self.damaged),
            *(
                Flaw("note", note, library.path, 1)
                for library in self.libraries
                for note in (*library.outline.notes, *library.gpu.notes)
            ),
            *(
                Flaw("note", pinned.why, files.first, files.files)
                for files in self.device_files
                for pinned in files.gpu.pinned
            ),
            *(Flaw("warning", text, path, 1) for path, _, text in (line.partition(": ") for line in self.warnings)),
        ]
        flaws: dict[tuple[str, str], Flaw] = {}
        for flaw in every:
            key = flaw.label, flaw.text or flaw.path
            flaws[key] = replace(flaws[key], files=flaws[key].files + flaw.files) if key in flaws else flaw
        return tuple(flaws.values())

    @property
    def wasted(self) -> int:
        return sum(duplicate.wasted for duplicate in self.duplicates)

    def data(self) -> dict[str, Any]:
        variant, levels, bill = self.variant, self.levels, self.bill
        values = {
            "version": VERSION,
            "wheel": self.wheel,
            "project": {"name": self.project, "version": self.version},
            "tags": self.tags,
            "variant": variant and {"label": variant.label, "properties": list(map(str, variant.properties))},
            "size": {"packed_bytes": self.packed_size, "bytes": self.size, "files": self.files},
            "licence": self.licence,
            "forbidden": self.forbidden and str(self.forbidden),
            "gpu": {
                "bytes": self.gpu_size,
                "share": round(self.gpu_size / self.size, 4) if self.size else 0.0,
                "containers": sum(gpu.containers for gpu in self.gpu_codes),
                "entries": sum(gpu.entries for gpu in self.gpu_codes),
                "code": [architecture.data() for architecture in self.architectures],
                "gpus": [outlook.data() for outlook in self.outlooks],
            },
            "libraries": [library.data(self.devices) for library in self.libraries],
            "provided": self.provided,
            "wanted": self.wanted,
            "damaged": self.damaged,
            "archives": self.archives,
            "duplicates": self.duplicates,
            "others": self.others,
            "warnings": self.warnings,
            **({"device_files": [files.data() for files in self.device_files]} if self.device_files else {}),
            **({"levels": levels, "copies": self.copies} if levels else {}),
            **({"closure": self.closure.data()} if self.closure else {}),
        }
        if bill:
            values["sbom"] = {
                "tool": bill.tool,
                "files": len(bill.files),
                "changed": [file.path for file in bill.files if file.before],
                "gone": [{"path": gone.path, "fate": gone.fate, "purl": gone.purl} for gone in bill.gone],
                "builds": len(bill.makings),
            }
        contents: dict[str, Any] = to_builtins(values)
        return contents


def bill_line(bill: Bill) -> str:
    changed = sum(bool(file.before) for file in bill.files)
    fates = {fate: sum(gone.fate is fate for gone in bill.gone) for fate in Treatment}
    parts = [f"{len(bill.files)} compiled", f"{changed} changed", *(f"{count} {fate}" for fate, count in fates.items())]
    return ", ".join(text for text in parts if not text.startswith("0 ")) or "nothing compiled"
