"""The results of `vbuild verify` as values: findings, and what each library's code needs.

A finding's rule is a stable word for scripts; its text may change. ``data()`` is for JSON, ``of_data`` reads that.
"""

import re
from ast import literal_eval
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from vbuild.dispatch.judge import Reason
from vbuild.dispatch.reach import Doubt
from vbuild.elf.linkage import level_of
from vbuild.gpu_code.coverage import Coverage
from vbuild.hardware.cpu import Cpu, lesser_processor

_SHOWN_WAY = 3
_MOST_PROCESSORS = 4
_GRAFTED = re.compile(r"(^|/)([^/]+\.libs|\.dylibs)/")


class Severity(StrEnum):
    """How serious a finding is: an error breaks a promise, a warning may break one, a note is informative."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class VerifyRule(StrEnum):
    """The promise that a finding is about."""

    ARCHIVE = "archive"
    ABI = "abi"
    ATTESTATION = "attestation"
    VARIANT = "variant"
    CLAIM = "claim"
    CLASH = "soname-clash"
    DEPENDENCY = "dependency"
    DRIVER = "driver"
    ELF = "elf"
    EXECUTABLE_STACK = "executable-stack"
    FILE_NAME = "file-name"
    HWCAPS = "hwcaps"
    ISA_ABOVE = "isa-above"
    ISA_DOUBTFUL = "isa-doubtful"
    ISA_EMULATED = "isa-emulated"
    ISA_FLAGS = "isa-flags"
    ISA_GAIN = "isa-gain"
    ISA_NOTE = "isa-note"
    ISA_UNCHECKED = "isa-unchecked"
    MACHINE = "machine"
    MINIMUM_OS = "minimum-os"
    NEEDED = "needed"
    PAGES = "pages"
    PUBLISHED = "published"
    PURE = "pure"
    EXTENSION = "extension"
    GPU_CLAIM = "gpu-claim"
    GPU_CODE = "gpu-code"
    GPU_DRIVER = "gpu-driver"
    GPU_JIT = "gpu-jit"
    GPU_MISSING = "gpu-missing"
    GPU_PTX = "gpu-ptx"
    RPATH = "rpath"
    SBOM = "sbom"
    STATIC_TLS = "static-tls"
    SYMBOL_VERSION = "symbol-version"
    TAG = "tag"
    TEXTREL = "textrel"
    UNDEFINED = "undefined"
    UNPINNED = "unpinned"
    UNREAD = "unread"


# what the name of a processor follows in a doubt
ON_PROCESSOR = ", as qemu-x86_64 -cpu "
IF_ALLOWED = "if it runs only after a check of the CPU: verify.allow = {}"


class Finding(Struct, frozen=True):
    """A fault or a note on *places*: members of a wheel, or files to publish; none for a whole wheel."""

    severity: Severity
    rule: StrEnum
    places: tuple[str, ...]
    what: str
    advice: str = ""

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR

    @property
    def allow(self) -> tuple[str, ...]:
        _, _, patterns = self.advice.partition(IF_ALLOWED.format(""))
        return tuple(literal_eval(patterns)) if patterns else ()

    @property
    def place(self) -> str:
        more = len(self.places) - 1
        return f"{self.places[0]} and {more} more" if more > 0 else "".join(self.places)

    @property
    def sentence(self) -> str:
        return f"{self.place}: {self.what}" if self.places else self.what

    @property
    def advised(self) -> str:
        return "; ".join(filter(None, (self.sentence, self.advice)))

    def __str__(self) -> str:
        return f"{self.severity}: {self.advised} [{self.rule}]"


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    alike: dict[Finding, list[str]] = {}
    for finding in findings:
        alike.setdefault(replace(finding, places=()), []).extend(finding.places)
    return tuple(replace(finding, places=tuple(sorted(set(places)))) for finding, places in alike.items())


class Violation(Struct, frozen=True):
    """A function, at the hexadecimal *address*, that needs more than the claimed level.

    Only the first violations have *instructions*. *way* names the functions and tables that lead to it without a test
    of the processor. *doubt* says why it may be none.
    """

    function: str
    address: str
    features: tuple[str, ...]
    instructions: tuple[str, ...]
    way: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def processor(self) -> str:
        return self.doubt.partition(ON_PROCESSOR)[2] if self.doubt else lesser_processor(self.features)

    @property
    def kind(self) -> str:
        if not self.doubt:
            return _UNTESTED
        return _MASKED if self.doubt.startswith(Doubt.MASKED) else _NOT_SHOWN

    def __str__(self) -> str:
        return self.of("")

    def of(self, library: str) -> str:
        """The function, its *library*, the first instruction, and what calls it, if that is in the library, too."""
        first = self.instructions[0] if self.instructions else ", ".join(self.features)
        way = self.way if len(self.way) <= _SHOWN_WAY else (self.way[0], "...", *self.way[1 - _SHOWN_WAY :])
        function = f"{self.function} of {library}" if library else self.function
        return f"{function} ({first})" + (f" called without a test by {' > '.join(way)}" if way else "")


# kinds of functions above the level, right and wrong, for a table and for a sentence
_RIGHT: Mapping[str, str] = {
    Reason.TESTED: "tested",
    Reason.UNREACHED: "never reached",
    Reason.ALLOWED: "allowed by name",
}
_UNTESTED, _NOT_SHOWN, _MASKED = "untested", "not shown", "if nothing is masked"
_IN_FULL = {
    "tested": "only after the right test",
    _UNTESTED: "without a test",
    _MASKED: "after a test that suffices unless a hypervisor masks features",
}
# where the same holds for another build of the version
_SAME = {
    "the published wheel chooses": "the published wheel has the same",
    "the baseline build has the same": "the baseline build has the same",
}


class LibraryIsa(Struct, frozen=True):
    """What the code of one library needs: bytes of code, the highest level used, and the functions above the claim.

    *accepted* counts permitted functions above the claim, by reason; *dispatched* are features of these, and of
    doubtful violations.
    """

    member: str
    machine: str
    code_size: int
    level: str | None
    accepted: Mapping[str, int] = {}
    violations: tuple[Violation, ...] = ()
    dispatched: tuple[str, ...] = ()

    @property
    def functions_above(self) -> int:
        return sum(self.accepted.values()) + len(self.violations)

    @property
    def functions(self) -> Iterator[tuple[str, int]]:
        """The number of functions above the level by kind: ``tested``, ``not shown``, ..."""
        yield from ((_RIGHT.get(reason, reason), count) for reason, count in self.accepted.items())
        yield from Counter(violation.kind for violation in self.violations).items()

    def data(self) -> dict[str, Any]:
        fields = to_builtins(self)
        first = {name: fields[name] for name in ("member", "machine", "code_size", "level")}
        return {**first, "functions_above": self.functions_above, **fields}


class LibraryGpus(Struct, frozen=True):
    """The GPUs that the code of one library is for: *fatbins* that the runtime chooses from, with their architectures.

    *served* says how it serves each GPU that the wheel claims or has code for. *beside* names code that the library
    itself chooses.
    """

    member: str
    fatbins: int
    machine: tuple[str, ...]
    ptx: tuple[str, ...]
    served: tuple[Coverage, ...] = ()
    notes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        return {
            "member": self.member,
            "fatbins": self.fatbins,
            "machine": list(self.machine),
            "ptx": list(self.ptx),
            "gpus": [served.data() for served in self.served],
            "notes": list(self.notes),
            "beside": list(self.beside),
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            member=data["member"],
            fatbins=data["fatbins"],
            machine=tuple(data["machine"]),
            ptx=tuple(data["ptx"]),
            served=tuple(map(Coverage.of_data, data["gpus"])),
            notes=tuple(data["notes"]),
            beside=tuple(data.get("beside", ())),
        )


class SharedLibrary(Struct, frozen=True):
    """A library that files of its wheel need by *name*, so that one of another wheel may be taken instead.

    It *is_compatible* if its maker, or the platform, promises that another of that name will do.
    """

    name: str
    path: str
    digest: str
    is_compatible: bool


class Verdict(Struct, frozen=True):
    """Whether a wheel keeps what its name and metadata promise: the level it was checked for, and all findings.

    *claimed*: the wheel or the caller named that level; otherwise it is the baseline. *gpus* are the libraries with GPU
    code, *claimed_gpus* the GPUs that the wheel's variant names, *shared* what other wheels may replace. *is_question*:
    somebody asks whether it runs on *cpu*, which `summary` answers.
    """

    wheel: Path
    cpu: Cpu | None
    claimed: bool
    findings: tuple[Finding, ...]
    libraries: tuple[LibraryIsa, ...]
    gpus: tuple[LibraryGpus, ...] = ()
    claimed_gpus: tuple[str, ...] = ()
    shared: tuple[SharedLibrary, ...] = ()
    is_question: bool = False

    @property
    def failed(self) -> bool:
        return any(finding.is_error for finding in self.findings)

    @property
    def outcome(self) -> str:
        """``failed``, ``ok``, ``not shown`` if code above the level was not shown to be right, or ``not checked``."""
        if self.failed:
            return "failed"
        if self._unchecked or self.isa == "not checked":
            return "not checked"
        return "ok" if self.functions.keys() <= {*_RIGHT.values()} else "not shown"

    @property
    def _unchecked(self) -> list[Finding]:
        rule = VerifyRule.ISA_UNCHECKED
        return [finding for finding in self.findings if finding.rule is rule and finding.severity is Severity.WARNING]

    @property
    def _strange(self) -> Finding | None:
        # code that was looked at, and has bytes that were not understood
        judged = {library.member for library in self.libraries if library.level}
        return next((finding for finding in self._unchecked if not judged.isdisjoint(finding.places)), None)

    @property
    def isa(self) -> str:
        """The result for the instruction sets in a few words."""
        if not any(library.level for library in self.libraries):
            return "not checked" if self.libraries or self._unchecked else "no code"
        if any(
            finding.rule in {VerifyRule.ISA_ABOVE, VerifyRule.ISA_FLAGS} and finding.is_error
            for finding in self.findings
        ):
            return "failed"
        counts = self.functions
        words = [f"{count} {kind}" for kind, count in counts.items()]
        copies = [f"with {', '.join(self.levels)}"] if self.levels else []
        idle = any(
            finding.rule is VerifyRule.ISA_GAIN and finding.severity is Severity.WARNING for finding in self.findings
        )
        is_ok = counts.keys() <= {*_RIGHT.values()}
        state = ["not understood"] if self._strange else ["ok"] if is_ok else []
        return ", ".join((*state, *words, *copies, *(["no gain"] if idle else [])))

    @property
    def functions(self) -> Mapping[str, int]:
        """How many functions above the level that was checked there are of each kind."""
        counts: Counter[str] = Counter()
        for library in self.libraries:
            for kind, count in library.functions:
                counts[kind] += count
        return {kind: counts[kind] for kind in (*_RIGHT.values(), _UNTESTED, _NOT_SHOWN, _MASKED) if counts[kind]}

    @property
    def summary(self) -> str:
        """The verdict in a sentence, which begins with what is wrong or not shown; or the answer to a question."""
        return self._answer if self.is_question else self._judgement

    @property
    def _judgement(self) -> str:
        counts = self.functions
        if self.failed and self.isa != "failed":
            return self.outcome
        if self.outcome == "not checked" and not self._strange:
            warned = [finding for finding in self.findings if finding.severity is Severity.WARNING]
            return f"instruction sets not checked{'' if len(warned) > len(self._unchecked) else '; the rest ok'}"
        if _UNTESTED in counts:
            return f"crashes at {self._first(_UNTESTED)}"
        if self._strange and not self.failed:
            return f"cannot tell: {self._strange.sentence}"
        if counts.keys() <= {*_RIGHT.values()}:
            return self.outcome
        in_full = "; ".join(f"{count} {_IN_FULL.get(kind, kind)}" for kind, count in counts.items())
        doubts = [violation.doubt for library in self.libraries for violation in library.violations]
        same = next((words for start, words in _SAME.items() if all(start in doubt for doubt in doubts)), "")
        text = f"{sum(counts.values())} functions above {self.cpu}: {in_full}{f' ({same})' if same else ''}"
        return f"failed: {text}" if self.failed else text

    def _first(self, *kinds: str) -> str:
        """The first function above the level of one of *kinds*, its library, and how to see it on x86-64."""
        library, violation = next(
            (library, violation)
            for library in self.libraries
            for violation in library.violations
            if violation.kind in kinds
        )
        to_try = f"; try: qemu-x86_64 -cpu {violation.processor}" if library.machine == "x86_64" else ""
        doubt = f": {violation.doubt}" if violation.doubt else to_try
        return f"{violation.of(library.member)}{doubt}"

    @property
    def _answer(self) -> str:
        """Whether the code runs on processors of `cpu`, as far as the wheel's own code tells."""
        counts, errors = self.functions, [finding for finding in self.findings if finding.is_error]
        refused = next((finding for finding in errors if finding.rule is VerifyRule.ISA_NOTE), None)
        unread = [
            finding
            for finding in self.findings
            if finding.rule is VerifyRule.ISA_UNCHECKED and finding.severity is not Severity.NOTE
        ]
        if _UNTESTED in counts:
            return f"crashes on {self.cpu} at {self._first(_UNTESTED)}"
        if refused:
            return f"does not load on {self.cpu}: {refused.sentence}"
        if unread or self.isa == "not checked":
            return f"cannot tell: {unread[0].sentence if unread else 'instruction sets: not checked'}"
        if _NOT_SHOWN in counts:
            more = f", and {counts[_NOT_SHOWN] - 1} more functions" if counts[_NOT_SHOWN] > 1 else ""
            return f"cannot tell whether it runs on {self.cpu}: {self._first(_NOT_SHOWN)}{more}"
        above = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"
        other = "; failed for another reason" if errors else ""
        return f"runs on {self.cpu}; functions above that: {above}{other}"

    @property
    def processors(self) -> tuple[str, ...]:
        """Processors of qemu that lack what code of the wheel may need, the most frequent first."""
        counts = Counter(
            violation.processor
            for library in self.libraries
            if library.machine == "x86_64"
            for violation in library.violations
        )
        # "max" stands for one with more than any that is emulated: code that asks for that does not run there
        names = [name for name, _ in counts.most_common() if name and not name.startswith("max")]
        return tuple(names[:_MOST_PROCESSORS])

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels for which a library has a copy in a glibc-hwcaps folder, lowest first."""
        return tuple(sorted({level for library in self.libraries if (level := level_of(library.member))}))

    @property
    def gpu(self) -> str:
        """The result for the GPU code in a few words."""
        if not (self.gpus or self.claimed_gpus):
            return "no code"
        rules = {finding.rule for finding in self.findings if finding.is_error}
        if rules & {
            VerifyRule.GPU_CLAIM,
            VerifyRule.GPU_DRIVER,
            VerifyRule.GPU_MISSING,
            VerifyRule.GPU_JIT,
            VerifyRule.GPU_PTX,
        }:
            return "failed"
        warned = {finding.rule for finding in self.findings if finding.severity is Severity.WARNING}
        how = "in part" if VerifyRule.GPU_MISSING in warned else "ok"
        return f"{how}, for {', '.join(self.claimed_gpus)}" if self.claimed_gpus else "not claimed"

    @property
    def gpu_codes(self) -> tuple[str, ...]:
        """The architectures with GPU code, PTX after them, and last what the GPU's runtime does not choose from."""
        machine = dict.fromkeys(name for library in self.gpus for name in library.machine)
        ptx = dict.fromkeys(f"PTX for {name}" for library in self.gpus for name in library.ptx)
        beside = dict.fromkeys(name for library in self.gpus for name in library.beside)
        return (*machine, *ptx, *(f"{name} outside of what CUDA's runtime is given" for name in beside))

    def data(self) -> dict[str, Any]:
        return {
            "wheel": self.wheel.name,
            "cpu": str(self.cpu) if self.cpu else None,
            "claimed": self.claimed,
            "failed": self.failed,
            "isa": self.isa,
            "functions": self.functions,
            "gpu": self.gpu,
            "claimed_gpus": list(self.claimed_gpus),
            "findings": [
                {
                    "severity": finding.severity,
                    "rule": finding.rule,
                    "member": next(iter(finding.places), None),
                    "what": finding.what,
                    "advice": finding.advice,
                }
                for finding in self.findings
            ],
            "libraries": [library.data() for library in self.libraries],
            "gpus": [library.data() for library in self.gpus],
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any], wheel: Path) -> Self:
        return cls(
            wheel=wheel,
            cpu=Cpu.parse(data["cpu"]) if data["cpu"] else None,
            claimed=data["claimed"],
            findings=tuple(map(_finding, data["findings"])),
            libraries=convert(data["libraries"], tuple[LibraryIsa, ...]),
            gpus=tuple(map(LibraryGpus.of_data, data["gpus"])),
            claimed_gpus=tuple(data["claimed_gpus"]),
        )


def _finding(data: Mapping[str, Any]) -> Finding:
    places = () if data["member"] is None else (data["member"],)
    return Finding(Severity(data["severity"]), VerifyRule(data["rule"]), places, data["what"], data.get("advice", ""))


def is_grafted(path: str) -> bool:
    """Whether a repair tool copied the library at *path* into the wheel: it was built elsewhere, with other flags."""
    return _GRAFTED.search(path) is not None
