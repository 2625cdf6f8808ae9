"""Whether the code in a wheel keeps to the CPU level that the wheel claims, and whether it makes use of it.

too high   a function that every caller runs needs a feature that the level does not have
too low    the compiler's flags did not arrive: no VEX instruction at v3 or v4, or the baseline's very code
marks      the x86 ISA property, by which glibc refuses a library on a lesser processor
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from vbuild.binary.dispatch import Baseline, Evidence, Judged, asks_processor, judged, named_rank
from vbuild.binary.elf import Elf
from vbuild.binary.features import level
from vbuild.binary.features import rank as rank_of
from vbuild.binary.isa import Isa
from vbuild.hardware.cpu import X86_64_LEVELS, Cpu
from vbuild.verdict.contents import is_grafted
from vbuild.verdict.model import Finding, LibraryIsa, Rule, Severity, Violation

_MACHINE = "x86_64"
_V3 = X86_64_LEVELS.index("v3")
_V4 = X86_64_LEVELS.index("v4")
# bytes of own code in which a compiler for v3 has found a use for a VEX instruction: a move of 32 bytes, a shift by a
# variable; start-up code and an empty module are 2 KB
_ENOUGH = 16384
_SHOWN = 3
# in how many functions the instructions are looked for, which takes longer than all the rest
_SHOWN_INSTRUCTIONS = 1000


@dataclass(frozen=True, slots=True)
class Claim:
    """The level that a wheel's code has to keep to, and whether somebody named it or it is merely the baseline."""

    cpu: Cpu
    is_explicit: bool

    @property
    def severity(self) -> Severity:
        """What breaking it is: nobody promised that a plain wheel runs on the first x86-64 processors."""
        return Severity.ERROR if self.is_explicit else Severity.WARNING

    def __str__(self) -> str:
        return f"the claimed {self.cpu}" if self.is_explicit else f"{self.cpu}, which is all that its tags promise"


