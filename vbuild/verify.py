"""`vbuild verify`: whether the bytes of a wheel keep what its name and its metadata promise.

    wheel -> archive and RECORD, variant.json, tags against contents, what the loader needs, instruction sets -> Verdict

Everything that is wrong is collected; a wheel that cannot be read at all is an error of its room instead.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from vbuild.binary.elf import MAGIC, Elf
from vbuild.binary.policy import Platform
from vbuild.binary.processes import processes
from vbuild.errors import BinaryError, ClaimError, HardwareError, VariantError, WheelError, at
from vbuild.hardware.cpu import Cpu
from vbuild.variant.document import Document
from vbuild.verdict.contents import content_findings
from vbuild.verdict.levels import Claim, Levels
from vbuild.verdict.linkage import Linkage
from vbuild.verdict.model import Finding, LibraryIsa, Rule, Severity, Verdict
from vbuild.wheel.archive import Member, Wheel, open_wheel

_X86_64 = "x86_64"
_SHARED_LIBRARY = re.compile(r"\.so(\.[\w.]+)?$")
# auditwheel's hash in libfoo-1a2b3c4d.so is that of the library it grafted, so it differs between builds
_GRAFT_HASH = re.compile(r"-[0-9a-f]{8}(?=\.so|\.[^/]*\.so|\.so\.)")
_LEVEL_FEATURE = "level"


def verify(
    wheel: Path,
    *,
    cpu: Cpu | None = None,
    baseline: Path | None = None,
    allow: Sequence[str] = (),
    jobs: int | None = None,
) -> Verdict:
    """What is wrong with *wheel*, held against the level in its variant.json, or else *cpu*, or else plain x86-64.

    *baseline* is the same project's wheel built without flags: what its code has too was not caused by them. *allow*
    are regular expressions for names of functions, or paths of libraries, that may go above the level. *jobs*
    processes disassemble, as many as there are cores for None.
    """
    patterns = tuple(map(_pattern, allow))
    with ExitStack() as stack:
        source = stack.enter_context(open_wheel(wheel))
        executor = stack.enter_context(processes(jobs))
        find = stack.enter_context(_libraries_of(baseline)) if baseline else None
        findings = list(_archive_findings(source))
        libraries = dict(_libraries(source, findings))
        claim, claim_findings = _claim(source, cpu)
        findings += claim_findings
        findings += content_findings(source, libraries)
        findings += _linkage_findings(source, libraries)
        levels = Levels(libraries, claim, baseline=find, allow=patterns, executor=executor)
        isas: list[LibraryIsa] = []
        for library, found in levels.verdicts():
            isas.append(library)
            findings += found
        findings += levels.wheel_findings()
    is_x86_64 = any(library.machine == _X86_64 for library in isas)
    return Verdict(
        wheel,
        claim.cpu if is_x86_64 or claim.is_explicit else None,
        claim.is_explicit,
        tuple(sorted(findings, key=lambda finding: list(Severity).index(finding.severity))),
        tuple(isas),
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ClaimError(f"allow: {text!r} is not a regular expression: {error}") from error


def _archive_findings(wheel: Wheel) -> Iterator[Finding]:
    """Members that are not what RECORD says they are."""
    for member in wheel.members:
        try:
            for _ in wheel.chunks(member):
                pass
        except WheelError as error:
            yield Finding(Severity.ERROR, Rule.ARCHIVE, member.path, str(error))


def _libraries(wheel: Wheel, findings: list[Finding]) -> Iterator[tuple[str, Elf]]:
    """The ELF files of *wheel* by path; what is damaged is added to *findings*."""
    for member in wheel.members:
        if any(finding.member == member.path for finding in findings) or not _is_elf(wheel, member):
            continue
        try:
            yield member.path, Elf.parse(wheel.read(member))
        except BinaryError as error:
            # test data of other tools may be broken on purpose
            is_library = _SHARED_LIBRARY.search(member.path) is not None
            severity = Severity.ERROR if is_library else Severity.WARNING
            findings.append(Finding(severity, Rule.ELF, member.path, str(error)))


def _is_elf(wheel: Wheel, member: Member) -> bool:
    chunks = wheel.chunks(member)
    return next(chunks, b"").startswith(MAGIC)


def _claim(wheel: Wheel, cpu: Cpu | None) -> tuple[Claim, tuple[Finding, ...]]:
    """The level to hold the code against, and what is wrong with what the wheel says of itself."""
    try:
        said = _said(wheel)
    except (VariantError, HardwareError) as error:
        finding = Finding(Severity.ERROR, Rule.VARIANT, f"{wheel.dist_info}/variant.json", str(error))
        return Claim(cpu or Cpu.parse("x86-64"), is_explicit=cpu is not None), (finding,)
    if said and cpu and said != cpu:
        what = f"claims {said} in its variant.json, expected {cpu}"
        return Claim(said, is_explicit=True), (Finding(Severity.ERROR, Rule.CLAIM, None, what),)
    level = said or cpu
    return Claim(level or Cpu.parse("x86-64"), is_explicit=level is not None), ()


def _said(wheel: Wheel) -> Cpu | None:
    """The lowest x86-64 level that the wheel's variant.json names; `VariantError` where that contradicts its name."""
    path = f"{wheel.dist_info}/variant.json"
    label = wheel.name.variant
    if wheel.find(path) is None:
        if label is not None:
            raise VariantError(f"missing; expected it to describe the variant {label!r} of the file name (PEP 825)")
        return None
    if label is None:
        raise VariantError("in a wheel whose file name has no variant label; expected none (PEP 825)")
    variant = Document.parse(wheel.read(path)).only(label)
    levels = [
        Cpu.known(_X86_64, found.value)
        for found in variant.properties
        if (found.namespace, found.feature) == (_X86_64, _LEVEL_FEATURE)
    ]
    return min(levels, key=lambda level: level.rank, default=None)


def _linkage_findings(wheel: Wheel, libraries: dict[str, Elf]) -> Iterator[Finding]:
    linked = {path: elf for path, elf in libraries.items() if elf.is_loadable}
    platforms = [platform for tag in wheel.name.platform.split(".") if (platform := Platform.parse(tag))]
    linkage = Linkage(linked, platforms, has_requirements=bool(wheel.metadata().requires_dist))
    for path in linked:
        yield from linkage.findings(path)


@contextmanager
def _libraries_of(wheel: Path) -> Iterator[Callable[[str], Elf | None]]:
    """A function that finds the library of *wheel* at a path, whatever hash its name has there."""
    with open_wheel(wheel) as source:
        members = {_GRAFT_HASH.sub("", member.path): member for member in source.members}

        @cache
        def find(path: str) -> Elf | None:
            member = members.get(_GRAFT_HASH.sub("", path))
            if member is None or not _is_elf(source, member):
                return None
            with at(wheel.name), at(path):
                return Elf.parse(source.read(member))

        yield find
