"""What the tags of a wheel promise of its files, as one table; `vbuild verify` and `vbuild check` both ask it.

    tags, WHEEL   an interpreter that installers know, with that ABI; WHEEL has the tags of the file name
    cp311, abi3   names of modules that such a Python looks for, and symbols that each of these has
    macosx_11_0   no file is for a newer macOS only
    arm64 ...     code for that machine, which loads with all sizes of pages that it has
    manylinux     no executable stack, which glibc 2.41 and newer refuse to dlopen
    all           no part of a driver; for Windows no names that it cannot have

The stable ABI is CPython's own list by version, as abi3info has it; what tags exist, packaging knows.
https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
https://docs.python.org/3/c-api/stable.html and https://peps.python.org/pep-0803/
glibc 2.41's NEWS, and elf/dl-load.c for pages
https://learn.microsoft.com/en-us/windows/win32/fileio/naming-a-file
"""

import math
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations
from typing import Self

from abi3info import DATAS, FUNCTIONS
from msgspec import Struct
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms, parse_tag

from vbuild.binary.outline import BinaryFacts, BinaryOutline, Format, Import
from vbuild.elf.catalogue import (
    MUSL_MACHINES,
    PlatformPolicy,
    by_soname,
    glibc_symbols,
    hashed,
    is_driver,
    is_official,
    musl_symbols,
    platforms_in,
)
from vbuild.elf.read import read_facts as elf_facts
from vbuild.errors import BinaryError, WheelError
from vbuild.files.wording import shown
from vbuild.macho.linkage import is_system as is_system_dylib
from vbuild.macho.read import read_facts as macho_facts
from vbuild.pe.linkage import is_driver as is_driver_dll
from vbuild.pe.linkage import is_system as is_system_dll
from vbuild.pe.read import DOTNET
from vbuild.pe.read import read_facts as pe_facts
from vbuild.verification.model import Finding, Severity, SharedLibrary, VerifyRule
from vbuild.wheel.archive import Wheel
from vbuild.wheel.name import MOST_TAGS, WheelName
from vbuild.wheel.slots import FileSlot, meet

Files = Mapping[str, tuple[BinaryFacts, ...]]
"""The compiled files of a wheel by path; of a universal2 file one for each machine."""

_READERS = {Format.ELF: elf_facts, Format.PE: pe_facts, Format.MACHO: macho_facts}
_LOADED_BY = {Format.ELF: "linux", Format.PE: "windows", Format.MACHO: "macos"}
_WINDOWS = {"win32": {"x86"}, "win_amd64": {"amd64"}, "win_arm64": {"arm64", "arm64x"}}
_MACOS = re.compile(r"\bmacosx_(\d+)_(\d+)_(?P<machines>\w+)")
_MACS = {"universal2": {"arm64", "x86_64"}, "intel": {"x86_64"}, "x86_64": {"x86_64"}, "arm64": {"arm64"}}
_FIRST_ARM_MACOS = (11, 0)
# packaging goes through all versions below one
_NEWEST_MINOR = 99
_TAG_PARTS, _LONGEST_TAG = 3, 80
# machines whose Linux has larger pages than 4K, too: https://docs.kernel.org/arch/arm64/memory.html
_LARGEST_PAGE = {"aarch64": 1 << 16, "ppc64le": 1 << 16, "loongarch64": 1 << 16}
# i386 to i686, armv6l to armv8l: one instruction set to ELF
_KINDS = (re.compile(r"i[3-6]86"), re.compile(r"armv[678]l"))
# what musl takes for itself, glibc's libraries too: load_library in its ldso/dynlink.c
_OF_MUSL = re.compile(r"lib(c|pthread|rt|m|dl|util|xnet)\..+|ld-musl-\w+\.so\.1")
_STABLE, _THREADED = re.compile(r"abi3t?"), re.compile(r"\dt\b")
_PYTHON = re.compile(r"(?P<kind>cp|py)(?P<major>\d)(?P<minor>\d*)")
_ABI_TAG = re.compile(r"cp(?P<module>\d+[a-z]*)")
# foo.cpython-311-x86_64-linux-gnu.so, foo.cp311-win_amd64.pyd: only that Python looks for it (PEP 3149)
_TAGGED = re.compile(r"\.(?:cpython-|cp)(?P<module>\d+[a-z]*)-(?P<platform>[\w-]+)(?P<suffix>\.so|\.pyd)$")
_PYTHON_DLL = re.compile(r"python(?P<module>3\d+t?)(_d)?\.dll", re.IGNORECASE)
# Python has musl in the names of modules since 3.11: https://github.com/python/cpython/issues/87278
_FIRST_MUSL_NAMES = 311
_NOT_WINDOWS = re.compile(
    r"(?:^|/)(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[1-9\u00b9\u00b2\u00b3]) *(?:\.[^/]*)?(?=/|$)"
    r"|[<>:\"|?*\x00-\x1f]|[. ](?=/|$)",
    re.IGNORECASE,
)


