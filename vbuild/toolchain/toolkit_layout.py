"""How the wheels of a CUDA Toolkit become the folder that compilers and build systems know as CUDA_HOME.

    nvidia/cu13/{bin,nvvm,include,lib}   the same in the root
    nvidia/nccl/{include,lib}, …         the same in the root
    nvidia/cu13/{cccl,cuda_cccl}/lib     lib: their CMake files look for include two folders above (13.2 and later)
    *.dist-info/licenses                 licenses/<project>
    lib64, nvvm/lib64                    links to lib
    targets/x86_64-linux/{include,lib}   links to the same in the root; nvcc.profile of 13.0 and CMake look there
    lib/libcudart.so                     a link to libcudart.so.13, so for every library
lib/stubs/libcuda.so                 made here, to link with if there is no driver
    version.json                         what the components are

Files are hard links to those of the unpacked wheels where the file system has them.

Libraries to link with if the driver is missing: they have the names of the real one and nothing behind them.

    include/cuda.h -> lib/stubs/libcuda.so        SONAME libcuda.so.1, which comes with the driver
    include/nvml.h -> lib/stubs/libnvidia-ml.so   SONAME libnvidia-ml.so.1

NVIDIA's installers have such stubs and its wheels do not. A linker looks at the tables of dynamic symbols and the
dynamic section; no segment is there to be loaded, so that nobody runs with a stub by mistake.

Whether an entry of the shared cache is what was put there: every file by its SHA-256, as the stamp has it.

    .vbuild.json     the stamp, sealed: what the entry is of, its size, and {path: SHA-256} of every file and link
    .vbuild-seen     inode, size and times of all these when they were hashed last

Nothing can be written to a file without its time of change telling, so that files are hashed again only where something
is not as it was seen last: after a change, and after another toolkit has made hard links to them. Gigabytes are then
read once, and not for every build. What a disk loses by itself tells nobody: for that, all is hashed again each week.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from vbuild.elf.records import DynamicEntry, DynamicTag, ElfMachine, SectionFlag, SectionType, SymbolEntry
from vbuild.elf.write import NewSection, elf_file, string_table
from vbuild.errors import BuildError
from vbuild.files.atomic import linked
from vbuild.files.hashing import sealed, sha256_of, unsealed
from vbuild.toolchain.toolkit import ToolkitPin

_MACHINES = {"x86_64": ElfMachine.X86_64, "aarch64": ElfMachine.AARCH64}
_STUBS = (
    ("cuda.h", "libcuda.so", re.compile(r"\bcu[A-Z]\w*", re.ASCII)),
    ("nvml.h", "libnvidia-ml.so", re.compile(r"\bnvml[A-Z]\w*", re.ASCII)),
)
# the names that programs with a default stream for each thread use
_PER_THREAD = re.compile(r"__CUDA_API_(PT[DS][SZ])\((\w+)\)", re.ASCII)

_GLOBAL_FUNCTION = 0x12
_TEXT = 4


def add_stubs(root: Path, machine: str) -> None:
    """Put into the toolkit in *root* the stubs that its headers are there for."""
    for header, library, pattern in _STUBS:
        path = root / "include" / header
        stub = root / "lib" / "stubs" / library
        if machine in _MACHINES and path.is_file() and not stub.exists():
            text = path.read_text(encoding="utf-8", errors="replace")
            # types that look like functions are included: a name too many does no harm
            names = set(pattern.findall(text))
            names |= {f"{name}_{kind.lower()}" for kind, name in _PER_THREAD.findall(text) if name in names}
            stub.parent.mkdir(exist_ok=True)
            stub.write_bytes(stub_of(f"{library}.1", names, machine=_MACHINES[machine]))


def stub_of(soname: str, names: Iterable[str], *, machine: ElfMachine) -> bytes:
    """A shared library for linkers, in which *names* are functions."""
    unique = sorted(set(names))
    strings, (own, *places) = string_table([soname, *unique])
    symbols = [
        SymbolEntry(0, 0, 0, 0, 0, 0),
        *(SymbolEntry(place, _GLOBAL_FUNCTION, 0, _TEXT, 0, 0) for place in places),
    ]
    dynamic = DynamicEntry(DynamicTag.SONAME, own).pack() + DynamicEntry(DynamicTag.NULL, 0).pack()
    names_table = b"".join(symbol.pack() for symbol in symbols)
    return elf_file(
        machine,
        (
            NewSection(".dynsym", SectionType.DYNSYM, names_table, link=2, info=1, entry=SymbolEntry.layout.size),
            NewSection(".dynstr", SectionType.STRTAB, strings),
            NewSection(".dynamic", SectionType.DYNAMIC, dynamic, link=2, entry=DynamicEntry.layout.size),
            NewSection(".text", SectionType.PROGBITS, bytes(64), flags=SectionFlag.ALLOC | SectionFlag.EXECINSTR),
        ),
    )


STAMP = ".vbuild.json"
SEEN = ".vbuild-seen"
AGAIN = 7 * 86400  # seconds after which files are hashed again that nothing has happened to


def write_stamp(folder: Path, stamp: Mapping[str, Any]) -> None:
    """Put into *folder*, which is complete, the *stamp* with what is there; `OSError` if there is no room."""
    contents = {path: _digest(folder / path) for path in sorted(_paths(folder))}
    size = sum(os.lstat(folder / path).st_size for path in contents)
    (folder / SEEN).write_text(_state(folder, contents), encoding="utf-8")
    (folder / STAMP).write_text(sealed(json.dumps({**stamp, "size": size, "contents": contents})), encoding="utf-8")


def stamp_of(folder: Path) -> dict[str, Any] | None:
    """What the stamp of a store's entry says, or None if there is none, or it is damaged."""
    with suppress(OSError, ValueError):
        data = json.loads(unsealed((folder / STAMP).read_bytes()))
        return data if isinstance(data, dict) else None
    return None


