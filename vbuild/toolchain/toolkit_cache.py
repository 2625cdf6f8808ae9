"""The shared cache of toolkits: wheels unpacked once each, and CUDA_HOMEs of hard links to their files.

    components/<project>-<version>-<sha256>/   an unpacked wheel, for every toolkit that has it
    cuda-13.0-<identity>/                      a CUDA_HOME
    pins/<project>-<version>-<machine>.json    what the index stated for a library, so that it is asked once

A CUDA_HOME, as compilers and build systems know it, of the wheels of a CUDA Toolkit:

    nvidia/cu13/{bin,nvvm,include,lib}   the same in the root
    nvidia/nccl/{include,lib}, …         the same in the root
    nvidia/cu13/{cccl,cuda_cccl}/lib     lib: their CMake files look for include two folders above (13.2 and later)
    *.dist-info/licenses                 licenses/<project>
    lib64, nvvm/lib64                    links to lib
    targets/x86_64-linux/{include,lib}   links to the same in the root; nvcc.profile of 13.0 and CMake look there
    lib/libcudart.so                     a link to libcudart.so.13, so for every library
    lib/stubs/libcuda.so                 made here of the names in cuda.h, to link with if there is no driver
    version.json                         what the components are

A stub has no segment that is there to be loaded, so that nobody runs with one by mistake.

    .vbuild.json     sealed, written last: what the entry is of, its size, and {path: SHA-256} of every file and link;
                     its time is when the entry was used last
    .vbuild-seen     inode, size and times of all these when they were hashed last

Files are hashed again only if something is not as it was seen last: gigabytes are not read for every build. What a disk
loses tells nobody, so all is hashed again each week.
"""

import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Self

from msgspec import Struct, to_builtins
from packaging.version import Version

from vbuild.elf.records import DynamicEntry, DynamicTag, ElfMachine, SectionFlag, SectionType, SymbolEntry
from vbuild.elf.write import NewSection, elf_file, string_table
from vbuild.errors import BuildError, VbuildError
from vbuild.files.atomic import linked
from vbuild.files.cache import ELSEWHERE, Cache, Part
from vbuild.files.hashing import seal, sha256_of, unseal
from vbuild.hardware.driver import Dotted
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import Wanted
from vbuild.toolchain.toolkit import Toolkit, ToolkitPin
from vbuild.wheel.archive import open_wheel

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
    for header, library, pattern in _STUBS:
        path = root / "include" / header
        stub = root / "lib" / "stubs" / library
        if machine in _MACHINES and path.is_file() and not stub.exists():
            text = path.read_text(encoding="utf-8", errors="replace")
            # includes types that look like functions, which does no harm
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
        *(SymbolEntry(offset, _GLOBAL_FUNCTION, 0, _TEXT, 0, 0) for offset in places),
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
    contents = {path: _digest(folder / path) for path in sorted(_paths(folder))}
    size = sum(os.lstat(folder / path).st_size for path in contents)
    (folder / SEEN).write_text(_state(folder, contents), encoding="utf-8")
    (folder / STAMP).write_text(seal(json.dumps({**stamp, "size": size, "contents": contents})), encoding="utf-8")


def stamp_of(folder: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        data = json.loads(unseal((folder / STAMP).read_bytes()))
        return data if isinstance(data, dict) else None
    return None


def is_complete(folder: Path) -> bool:
    """Whether all files of *folder* are as they were made; added ones are not damage."""
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
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118 - thousands
        yield from (os.path.relpath(os.path.join(parent, name), folder) for name in (*names, *links))  # noqa: PTH118 - as above


def _state(folder: Path, paths: Iterable[str]) -> str:
    top, total = os.fspath(folder), hashlib.sha256()
    for path in paths:
        status = os.lstat(f"{top}/{path}")
        line = f"{path}\0{status.st_ino} {status.st_mode} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n"
        total.update(os.fsencode(line))
    return total.hexdigest()


def _seen(folder: Path) -> str | None:
    with suppress(OSError, ValueError):
        if (folder / SEEN).stat().st_mtime > time.time() - AGAIN:
            return (folder / SEEN).read_text(encoding="utf-8")
    return None


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.readlink())).hexdigest() if path.is_symlink() else sha256_of(path)