class Promised(Struct, frozen=True):
    """The tags of a wheel: platforms for Linux, the oldest macOS by machine, the oldest CPython of a stable ABI.

    *modules* are the single CPythons that it is for, such as ``311``. Of its files, *given* are the symbols that they
    export, *libraries* what a NEEDED may mean.
    """

    name: WheelName
    linux: tuple[PlatformPolicy, ...]
    macos: Mapping[str, tuple[int, int]]
    windows: frozenset[str]
    stable: tuple[int, int] | None
    modules: frozenset[str]
    given: frozenset[str]
    libraries: frozenset[str]

    @classmethod
    def of(cls, name: WheelName, files: Files) -> Self:
        macos: dict[str, tuple[int, int]] = {}
        for match in _MACOS.finditer(name.platform):
            for machine in _MACS.get(match["machines"], ()):
                version = int(match[1]), int(match[2])
                version = max(version, _FIRST_ARM_MACOS) if machine == "arm64" else version
                macos[machine] = min(version, macos.get(machine, version))
        pythons = map(_PYTHON.fullmatch, name.python.split("."))
        versions = [(int(python["major"]), int(python["minor"])) for python in pythons if python and python["minor"]]
        is_stable = any(map(_STABLE.fullmatch, name.abi.split(".")))
        return cls(
            name,
            platforms_in(name.platform),
            macos,
            frozenset().union(*(_WINDOWS.get(tag, ()) for tag in name.platform.split("."))),
            min(versions, default=None) if is_stable else None,
            _modules_of(name),
            frozenset().union(*(facts.exported for several in files.values() for facts in several)),
            frozenset(map(posixpath.basename, files)) | {several[0].outline.soname or "" for several in files.values()},
        )

    def machines(self, kind: Format) -> frozenset[str]:
        """The machines that a file of this kind may be for; none if it is not known."""
        if kind is Format.ELF:
            return frozenset(platform.machine for platform in self.linux)
        return self.windows if kind is Format.PE else frozenset(self.macos)

    def fits(self, files: Sequence[BinaryFacts]) -> bool:
        """Whether *files*, the halves of one, are for all machines of the wheel; of ELF and PE one suffices."""
        wanted = self.machines(files[0].outline.format)
        own = {facts.outline.machine.removesuffix("e") for facts in files if facts.outline.format is Format.MACHO}
        if own or not wanted:
            return wanted <= own
        machine = files[0].outline.machine
        kinds = [kind for kind in _KINDS if kind.fullmatch(machine)]
        return machine in wanted or any(kind.fullmatch(tag) for kind in kinds for tag in wanted)

    def brings(self, outline: BinaryOutline, name: str) -> bool:
        """Whether what a file needs as *name* is in the wheel, or part of its platforms."""
        if posixpath.basename(name) in self.libraries:
            return True
        if outline.format is Format.ELF:
            return bool(self.linux) and all(platform.has(name) for platform in self.linux)
        return is_system_dylib(name) if outline.format is Format.MACHO else is_system_dll(name)


def _modules_of(name: WheelName) -> frozenset[str]:
    abis = [module[1] for module in map(_ABI_TAG.fullmatch, name.abi.split(".")) if module]
    # cp313-none is for one Python, of either kind
    pythons = [module[1] for module in map(_ABI_TAG.fullmatch, name.python.split(".")) if module]
    return frozenset(abis or (f"{python}{kind}" for python in pythons for kind in ("", "t") if name.abi == "none"))


class Promise(Struct, frozen=True):
    """What is wrong with a compiled file: *fault* gives the sentence, or None if the promise is kept."""

    rule: VerifyRule
    severity: Severity
    fault: Callable[[Promised, str, BinaryFacts], str | None]
    advice: str


