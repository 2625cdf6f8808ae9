"""Commands of nvcc that ran: each with the list of codes that its project gave it, and the one that it got instead.

The program behind the wrapper of nvcc writes a line of JSON for each into the file `LOG`. What a wheel has to have is
held against them, and a command that alone makes a build useless is found before the others run.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Self

from vbuild.hardware.gpu import GpuCodeKind, GpuList, GpuOffer, GpuRequest, Service, service
from vbuild.recipe.cuda import Archs
from vbuild.toolchain.nvcc_options import Codegen, NvccOutput, is_specific

LOG = "nvcc.jsonl"
LINKS = frozenset({NvccOutput.LIBRARY, NvccOutput.DEVICE_LINK})
HARD_CODED = "the project's list is hard-coded: set build.cuda.archs = 'replace', or a rule in build.cuda.files"
_TRIALS = frozenset({"CMakeScratch", "CMakeTmp", "meson-private"})
_TRIAL_FILE = re.compile(r"(?:conftest|_configtest|CMake\w+Compiler(?:ABI|Id))(?:\.\w+)?")


@dataclass(frozen=True, slots=True)
class Command:
    """One command that passed the compiler wrapper: the list of codes that it had, *theirs*, and the one it ran
    with, *ours*.

    *rule* tells how that came about, and *is_ruled* that it is the recipe's rule for this file; *files* are what the
    command makes. An empty *theirs* is no list, or none that says anything.
    """

    sources: tuple[str, ...]
    output: NvccOutput
    files: tuple[str, ...]
    rule: str
    is_ruled: bool
    theirs: tuple[str, ...]
    ours: tuple[str, ...]

    def __str__(self) -> str:
        what = ", ".join(self.sources or self.files) or "link"
        return f"{what}: {','.join(self.theirs) or 'no list'} -> {','.join(self.ours) or 'no list'}"

    @property
    def is_changed(self) -> bool:
        """Whether the project had a list, and another one was put in its place."""
        return bool(self.theirs) and set(self.theirs) != set(self.ours)

    def data(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def parse(cls, line: str) -> Self:
        """One line of the log."""
        entry = json.loads(line)
        lists = {name: tuple(entry[name]) for name in ("sources", "files", "theirs", "ours")}
        return cls(**{**entry, **lists, "output": NvccOutput(entry["output"])})


def is_trial(sources: Sequence[str]) -> bool:
    """Whether a command that compiles *sources* only asks what the compiler can do, as build systems do first."""
    paths = [PurePath(source) for source in sources]
    return bool(paths) and all(_TRIAL_FILE.fullmatch(path.name) or _TRIALS.intersection(path.parts) for path in paths)


def is_excused(command: Command) -> bool:
    """Whether it is as it has to be: by the recipe's rule, its own list for one kind of GPU each, or what it links."""
    if not (command.sources or command.theirs):
        return True
    lists_specific = is_specific(map(Codegen.of, command.theirs))
    return command.is_ruled or command.rule == Archs.KEEP or (bool(command.theirs) and lists_specific)


def missing(command: Command, offers: Sequence[GpuOffer], archs: GpuList) -> tuple[str, ...]:
    """What *archs* asks for and a fatbin of *command* with *offers* lacks, as nvcc would write it.

    The device linker leaves PTX behind, so that is not missed after it was at work.
    """
    is_linked = command.output in LINKS and not any(offer.code is GpuCodeKind.PTX for offer in offers)
    wanted = (want for request in archs for want in wants(request) if not (is_linked and want.code is GpuCodeKind.PTX))
    return lacking([offers], wanted)


def wants(request: GpuRequest) -> Iterator[GpuOffer]:
    """The code that *request* asks for."""
    if request.real:
        yield GpuOffer(GpuCodeKind.MACHINE, request.device)
    if request.ptx:
        yield GpuOffer(GpuCodeKind.PTX, request.device)


def lacking(fatbins: Iterable[Sequence[GpuOffer]], wanted: Iterable[GpuOffer]) -> tuple[str, ...]:
    """Those of *wanted* that none of *fatbins* serves, as nvcc would write them."""
    found = tuple(fatbins)
    return written(
        want
        for want in wanted
        if all(
            service([offer for offer in offers if offer.code is want.code], want.arch) is Service.NONE
            for offers in found
        )
    )


def written(offers: Iterable[GpuOffer]) -> tuple[str, ...]:
    """*offers* in nvcc's words, machine code first."""
    found = sorted(
        {(offer.code is GpuCodeKind.PTX, offer.arch) for offer in offers if offer.code is not GpuCodeKind.OTHER}
    )
    return tuple(str(arch).replace("sm", "compute") if is_ptx else str(arch) for is_ptx, arch in found)


def contradiction(command: Command, archs: GpuList) -> str | None:
    """Why what *command* compiles would not do for *archs*, whatever comes after it; None if it may.

    So is the whole build, and the first command says it instead of the last.
    """
    codes = [Codegen.of(code).offer for code in command.ours]
    is_ours = not command.theirs or is_excused(command) or is_trial(command.sources)
    if is_ours or not (codes and command.sources) or command.output not in {NvccOutput.OBJECT, NvccOutput.LIBRARY}:
        return None
    if any(code.code is GpuCodeKind.OTHER for code in codes) or not (lacks := missing(command, codes, archs)):
        return None
    what = ", ".join(command.sources)
    return f"{what}: compiled for {', '.join(written(codes))} only, asked for {', '.join(lacks)}; {HARD_CODED}"


def logged(log: Path) -> Iterator[Command]:
    """The commands in *log*, the first of them first."""
    if log.exists():
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):  # torn, where the disk was full or a command was killed
                yield Command.parse(line)