# NVIDIA's names for the folders of targets; an aarch64 server is one of its "server base system architecture"
_TARGETS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}
_CCCL = frozenset({"cccl", "cuda_cccl"})
_LIBRARY = re.compile(r"(?P<name>lib.+\.so)(\.\d+)+")
_SHARED = "nvidia"


def lay_out(root: Path, components: Mapping[ToolkitPin, Path], *, machine: str, release: str) -> None:
    """Make *root*, a new folder, the CUDA_HOME of the unpacked *components*, for Linux on *machine*."""
    root.mkdir()
    placed: dict[str, ToolkitPin] = {}
    for pin, folder in sorted(components.items()):
        files = {target: folder / path for path in _files(folder) if (target := _target_in_toolkit(path, pin))}
        if all(target.startswith("licenses/") for target in files):
            raise BuildError(f"{pin}: nothing in it for a toolkit; expected files below {_SHARED}/")
        for target, source in files.items():
            if target not in placed:
                (root / target).parent.mkdir(parents=True, exist_ok=True)
                linked(source, root / target)
            elif source.read_bytes() != (root / target).read_bytes():
                message = f"{pin}: {target} is another file in {placed[target]}"
                raise BuildError(f"{message}; name versions that fit in libraries")
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


def _target_in_toolkit(path: PurePosixPath, pin: ToolkitPin) -> str | None:
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


# called only when something is fetched: pip takes most of a second to say where from
Places = Callable[[], Indexes]
OnProgress = Callable[[str], None]

COMPONENTS = "components"
PINS = "pins"
_DIGITS = 16
_AT_ONCE = 4
_PROGRAM = (b"\x7fELF", b"#!")


def silently(_step: str) -> None:
    pass


class ToolkitCache(Struct, frozen=True):
    folder: Path

    @classmethod
    def at(cls, folder: Path | None = None) -> Self:
        return cls(Cache.of(Part.TOOLKITS, folder).folder.absolute())

    @property
    def cache(self) -> Cache:
        return Cache(Part.TOOLKITS, self.folder)

    def root(self, version: Dotted, identity: str) -> Path:
        return self.folder / f"cuda-{version}-{identity[:_DIGITS]}"

    def toolkit(
        self,
        version: Dotted,
        pins: tuple[ToolkitPin, ...],
        *,
        identity: str,
        machine: str,
        release: str,
        places: Places,
        on_progress: OnProgress = silently,
    ) -> Toolkit:
        """The CUDA_HOME of *pins*, fetched from *places* and laid out unless it is there."""
        root = self.root(version, identity)
        stamp = {"version": str(version), "identity": identity, "pins": [to_builtins(pin) for pin in pins]}

        def make(part: Path) -> None:
            stop = threading.Event()
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                fetch = partial(self.component, places=places, on_progress=on_progress, stop=stop)
                work = [threads.submit(fetch, pin) for pin in pins]
                try:
                    done, _ = wait(work, return_when=FIRST_EXCEPTION)
                    folders = [future.result() for future in work if future in done]
                except BaseException:
                    stop.set()
                    threads.shutdown(wait=False, cancel_futures=True)
                    raise
            on_progress(f"laying out CUDA {version}")
            lay_out(part, dict(zip(pins, folders, strict=True)), machine=machine, release=release)

        is_new = self._make_missing(root, stamp, make)
        for pin in pins:  # as long as a toolkit is used, its components are worth keeping for the next one
            self.cache.mark(self.component_folder(pin))
        return Toolkit(version, root, identity, pins, is_new=is_new)

    def component(
        self,
        pin: ToolkitPin,
        *,
        places: Places,
        on_progress: OnProgress = silently,
        stop: threading.Event | None = None,
    ) -> Path:
        """The folder of the unpacked wheel of *pin*; setting *stop* ends this soon."""
        folder, stop = self.component_folder(pin), stop or threading.Event()

        def make(part: Path) -> None:
            from vbuild.index_client.packages import download

            on_progress(f"fetching {pin}")
            fetched = part.with_name(f"{part.name}.fetched")
            try:
                fetched.mkdir()
                wheel = fetched / pin.file
                wanted = Wanted(pin.project, Version(pin.version), pin.sha256, pin.file)
                download(wanted, wheel, indexes=places(), stop=stop)
                on_progress(f"unpacking {pin}")
                _unpack(wheel, part, stop)
            finally:
                shutil.rmtree(fetched, ignore_errors=True)

        self._make_missing(folder, {"pins": [to_builtins(pin)]}, make, stop)
        return folder

    def component_folder(self, pin: ToolkitPin) -> Path:
        return self.folder / COMPONENTS / component_name(pin)

    def pin(self, name: str) -> ToolkitPin | None:
        if text := self.cache.text(f"{PINS}/{name}.json"):
            with suppress(ValueError, TypeError):
                return ToolkitPin(**json.loads(text))
        return None

    def remembered(self, name: str, ask: Callable[[], ToolkitPin]) -> ToolkitPin:
        if known := self.pin(name):
            return known
        pin = ask()
        with _writing(self.folder / PINS):
            self.cache.keep_text(f"{PINS}/{name}.json", json.dumps(to_builtins(pin)))
        return pin

    @contextmanager
    def locked(self, name: str, *, stop: threading.Event | None = None) -> Iterator[None]:
        """Hold the lock of the entry *name*; `BuildError` if *stop* is set meanwhile."""

        def check() -> None:
            if stop and stop.is_set():
                raise BuildError(f"{self.folder}: stopped waiting for {Path(name).name}")

        with ExitStack() as stack:
            with _writing(self.folder / ".locks"):
                stack.enter_context(self.cache.locked(name, check=check))
            yield

    def _make_missing(
        self,
        folder: Path,
        stamp: Mapping[str, Any],
        make: Callable[[Path], None],
        stop: threading.Event | None = None,
    ) -> bool:
        """Whether *make* had to make *folder*."""
        name = folder.relative_to(self.folder).as_posix()
        if is_complete(folder):
            self.cache.mark(folder)
            return False
        with self.locked(name, stop=stop):
            if is_complete(folder):  # another process made it while this one waited
                return False
            with _writing(folder.parent), self.cache.replacing(name) as part:
                make(part)
                write_stamp(part, stamp)
        return True