def _newer_macos(promised: Promised, _path: str, facts: BinaryFacts) -> str | None:
    machine, oldest = facts.outline.machine, facts.outline.oldest_os
    tag = promised.macos.get(machine)
    # tags have no minor version from macOS 11 on
    if not tag or not oldest or oldest <= tag or (oldest[0] == tag[0] and tag >= _FIRST_ARM_MACOS):
        return None
    return f"is for macOS {_dotted(oldest)} and newer on {machine}; the tag promises {_dotted(tag)}"


def _executable_stack(promised: Promised, _path: str, facts: BinaryFacts) -> str | None:
    is_glibc = any(not platform.tag.startswith("musl") for platform in promised.linux)
    is_library = facts.outline.is_loadable and not facts.is_program
    if not (is_glibc and is_library and facts.outline.wants_executable_stack):
        return None
    return "wants an executable stack: glibc 2.41 and newer do not dlopen it"


def _small_pages(promised: Promised, _path: str, facts: BinaryFacts) -> str | None:
    largest, own = _LARGEST_PAGE.get(facts.outline.machine), facts.outline.page_size
    if not (promised.linux and largest and own and own < largest):
        return None
    return f"has segments aligned to {own >> 10}K: {facts.outline.machine} with larger pages, up to 64K, cannot load it"


def _text_relocations(promised: Promised, _path: str, facts: BinaryFacts) -> str | None:
    if not (promised.linux and facts.outline.has_text_relocations):
        return None
    return "has relocations in its code (DT_TEXTREL): SELinux may forbid them, and no two processes share that code"


def _static_tls(promised: Promised, _path: str, facts: BinaryFacts) -> str | None:
    size = facts.outline.static_tls
    if not (promised.linux and size) or facts.is_program:
        return None
    return f"takes {size} bytes of the static TLS block, of which little is left for what is loaded later (dlopen)"


def late_symbols(platform: PlatformPolicy, imports: Iterable[Import]) -> str | None:
    """The versions of symbols among *imports* that are newer than *platform* promises, in a sentence."""
    late: dict[str, list[str]] = {}
    for symbol in imports if platform.promises else ():
        if symbol.version and platform.has(symbol.library or "") and not platform.has_version(symbol.version):
            late.setdefault(symbol.version, []).append(symbol.name)
    newest = ", ".join(f"{version} ({shown(names, 4)})" for version, names in sorted(late.items()))
    return f"needs symbols that are newer than {platform.tag}: {newest}" if late else None


def _late_symbols(promised: Promised, _path: str, facts: BinaryFacts) -> str | None:
    sentences = (late_symbols(platform, facts.imports) for platform in promised.linux)
    return next(filter(None, sentences), None) if facts.outline.is_loadable else None


def _not_of_musl(promised: Promised, _path: str, facts: BinaryFacts) -> str | None:
    """What glibc has and musl has not: as this machine's glibc says, or names that are left to C libraries.

    Nothing is said of what another package's library may have, nor of machines whose musl has not been looked at.
    """
    musl = [platform for platform in promised.linux if platform.tag.startswith("musl")]
    is_known = all(platform.machine in MUSL_MACHINES for platform in musl)
    others = {name for name in facts.outline.needed if name not in promised.libraries}
    if not (musl and is_known and facts.outline.is_loadable and all(map(_OF_MUSL.fullmatch, others))):
        return None
    missing = {symbol.name for symbol in facts.imports if not symbol.is_weak} - promised.given - musl_symbols()
    missing = {*glibc_symbols(missing), *(name for name in missing if name.startswith("__"))}
    return f"needs symbols that musl does not have: {shown(sorted(missing), 4)}" if missing else None


@cache
def _stable_symbols() -> Mapping[str, tuple[int, int]]:
    functions = {entry.symbol.name: (entry.added.major, entry.added.minor) for entry in FUNCTIONS.values()}
    return functions | {entry.symbol.name: (entry.added.major, entry.added.minor) for entry in DATAS.values()}


def _unstable_symbols(promised: Promised, path: str, facts: BinaryFacts) -> str | None:
    if not promised.stable or _TAGGED.search(path):
        return None
    private, newer = [], []
    needs_others = any(not promised.brings(facts.outline, name) for name in facts.outline.needed)
    for symbol in facts.imports:
        is_python = not symbol.library or _PYTHON_NAME.match(symbol.library)
        if not symbol.is_weak and is_python and _OF_PYTHON.match(symbol.name) and symbol.name not in promised.given:
            if (added := _stable_symbols().get(symbol.name)) is None:
                # libraries of other packages may have names that begin as Python's
                private += [] if needs_others and not symbol.library else [symbol.name]
            elif added > promised.stable:
                newer.append(f"{symbol.name} ({_dotted(added)})")
    parts = [f"symbols outside of it: {shown(sorted(private))}"] if private else []
    parts += [f"symbols newer than {_dotted(promised.stable)}: {shown(sorted(newer))}"] if newer else []
    return f"promises the stable ABI, and takes {' and '.join(parts)}" if parts else None