def is_complete(folder: Path) -> bool:
    """Whether all files of *folder* are as they were made; files that somebody added are no damage."""
    stamp = stamp_of(folder)
    try:
        contents = stamp["contents"] if stamp else None
        if not contents:
            return False
        state = _state(folder, contents)
        if _seen(folder) == state:
            return True
        if any(_digest(folder / path) != digest for path, digest in contents.items()):
            return False
    except (OSError, KeyError):
        return False
    with suppress(OSError):  # it may be another user's
        part = folder / f"{SEEN}.{os.getpid()}"
        part.write_text(state, encoding="utf-8")
        part.replace(folder / SEEN)
    return True


def _paths(folder: Path) -> Iterator[str]:
    """Every file and link below *folder*, from there."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118 - thousands
        yield from (os.path.relpath(os.path.join(parent, name), folder) for name in (*names, *links))  # noqa: PTH118 - as above


def _state(folder: Path, paths: Iterable[str]) -> str:
    """What the file system says of *paths* in *folder*, in 64 digits; `OSError` if one is not there."""
    top, total = os.fspath(folder), hashlib.sha256()
    for path in paths:
        found = os.lstat(f"{top}/{path}")
        line = f"{path}\0{found.st_ino} {found.st_mode} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}\n"
        total.update(os.fsencode(line))
    return total.hexdigest()


def _seen(folder: Path) -> str | None:
    with suppress(OSError, ValueError):
        if (folder / SEEN).stat().st_mtime > time.time() - AGAIN:
            return (folder / SEEN).read_text(encoding="utf-8")
    return None


def _digest(path: Path) -> str:
    """The SHA-256 of the file *path*, or of where the link leads."""
    return hashlib.sha256(os.fsencode(path.readlink())).hexdigest() if path.is_symlink() else sha256_of(path)


# NVIDIA's names for the folders of targets; an aarch64 server is one of its "server base system architecture"
_TARGETS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}
_CCCL = frozenset({"cccl", "cuda_cccl"})
_LIBRARY = re.compile(r"(?P<name>lib.+\.so)(\.\d+)+")
_SHARED = "nvidia"


def lay_out(root: Path, components: Mapping[ToolkitPin, Path], *, machine: str, release: str) -> None:
    """Make *root*, a new folder, the CUDA_HOME of the unpacked *components*, for Linux on *machine*.

    *release* is the version for version.json. `BuildError` if two components have different files of one name,
    or one has nothing for a toolkit; `OSError` if there is no room.
    """
    root.mkdir()
    placed: dict[str, ToolkitPin] = {}
    for pin, folder in sorted(components.items()):
        files = {target: folder / path for path in _files(folder) if (target := _place(path, pin))}
        if all(target.startswith("licenses/") for target in files):
            raise BuildError(f"{pin}: nothing in it for a toolkit; expected files below {_SHARED}/")
        for target, source in files.items():
            if target not in placed:
                (root / target).parent.mkdir(parents=True, exist_ok=True)
                linked(source, root / target)
            elif source.read_bytes() != (root / target).read_bytes():
                what = f"{pin}: {target} is another file in {placed[target]}"
                raise BuildError(f"{what}; name versions that fit in libraries")
            placed.setdefault(target, pin)
    _add_links(root, _TARGETS.get(machine, f"{machine}-linux"))
    add_stubs(root, machine)
    versions = {pin.project: {"name": pin.project, "version": pin.version} for pin in sorted(components)}
    text = json.dumps({"cuda": {"name": "CUDA SDK", "version": release}, **versions}, indent=2)
    (root / "version.json").write_text(f"{text}\n", encoding="utf-8")


def _files(folder: Path) -> Iterator[PurePosixPath]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (PurePosixPath((Path(parent) / name).relative_to(folder).as_posix()) for name in sorted(names))


def _place(path: PurePosixPath, pin: ToolkitPin) -> str | None:
    """Where in the root the member *path* of a wheel goes; None for what has no place there."""
    first, *rest = path.parts
    if first.endswith(".dist-info"):
        is_licence = rest[0] == "licenses" or rest[0].lower().startswith("licen")
        return f"licenses/{pin.project}/{rest[-1]}" if is_licence else None
    # the second folder is cu13, nccl, …; files and folders with a dot are notes of the package's makers
    if first != _SHARED or len(rest) < 3 or any(part.startswith(".") for part in rest) or rest[-1] == "__init__.py":  # noqa: PLR2004 - as above
        return None
    _, top, *inner = rest
    if top in _CCCL:
        return "/".join(inner) if inner[0] == "lib" else f"licenses/{pin.project}/{inner[-1]}"
    return "/".join((top, *inner))


def _add_links(root: Path, target: str) -> None:
    lib, include = root / "lib", root / "include"
    for folder in (lib, include):
        folder.mkdir(exist_ok=True)
    (root / "lib64").symlink_to("lib")
    if (root / "nvvm").is_dir() and not (root / "nvvm" / "lib64").is_dir():  # CUDA 12 has its own
        (root / "nvvm" / "lib64").symlink_to("../lib")
    (root / "targets" / target).mkdir(parents=True)
    for folder in (lib, include):
        (root / "targets" / target / folder.name).symlink_to(f"../../{folder.name}")
    (root / "targets" / target / "lib64").symlink_to("../../lib")
    for name, file in _unversioned(path.name for path in lib.iterdir()).items():
        (lib / name).symlink_to(file)


def _unversioned(names: Iterable[str]) -> dict[str, str]:
    """The links that linkers look for: ``libcudart.so`` to ``libcudart.so.13``."""
    present = sorted(names)
    links: dict[str, str] = {}
    for file in present:
        if (match := _LIBRARY.fullmatch(file)) and match["name"] not in present:
            links.setdefault(match["name"], file)
    return links
