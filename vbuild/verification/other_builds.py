"""What a wheel lacks of the wheel that its project published of the same version, and of the plain one of its build.

    modules         a compiled module that is missing, or that became Python: an error; a note of one for another
                    release of CUDA (``demo_cu12``); a warning of one that only the variant wheel of a build has
    dispatch        CPU features that published code is chosen for at run time, and none of ours: an error; a warning if
                    a library is bundled here that is linked into the module there
    symbols         C functions and objects that libraries there give to others, and none here: a warning
    files, tags     other files that are missing, a newer glibc: warnings
    size            of the compiled modules, and of their code, and the compiler, by .comment, if ours is older: a note,
                    or a warning if it is twice as much

Names of modules are compared without the tag of the ABI: ``_aes.abi3.so`` and ``_aes.cpython-311-….so`` are one, as are
those in ``lib`` and ``lib64``.

How much of the code differs from the plain build's is what a CPU level can bring at most. Functions are compared by
their instructions, without the addresses in them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import NamedTuple

from msgspec import Struct
from packaging.tags import Tag
from packaging.version import Version

from vbuild.build.advice import ASSEMBLERS, CIBUILDWHEEL
from vbuild.build.wrappers import FailedCall
from vbuild.dispatch.isa import features_by_code, processes, regions_of, spread
from vbuild.dispatch.judge import named_rank
from vbuild.elf.code import Elf
from vbuild.elf.iced import Decoder, EncodingKind, Instruction, RegisterExt
from vbuild.elf.image import ElfImage
from vbuild.elf.interface import Interface
from vbuild.elf.linkage import level_of
from vbuild.elf.read import Outline
from vbuild.errors import BinaryError, FetchError, WheelError
from vbuild.files.wording import counted, sized
from vbuild.hardware.cpu import Cpu
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import ListedFile
from vbuild.index_client.packages import download_best
from vbuild.process.pool import ProcessPool
from vbuild.process.threads import OncePerKey
from vbuild.verification.model import Finding, Severity, Verdict, VerifyRule, is_grafted
from vbuild.verification.verify import verify
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import WheelName

_ABI_TAG = re.compile(r"\.(abi3|cpython-[\w-]+|pypy[\w-]+)(?=\.so$)")
# CMake and Meson install libraries in the one of the two that is usual on the machine
_LIB64 = re.compile(r"(^|/)lib64(?=/)")
# names that C keeps for compilers and their libraries, which are linked in
_RESERVED = re.compile(r"_[_A-Z]")
# compilers choose among these differently; of AVX-512, registers of any length
_CHOICES = (frozenset({"BMI1", "BMI2", "LZCNT"}), frozenset({"AVX512F", "AVX512VL"}))
# which processors have together, so code chosen for one may use the others
_AVX512 = frozenset({"AVX512F", "AVX512VL", "AVX512BW", "AVX512DQ", "AVX512CD"})
_ADDED = re.compile(r"(-[0-9a-f]{8})?\.so(\.\d+)*$")
_FOR_CUDA = re.compile(r"[_.-]cu(?:da)?_?1\d(?!\d)")
_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_|manylinux(1|2010|2014)_")
_COMPILER = re.compile(rb"GCC: \([^()]*\) (?P<gcc>\d+)\.|clang version (?P<clang>\d+)\.")
_LEGACY = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}
_SHOWN = 5
# modules so many times as large have more in them than compilers and flags explain
_LARGE = 2.0
_WORD = re.compile(r"[A-Za-z]+[\d.]*")
_SHORTEST = 3  # letters of a word that says something
_ACCEPT = "to go on without it: verify.against = 'none'"
_ASKED = "the project asked the CPU of the builder, or the compiler's flags, which modules to build"
_KEEP = "if flags of the project's own were taken out of its sources: build.keep-flags = ['src/name_of_a_source.c']"
_BITS = 64
_ENCODINGS = frozenset({EncodingKind.VEX, EncodingKind.EVEX})
_NEXT_TO_NOTHING = 0.01
# each level of a release is compared with the same plain build
_READ: OncePerKey[tuple[str, bytes], "_Library | None"] = OncePerKey(most=64)


class _Contents(Struct, frozen=True):
    """The modules of a wheel by their names, each with the features it dispatches to; its other files; its glibc.

    *given* are the C symbols that each library exports, *bundled* the features that bundled libraries dispatch to,
    *compilers* the newest major version of each compiler that made modules.
    """

    modules: Mapping[str, frozenset[str]]
    bundled: Mapping[str, frozenset[str]]
    needed: Mapping[str, tuple[str, ...]]
    files: frozenset[str]
    glibc: tuple[int, int] | None
    given: Mapping[str, frozenset[str]]
    size: int
    code: int
    compilers: Mapping[str, int]

    @classmethod
    def of(cls, verdict: Verdict) -> "_Contents":
        libraries = {library.member: library for library in verdict.libraries}
        modules, files, size = {}, set(), 0
        given, bundled, needed = {}, {}, {}
        compilers: dict[str, int] = {}
        with open_wheel(verdict.wheel) as source:
            for member in source.members:
                path = member.path
                if library := libraries.get(path):
                    data = source.read(member)
                    key = PurePath(path).name if is_grafted(path) else _plain(path)
                    given[_plain(path)] = _exported_symbols(data)
                    needed[key] = _needed(data)
                    if is_grafted(path):
                        bundled[key] = frozenset(library.dispatched)
                if is_grafted(path) or level_of(path) or path.partition("/")[0].endswith(".dist-info"):
                    continue
                if library:
                    modules[_plain(path)] = frozenset(library.dispatched)
                    size += member.size
                    for name, major in _compilers(data):
                        compilers[name] = max(major, compilers.get(name, 0))
                elif not path.endswith(".so"):
                    files.add(_plain(path))
        glibc = _glibc(WheelName.parse(verdict.wheel.name).tags)
        code = sum(library.code_size for path, library in libraries.items() if not (is_grafted(path) or level_of(path)))
        return cls(modules, bundled, needed, frozenset(files), glibc, given, size, code, compilers)

    def bundled_for(self, module: str, other: "_Contents") -> dict[str, frozenset[str]]:
        """The features that libraries dispatch to which *module* needs and *other* does not bundle."""
        names: set[str] = set()
        left = [module]
        while left:
            following = {name for name in self.needed.get(left.pop(), ()) if name in self.bundled} - names
            names |= following
            left += following
        theirs = {_stem(name) for name in other.bundled}
        return {_stem(name): self.bundled[name] for name in sorted(names) if _stem(name) not in theirs}


class Published(Struct, frozen=True):
    name: str
    contents: _Contents

    @classmethod
    def of(cls, wheel: Path, cpu: Cpu) -> "Published":
        return cls(wheel.name, _Contents.of(verify(wheel, cpu=cpu)))

    def chosen_in(self, path: str) -> frozenset[str]:
        features = self.contents.modules.get(_plain(path), frozenset())
        return features | _alike(features, (*_CHOICES, _AVX512))


def _plain(path: str) -> str:
    return _LIB64.sub(r"\1lib", _ABI_TAG.sub("", path))


def _stem(name: str) -> str:
    return _ADDED.sub("", name)


def _needed(data: bytes) -> tuple[str, ...]:
    try:
        return Outline.parse(data).needed
    except BinaryError:
        return ()


def _compilers(data: bytes) -> Iterator[tuple[str, int]]:
    image = ElfImage.read(memoryview(data))
    for section in image.named(".comment"):
        for match in _COMPILER.finditer(image.view(section.span)):
            yield ("gcc" if match["gcc"] else "clang"), int(match["gcc"] or match["clang"])


def _exported_symbols(data: bytes) -> frozenset[str]:
    try:
        interface = Interface.parse(data)
    except BinaryError:
        return frozenset()
    names = (symbol.name for symbol in interface.exported if not symbol.is_mangled)
    return frozenset(name for name in names if not _RESERVED.match(name))


def file_on_index(
    wheel: Path, folder: Path, indexes: Callable[[], Indexes], *, version: str = "", tag: Tag | None = None
) -> Path:
    """As `published_wheel`; `FetchError` if there is none."""
    if published := published_wheel(wheel, folder, indexes, version=version, tag=tag):
        return published
    name = WheelName.parse(wheel.name)
    shown = ", ".join(sorted(map(str, _tags(name, tag))))
    wanted = version or name.version
    raise FetchError(f"no index has a wheel of {name.project} {wanted} for this Python and platform ({shown})")


def published_wheel(
    wheel: Path, folder: Path, indexes: Callable[[], Indexes], *, version: str = "", tag: Tag | None = None
) -> Path | None:
    """The wheel that the index has of *version*, by default that of *wheel*, for its Python and platform; or None.

    For a wheel of any platform, that of *tag*. It is downloaded into *folder*, once. `FetchError` if no index answers.
    """
    name = WheelName.parse(wheel.name)
    fit = partial(_fit, _tags(name, tag), Version(version or name.version))
    there = next(folder.glob("*.whl"), None)
    return there or download_best(name.project, fit, folder, indexes=indexes())


def _tags(name: WheelName, tag: Tag | None) -> frozenset[Tag]:
    return frozenset({tag}) if tag and name.platform == "any" else name.tags


def _fit(ours: frozenset[Tag], version: Version, listed: ListedFile) -> int | None:
    """How near *listed* is to *ours*, from 0 on; None if it is of another *version*, Python or platform."""
    if not listed.is_wheel or listed.is_yanked or listed.version != version:
        return None
    try:
        theirs = WheelName.parse(listed.file)
    except WheelError:
        return None
    if theirs.variant or not {_platform(tag) for tag in theirs.tags} & {_platform(tag) for tag in ours}:
        return None
    ranks = [_fit_of(tag, other) for tag in ours for other in theirs.tags]
    return min((rank for rank in ranks if rank is not None), default=None)


def _fit_of(ours: Tag, theirs: Tag) -> int | None:
    if (ours.interpreter, ours.abi) == (theirs.interpreter, theirs.abi):
        return 0
    if "abi3" in {ours.abi, theirs.abi} and ours.interpreter[:2] == theirs.interpreter[:2]:
        return 1
    return None


def _platform(tag: Tag) -> str:
    """The C library and the machine of a tag, as in ``manylinux x86_64``."""
    library = tag.platform.partition("_")[0].rstrip("0123456789")
    machine = next((name for name in ("x86_64", "aarch64") if tag.platform.endswith(name)), tag.platform)
    return f"{'manylinux' if library == 'linux' else library} {machine}"


def lost(verdict: Verdict, published: Published, *, failed: Sequence[FailedCall] = ()) -> tuple[Finding, ...]:
    ours, theirs = _Contents.of(verdict), published.contents
    return (*_lost(ours, theirs, failed), _sizes(ours, theirs, published.name))


def unlike(
    wheel: Path, *, plain: Path | None, published: Path | None, failed: Sequence[FailedCall] = ()
) -> Iterator[Finding]:
    """The modules that the variant *wheel* lacks of the *plain* and the *published* one, or adds."""
    ours, files = _names(wheel)
    expected = _names(plain)[0] if plain else ours
    if missing := tuple(sorted(expected - ours)):
        message = f"{counted(len(missing), 'module')} of the plain wheel of this build missing: {_ASKED}"
        yield Finding(Severity.ERROR, VerifyRule.PUBLISHED, missing, message)
    if added := tuple(sorted(ours - expected)):
        message = f"{counted(len(added), 'module')} that the plain wheel of this build does not have: {_ASKED}"
        yield Finding(Severity.WARNING, VerifyRule.PUBLISHED, added, message)
    if published:
        yield from _missing(ours.union(missing), _names(published)[0], files, failed)


def _names(wheel: Path) -> tuple[frozenset[str], frozenset[str]]:
    with open_wheel(wheel) as source:
        paths = [member.path for member in source.members if not (is_grafted(member.path) or level_of(member.path))]
    modules = frozenset(_plain(path) for path in paths if path.endswith(".so"))
    return modules, frozenset(map(_plain, paths)) - modules


def _alike(features: frozenset[str], choices: Iterable[frozenset[str]] = _CHOICES) -> frozenset[str]:
    return frozenset[str]().union(*(names for names in choices if features & names))


def likely_cause(failed: Sequence[FailedCall], about: Iterable[str], *, guesses: bool = True) -> str:
    """The call of *failed* that is the likely cause of a loss, in a sentence; empty if none says anything.

    *about* are the names of what is lost. A call with one of their words comes first; then, if it *guesses*, one that
    lacked something.
    """
    words = {word.lower() for name in about for word in _WORD.findall(PurePath(name).stem) if len(word) >= _SHORTEST}

    def shared(call: FailedCall) -> int:
        text = " ".join((*call.arguments, call.error, call.text)).lower()
        options = (*call.arguments, *call.removed)
        flags = {word[2:] for word in options if word.startswith("-m") and len(word) >= _SHORTEST + 2}
        is_named = call.program in {*ASSEMBLERS, CIBUILDWHEEL} and not call.arguments and not guesses
        return is_named + sum(word in text or any(word.startswith(flag) for flag in flags) for word in words)

    telling = [call for call in failed if guesses or shared(call)]
    if not telling:
        return ""
    first = max(telling, key=lambda call: (shared(call), bool(shared(call) and call.removed), call.is_telling))
    more = f" ({counted(len(failed) - 1, 'other call')} failed, too)" if len(failed) > 1 else ""
    return f"{'the likely cause' if shared(first) else 'perhaps because'}: {first}{more}"


def _missing(
    ours: Collection[str], theirs: Collection[str], files: Collection[str], failed: Sequence[FailedCall]
) -> Iterator[Finding]:
    missing = tuple(sorted({*theirs}.difference(ours)))
    # a wheel with each module for several releases of CUDA, where ours has one
    built = {_of_any_cuda(path) for path in ours}
    if other := tuple(path for path in missing if _of_any_cuda(path) in built):
        missing = tuple(path for path in missing if path not in other)
        message = (
            f"the published wheel has {counted(len(other), 'module')} of this one for another release of CUDA as well"
        )
        yield Finding(Severity.NOTE, VerifyRule.PUBLISHED, other, message)
    if missing:
        python = sum(path.removesuffix(".so") + ".py" in files for path in missing)
        became = f"; {python} of them became Python" if python else ""
        message = f"{len(missing)} of {len(theirs)} compiled modules of the published wheel are missing{became}"
        # a project with a module for each kind of CPU may build this machine's alone
        is_for_cpus = any(named_rank(PurePath(path).name) for path in missing)
        otherwise = _ASKED if is_for_cpus else "no call of a compiler failed: a tool or an option is missing"
        advice = likely_cause(failed, missing, guesses=not is_for_cpus) or otherwise
        yield Finding(Severity.ERROR, VerifyRule.PUBLISHED, missing, message, f"{advice}; {_ACCEPT}")


def _lost(ours: _Contents, theirs: _Contents, failed: Sequence[FailedCall]) -> Iterator[Finding]:
    yield from _missing(ours.modules.keys(), theirs.modules.keys(), ours.files, failed)
    for path in sorted(theirs.modules.keys() & ours.modules.keys()):
        bundled = {name: features for name, features in ours.bundled_for(path, theirs).items() if features}
        here = ours.modules[path].union(*bundled.values())
        if features := sorted(theirs.modules[path] - here - _alike(here)):
            message = f"the published wheel has code for {', '.join(features)} chosen at run time; this wheel has none"
            if bundled:
                libraries = ", ".join(bundled)
                message += f", and a {libraries} of this machine, which may be older than what is linked in there"
                yield Finding(Severity.WARNING, VerifyRule.PUBLISHED, (path,), message)
                continue
            advice = likely_cause(failed, features, guesses=False) or _KEEP
            yield Finding(Severity.ERROR, VerifyRule.PUBLISHED, (path,), message, f"{advice}; {_ACCEPT}")
    given = frozenset().union(*ours.given.values())
    if names := sorted({name for path in ours.modules for name in theirs.given.get(path, ())} - given):
        message = f"{len(names)} C symbols of the published wheel's libraries are missing: {', '.join(names[:_SHOWN])}"
        yield Finding(Severity.WARNING, VerifyRule.PUBLISHED, (), message, likely_cause(failed, names))
    if files := tuple(sorted(theirs.files - ours.files)):
        message = f"{len(files)} files of the published wheel are missing: {', '.join(files[:_SHOWN])}"
        yield Finding(Severity.WARNING, VerifyRule.PUBLISHED, files, message)
    if ours.glibc and theirs.glibc and ours.glibc > theirs.glibc:
        newer, older = (".".join(map(str, version)) for version in (ours.glibc, theirs.glibc))
        message = f"needs glibc {newer}; the published wheel needs {older}"
        yield Finding(
            Severity.NOTE, VerifyRule.PUBLISHED, (), message, "build in an older manylinux image, or with zig"
        )


def _of_any_cuda(path: str) -> str:
    """*path* without a release of CUDA in the name: ``x_cu12.so`` is at times beside ``x.so``."""
    return _FOR_CUDA.sub("", path)


def _sizes(ours: _Contents, theirs: _Contents, published: str) -> Finding:
    shared, own = ours.modules.keys() & theirs.modules.keys(), ours.modules.keys() - theirs.modules.keys()
    count = f"{len(shared)} of {counted(len(theirs.modules), 'module')}{f' and {len(own)} more' if own else ''}"
    size = f"{sized(ours.size)} against {sized(theirs.size)}, {sized(ours.code)} of code against {sized(theirs.code)}"
    for name, major in ours.compilers.items():
        if major < (theirs_by := theirs.compilers.get(name, 0)):
            size += f", {name} {major} against {name} {theirs_by}, whose code may be faster"
    is_large = ours.size > _LARGE * theirs.size > 0
    advice = "'vbuild inspect' shows how much of it is debug information and symbols" if is_large else ""
    severity = Severity.WARNING if is_large else Severity.NOTE
    return Finding(severity, VerifyRule.PUBLISHED, (), f"compared with {published}: {count}, {size}", advice)


def _glibc(tags: frozenset[Tag]) -> tuple[int, int] | None:
    matches = (match for tag in tags if (match := _GLIBC.match(tag.platform)))
    versions = (_LEGACY[match[3]] if match[3] else (int(match[1]), int(match[2])) for match in matches)
    return min(versions, default=None)


class CodeGain(Struct, frozen=True):
    """Bytes of code, those in functions that the plain build does not have, and of vector instructions in these.

    *beyond* are bytes of instructions that not every processor has, less those in functions of the plain build alone.
    """

    size: int
    changed: int
    vector: int
    beyond: int

    @property
    def is_nothing(self) -> bool:
        return self.beyond <= 0

    @property
    def is_little(self) -> bool:
        return self.changed < _NEXT_TO_NOTHING * self.size or self.is_nothing

    def finding(self, path: str | None = None) -> Finding:
        if not self.changed:
            message = "no gain from this level: the code is that of the plain build"
        else:
            message = f"{self.changed / self.size:.1%} of the code differs from the plain build's"
            if self.is_nothing:
                message = f"no gain from this level: {message}, by no instruction that is the level's own"
            else:
                little = "hardly any gain from this level: " if self.is_little else ""
                message = f"{little}{message}, and {self.vector / self.size:.1%} is vector code in it"
        severity = Severity.WARNING if self.is_little and not path else Severity.NOTE
        return Finding(severity, VerifyRule.ISA_GAIN, (path,) if path else (), message)


class WheelGain(Struct, frozen=True):
    """The gain of each own library, by path; modules *bypassed* the wrappers.

    Their code is the plain build's, and they lack the mark of the level that the others have.
    """

    libraries: Mapping[str, CodeGain]
    bypassed: tuple[str, ...] = ()

    @property
    def whole(self) -> CodeGain:
        gains = self.libraries.values()
        return CodeGain(*(sum(getattr(gain, key) for gain in gains) for key in CodeGain.__struct_fields__))

    @property
    def findings(self) -> Iterator[Finding]:
        if self.bypassed:
            message = (
                "its code is that of the plain build, and it lacks the mark of the level: it was compiled elsewhere"
            )
            advice = (
                "the project calls a compiler by its path; change that to a name: build.patches = ['compiler.patch']"
            )
            yield Finding(Severity.ERROR, VerifyRule.ISA_FLAGS, self.bypassed, message, advice)
        yield self.whole.finding()
        if len(self.libraries) > 1:
            yield from (gain.finding(path) for path, gain in self.libraries.items())


def code_gain(wheel: Path, plain: Path, *, jobs: int | None = None) -> WheelGain:
    with processes(jobs) as executor:
        theirs = {library.path: library for library in _libraries(plain, executor)}
        ours = {library.path: library for library in _libraries(wheel, executor)}
    known, shared = (frozenset().union(*(library.digests for library in side.values())) for side in (theirs, ours))
    marked = any(library.is_marked for library in ours.values())
    bypassed = (
        library.path
        for library in ours.values()
        if marked and not library.is_marked and library.is_module and known.issuperset(library.digests)
    )
    lost = {path: sum(function.beyond for function in library.without(shared)) for path, library in theirs.items()}
    gains = {path: library.gain(known, lost=lost.get(path, 0)) for path, library in ours.items()}
    return WheelGain(gains, tuple(bypassed))


class _Function(NamedTuple):
    digest: bytes
    size: int
    vector: int
    beyond: int


class _Library(Struct, frozen=True):
    path: str
    is_marked: bool
    is_module: bool
    functions: tuple[_Function, ...]

    @property
    def digests(self) -> frozenset[bytes]:
        return frozenset(function.digest for function in self.functions)

    def without(self, known: frozenset[bytes]) -> list[_Function]:
        return [function for function in self.functions if function.digest not in known]

    def gain(self, known: frozenset[bytes], *, lost: int) -> CodeGain:
        changed = self.without(known)
        return CodeGain(
            sum(function.size for function in self.functions),
            changed=sum(function.size for function in changed),
            vector=sum(function.vector for function in changed),
            beyond=sum(function.beyond for function in changed) - lost,
        )


def _libraries(wheel: Path, executor: ProcessPool | None) -> Iterator[_Library]:
    with open_wheel(wheel) as source:
        for member in source.members:
            if is_grafted(member.path) or not member.path.endswith(".so"):
                continue
            data = source.read(member)
            key = (member.path, blake2b(data, digest_size=32).digest())
            if library := _READ.get(key, partial(_library, member.path, data, executor)):
                yield library


def _library(path: str, data: bytes, executor: ProcessPool | None) -> _Library | None:
    try:
        elf = Elf.parse(data)
    except BinaryError:
        return None
    pieces = ((region.address, region.data) for region in regions_of(elf) if region.function)
    is_module = any(name.startswith("PyInit_") for name in elf.exported)
    return _Library(path, bool(elf.isa_needed), is_module, tuple(spread(_digests, pieces, executor)))


def _digests(pieces: Iterable[tuple[int, bytes]]) -> list[_Function]:
    functions, above = [], features_by_code()
    for address, data in pieces:
        text, vector, beyond = bytearray(data), 0, 0
        decoder = Decoder(_BITS, data, ip=address)
        for instruction in decoder:
            start = instruction.ip - address
            if _is_vector(instruction):
                vector += instruction.len
            if instruction.code in above:
                beyond += instruction.len
            offsets = decoder.get_constant_offsets(instruction)
            if instruction.is_ip_rel_memory_operand:
                first = start + offsets.displacement_offset
                text[first : first + offsets.displacement_size] = bytes(offsets.displacement_size)
            if instruction.near_branch_target and offsets.immediate_size:
                first = start + offsets.immediate_offset
                text[first : first + offsets.immediate_size] = bytes(offsets.immediate_size)
        functions.append(_Function(blake2b(text, digest_size=16).digest(), len(data), vector, beyond))
    return functions


def _is_vector(instruction: Instruction) -> bool:
    """Whether *instruction* has VEX or EVEX and works on vectors, as BMI's do not."""
    registers = (instruction.op0_register, instruction.op1_register)
    return instruction.encoding in _ENCODINGS and any(map(RegisterExt.is_vector_register, registers))