_PYTHON_NAME = re.compile(r"python", re.IGNORECASE)
_OF_PYTHON = re.compile(r"_?Py")


def _other_python_dll(promised: Promised, path: str, facts: BinaryFacts) -> str | None:
    tagged = _TAGGED.search(path)
    modules = {tag.rstrip("m") for tag in promised.modules} if tagged is None else {tagged["module"]}
    for name in facts.outline.needed if facts.outline.format is Format.PE else ():
        if not (match := _PYTHON_DLL.fullmatch(name)):
            continue
        if match[2]:
            return f"needs {name}, which debug builds of Python have"
        if (promised.stable and not tagged) or (modules and match["module"] not in modules):
            return f"needs {name}, which not every {promised.name.python}-{promised.name.abi} Python has"
    return None


def _stable_pyd(_promised: Promised, path: str, facts: BinaryFacts) -> str | None:
    """Python's dynload_win.c has no name for the stable ABI."""
    return "is named .abi3.pyd, for which no CPython looks" if facts.modules and path.endswith(".abi3.pyd") else None


def _bundled_driver(promised: Promised, path: str, facts: BinaryFacts) -> str | None:
    name = posixpath.basename(path)
    if not facts.outline.is_loadable or "stubs" in path.split("/"):
        return None
    if not (is_driver(name) or is_driver(facts.outline.soname or "") or is_driver_dll(name)):
        return None
    if is_official(promised.name.project):
        return None
    return "is part of the driver, whose version has to be that of the machine's kernel module"


PROMISES = (
    Promise(
        VerifyRule.MINIMUM_OS,
        Severity.ERROR,
        _newer_macos,
        "build with MACOSX_DEPLOYMENT_TARGET, or give the wheel the tag that delocate finds",
    ),
    Promise(
        VerifyRule.EXECUTABLE_STACK,
        Severity.ERROR,
        _executable_stack,
        "link with -Wl,-z,noexecstack; vbuild repair clears the mark where no code needs it",
    ),
    Promise(VerifyRule.SYMBOL_VERSION, Severity.ERROR, _late_symbols, "build on an older system, or take a newer tag"),
    Promise(VerifyRule.UNDEFINED, Severity.ERROR, _not_of_musl, "compile it for musl"),
    Promise(VerifyRule.PAGES, Severity.WARNING, _small_pages, "link with -Wl,-z,max-page-size=65536"),
    Promise(VerifyRule.TEXTREL, Severity.WARNING, _text_relocations, "compile all of it with -fPIC"),
    Promise(VerifyRule.STATIC_TLS, Severity.NOTE, _static_tls, "compile with -ftls-model=global-dynamic"),
    Promise(
        VerifyRule.ABI,
        Severity.ERROR,
        _unstable_symbols,
        "build with Py_LIMITED_API of that version, or give the wheel the tag of one Python",
    ),
    Promise(VerifyRule.EXTENSION, Severity.ERROR, _stable_pyd, "name it .pyd"),
    Promise(VerifyRule.ABI, Severity.ERROR, _other_python_dll, "link it with the import library of that Python"),
    Promise(VerifyRule.DRIVER, Severity.ERROR, _bundled_driver, "leave it out: auditwheel repair --exclude"),
)


def is_foreign(name: WheelName, kind: Format) -> bool:
    """Whether no system that the wheel *name* is for loads files of this *kind*."""
    return bool(name.systems) and _LOADED_BY[kind] not in name.systems


def facts_of(kind: Format, data: memoryview) -> tuple[BinaryFacts, ...]:
    return _READERS[kind](data)