class Levels:
    """The libraries of one wheel against its claim; those of the *baseline* build by the same paths."""

    def __init__(
        self,
        libraries: Mapping[str, Elf],
        claim: Claim,
        *,
        baseline: Callable[[str], Elf | None] | None = None,
        allow: Sequence[re.Pattern[str]] = (),
        executor: Executor | None = None,
    ) -> None:
        self._libraries = {path: elf for path, elf in libraries.items() if elf.is_loadable}
        self._claim = claim
        self._baseline = baseline
        self._allow = tuple(allow)
        self._executor = executor
        self._isas = {path: Isa.scan(elf, executor) for path, elf in self._libraries.items() if elf.machine == _MACHINE}
        self._asks = any(asks_processor(self._libraries[path], isa) for path, isa in self._isas.items())

    def verdicts(self) -> Iterator[tuple[LibraryIsa, tuple[Finding, ...]]]:
        """Each library's instruction sets, with what is wrong or worth knowing about them."""
        for path, elf in self._libraries.items():
            if path in self._isas:
                yield self._verdict(path, elf, self._isas[path])
            else:
                what = f"code for {elf.machine}: instruction sets are checked for x86-64 only"
                finding = Finding(Severity.NOTE, Rule.ISA_UNCHECKED, path, what)
                yield LibraryIsa(path, elf.machine, elf.code_size, None), (finding,)

    def wheel_findings(self) -> Iterator[Finding]:
        """What is wrong with the wheel as a whole: flags that reached none of its own code."""
        own = {path: isa for path, isa in self._isas.items() if not is_grafted(path)}
        size = sum(isa.code_size for isa in own.values())
        rank = self._claim.cpu.rank
        if not self._claim.is_explicit or rank == 0:
            return
        if not self._libraries:
            what = f"no compiled code: nothing in it is for {self._claim.cpu}"
            yield Finding(Severity.WARNING, Rule.ISA_FLAGS, None, what)
        if not own:
            return
        if bare := [path for path in own if self._claim.cpu.level not in self._libraries[path].isa_needed]:
            what = f"{len(bare)} of {len(own)} libraries, {bare[0]} first, are not marked with -z {self._claim.cpu}"
            text = f"{what}: on a lesser processor they stop at an instruction instead of being refused"
            yield Finding(Severity.NOTE, Rule.ISA_NOTE, None, text)
        if same := self._as_baseline(tuple(own)):
            lacking = f"the code of {same} is that of the baseline build"
        elif rank >= _V3 and not any(map(_uses_vex, own, own.values())):
            lacking = "no VEX instruction"
        else:
            if rank >= _V4 and not any("AVX512F" in isa.features for isa in own.values()):
                what = "no AVX-512 instruction in its own code: the v3 wheel would do the same"
                yield Finding(Severity.NOTE, Rule.ISA_FLAGS, None, what)
            return
        is_sure = rank >= _V3 and size >= _ENOUGH
        what = f"{lacking} in {size} bytes of its own code: the compiler's flags for {self._claim.cpu} did not arrive"
        if not is_sure:
            what += ", or made no difference"
        yield Finding(Severity.ERROR if is_sure else Severity.NOTE, Rule.ISA_FLAGS, None, what)

    def _as_baseline(self, own: Sequence[str]) -> str | None:
        """The libraries in words, if each has the very code that it has in the baseline build."""
        if not self._baseline:
            return None
        for path in own:
            other = self._baseline(path)
            if other is None or [code.data for code in other.code] != [
                code.data for code in self._libraries[path].code
            ]:
                return None
        return own[0] if len(own) == 1 else f"all {len(own)} libraries"

    def _verdict(self, path: str, elf: Elf, isa: Isa) -> tuple[LibraryIsa, tuple[Finding, ...]]:
        other = self._baseline(path) if self._baseline else None
        evidence = Evidence(path, self._asks, Baseline(other, self._executor) if other else None, self._allow)
        above = judged(elf, isa, self._claim.cpu.rank, evidence=evidence, executor=self._executor)
        accepted = Counter(str(one.reason) for one in above if one.reason)
        unexplained = [one for one in above if not one.reason]
        violations = tuple(_violation(one, show=number < _SHOWN_INSTRUCTIONS) for number, one in enumerate(unexplained))
        library = LibraryIsa(
            path, elf.machine, isa.code_size, level(isa.features), tuple(accepted.most_common()), violations
        )
        return library, tuple(self._library_findings(path, elf, isa, violations))

    def _library_findings(self, path: str, elf: Elf, isa: Isa, violations: tuple[Violation, ...]) -> Iterator[Finding]:
        if violations:
            yield Finding(self._claim.severity, Rule.ISA_ABOVE, path, self._above(violations))
        rank = self._claim.cpu.rank
        if doubtful := [one.region for one in isa.regions if any(rank_of(feature) > rank for feature in one.doubtful)]:
            what = f"{len(doubtful)} places above {self._claim} may be data and were not judged, {doubtful[0]} first"
            yield Finding(Severity.NOTE, Rule.ISA_DOUBTFUL, path, what)
        yield from self._mark_findings(path, elf)

    def _mark_findings(self, path: str, elf: Elf) -> Iterator[Finding]:
        cpu = self._claim.cpu
        if marks := [mark for mark in elf.isa_needed if X86_64_LEVELS.index(mark) > cpu.rank]:
            what = f"marked as needing {Cpu.known(_MACHINE, marks[-1])}, above {self._claim}: glibc refuses to load it"
            yield Finding(self._claim.severity, Rule.ISA_NOTE, path, what)

    def _above(self, violations: tuple[Violation, ...]) -> str:
        features = frozenset(feature for violation in violations for feature in violation.features)
        shown = "; ".join(map(str, violations[:_SHOWN]))
        more = f"; and {len(violations) - _SHOWN} more" if len(violations) > _SHOWN else ""
        count = f"{len(violations)} function{'s' if len(violations) > 1 else ''}"
        return f"needs {', '.join(sorted(features))} ({level(features)}), above {self._claim}: {count}: {shown}{more}"


def _uses_vex(path: str, isa: Isa) -> bool:
    """Whether code that is not merely chosen at run time has a VEX or EVEX instruction."""
    if named_rank(path.rpartition("/")[2]):
        return False
    return any(
        region.is_vector_encoded and not any(map(named_rank, region.region.function.names))
        for region in isa.regions
        if region.region.function
    )


def _violation(one: Judged, *, show: bool) -> Violation:
    region = one.isa.region
    uses = one.isa.uses(one.features) if show else ()
    return Violation(str(region), region.address, tuple(sorted(one.features)), tuple(map(str, uses)))
