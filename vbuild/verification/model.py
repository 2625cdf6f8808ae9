"""What a check of a wheel found, as values: findings, and for each library what its code needs.

A finding has a rule, a stable word that a script can look for; the text may change. Every value here has ``data()``,
which JSON takes, and ``of_data``, which gives the value back.

Whether the binaries in a wheel are of the kind that its tags say.

any, Root-Is-Purelib   no binaries at all
x86_64, aarch64 ...    binaries for that machine
cp311, abi3, none      extension modules that such a Python imports
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from vbuild.elf.file import Elf
from vbuild.elf.library_names import level_of
from vbuild.elf.policy import PlatformPolicy
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import Arch, GpuServed
from vbuild.wheel.archive import Wheel

_SM = "sm_"


class Severity(StrEnum):
    """How much a finding weighs: an error breaks a promise, a warning may, a note is good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class VerifyRule(StrEnum):
    """Which promise a finding is about."""

    ARCHIVE = "archive"
    VARIANT = "variant"
    CLAIM = "claim"
    ELF = "elf"
    HWCAPS = "hwcaps"
    ISA_ABOVE = "isa-above"
    ISA_DOUBTFUL = "isa-doubtful"
    ISA_FLAGS = "isa-flags"
    ISA_NOTE = "isa-note"
    ISA_UNCHECKED = "isa-unchecked"
    MACHINE = "machine"
    NEEDED = "needed"
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
    SYMBOL_VERSION = "symbol-version"


class Finding(Struct, frozen=True):
    """One thing found: how bad, under which rule, in which member; None for the wheel as a whole."""

    severity: Severity
    rule: VerifyRule
    member: str | None
    what: str

    def __str__(self) -> str:
        return f"{self.severity}: {f'{self.member}: ' if self.member else ''}{self.what} [{self.rule}]"

    def data(self) -> dict[str, Any]:
        return {"severity": str(self.severity), "rule": str(self.rule), "member": self.member, "what": self.what}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(Severity(data["severity"]), VerifyRule(data["rule"]), data["member"], data["what"])