def promises_of(wheel: Wheel) -> tuple[tuple[Finding, ...], tuple[SharedLibrary, ...]]:
    """What is not as the tags of *wheel* promise, and libraries that those of other wheels may replace."""
    files: dict[str, tuple[BinaryFacts, ...]] = {}
    unread: list[Finding] = []
    foreign: list[str] = []
    for member in wheel.members:
        kind = Format.of(member.path, partial(wheel.head, member))
        if kind is None:
            continue
        if is_foreign(wheel.name, kind):
            foreign.append(member.path)
            continue
        with wheel.mapped(member) as data:
            try:
                files[member.path] = facts_of(kind, data)
            except BinaryError as error:
                unread.append(unchecked(member.path, error))
    return (*unread, *broken_promises(wheel, files, foreign)), shared_libraries(wheel, files)


def unchecked(path: str, error: BinaryError) -> Finding:
    message = f"what its tags promise is not checked: {error}"
    return Finding(Severity.WARNING, VerifyRule.UNREAD, (path,), message, "build it again if it is to be loaded")


def broken_promises(wheel: Wheel, files: Files, foreign: Collection[str]) -> Iterator[Finding]:
    """What is not as the tags of *wheel* promise; *files* are its compiled files, *foreign* those for other systems."""
    promised = Promised.of(wheel.name, files)
    if foreign and not files:
        message = f"none of its compiled files is for {', '.join(sorted(wheel.name.systems))}, which loads no other"
        yield Finding(Severity.WARNING, VerifyRule.MACHINE, tuple(foreign), message, "give it another platform tag")
    yield from _wheel_file_findings(wheel, files)
    yield from _machine_findings(promised, files)
    yield from _module_findings(promised, files)
    for path, several in files.items():
        for row in PROMISES:
            faults = dict.fromkeys(row.fault(promised, path, facts) for facts in several)
            yield from (Finding(row.severity, row.rule, (path,), fault, row.advice) for fault in faults if fault)
    is_for_windows = not wheel.name.systems or "windows" in wheel.name.systems
    paths = tuple(member.path for member in wheel.members if is_for_windows and _NOT_WINDOWS.search(member.path))
    if paths:
        message, advice = "no file of Windows can have this name: it does not install there", "rename it"
        yield Finding(Severity.ERROR, VerifyRule.FILE_NAME, paths, message, advice)


def _wheel_file_findings(wheel: Wheel, files: Files) -> Iterator[Finding]:
    path, tags = f"{wheel.dist_info}/WHEEL", wheel.name.tags
    if not any(map(_is_installable, tags)):
        message = f"no CPython has the tag {wheel.name.python}-{wheel.name.abi}-{wheel.name.platform}"
        advice = (
            "the stable ABI of free-threaded Pythons is spelled cp315-abi3t (PEP 803)"
            if _THREADED.search(f"{wheel.name.python}-{wheel.name.abi}")
            else "take tags that packaging.tags lists"
        )
        yield Finding(Severity.ERROR, VerifyRule.TAG, (), f"{message}: installers skip it", advice)
    repair = "vbuild repair writes the tags of the file name there"
    try:
        stated = frozenset(tag for line in wheel.wheel_file().tags for tag in _tags_in(line))
    except WheelError as error:
        message = f"its tags cannot be read: {str(error).rpartition(': ')[2]}"
        yield Finding(Severity.ERROR, VerifyRule.TAG, (path,), message, repair)
        return
    yield from _purity_findings(wheel, files)
    if stated != tags:
        others = shown(sorted(map(str, stated - tags or tags - stated)))
        message = f"has {others}, which the file name has not" if stated - tags else f"lacks {others} of the file name"
        # uv asks WHEEL whether what is installed fits: https://github.com/astral-sh/uv/issues/17711
        if any(_is_as_good(FileSlot.of(own), FileSlot.of(tag)) for own in stated for tag in tags):
            yield Finding(Severity.WARNING, VerifyRule.TAG, (path,), message, repair)
        else:
            message += ": where these do not fit, uv installs it again at each sync"
            yield Finding(Severity.ERROR, VerifyRule.TAG, (path,), message, repair)


def _is_as_good(stated: FileSlot, named: FileSlot) -> bool:
    """Whether what takes a wheel by its file name takes the tag in WHEEL, too."""
    return stated.serves(named) or (stated.python == named.python and named.serves(stated))


def _tags_in(line: str) -> frozenset[Tag]:
    parts = line.split("-")
    if len(parts) != _TAG_PARTS or math.prod(part.count(".") + 1 for part in parts) > MOST_TAGS:
        raise WheelError(f"Tag {line[:_LONGEST_TAG]!r}, expected python-abi-platform, for {MOST_TAGS} tags at most")
    return parse_tag(line)