def component_name(pin: ToolkitPin) -> str:
    return f"{pin.project}-{pin.version}-{pin.sha256[:_DIGITS]}"


def _unpack(wheel: Path, folder: Path, stop: threading.Event) -> None:
    folder.mkdir()
    with open_wheel(wheel) as opened:
        for member in opened.members:
            target = folder / member.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                for chunk in opened.chunks(member):
                    if stop.is_set():
                        raise BuildError(f"{wheel.name}: stopped")
                    out.write(chunk)
            # some packages leave the bit out
            runs = member.is_executable or ("/bin/" in member.path and opened.head(member, 4).startswith(_PROGRAM))
            target.chmod(0o555 if runs else 0o444)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(f"{folder}: cannot be written: {error.strerror}; {ELSEWHERE}") from error


class KeptToolkit(Struct, frozen=True):
    """A toolkit of the cache; *size* includes what it shares with others."""

    version: Dotted
    root: Path
    pins: tuple[ToolkitPin, ...]
    size: int
    used: datetime

    @classmethod
    def at(cls, root: Path) -> Self | None:
        if not (stamp := stamp_of(root)):
            return None
        with suppress(KeyError, TypeError, ValueError, OSError, VbuildError):
            pins = tuple(ToolkitPin(**pin) for pin in stamp["pins"])
            used = datetime.fromtimestamp((root / STAMP).stat().st_mtime, UTC)
            return cls(Dotted.parse(stamp["version"]), root, pins, int(stamp["size"]), used)
        return None


def kept_in(store: ToolkitCache) -> tuple[KeptToolkit, ...]:
    toolkits = [toolkit for root in store.folder.glob("cuda-*") if (toolkit := KeptToolkit.at(root))]
    return tuple(sorted(toolkits, key=lambda toolkit: (toolkit.version, toolkit.root), reverse=True))