class Violation(Struct, frozen=True):
    """A function that needs more than the claimed level, with the first instruction for each feature.

    In a library with thousands of them the later ones come without instructions.
    """

    function: str
    address: int
    features: tuple[str, ...]
    instructions: tuple[str, ...]

    def __str__(self) -> str:
        first = self.instructions[0] if self.instructions else ", ".join(self.features)
        return f"{self.function} ({first})"

    def data(self) -> dict[str, Any]:
        return {
            "function": self.function,
            "address": f"{self.address:#x}",
            "features": list(self.features),
            "instructions": list(self.instructions),
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        address = int(data["address"], 16)
        return cls(data["function"], address, tuple(data["features"]), tuple(data["instructions"]))


class LibraryIsa(Struct, frozen=True):
    """What the code of one library needs: bytes of code, the highest level in use, and the functions above the claim.

    *accepted* counts the functions above the claim by the reason why they are no violations.
    """

    member: str
    machine: str
    code_size: int
    level: str | None
    accepted: tuple[tuple[str, int], ...] = ()
    violations: tuple[Violation, ...] = ()

    @property
    def functions_above(self) -> int:
        return sum(count for _, count in self.accepted) + len(self.violations)

    def data(self) -> dict[str, Any]:
        return {
            "member": self.member,
            "machine": self.machine,
            "code_size": self.code_size,
            "level": self.level,
            "functions_above": self.functions_above,
            "accepted": dict(self.accepted),
            "violations": [violation.data() for violation in self.violations],
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            member=data["member"],
            machine=data["machine"],
            code_size=data["code_size"],
            level=data["level"],
            accepted=tuple(data["accepted"].items()),
            violations=tuple(map(Violation.of_data, data["violations"])),
        )


class LibraryGpus(Struct, frozen=True):
    """What GPUs the code of one library is for.

    *fatbins* counts those that the GPU's runtime chooses from; *machine* and *ptx* name the architectures in them, as
    the vendor does; *served* says how each GPU fares that the wheel claims or has code for. *notes* tell what was not
    understood.
    """

    member: str
    fatbins: int
    machine: tuple[str, ...]
    ptx: tuple[str, ...]
    served: tuple[GpuServed, ...] = ()
    notes: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        return {
            "member": self.member,
            "fatbins": self.fatbins,
            "machine": list(self.machine),
            "ptx": list(self.ptx),
            "gpus": [{**served.data(), "runs": str(served)} for served in self.served],
            "notes": list(self.notes),
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            member=data["member"],
            fatbins=data["fatbins"],
            machine=tuple(data["machine"]),
            ptx=tuple(data["ptx"]),
            served=tuple(map(_served, data["gpus"])),
            notes=tuple(data["notes"]),
        )


def _served(data: Mapping[str, Any]) -> GpuServed:
    # not Arch.parse: there may be code for a GPU that is newer than vbuild
    device = Arch(int(data["gpu"].removeprefix(_SM)))
    return GpuServed(device, data["machine"], data["jit"], data["nothing"])


class Verdict(Struct, frozen=True):
    """Whether a wheel keeps what its name and metadata promise: the level it was checked for, and all that was found.

    *claimed* says whether the wheel or the caller named that level; without a claim it is the baseline's. *gpus* are
    the libraries with GPU code, and *claimed_gpus* the GPUs that the wheel's variant names.
    """

    wheel: Path
    cpu: Cpu | None
    claimed: bool
    findings: tuple[Finding, ...]
    libraries: tuple[LibraryIsa, ...]
    gpus: tuple[LibraryGpus, ...] = ()
    claimed_gpus: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def isa(self) -> str:
        """The verdict on the instruction sets in a few words, for a table."""
        if not any(library.level for library in self.libraries):
            return "not checked" if self.libraries else "no code"
        if any(
            finding.rule in {VerifyRule.ISA_ABOVE, VerifyRule.ISA_FLAGS} and finding.severity is Severity.ERROR
            for finding in self.findings
        ):
            return "failed"
        accepted = sum(count for library in self.libraries for _, count in library.accepted)
        dispatched = (f"{accepted} dispatched",) if accepted else ()
        copies = (f"with {', '.join(self.levels)}",) if self.levels else ()
        return ", ".join(("ok", *dispatched, *copies))

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that some library has a copy for in a glibc-hwcaps folder, lowest first: ``v3``, ``v4``."""
        return tuple(sorted({level for library in self.libraries if (level := level_of(library.member))}))

    @property
    def gpu(self) -> str:
        """The verdict on the GPU code in a few words, for a table."""
        if not (self.gpus or self.claimed_gpus):
            return "no code"
        rules = {finding.rule for finding in self.findings if finding.severity is Severity.ERROR}
        if rules & {VerifyRule.GPU_CLAIM, VerifyRule.GPU_MISSING, VerifyRule.GPU_JIT, VerifyRule.GPU_PTX}:
            return "failed"
        return f"ok, for {', '.join(self.claimed_gpus)}" if self.claimed_gpus else "not claimed"

    @property
    def gpu_codes(self) -> tuple[str, ...]:
        """What there is GPU code for in any library, PTX last: ``sm_90``, ``PTX for sm_90``."""
        machine = dict.fromkeys(name for library in self.gpus for name in library.machine)
        ptx = dict.fromkeys(f"PTX for {name}" for library in self.gpus for name in library.ptx)
        return (*machine, *ptx)

    def data(self) -> dict[str, Any]:
        """The verdict as JSON takes it."""
        return {
            "wheel": self.wheel.name,
            "cpu": str(self.cpu) if self.cpu else None,
            "claimed": self.claimed,
            "failed": self.failed,
            "isa": self.isa,
            "gpu": self.gpu,
            "claimed_gpus": list(self.claimed_gpus),
            "findings": [finding.data() for finding in self.findings],
            "libraries": [library.data() for library in self.libraries],
            "gpus": [library.data() for library in self.gpus],
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any], wheel: Path) -> Self:
        """The verdict on *wheel* that was written as *data*, which has no more than its name."""
        return cls(
            wheel=wheel,
            cpu=Cpu.parse(data["cpu"]) if data["cpu"] else None,
            claimed=data["claimed"],
            findings=tuple(map(Finding.of_data, data["findings"])),
            libraries=tuple(map(LibraryIsa.of_data, data["libraries"])),
            gpus=tuple(map(LibraryGpus.of_data, data["gpus"])),
            claimed_gpus=tuple(data["claimed_gpus"]),
        )


# foo.cpython-311-x86_64-linux-gnu.so: only that Python looks for it (PEP 3149)
_TAGGED = re.compile(r"\.cpython-(?P<version>\d+)(?P<flags>[a-z]*)-[\w-]+\.so$")
_ABI_TAG = re.compile(r"cp(?P<module>\d+[a-z]*)")
# i386 to i686, armv6l to armv8l: one instruction set to ELF
_KINDS = (re.compile(r"i[3-6]86"), re.compile(r"armv[678]l"))

_GRAFTED = re.compile(r"(^|/)[^/]+\.libs/")


def is_grafted(path: str) -> bool:
    """Whether a repair tool put the library at *path* beside the package: others built it, before the wheel."""
    return _GRAFTED.search(path) is not None


def content_findings(wheel: Wheel, libraries: Mapping[str, Elf]) -> Iterator[Finding]:
    """What the *libraries* of *wheel* contradict in its tags and its WHEEL file."""
    tags = wheel.name.platform.split(".")
    linked = {path: elf for path, elf in libraries.items() if elf.is_loadable}
    if linked and "any" in tags:
        what = (
            f"{len(linked)} binaries, {next(iter(linked))} first, in a wheel for any platform; expected a platform tag"
        )
        yield Finding(Severity.ERROR, VerifyRule.PURE, None, what)
    elif linked and wheel.wheel_file().root_is_purelib:
        what = "Root-Is-Purelib is true in a wheel with binaries; expected false (they belong to the platform's folder)"
        yield Finding(Severity.WARNING, VerifyRule.PURE, None, what)
    machines = {platform.machine for tag in tags if (platform := PlatformPolicy.parse(tag))}
    for path, elf in linked.items():
        if machines and not any(_same_machine(machine, elf.machine) for machine in machines):
            what = f"code for {elf.machine} in a wheel for {', '.join(sorted(machines))}"
            yield Finding(Severity.ERROR, VerifyRule.MACHINE, path, what)
    yield from _module_findings(wheel, linked)


def _same_machine(tag: str, machine: str) -> bool:
    return tag == machine or any(kind.fullmatch(tag) and kind.fullmatch(machine) for kind in _KINDS)


def _module_findings(wheel: Wheel, paths: Iterable[str]) -> Iterator[Finding]:
    """The extension modules that no Python of the wheel's tags looks for, or only one of many."""
    modules: dict[str, dict[str, str]] = {}
    for path in paths:
        if match := _TAGGED.search(path):
            modules.setdefault(path[: match.start()], {})[match["version"] + match["flags"]] = path
    abis = wheel.name.abi.split(".")
    exact = {found["module"] for abi in abis if (found := _ABI_TAG.fullmatch(abi))}
    for copies in modules.values():
        module, path = next(iter(copies.items()))
        said = f"an extension module of CPython {module} only, in a wheel for {wheel.name.python}-{wheel.name.abi}"
        if exact and exact.isdisjoint(copies):
            yield Finding(Severity.ERROR, VerifyRule.EXTENSION, path, f"{said}, which does not look for it")
        elif not exact and len(copies) == 1:
            yield Finding(
                Severity.WARNING, VerifyRule.EXTENSION, path, f"{said}; expected .abi3.so, or a copy for each"
            )