@cache
def _is_installable(tag: Tag) -> bool:
    """Whether some CPython has the *tag*; True for other interpreters, whose tags have no rule."""
    if not (match := _PYTHON.fullmatch(tag.interpreter)):
        return not tag.interpreter.startswith(("cp", "py"))
    if tag.platform.startswith("macosx_") and tag.platform not in _mac_platforms():
        return False
    version = int(match["major"]), int(match["minor"] or _NEWEST_MINOR)
    if version[1] > _NEWEST_MINOR:
        return False
    python = f"cp{version[0]}{version[1]}"
    abis = [tag.abi] if tag.abi.startswith(python) else [python]
    free_threaded = [f"{python}t"]
    return tag in {
        *cpython_tags(version, abis, [tag.platform]),
        *cpython_tags(version, free_threaded, [tag.platform]),
        *compatible_tags(version, python, [tag.platform]),
    }


@cache
def _mac_platforms() -> frozenset[str]:
    newest = {"x86_64": (99, 0), "arm64": (99, 0), "i386": (10, 16), "ppc": (10, 6)}
    return frozenset(tag for machine, version in newest.items() for tag in mac_platforms(version, machine))


def _purity_findings(wheel: Wheel, files: Files) -> Iterator[Finding]:
    # what is Windows's or macOS's may be a tool that the package chooses itself; a module is not
    linked = [
        path
        for path, (facts, *_) in files.items()
        if facts.outline.is_loadable and (facts.outline.format is Format.ELF or facts.modules)
    ]
    if linked and "any" in wheel.name.platform.split("."):
        message = f"{len(linked)} binaries, {linked[0]} first, in a wheel for any platform"
        yield Finding(Severity.ERROR, VerifyRule.PURE, (), f"{message}; expected a platform tag")
    elif linked and wheel.wheel_file().root_is_purelib:
        message = (
            "Root-Is-Purelib is true in a wheel with binaries; expected false (they belong to the platform's folder)"
        )
        yield Finding(Severity.WARNING, VerifyRule.PURE, (), message)


def _machine_findings(promised: Promised, files: Files) -> Iterator[Finding]:
    """Files for other machines: an error if Python or a library would load them, or if none beside is for this one.

    Else they may be tools, of which the package takes one.
    """
    loadable = {
        path: several
        for path, several in files.items()
        if several[0].outline.is_loadable and DOTNET not in several[0].outline.notes
    }
    fitting = {path for path, several in loadable.items() if promised.fits(several)}
    needed = {
        facts.outline.plain(name) for path in fitting for facts in loadable[path] for name in facts.outline.needed
    }
    chosen = {part for path in fitting if not loadable[path][0].modules for part in posixpath.split(path)}
    for path, several in loadable.items():
        if path not in fitting:
            outline = several[0].outline
            machines, own = promised.machines(outline.format), {facts.outline.machine for facts in several}
            message = f"code for {', '.join(sorted(own))} in a wheel for {', '.join(sorted(machines))}"
            is_tool = not several[0].modules and not chosen.isdisjoint(posixpath.split(path))
            is_tool = is_tool and outline.plain(posixpath.basename(path)) not in needed
            severity = Severity.WARNING if is_tool else Severity.ERROR
            yield Finding(severity, VerifyRule.MACHINE, (path,), message, "build it for that machine")


def _module_findings(promised: Promised, files: Files) -> Iterator[Finding]:
    """Modules that no Python of the tags looks for; of several copies one has to fit."""
    modules: dict[str, dict[str, re.Match[str]]] = {}
    for path in files:
        if match := _TAGGED.search(path):
            modules.setdefault(path[: match.start()], {})[path] = match
    exact = {tag.rstrip("m") for tag in promised.modules}
    tags = f"{promised.name.python}-{promised.name.abi}"
    for stem, copies in modules.items():
        if any(f"{stem}{suffix}" in files for suffix in (".abi3.so", ".so", ".pyd")):
            continue
        path, match = next(iter(copies.items()))
        message = f"an extension module of CPython {match['module']} only, in a wheel for {tags}"
        if exact and exact.isdisjoint(copy["module"].rstrip("m") for copy in copies.values()):
            message += ", which does not look for it"
            yield Finding(Severity.ERROR, VerifyRule.EXTENSION, (path,), message, "build it for that Python")
        elif not exact and len(copies) == 1:
            message += f"; expected {'.abi3.so' if match['suffix'] == '.so' else '.pyd'}, or a copy for each"
            yield Finding(Severity.WARNING, VerifyRule.EXTENSION, (path,), message)
        for platform in promised.name.platform.split("."):
            if not any(_looks_for(platform, copy) for copy in copies.values()):
                message = f"is named for {match['platform']}: no CPython of {platform} looks for it"
                yield Finding(Severity.ERROR, VerifyRule.EXTENSION, (path,), message, "build it for that platform")
                break


