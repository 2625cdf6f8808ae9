"""`vbuild verify`: check that the bytes of a wheel keep what its name and metadata promise.

    wheel -> archive and RECORD, variant.json, tags against contents, what the loader needs, instruction sets,
             GPU code -> Verdict

What tags mean for the binaries:

    what each part promises   `vbuild.verification.promises`
    what the loader needs     `vbuild.verification.linkage`

Every fault becomes a finding; a wheel that cannot be read at all raises an error.
"""

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Self

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.binary.outline import BinaryFacts, Format
from vbuild.dispatch.isa import processes
from vbuild.elf.catalogue import is_shared_object
from vbuild.elf.code import CodeFile, Elf
from vbuild.elf.image import ElfImage
from vbuild.elf.linkage import level_of
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError, HardwareError, VariantError, WheelError, at
from vbuild.gpu_code.fatbin import MAGIC_BYTES
from vbuild.gpu_code.survey import DEVICE_SECTIONS, device_code
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import GpuOffer
from vbuild.macho.code import read_codes
from vbuild.pe.code import read_code
from vbuild.pe.image import PeImage, is_64_bit
from vbuild.sbom.keeping import bill_of, contradictions, cuts_of, path_of
from vbuild.sbom.model import GpuCut
from vbuild.variants.document import Document
from vbuild.verification.gpu_code import GpuClaim, GpuCodeCheck, LibraryCode
from vbuild.verification.levels import Claim, Levels
from vbuild.verification.linkage import LinkageCheck
from vbuild.verification.model import Finding, LibraryIsa, Severity, Verdict, VerifyRule, is_grafted
from vbuild.verification.promises import broken_promises, clashes, facts_of, is_foreign, shared_libraries, unchecked
from vbuild.verification.python_tests import is_python_code, python_code
from vbuild.verification.required import Fetch
from vbuild.wheel.archive import Wheel, open_wheel, peek
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.name import WheelName
from vbuild.wheel.slots import slots

_X86_64 = "x86_64"
# arm64 Macs begin with the M1
_M1 = Cpu.parse("armv8.4-a")
# auditwheel puts the hash of the original library into libfoo-1a2b3c4d.so, so the name differs between builds
_GRAFT_HASH = re.compile(r"-[0-9a-f]{8}(?=\.so|\.[^/]*\.so|\.so\.)")


def verify(
    wheel: Path,
    *,
    cpu: Cpu | None = None,
    is_question: bool = False,
    baseline: Path | None = None,
    allow: Sequence[str | re.Pattern[str]] = (),
    jobs: int | None = None,
    is_split: bool = False,
    fetch: Fetch | None = None,
    environment: Path | None = None,
    published: Callable[[str], frozenset[str]] | None = None,
    on_progress: Callable[[str], None] = lambda _step: None,
) -> Verdict:
    """Check *wheel* against the level in its variant.json, or else *cpu*, or else what each machine of its system has.

    *is_question*: not whether it was compiled for *cpu* counts, but whether it runs there; then the lower of the two
    levels is that of the check.
    *baseline* is the wheel built without flags: instructions that it has, too, are not due to flags. *allow* are
    regular expressions for functions, or paths of libraries, that may go above the level. A wheel that *is_split*
    afterwards may lack libraries of official packages. *fetch* brings -libs wheels that are not beside it.
    *environment* has what it may be loaded with. *published* gives the CPU features that the published wheel chooses
    code for: a doubt about these is a warning.
    """
    patterns = tuple(map(pattern, allow))
    with ExitStack() as stack:
        source = stack.enter_context(open_wheel(wheel, is_strict=True))
        executor = stack.enter_context(processes(jobs))
        find = stack.enter_context(_finder(baseline)) if baseline else None
        contents = _Contents.of(source)
        claims = _Claims.of(source, cpu, contents.images, is_question=is_question)
        libraries = contents.libraries
        findings = [*contents.findings, *claims.findings]
        findings += (
            Finding(Severity.WARNING, VerifyRule.ARCHIVE, (path,), message) for path, message in source.warnings()
        )
        findings += broken_promises(source, contents.facts, contents.foreign)
        findings += (
            Finding(Severity.ERROR, VerifyRule.SBOM, (path_of(source.dist_info),), message)
            for message in contradictions(source)
        )
        linkage = LinkageCheck.of(
            source, libraries, is_split=is_split, fetch=fetch, claims=claims.built_against, environment=environment
        )
        findings += linkage.findings()
        gpu_code = GpuCodeCheck(contents.gpu_codes, claims.gpus)
        findings += gpu_code.findings()
        claim, doubts = _claim_of_code(claims.cpu, source.name, libraries, contents.images)
        findings += doubts
        findings += contents.unchecked(claim.severity)
        isas: list[LibraryIsa] = []
        for one, files in _by_machine(claim, {**libraries, **contents.images}):
            levels = Levels(
                files,
                one,
                beside=linkage.beside,
                baseline=find,
                allow=patterns,
                executor=executor,
                sources=cache(lambda: _python_code(source)),
                published=published or (lambda _path: frozenset()),
                on_progress=lambda step: on_progress(f"{source.name.distribution} {source.name.version}: {step}"),
            )
            for library, found in levels.verdicts():
                isas.append(library)
                findings += found
            findings += levels.wheel_findings()
        shared = shared_libraries(source, contents.facts)
    is_judged = any(library.machine == claim.cpu.machine for library in isas)
    return Verdict(
        wheel,
        claim.cpu if is_judged or claim.is_explicit else None,
        claim.is_explicit,
        tuple(sorted(findings, key=lambda finding: list(Severity).index(finding.severity))),
        tuple(isas),
        tuple(gpu_code.libraries()),
        claims.gpus.values,
        shared,
        is_question=claim.is_question,
    )


