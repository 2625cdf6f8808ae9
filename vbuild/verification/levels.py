"""Check that the code in a wheel keeps to the CPU level that the wheel claims, and that it makes use of it.

too high   a function that every caller runs needs a feature that the level does not have
too low    the compiler's flags did not arrive: no VEX instruction at v3 or v4, or the same code as the baseline
marks      the x86 ISA property, by which glibc refuses a library on a lesser processor
copies     a library in a glibc-hwcaps folder keeps to the level of that folder: lesser processors never load it
"""

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b

from msgspec import Struct, msgpack
from msgspec.structs import replace as replace_in

from vbuild.dispatch.isa import UNKNOWN, Isa
from vbuild.dispatch.judge import RUST_HASH, Baseline, Dispatch, Judged, named_rank, scan
from vbuild.dispatch.reach import Doubt
from vbuild.elf.code import CodeFile, Elf
from vbuild.elf.iced import is_installed
from vbuild.elf.linkage import at_level, baseline_of, level_of, missing_base, soname_fault
from vbuild.gpu_code.survey import DEVICE_SECTIONS
from vbuild.hardware.cpu import X86_64_LEVELS, Cpu, feature_rank, level_of_features, masked_processor
from vbuild.process.pool import ProcessPool
from vbuild.process.threads import OncePerKey
from vbuild.verification.model import (
    IF_ALLOWED,
    ON_PROCESSOR,
    Finding,
    LibraryIsa,
    Severity,
    VerifyRule,
    Violation,
    is_grafted,
)
from vbuild.verification.python_tests import is_asked_for

_MACHINE = "x86_64"
_V3 = X86_64_LEVELS.index("v3")
_V4 = X86_64_LEVELS.index("v4")
# bytes of own code in which a compiler for v3 always uses a VEX instruction; start-up code and an empty module have 2
# KB
_ENOUGH = 16384
_SHOWN = 3
# doubts without meaning: nobody knows who runs that code
_OPEN = frozenset({Doubt.UNFOLLOWED, Doubt.UNCLEAR})
_SYSTEMS = {"windows": "Windows", "macos": "macOS"}
_NAME = re.compile(r"[\w.]+")
# what C++ calls the table of a class, by which its virtual functions are called
_VIRTUAL_TABLE = "_ZTV"
_BYPASSED = (
    "if the project calls a compiler by its path: build.patches = ['compiler.patch']; if the level gains nothing, "
    "leave it out of matrix.cpu"
)
_ASKED_BY_PYTHON = "Python code loads it after a question about the CPU, which was not run"
# functions that run when Python imports a module, the second one of Cython
_INITIALISERS = ("PyInit_", "__pyx_pymod_exec_")
# functions whose instructions are shown: that takes longer than all the rest
_SHOWN_INSTRUCTIONS = 1000


_UNCHECKED = (
    "instruction sets: not checked: iced-x86, which disassembles x86-64 code, is not installed",
    "pip install iced-x86, which needs a Rust compiler where it has no wheel",
)


def can_disassemble(machine: str) -> bool:
    """Whether code for *machine* can be judged: iced-x86 is not installed everywhere."""
    return machine != _MACHINE or is_installed


class Claim(Struct, frozen=True):
    """The level that code has to keep to: the baseline unless it *is_explicit*.

    *is_folders*: it is that of a glibc-hwcaps folder. *system* asks for more than the level. *is_question*: somebody
    asks whether the code runs there, and nobody says that it was compiled for it.
    """

    cpu: Cpu
    is_explicit: bool
    is_folders: bool = False
    system: str = ""
    is_question: bool = False

    def on(self, path: str) -> "Claim":
        """The claim of its level folder, if that is higher."""
        level = level_of(path)
        if level is None or self.cpu.machine != _MACHINE or self.cpu.rank >= X86_64_LEVELS.index(level):
            return self
        return Claim(Cpu.known(_MACHINE, level), is_explicit=True, is_folders=True)

    @property
    def severity(self) -> Severity:
        """Of breaking the claim: a plain wheel does not promise to run on the first x86-64 processors."""
        return Severity.ERROR if self.is_explicit else Severity.WARNING

    @property
    def doubt(self) -> Severity:
        """Of code that may break the claim, or that no flag for the claim caused."""
        return Severity.WARNING if self.is_explicit else Severity.NOTE

    def __str__(self) -> str:
        if self.is_folders:
            return f"{self.cpu}, whose folder it is in"
        cpu = f"{self.cpu} and what {self.system} needs" if self.system else f"{self.cpu}"
        if self.is_question:
            return cpu
        return f"the claimed {cpu}" if self.is_explicit else f"{cpu}, which is all that its tags promise"