def _looks_for(platform: str, module: re.Match[str]) -> bool:
    """Whether Pythons of the tag *platform* look for the name; True for platforms that are not known."""
    name = module["platform"]
    if platform.startswith("macosx_"):
        return name == "darwin"
    if platform.startswith("win"):
        return name == platform
    for policy in platforms_in(platform):
        machine, _, libc = name.partition("-linux-")
        is_musl, digits = libc.startswith("musl"), re.match(r"\d+", module["module"])
        is_old = digits is not None and int(digits[0]) < _FIRST_MUSL_NAMES
        if policy.machine in {"x86_64", "aarch64"} and machine != policy.machine:
            return False
        if policy.tag.startswith("musl"):
            return is_musl or is_old
        return not is_musl or policy.tag.startswith("linux")
    return True


def shared_libraries(wheel: Wheel, files: Files) -> tuple[SharedLibrary, ...]:
    outlines = {path: facts.outline for path, (facts, *_) in files.items()}
    return taken_by_name(
        outlines,
        needed_by(outlines.values()),
        hash_of=lambda path: wheel.row(wheel.member_at(path)).hash,
        platforms=platforms_in(wheel.name.platform),
    )


def needed_by(outlines: Iterable[BinaryOutline]) -> frozenset[str]:
    return frozenset(outline.plain(name) for outline in outlines for name in outline.needed)


def taken_by_name(
    outlines: Mapping[str, BinaryOutline],
    needed: Collection[str],
    *,
    hash_of: Callable[[str], str | None],
    platforms: Sequence[PlatformPolicy],
) -> tuple[SharedLibrary, ...]:
    """Of ELF and PE; macOS looks at paths. Names with the hash of the original stand for one library."""
    libraries: dict[tuple[str, str], SharedLibrary] = {}
    for path, outline in outlines.items():
        base = outline.plain(posixpath.basename(path))
        name = (outline.soname or base) if outline.format is Format.ELF else base
        is_found_by_name = outline.format is Format.ELF or (outline.format is Format.PE and not is_system_dll(name))
        if is_found_by_name and name in needed and not hashed(name):
            is_compatible = bool(by_soname(name)) or any(platform.has(name) for platform in platforms)
            is_compatible = is_compatible or outline.format is Format.PE
            digest = hash_of(path) or ""
            # wheels have no links: libx.so, libx.so.1 and libx.so.1.2 are copies
            if (name, digest) not in libraries or base == name:
                libraries[name, digest] = SharedLibrary(name, path, digest, is_compatible)
    return tuple(libraries.values())


def clashes(
    wheels: Sequence[tuple[str, tuple[FileSlot, ...], Sequence[SharedLibrary]]],
) -> Iterator[tuple[int, int, Finding]]:
    """The pairs of *wheels*, by number, of two projects that bring one name with two contents to one environment.

    The loader takes what answers to a name already, whatever RPATH says: dl_open and _dl_map_object of glibc, and
    Windows's list of loaded modules.
    """
    homes: dict[str, list[tuple[int, SharedLibrary]]] = {}
    for number, (_, _, libraries) in enumerate(wheels):
        for library in libraries:
            homes.setdefault(library.name, []).append((number, library))
    for name, several in homes.items():
        for (number, library), (other_number, other) in combinations(several, 2):
            (project, own, _), (other_project, others, _) = wheels[number], wheels[other_number]
            if library.digest == other.digest or project == other_project or not meet(own, others):
                continue
            severity = Severity.WARNING if library.is_compatible else Severity.ERROR
            message = (
                f"{name} has other contents in {{}}: a process has one of them, the first that is loaded, for both"
            )
            tools = "auditwheel and delvewheel do" if library.is_compatible else "vbuild split --private WHEEL does"
            advice = f"give it a name of its own: {tools}"
            yield number, other_number, Finding(severity, VerifyRule.CLASH, (library.path, other.path), message, advice)


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))