def with_clashes(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The *verdicts* of wheels that go into one environment, with what of one stands in for another's library."""
    judged = list(verdicts)
    names = [WheelName.parse(verdict.wheel.name) for verdict in judged]
    wheels = [(name.project, slots(name), verdict.shared) for name, verdict in zip(names, judged, strict=True)]
    for number, other, finding in clashes(wheels):
        for own, its in ((number, other), (other, number)):
            place = finding.places[own != number]
            found = replace(finding, places=(place,), what=finding.what.format(judged[its].wheel.name))
            judged[own] = replace(judged[own], findings=(found, *judged[own].findings))
    return judged


def _by_machine(claim: Claim, files: Mapping[str, CodeFile]) -> Iterator[tuple[Claim, Mapping[str, CodeFile]]]:
    others = {path for path, file in files.items() if file.system == "macos" and file.machine != claim.cpu.machine}
    yield claim, {path: file for path, file in files.items() if path not in others}
    if others:
        level = Cpu.parse("x86-64") if claim.cpu.machine == _M1.machine else _M1
        yield Claim(level, is_explicit=False), {path: files[path] for path in sorted(others)}


def _claim_of_code(
    claim: Claim, name: WheelName, libraries: Mapping[str, Elf], images: Mapping[str, CodeFile]
) -> tuple[Claim, tuple[Finding, ...]]:
    """The claim that the code is held to, and what is wrong with the *claim* of the wheel *name*.

    A wheel without a level claims the one that all *libraries* are marked with. *images* are code of other formats.
    """
    if claim.is_explicit:
        machines = sorted({image.machine for image in images.values()}) or name.machines
        if not machines or claim.cpu.machine in machines:
            return claim, ()
        message = f"{claim} is of {claim.cpu.machine}, and the wheel for {', '.join(machines)}: no machine has both"
        return claim, (Finding(Severity.ERROR, VerifyRule.CLAIM, (), message),)
    if not (marked := _marked(libraries)):
        return claim, ()
    message = f"marked as {marked} throughout, which its tags do not say: below that, glibc 2.33 and newer refuse to"
    warning = Finding(Severity.WARNING, VerifyRule.ISA_NOTE, (), f"{message} load it, and others crash")
    return Claim(marked, is_explicit=True), (warning,)


def fatbins(wheel: Path) -> dict[str, Counter[tuple[GpuOffer, ...]]]:
    """How many fatbins each library of *wheel* has, by what they offer; `WheelError` or `BinaryError` if damaged."""
    by_library: dict[str, Counter[tuple[GpuOffer, ...]]] = {}
    with open_wheel(wheel) as source:
        for member in source.members:
            if source.head(member, len(MAGIC)) == MAGIC:
                with source.mapped(member) as data, at(member.path):
                    if code := LibraryCode.of(device_code(ElfImage.parse(data))):
                        by_library[member.path] = Counter[tuple[GpuOffer, ...]]()
                        for fatbin in code.fatbins:
                            by_library[member.path][fatbin.offers] += fatbin.count
    return by_library


def pattern(text: str | re.Pattern[str]) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise WheelError(f"allow: {text!r} is not a regular expression: {error}") from error


# what stands in front of the machine of one half of a universal2 file
HALF = " ("
_FATBIN = re.compile(re.escape(MAGIC_BYTES))
_SYSTEMS = {Format.ELF: "Linux files (ELF)", Format.PE: "Windows files (PE)", Format.MACHO: "macOS files (Mach-O)"}
# what `vbuild.verification.promises` looks at
_COMPARED = {
    Format.PE: "machine, names of modules and what they take from Python",
    Format.MACHO: "machine, oldest macOS, names of modules and what they take from Python",
}


@dataclass(slots=True)
class _Contents:
    """The ELF files of a wheel, other code, *facts* of both, their GPU code, and why something is *unread*, by path.

    *foreign* files are for other systems.
    """

    facts: dict[str, tuple[BinaryFacts, ...]] = field(default_factory=dict)
    libraries: dict[str, Elf] = field(default_factory=dict)
    others: dict[str, Format] = field(default_factory=dict)
    images: dict[str, CodeFile] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    foreign: dict[str, Format] = field(default_factory=dict)
    gpu_codes: dict[str, LibraryCode] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    cuts: Mapping[str, GpuCut] = field(default_factory=dict)

    @classmethod
    def of(cls, wheel: Wheel) -> Self:
        """Read every member of *wheel* once and check it against RECORD."""
        contents = cls(cuts=cuts_of(bill_of(wheel)))
        for member in wheel.members:
            try:
                kind = Format.of(member.path, partial(wheel.head, member))
                if kind is None:
                    for _ in wheel.chunks(member):
                        pass
                    continue
                with wheel.mapped(member) as data:
                    if is_foreign(wheel.name, kind):
                        contents.foreign[member.path] = kind
                        continue
                    try:
                        contents.facts[member.path] = facts_of(kind, data)
                    except BinaryError as error:
                        # of ELF files the reader of code says the same
                        contents.findings += [unchecked(member.path, error)] if kind is not Format.ELF else []
                    if kind is Format.ELF:
                        contents._read(member.path, data)
                    else:
                        contents._read_other(member.path, data, kind)
            except WheelError as error:
                contents.findings.append(Finding(Severity.ERROR, VerifyRule.ARCHIVE, (member.path,), str(error)))
        return contents

    def _read_other(self, path: str, data: memoryview, kind: Format) -> None:
        self.others[path] = kind
        try:
            self.images |= codes_of(path, data, kind)
        except BinaryError as error:
            self.unread[path] = str(error)
        try:
            if is_64_bit(lambda size: bytes(data[:size])) and (
                code := LibraryCode.of(device_code(PeImage.parse(data)), self.cuts.get(path))
            ):
                self.gpu_codes[path] = code
        except BinaryError as error:
            self.findings.append(Finding(Severity.WARNING, VerifyRule.GPU_CODE, (path,), str(error)))

    def unchecked(self, severity: Severity) -> Iterator[Finding]:
        """Code that was not understood, and what is not checked of files of other formats."""
        reasons: dict[str, list[str]] = {}
        for path, reason in self.unread.items():
            reasons.setdefault(reason, []).append(path)
        for reason, paths in reasons.items():
            yield Finding(severity, VerifyRule.ISA_UNCHECKED, tuple(paths), f"instruction sets: not checked: {reason}")
        for kind in sorted(set(self.foreign.values())):
            places = tuple(path for path, other in self.foreign.items() if other is kind)
            message = f"{_SYSTEMS[kind]} in a wheel for other systems, which load none of them: not checked"
            yield Finding(Severity.NOTE, VerifyRule.ISA_UNCHECKED, places, message)
        for kind in sorted({kind for path, kind in self.others.items() if path in self.facts}):
            message = f"of {_SYSTEMS[kind]}, {_COMPARED[kind]} were compared with the tags; whether the other libraries"
            message += " that they need are there was not checked: vbuild inspect --closure shows them"
            yield Finding(Severity.NOTE, VerifyRule.NEEDED, (), message)

    def _read(self, path: str, data: memoryview) -> None:
        try:
            self.libraries[path] = elf = Elf.parse(data)
        except BinaryError as error:
            # packages contain broken files for their own tests
            severity = Severity.ERROR if is_shared_object(path) else Severity.WARNING
            self.findings.append(Finding(severity, VerifyRule.ELF, (path,), str(error)))
            return
        # a library may hold fatbins among its constants, and hand them to the driver itself
        if not any(section.name in DEVICE_SECTIONS for section in elf.sections) and not _FATBIN.search(data):
            return
        try:
            self.gpu_codes[path] = LibraryCode.of(device_code(ElfImage.parse(data)), self.cuts.get(path))
        except BinaryError as error:
            self.findings.append(Finding(Severity.WARNING, VerifyRule.GPU_CODE, (path,), str(error)))


def codes_of(path: str, data: memoryview, kind: Format) -> dict[str, CodeFile]:
    if kind is Format.ELF:
        return {path: Elf.parse(data)}
    if kind is Format.PE:
        return {path: read_code(data)}
    images = read_codes(data)
    return {path if len(images) == 1 else f"{path}{HALF}{code.machine})": code for code in images}


def claimed_cpu(wheel: Path) -> Cpu | None:
    """The lowest level that the variant.json of *wheel* names, or None; `VbuildError` if it cannot be read."""
    with at(wheel.name):
        document = Document.of_wheel(WheelName.parse(wheel.name).variant, peek(wheel, VARIANT_JSON))
        properties = document.variants[0].properties if document else ()
        return Cpu.of_properties(map(str, properties))


class _Claims(Struct, frozen=True):
    cpu: Claim
    gpus: GpuClaim = GpuClaim()
    findings: tuple[Finding, ...] = ()
    built_against: Mapping[str, tuple[str, ...]] = {}

    @classmethod
    def of(cls, wheel: Wheel, cpu: Cpu | None, images: Mapping[str, CodeFile], *, is_question: bool) -> Self:
        machines = {image.machine for image in images.values()}
        arm = _M1 if machines == {_M1.machine} else Cpu.parse("armv8-a")
        is_arm = (machines or {*wheel.name.machines}) == {arm.machine}
        level = cpu or (arm if is_arm else Cpu.parse("x86-64"))
        default = Claim(level, is_explicit=cpu is not None, is_question=is_question)
        path = f"{wheel.dist_info}/{VARIANT_JSON}"
        try:
            document = Document.of_wheel(wheel.name.variant, wheel.variant_json)
            if document is None:
                return cls(default)
            variant = document.variants[0]
            claimed = Cpu.of_properties(map(str, variant.properties))
        except (VariantError, HardwareError) as error:
            return cls(default, findings=(Finding(Severity.ERROR, VerifyRule.VARIANT, (path,), str(error)),))
        gpus, findings = GpuClaim.of(variant)
        findings = (
            *(Finding(Severity.NOTE, VerifyRule.VARIANT, (path,), note) for note in document.notes),
            *findings,
        )
        built_against: dict[str, tuple[str, ...]] = {
            canonicalize_name(feature.name): feature.values
            for feature in variant.features
            if document.metadata.is_abi(feature.namespace)
        }
        if claimed is None:
            return cls(default, gpus, findings, built_against)
        if cpu and claimed != cpu:
            message = f"claims {claimed} in its variant.json, expected {cpu}"
            findings = (Finding(Severity.ERROR, VerifyRule.CLAIM, (), message), *findings)
            if is_question and cpu.machine == claimed.machine and cpu.rank < claimed.rank:
                return cls(default, gpus, findings, built_against)
        return cls(Claim(claimed, is_explicit=True, is_question=is_question), gpus, findings, built_against)


def _marked(libraries: Mapping[str, Elf]) -> Cpu | None:
    own = {
        Cpu.known(_X86_64, elf.isa_needed[-1]) if elf.isa_needed else None
        for path, elf in libraries.items()
        if elf.is_loadable and elf.machine == _X86_64 and not is_grafted(path) and level_of(path) is None
    }
    cpu = own.pop() if len(own) == 1 else None
    return cpu if cpu and cpu.rank else None


def _python_code(wheel: Wheel) -> Sequence[str]:
    return [
        python_code(path, wheel.read(str(path)).decode("utf-8", "replace"))
        for path in (PurePosixPath(member.path) for member in wheel.members)
        if is_python_code(path)
    ]


@contextmanager
def _finder(wheel: Path) -> Iterator[Callable[[str], CodeFile | None]]:
    """Yield a function that finds the library at a path, whatever hash its name has.

    For a stub without code it gives the library that the stub loads on every processor.
    """
    with open_wheel(wheel) as source:
        members = {_GRAFT_HASH.sub("", member.path): member for member in source.members}
        by_name = {posixpath.basename(path): path for path in members if level_of(path) is None}

        def read(path: str) -> CodeFile | None:
            file = path.partition(HALF)[0]
            if (member := members.get(file)) is None or not (kind := Format.of(file, partial(source.head, member))):
                return None
            with source.mapped(member) as data, at(wheel.name), at(file):
                return codes_of(file, data, kind).get(path)

        @cache
        def find(path: str) -> CodeFile | None:
            library = read(_GRAFT_HASH.sub("", path))
            if library and not library.code:
                behind = (by_name.get(_GRAFT_HASH.sub("", name)) for name in library.needed)
                return next((elf for place in behind if place and (elf := read(place))), library)
            return library

        yield find