class _Judgement(Struct, frozen=True):
    """What the code of a library needs, without its bytes, and how its code above the level is reached.

    *accepted* counts functions by reason, *dispatched* are their features. *asks*: code of the wheel asks the CPU.
    """

    isa: Isa
    accepted: Mapping[str, int]
    dispatched: frozenset[str]
    unexplained: tuple[Judged, ...]
    asks: bool


# the same for all wheels with the same host code: several GPUs, before and after the stamp; nearly all of the time, and
# a few kilobytes
_JUDGEMENTS: OncePerKey[bytes, Mapping[str, _Judgement]] = OncePerKey(most=64)


class Levels:
    """Checks the libraries of one wheel against its claim; *baseline* finds the baseline build of a library by path.

    Libraries of wheels *beside* it are not judged: what they answer about the CPU counts for those that need them.
    *sources* reads Python code; *published* gives the CPU features that the published wheel's library at a path chooses
    code for.
    """

    def __init__(
        self,
        libraries: Mapping[str, CodeFile],
        claim: Claim,
        *,
        beside: Mapping[str, Elf] | None = None,
        baseline: Callable[[str], CodeFile | None] | None = None,
        allow: Sequence[re.Pattern[str]] = (),
        executor: ProcessPool | None = None,
        sources: Callable[[], Sequence[str]] = tuple,
        published: Callable[[str], frozenset[str]] = lambda _path: frozenset(),
        on_progress: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self._libraries = {path: elf for path, elf in libraries.items() if elf.is_loadable}
        mine = [elf for elf in self._libraries.values() if elf.machine == claim.cpu.machine]
        systems = {_SYSTEMS[elf.system] for elf in mine if elf.given}
        self._claim = replace_in(claim, system=" and ".join(sorted(systems)))
        self._beside = _needed_by(mine, beside or {})
        self._baseline = baseline
        self._allow = tuple(allow)
        self._executor = executor
        self._sources = sources
        self._published = published
        self._on_progress = on_progress
        # the file that asks for most says on which machines the wheel runs
        given = frozenset[str]().union(*(elf.given for elf in mine))
        self._extras = given | {feature.name for feature in claim.cpu.extra_features}
        self._judged = _JUDGEMENTS.get(self._key(), self._judgements) if can_disassemble(claim.cpu.machine) else {}
        self._isas = {path: judged.isa for path, judged in self._judged.items()}

    def _key(self) -> bytes:
        """A digest of all that `_judgements` depends on; not of GPU code or its place."""
        digest = blake2b(digest_size=32)
        for path, elf in {**self._beside, **self._libraries}.items():
            if elf.machine != self._claim.cpu.machine:
                continue
            digest.update(repr((path, self._claim.on(path), self._is_open(path))).encode())
            for piece in (*elf.code, *elf.constants):
                digest.update(f"{piece.name} {piece.address} {len(piece.data)}\n".encode())
                digest.update(piece.data)
            digest.update(_host_facts(elf))
        digest.update(repr(([pattern.pattern for pattern in self._allow], sorted(self._extras))).encode())
        return digest.digest()

    def _judgements(self) -> Mapping[str, _Judgement]:
        mine = {path: elf for path, elf in self._libraries.items() if elf.machine == self._claim.cpu.machine}
        isas = {path: scan(elf, self._executor) for path, elf in mine.items()}
        judgements = self._judged_in(mine, isas)
        # following other wheels' libraries as well takes several times as long
        if self._beside and any(judgement.unexplained for judgement in judgements.values()):
            return self._judged_in({**self._beside, **mine}, isas)
        return judgements

    def _judged_in(self, program: Mapping[str, CodeFile], isas: Mapping[str, Isa]) -> dict[str, _Judgement]:
        """Judge the libraries with *isas* as parts of *program*."""
        files = {path: (elf, isas.get(path) or scan(elf, self._executor)) for path, elf in program.items()}
        dispatch = Dispatch(files, is_open=self._is_open, extras=self._extras)
        judgements = {}
        for number, (path, isa) in enumerate(isas.items(), 1):
            self._on_progress(f"code of {posixpath.basename(path)} ({number} of {len(isas)})")
            rank = self._claim.on(path).cpu.rank
            above = dispatch.judged(path, rank, allow=self._allow)
            accepted = [judged for judged in above if judged.reason]
            bare = (replace(region, region=replace(region.region, data=b"")) for region in isa.regions)
            judgements[path] = _Judgement(
                replace(isa, regions=tuple(bare)),
                dict(Counter(str(judged.reason) for judged in accepted).most_common()),
                # of code with a doubt, what else it needs was asked for
                frozenset(
                    feature
                    for judged in above
                    for feature in (
                        judged.features
                        if judged.reason
                        else judged.isa.above(rank, extras=self._extras) - judged.features
                    )
                ),
                tuple(judged for judged in above if not judged.reason),
                dispatch.is_asking(rank),
            )
        return judgements

    def verdicts(self) -> Iterator[tuple[LibraryIsa, tuple[Finding, ...]]]:
        for path, elf in self._libraries.items():
            if path in self._isas:
                yield self._verdict(path, elf, self._isas[path])
            elif elf.machine == self._claim.cpu.machine:
                yield LibraryIsa(path, elf.machine, elf.code_size, None), ()
            else:
                message = f"code for {elf.machine}: instruction sets were checked for {self._claim.cpu.machine} only"
                finding = Finding(Severity.NOTE, VerifyRule.ISA_UNCHECKED, (path,), message)
                yield LibraryIsa(path, elf.machine, elf.code_size, None), (finding,)

    def wheel_findings(self) -> Iterator[Finding]:
        claim = self._claim
        mine = tuple(path for path, elf in self._libraries.items() if elf.machine == claim.cpu.machine)
        if mine and not self._isas:
            yield Finding(claim.severity, VerifyRule.ISA_UNCHECKED, mine, *_UNCHECKED)
        if not claim.is_explicit or claim.is_question or claim.cpu.rank == 0:
            return
        if not self._libraries:
            message = f"no compiled code: nothing in it is for {claim.cpu}"
            yield Finding(Severity.WARNING, VerifyRule.ISA_FLAGS, (), message)
        own = {path: isa for path, isa in self._isas.items() if not is_grafted(path)}
        if own and claim.cpu.machine == _MACHINE:
            elves = [path for path in own if isinstance(self._libraries[path], Elf)]
            if bare := [path for path in elves if claim.cpu.level not in self._libraries[path].isa_needed]:
                message = f"{len(bare)} of {len(own)} libraries, {bare[0]} first, are not marked with -z {claim.cpu}"
                text = f"{message}: on a lesser processor they stop at an instruction instead of being refused"
                yield Finding(Severity.NOTE, VerifyRule.ISA_NOTE, (), text)
        if own:
            yield from self._flag_findings(own)

    def _flag_findings(self, own: Mapping[str, Isa]) -> Iterator[Finding]:
        """Of aarch64, that flags made no difference is often right."""
        cpu, size = self._claim.cpu, sum(isa.code_size for isa in own.values())
        used = {feature for isa in own.values() for feature in isa.features}
        is_x86 = cpu.machine == _MACHINE
        lacking = ""
        if same := self._as_baseline(tuple(own)):
            lacking = f"the code of {same} is that of the baseline build"
        elif is_x86 and cpu.rank >= _V3 and not any(map(_uses_vex, own, own.values())):
            lacking = "no VEX instruction"
        elif not is_x86 and "SVE" in cpu.features and "SVE" not in used:
            lacking = "no instruction of SVE"
        if lacking:
            is_sure = is_x86 and cpu.rank >= _V3 and size >= _ENOUGH
            message = f"{lacking} in {size} bytes of its own code: the compiler's flags for {cpu} did not arrive"
            message += "" if is_sure else ", or made no difference"
            severity, advice = Severity.ERROR if is_sure else Severity.NOTE, _BYPASSED if is_x86 else ""
            yield Finding(severity, VerifyRule.ISA_FLAGS, (), message, advice)
        elif is_x86:
            if cpu.rank >= _V4 and "AVX512F" not in used:
                message = "no AVX-512 instruction in its own code: the v3 wheel would do the same"
                yield Finding(Severity.NOTE, VerifyRule.ISA_FLAGS, (), message)
            for name in sorted({feature.name for feature in cpu.extra_features} - used):
                message = f"no gain from this feature: no {name} instruction in its own code"
                yield Finding(Severity.WARNING, VerifyRule.ISA_GAIN, (), message)

    def _as_baseline(self, own: Sequence[str]) -> str | None:
        if not self._baseline:
            return None
        for path in own:
            other = self._baseline(path)
            if other is None or _code(other) != _code(self._libraries[path]):
                return None
        return own[0] if len(own) == 1 else f"all {len(own)} libraries"

    def _verdict(self, path: str, elf: CodeFile, isa: Isa) -> tuple[LibraryIsa, tuple[Finding, ...]]:
        claim, judgement = self._claim.on(path), self._judged[path]
        strange = [judged for judged in judgement.unexplained if UNKNOWN in judged.features]
        known = (replace_in(judged, features=judged.features - {UNKNOWN}) for judged in judgement.unexplained)
        unexplained = [judged for judged in known if judged.features]
        doubts = self._doubts(path, unexplained)
        violations = tuple(
            _violation(judged, doubt, show=number < _SHOWN_INSTRUCTIONS)
            for number, (judged, doubt) in enumerate(zip(unexplained, doubts, strict=True))
        )
        own = own_rank(violations)
        # where nothing asks the CPU, nothing is chosen, and a doubt means little
        is_choice = judgement.asks or any(violation.doubt == _ASKED_BY_PYTHON for violation in violations)
        dispatched = judgement.dispatched | (chosen(violations) if is_choice else frozenset())
        library = LibraryIsa(
            path,
            elf.machine,
            isa.code_size,
            level_of_features(isa.features - {UNKNOWN} | {UNKNOWN for _ in strange}, elf.machine),
            judgement.accepted,
            violations,
            tuple(sorted(name for name in dispatched - {UNKNOWN} if feature_rank(name) > own)),
        )
        findings = [
            *_unknown_findings(path, strange),
            *self._violation_findings(path, violations),
            *self._library_findings(path, isa),
            *_mark_findings(path, elf, claim),
        ]
        if level_of(path):
            findings += self._copy_findings(path, elf, isa)
        return library, tuple(findings)

    def _build_for_all(self, path: str) -> CodeFile | None:
        if level_of(path):
            return self._libraries.get(baseline_of(path))
        return self._baseline(path) if self._baseline else None

    def _is_open(self, path: str) -> bool:
        name = posixpath.basename(path)
        names = {name, name.lower()}  # Windows knows no case
        return not (is_grafted(path) and any(not names.isdisjoint(elf.needed) for elf in self._libraries.values()))

    def _doubts(self, path: str, unexplained: Sequence[Judged]) -> Iterator[str]:
        """For each, why it may be no violation; empty if it is shown to be one."""
        other = self._build_for_all(path) if unexplained else None
        baseline = Baseline(other, self._executor) if other else None
        is_asked = cache(lambda: is_asked_for(posixpath.basename(path).partition(".")[0], self._sources()))
        asks, published, rank = self._judged[path].asks, self._published(path), self._claim.on(path).cpu.rank
        for judged in unexplained:
            above = judged.isa.above(rank, extras=self._extras)
            if asks and baseline and baseline.has(judged.isa, judged.features):
                yield "the baseline build has the same: no flag for the level caused it"
            elif is_asked():
                yield _ASKED_BY_PYTHON
            # the published wheel may have a test that forgets a feature, too
            elif judged.doubt in _OPEN and above == judged.features and above <= published:
                yield f"{judged.doubt}; the published wheel chooses code for the same CPU features"
            elif judged.doubt == Doubt.MASKED:
                yield f"{judged.doubt}{ON_PROCESSOR}{masked_processor(judged.features, judged.isa.features)}"
            elif judged.doubt:
                yield judged.doubt
            else:
                yield ""

    def _violation_findings(self, path: str, violations: Sequence[Violation]) -> Iterator[Finding]:
        claim = self._claim.on(path)
        groups: dict[str, list[Violation]] = {}
        for violation in violations:
            groups.setdefault(violation.doubt, []).append(violation)
        for doubt, group in groups.items():
            is_ours = claim.is_explicit and not is_grafted(path)
            is_fault = not doubt or (doubt in _OPEN and is_ours)
            severity = claim.severity if is_fault else claim.doubt
            if doubt.startswith(Doubt.MASKED):
                severity = Severity.NOTE
            message = f"{_above(tuple(group), claim)}{f'; {doubt}' if doubt else ''}"
            if is_grafted(path):
                message += "; vbuild did not compile this library"
            advice = IF_ALLOWED.format(_accepting(path, group)) if severity is Severity.ERROR else ""
            yield Finding(severity, VerifyRule.ISA_ABOVE, (path,), message, advice)

    def _library_findings(self, path: str, isa: Isa) -> Iterator[Finding]:
        claim = self._claim.on(path)
        has = claim.cpu.features | self._extras | {UNKNOWN}
        beyond = ((one.region, one.doubtful - has) for one in isa.regions)
        doubtful = [region for region, names in beyond if names]
        if doubtful:
            message = f"{len(doubtful)} places above {claim} may be data and were not judged, {doubtful[0]} first"
            yield Finding(Severity.NOTE, VerifyRule.ISA_DOUBTFUL, (path,), message)

    def _copy_findings(self, path: str, elf: CodeFile, isa: Isa) -> Iterator[Finding]:
        base, rank = baseline_of(path), self._claim.on(path).cpu.rank
        lower = [at_level(base, name) for name in reversed(X86_64_LEVELS[1:rank])]
        nearest = next((other for other in (*lower, base) if other in self._libraries), None)
        if base not in self._libraries:
            yield Finding(Severity.ERROR, VerifyRule.HWCAPS, (path,), missing_base(base))
        elif fault := soname_fault(elf.soname, self._libraries[base].soname, where=base):
            yield Finding(Severity.ERROR, VerifyRule.HWCAPS, (path,), fault)
        if nearest and _code(self._libraries[nearest]) == _code(elf):
            lacking = f"the code of {nearest}"
        elif rank >= _V3 and not _uses_vex(path, isa):
            lacking = f"no VEX instruction in {isa.code_size} bytes of code"
        else:
            if rank >= _V4 and "AVX512F" not in isa.features:
                yield Finding(
                    Severity.NOTE, VerifyRule.ISA_FLAGS, (path,), "no AVX-512 instruction: v3's would do the same"
                )
            return
        cpu = Cpu.known(_MACHINE, X86_64_LEVELS[rank])
        message = f"{lacking}: the compiler's flags for {cpu} did not arrive, or made no difference"
        yield Finding(
            Severity.WARNING if isa.code_size >= _ENOUGH else Severity.NOTE, VerifyRule.ISA_FLAGS, (path,), message
        )


def chosen(violations: Iterable[Violation]) -> frozenset[str]:
    """The features that code of one library may be chosen for at run time, as the doubt about *violations* says.

    What its other code needs without a test is its own baseline, as is all of that level.
    """
    needed: set[str] = set()
    doubted: set[str] = set()
    for violation in violations:
        (doubted if violation.doubt else needed).update(violation.features)
    return frozenset(name for name in doubted - needed if feature_rank(name) > _level_rank(needed))


def own_rank(violations: Iterable[Violation]) -> int:
    """The rank of the level that a module with *violations* needs to be imported; 0 if these do not say.

    No module asks the CPU before its first function runs: code of that level is not chosen.
    """
    return _level_rank(
        feature
        for violation in violations
        if violation.function.startswith(_INITIALISERS)
        for feature in violation.features
    )


def _level_rank(features: Iterable[str]) -> int:
    return max((rank for rank in map(feature_rank, features) if rank < len(X86_64_LEVELS)), default=0)


def _host_facts(elf: CodeFile) -> bytes:
    """What *elf* is judged by besides its bytes; not where GPU code is."""
    symbols = (elf.functions, elf.objects, elf.import_places)
    spans = [(span.start, span.stop) for span in (*elf.writable, *elf.relro)]
    if not isinstance(elf, Elf):
        places = [(span.start, span.stop) for span in (*elf.areas, *elf.slots, *elf.starts)]
        facts = (elf.system, sorted(elf.given), sorted(elf.handlers.items()), elf.has_strange_handlers)
        return msgpack.encode((elf.soname, elf.needed, elf.entry, places, elf.pointers, spans, symbols, facts))
    device = [section.addresses for section in elf.sections if section.name in DEVICE_SECTIONS]
    sections = [
        (section.name, section.header.sh_flags, section.header.sh_addr, section.header.sh_size)
        for section in elf.sections
        if section.name not in DEVICE_SECTIONS
    ]
    pointers = [pointer for pointer in elf.pointers if not any(pointer[1] in addresses for addresses in device)]
    return msgpack.encode(
        (elf.soname, elf.needed, elf.entry, elf.called, sections, pointers, spans, symbols, elf.imports)
    )


def _unknown_findings(path: str, strange: Sequence[Judged]) -> Iterator[Finding]:
    if strange:
        first = strange[0].isa.region
        (use,) = (use for use in strange[0].uses or strange[0].isa.uses([UNKNOWN]) if use.feature == UNKNOWN)
        more = f"; and in {len(strange) - 1} more functions" if len(strange) > 1 else ""
        message = f"instruction sets: not understood: {use.address:#x} in {first}: {use.instruction}{more}"
        yield Finding(Severity.WARNING, VerifyRule.ISA_UNCHECKED, (path,), message)


def _needed_by(libraries: Iterable[CodeFile], beside: Mapping[str, Elf]) -> dict[str, Elf]:
    """Those of *beside* that *libraries* need, and that those need in turn."""
    names = {name for elf in libraries for name in elf.needed}
    needed: dict[str, Elf] = {}
    while more := {
        path: elf
        for path, elf in beside.items()
        if path not in needed and not names.isdisjoint({posixpath.basename(path), elf.soname})
    }:
        needed |= more
        names |= {name for elf in more.values() for name in elf.needed}
    return needed


def _mark_findings(path: str, elf: CodeFile, claim: Claim) -> Iterator[Finding]:
    if marks := [mark for mark in elf.isa_needed if X86_64_LEVELS.index(mark) > claim.cpu.rank]:
        message = f"marked as needing {Cpu.known(_MACHINE, marks[-1])}, above {claim}: glibc refuses to load it"
        yield Finding(claim.severity, VerifyRule.ISA_NOTE, (path,), message)


def _accepting(path: str, violations: Sequence[Violation]) -> list[str]:
    names = [violation.function for violation in violations]
    if is_grafted(path) or len(names) > _SHOWN or not all(map(_NAME.fullmatch, names)):
        return [pattern_of(path)]
    # rustc's hash of a function changes with the compiler and its flags
    return [f"^{RUST_HASH.sub('', name)}{'' if RUST_HASH.search(name) else '$'}" for name in names]


def pattern_of(path: str) -> str:
    return posixpath.basename(path).partition(".")[0].partition("-")[0]


def _above(violations: tuple[Violation, ...], claim: Claim) -> str:
    features = frozenset(feature for violation in violations for feature in violation.features)
    lowest = level_of_features(features, claim.cpu.machine)
    count = f"{len(violations)} function{'s' if len(violations) > 1 else ''}"
    tables = [next((step for step in violation.way if step.startswith(_VIRTUAL_TABLE)), "") for violation in violations]
    first, through = violations[:_SHOWN], ""
    if sum(map(bool, tables)) > _SHOWN:  # one cause, and not each function that it leads to
        first = (violations[tables.index(next(filter(None, tables)))],)
        names = [*dict.fromkeys(filter(None, tables))]
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        through = f", {len([*filter(None, tables)])} through virtual tables, {names[0]}{others}"
    more = f"; and {len(violations) - len(first)} more" if len(violations) > len(first) else ""
    shown = "; ".join(map(str, first))
    return f"needs {', '.join(sorted(features))} ({lowest}), above {claim}: {count}{through}: {shown}{more}"


def _code(elf: CodeFile) -> list[bytes]:
    return [code.data for code in elf.code]


def _uses_vex(path: str, isa: Isa) -> bool:
    """Whether code that is not chosen at run time has a VEX or EVEX instruction."""
    if named_rank(path.rpartition("/")[2]):
        return False
    return any(
        region.is_vector_encoded and not any(map(named_rank, region.region.function.names))
        for region in isa.regions
        if region.region.function
    )


def _violation(judged: Judged, doubt: str, *, show: bool) -> Violation:
    region = judged.isa.region
    uses = (judged.uses or judged.isa.uses(judged.features)) if show else ()
    instructions, features = tuple(map(str, uses)), tuple(sorted(judged.features))
    return Violation(str(region), f"{region.address:#x}", features, instructions, judged.way[:-1], doubt)
