"""The words of an nvcc command, the list of codes that a build's request makes of its own, and the log of commands.

    nvcc -c -gencode arch=compute_90,code=sm_90 -o a.o a.cu -optf more.txt
         ^flag ^option with its value           ^       ^file ^options in a file, which may hold any of these

Option names are nvcc's short ones, whatever the command has. Values stand behind ``=`` or in the next word.
https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/#nvcc-command-options

    -gencode arch=compute_90,code=[sm_90,compute_90]   machine code, and PTX
    -arch=sm_90                                        the same
    -arch=compute_90 -code=sm_90                       machine code alone
    -gencode arch=compute_90,code=lto_90               what the device linker makes machine code of
    -arch=native, -arch=all, no list at all            no opinion

    their list, request -> keep: theirs | replace: the request | intersect: of theirs, what the request needs

https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/#options-for-steering-gpu-code-generation

The wrapper of nvcc logs each command as a line of JSON in `LOG`. A command that makes a build useless is found before
the others run.
"""

import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any, Self

from vbuild.hardware.architectures import Arch
from vbuild.hardware.gpu import GpuCodeKind, GpuList, GpuOffer, GpuRequest, Ptx, Service, kept_offers, service
from vbuild.recipe.compiling import Archs, FileRule

LIST = frozenset({"-gencode", "-arch", "-code"})

# the long names of the options that vbuild looks at
_SHORT = {
    "--generate-code": "-gencode",
    "--gpu-architecture": "-arch",
    "--gpu-code": "-code",
    "--options-file": "-optf",
    "--output-file": "-o",
    "--output-directory": "-odir",
    "--compiler-bindir": "-ccbin",
    "--compiler-options": "-Xcompiler",
    "--fatbin-options": "-Xfatbin",
    "--compress-mode": "-compress-mode",
    "--no-compress": "-no-compress",
    "--device-debug": "-G",
    "--generate-line-info": "-lineinfo",
    "--dlink-time-opt": "-dlto",
    "--lto": "-dlto",
    "-lto": "-dlto",
    "--dryrun": "-dryrun",
    "--x": "-x",
    "--forward-unknown-to-host-compiler": "-forward-unknown-to-host-compiler",
    "--forward-unknown-opts": "-forward-unknown-opts",
    **{f"--{name}": f"-{name}" for name in ("cuda", "cubin", "fatbin", "ptx", "optix-ir", "ltoir", "lib", "shared")},
    **{f"--{name}": f"-{name}" for name in ("tilebc", "tilecubin", "tilefatbin")},
    "--preprocess": "-E",
    "--generate-dependencies": "-M",
    "--generate-nonsystem-dependencies": "-MM",
    "--compile": "-c",
    "--device-c": "-dc",
    "--device-w": "-dw",
    "--device-link": "-dlink",
    "--frandom-seed": "-frandom-seed",
    "--keep": "-keep",
    "--keep-dir": "-keep-dir",
    "--save-temps": "-save-temps",
    "--objdir-as-tempdir": "-objtemp",
}

# options whose value may be the next word, from nvcc 13.5 --help
_TAKE_VALUE = frozenset(
    {
        *("-o", "-l", "-D", "-U", "-I", "-L", "-O", "-x", "-m", "-t", "-e", "-MF", "-MT", "-include", "-isystem"),
        *("-odir", "-ccbin", "-arbin", "-cudart", "-cudadevrt", "-ldir", "-target-dir", "-opt-info", "-Ofc", "-dopt"),
        *("-std", "-stdlib", "-rdc", "-arch", "-code", "-gencode", "-maxrregcount", "-ftz", "-prec-div", "-prec-sqrt"),
        *("-fmad", "-default-stream", "-Werror", "-diag-error", "-diag-suppress", "-diag-warn", "-hls", "-brief-diag"),
        *("-jtd", "-device-stack-protector", "-compress-mode", "-frandom-seed", "-fdevice-sanitize", "-optf"),
        *("-ftemplate-backtrace-limit", "-ftemplate-depth", "-fmax-errors", "-split-compile", "-apply-controls"),
        *("-split-compile-extended", "-fdevice-time-trace", "-fdevice-time-trace-granularity", "-keep-dir", "-time"),
        *("-run-args", "-idp", "-ddp", "-dp", "-static-global-template-stub", "-qpp-config", "-tile-preview"),
        "-device-entity-has-hidden-visibility",
        *("--library", "--define-macro", "--undefine-macro", "--include-path", "--library-path", "--optimize"),
        *("--machine", "--threads", "--entries", "--dependency-output", "--dependency-target-name", "--pre-include"),
        *("--system-include", "--archiver-binary", "--libdevice-directory", "--target-directory", "--std", "--stdlib"),
        *("--optimization-info", "--Ofast-compile", "--dopt", "--cudart", "--cudadevrt", "--relocatable-device-code"),
        *("--maxrregcount", "--ftz", "--prec-div", "--prec-sqrt", "--fmad", "--default-stream", "--Werror"),
        *("--diag-error", "--diag-suppress", "--diag-warn", "--host-linker-script", "--brief-diagnostics"),
        *("--jump-table-density", "--device-stack-protector", "--frandom-seed", "--fdevice-sanitize"),
        *("--ftemplate-backtrace-limit", "--ftemplate-depth", "--fmax-errors", "--split-compile", "--apply-controls"),
        *("--split-compile-extended", "--fdevice-time-trace", "--fdevice-time-trace-granularity", "--keep-dir"),
        *("--time", "--run-args", "--input-drive-prefix", "--dependency-drive-prefix", "--drive-prefix"),
        *("--static-global-template-stub", "--device-entity-has-hidden-visibility", "--qpp-config", "--tile-preview"),
    }
)

_DEVICE_SOURCES = (".cu", ".gpu", ".ptx", ".cubin", ".fatbin")
_SOURCES = (*_DEVICE_SOURCES, ".c", ".cc", ".cpp", ".cxx", ".c++", ".C", ".i", ".ii")


class NvccOutput(StrEnum):
    OBJECT = "object"
    LIBRARY = "library"
    DEVICE_LINK = "device-link"
    FATBIN = "fatbin"
    CUBIN = "cubin"
    PTX = "ptx"
    TEXT = "text"
    OTHER = "other"


_STAGES = {
    **dict.fromkeys(("-c", "-dc", "-dw", "-lib", "-cuda"), NvccOutput.OBJECT),
    **dict.fromkeys(("-fatbin", "-tilefatbin"), NvccOutput.FATBIN),
    **dict.fromkeys(("-cubin", "-tilecubin"), NvccOutput.CUBIN),
    **dict.fromkeys(("-E", "-M", "-MM"), NvccOutput.TEXT),
    **dict.fromkeys(("-optix-ir", "-ltoir", "-tilebc"), NvccOutput.OTHER),
    "-dlink": NvccOutput.DEVICE_LINK,
    "-ptx": NvccOutput.PTX,
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option, or, with an empty *name*, one file; *words* are how the command has it."""

    name: str
    value: str
    words: tuple[str, ...]
    inside: tuple["Option", ...] = ()

    def __iter__(self) -> Iterator["Option"]:
        """Itself, or the options in the file that it names."""
        for option in self.inside:
            yield from option
        if not self.inside:
            yield self


@dataclass(frozen=True, slots=True)
class Call:
    options: tuple[Option, ...]
    flat: tuple[Option, ...] = field(repr=False)

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        options = tuple(_parsed(words))
        return cls(options, tuple(word for option in options for word in option))

    def values(self, name: str) -> tuple[str, ...]:
        return tuple(option.value for option in self.flat if option.name == name)

    def has(self, *names: str) -> bool:
        return any(option.name in names for option in self.flat)

    @property
    def list_options(self) -> tuple[tuple[str, str], ...]:
        return tuple((option.name, option.value) for option in self.flat if option.name in LIST)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.values("")

    @property
    def sources(self) -> tuple[str, ...]:
        return self.inputs if self.has("-x") else tuple(file for file in self.inputs if file.endswith(_SOURCES))

    @property
    def output(self) -> NvccOutput:
        stages = (_STAGES[option.name] for option in self.flat if option.name in _STAGES)
        return next(stages, NvccOutput.LIBRARY)

    @property
    def files(self) -> tuple[str, ...]:
        named_file = self.values("-o")
        folder = Path((*self.values("-odir"), "")[0])
        if named_file or self.output is not NvccOutput.OBJECT:
            return tuple(os.path.abspath(file) for file in named_file[-1:])  # noqa: PTH100 - no symlink is resolved
        return tuple(os.path.abspath(folder / f"{Path(source).stem}.o") for source in self.sources)  # noqa: PTH100

    @property
    def defers(self) -> bool:
        """Whether ``-dlto`` leaves machine code to the device linker."""
        return bool(self.sources) and self.has("-dlto")

    @property
    def forwards(self) -> bool:
        """Whether options that nvcc does not know go to the host compiler."""
        return self.has("-forward-unknown-to-host-compiler", "-forward-unknown-opts")


def _parsed(words: Iterable[str], files: tuple[str, ...] = ()) -> Iterator[Option]:
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            yield Option("", word, (word,))
            continue
        long, joined, value = word.partition("=")
        taken = [word]
        name = _SHORT.get(long, long)
        if not joined and _takes_value(name):
            taken += itertools.islice(rest, 1)
            value = "".join(taken[1:])
        inside = tuple(_inside(value, files)) if name == "-optf" else ()
        yield Option(name, value, tuple(taken), inside)


def _takes_value(name: str) -> bool:
    return name in _TAKE_VALUE or name.startswith("-X") or (name.startswith("--") and name.endswith("-options"))


def _inside(value: str, files: tuple[str, ...]) -> Iterator[Option]:
    for file in value.split(","):
        try:
            words = shlex.split(Path(file).read_text(encoding="utf-8", errors="surrogateescape"))
        except (OSError, ValueError):
            continue
        if file not in files:
            yield from _parsed(words, (*files, file))


_NAME = re.compile(r"(?P<kind>sm|compute|lto)_(?P<number>\d{2,4})(?P<suffix>[af]?)", re.ASCII)
_KINDS = {"sm": GpuCodeKind.MACHINE, "compute": GpuCodeKind.PTX, "lto": GpuCodeKind.OTHER}
_SPECIFICATION = re.compile(r"(?P<key>arch|code)=(?:\[(?P<several>[^\]]*)\]|(?P<one>[^,\[\]]*))(?:,|$)", re.ASCII)
_IGNORED = str.maketrans("", "", "\"'\\ \t")  # in the values of nvcc's own options
NO_OPINION = frozenset({"native", "all", "all-major"})

Lists = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Codegen:
    """One code that nvcc generates, as ``sm_90``, and the virtual architecture it is made from, ``compute_90``."""

    virtual: str
    code: str

    def __str__(self) -> str:
        return self.code

    @classmethod
    def of(cls, code: str) -> Self:
        return cls(f"compute_{code.partition('_')[2]}", code)

    @property
    def offer(self) -> GpuOffer:
        match = _matched(self.code)
        return GpuOffer(_KINDS[match["kind"]], Arch(int(match["number"]), match["suffix"]))


def _matched(code: str) -> re.Match[str]:
    if match := _NAME.fullmatch(code):
        return match
    raise ValueError(code)


def listed(options: Iterable[tuple[str, str]], *, defers: bool) -> tuple[Codegen, ...] | None:
    """The list in *options*, pairs of ``-gencode``, ``-arch`` or ``-code`` and a value; None for what nvcc will
    refuse.

    With *defers* (``-dlto``), code for ``-arch=sm_90`` is left to the device linker.
    """
    virtual, codes, codegens = "", [], list[Codegen]()
    try:
        for name, text in options:
            value = text.translate(_IGNORED)
            if name == "-gencode":
                codegens += _specified(value)
            elif name == "-arch":
                virtual = value
            else:
                codes += value.strip("[]").split(",")
        if virtual in NO_OPINION:
            return None if codes else ()
        if virtual or codes:
            codegens += _paired(virtual, codes, defers=defers)
        for codegen in codegens:
            _matched(codegen.virtual)
            _matched(codegen.code)
    except ValueError:
        return None
    return tuple(dict.fromkeys(codegens))


def _specified(value: str) -> list[Codegen]:
    """The codes of ``arch=compute_90,code=[sm_90,compute_90]``."""
    if _SPECIFICATION.sub("", bare := _bracketed(value)):
        raise ValueError(value)
    codes = {match["key"]: match["several"] or match["one"] or "" for match in _SPECIFICATION.finditer(bare)}
    return [Codegen(codes.get("arch", ""), code) for code in codes.get("code", codes.get("arch", "")).split(",")]


def _bracketed(value: str) -> str:
    if "[" in value:
        return value
    return re.sub(r"code=((?:\w+,)+\w+)(?=,arch=|$)", r"code=[\1]", value)


def _paired(arch: str, codes: Sequence[str], *, defers: bool) -> list[Codegen]:
    """The codes of ``-arch`` with ``-code``; of ``-arch`` alone, by nvcc's shorthand."""
    kind, _, form = arch.partition("_")
    virtual = f"compute_{form}"
    if codes:
        if kind != "compute":
            raise ValueError(arch)
    elif kind == "sm":
        codes = [f"lto_{form}" if defers else arch, virtual]
    else:
        codes = [arch]
    return [Codegen(virtual, code) for code in codes]


def requested(archs: GpuList, *, defers: bool = False) -> tuple[Codegen, ...]:
    """The list that asks for *archs*; with *defers*, machine code is left to the device linker."""
    kind = "lto" if defers else "sm"
    codegens = []
    for request in archs:
        form = f"{request.arch.number}{request.arch.suffix}"
        codegens += [f"{kind}_{form}"] if request.real else []
        codegens += [f"compute_{form}"] if request.ptx else []
    return tuple(map(Codegen.of, codegens))


def intersected(theirs: Sequence[Codegen], archs: GpuList) -> tuple[Codegen, ...]:
    """What *archs* need of *theirs*, or all if nothing: a file may be for other GPUs by its nature."""
    offers = [codegen.offer for codegen in theirs]
    # the device linker takes code for older architectures, as a driver takes PTX
    deferred = [GpuOffer(GpuCodeKind.PTX, offer.arch) if offer.code is GpuCodeKind.OTHER else None for offer in offers]
    positions: set[int] = set()
    for request in archs:
        positions |= _needed(offers, request) | _needed(deferred, GpuRequest(request.device, ptx=True, real=False))
    return tuple(codegen for position, codegen in enumerate(theirs) if position in positions) or tuple(theirs)


def _needed(offers: Sequence[GpuOffer | None], request: GpuRequest) -> set[int]:
    places = [position for position, offer in enumerate(offers) if offer and offer.code is not GpuCodeKind.OTHER]
    some = [offer for offer in offers if offer and offer.code is not GpuCodeKind.OTHER]
    needed = {places[index] for index in kept_offers(some, request, ptx=Ptx.AUTO)}
    ptx = {
        position
        for position, offer in enumerate(offers)
        if position in needed and offer and offer.code is GpuCodeKind.PTX
    }
    return needed if request.real or not ptx else ptx


def is_specific(codegens: Iterable[Codegen]) -> bool:
    """Whether all of *codegens* run on one GPU or family alone."""
    return all(codegen.code.endswith(("a", "f")) for codegen in codegens)


def spelled(codegens: Iterable[Codegen]) -> list[str]:
    by_virtual: dict[str, list[str]] = {}
    for codegen in codegens:
        by_virtual.setdefault(codegen.virtual, []).append(codegen.code)
    return [f"-gencode=arch={virtual},code=[{','.join(codes)}]" for virtual, codes in by_virtual.items()]


@dataclass(frozen=True, slots=True)
class CudaRules:
    """What the nvcc wrapper does to a command; *nvcc* is the program it then runs.

    *aliases* are lists that stand for the request, in the words of a tool. Of *files*, the first that matches
    counts. *append* is put behind each compile, and *host* is the host compiler of commands that name none.
    """

    nvcc: Path
    archs: GpuList
    mode: Archs = Archs.INTERSECT
    files: tuple[FileRule, ...] = ()
    aliases: Lists = ()
    append: tuple[str, ...] = ()
    host: str = ""
    seeds: bool = False

    def data(self) -> dict[str, Any]:
        return {
            "nvcc": str(self.nvcc),
            "archs": str(self.archs),
            "mode": str(self.mode),
            "files": {rule.glob: str(rule.archs) for rule in self.files},
            "aliases": self.aliases,
            "append": self.append,
            "host": self.host,
            "seeds": self.seeds,
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            nvcc=Path(data["nvcc"]),
            archs=GpuList.parse(data["archs"]) if data["archs"] else GpuList(()),
            mode=Archs(data["mode"]),
            files=tuple(FileRule(glob, _archs(text)) for glob, text in data["files"].items()),
            aliases=data["aliases"],
            append=data["append"],
            host=data["host"],
            seeds=data["seeds"],
        )

    def rule(self, paths: Iterable[str]) -> FileRule | None:
        files = tuple(paths)
        return next((rule for rule in self.files if any(matches(path, rule.glob) for path in files)), None)

    def decided(self, theirs: Sequence[Codegen], rule: FileRule | None, *, defers: bool) -> tuple[Codegen, ...]:
        archs = rule.archs if rule else self.mode
        if isinstance(archs, GpuList):
            return requested(archs, defers=defers)
        if archs is Archs.KEEP:
            return tuple(theirs)
        ours = requested(self.archs, defers=defers)
        stands_for_ours = {codegen.code for codegen in theirs} in map(set, self.aliases)
        is_replaced = archs is Archs.REPLACE or (archs is Archs.COMPLETE and not is_specific(theirs))
        if self.archs.requests and (is_replaced or not theirs or stands_for_ours):
            return ours
        return intersected(theirs, self.archs)


def matches(path: str, glob: str) -> bool:
    return fnmatchcase(path, f"*/{glob}")


def _archs(text: str) -> Archs | GpuList:
    return Archs(text) if text in set(Archs) else GpuList.parse(text)


LOG = "nvcc.jsonl"
LINKS = frozenset({NvccOutput.LIBRARY, NvccOutput.DEVICE_LINK})
HARD_CODED = "the project's list is hard-coded: set build.cuda.archs = 'replace', or a rule in build.cuda.files"
_TRIALS = frozenset({"CMakeScratch", "CMakeTmp", "meson-private"})
_TRIAL_FILE = re.compile(r"(?:conftest|_configtest|CMake\w+Compiler(?:ABI|Id))(?:\.\w+)?")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the wrapper: the list of codes that it had, *theirs*, and ran with, *ours*.

    *rule* tells how that came about, and *is_ruled* that it is the recipe's for this file.
    """

    sources: tuple[str, ...]
    output: NvccOutput
    files: tuple[str, ...]
    rule: str
    is_ruled: bool
    theirs: tuple[str, ...]
    ours: tuple[str, ...]

    def __str__(self) -> str:
        subject = ", ".join(self.sources or self.files) or "link"
        return f"{subject}: {','.join(self.theirs) or 'no list'} -> {','.join(self.ours) or 'no list'}"

    @property
    def is_changed(self) -> bool:
        """Whether the project had a list, and another one replaced it."""
        return bool(self.theirs) and set(self.theirs) != set(self.ours)

    def data(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def parse(cls, line: str) -> Self:
        entry = json.loads(line)
        lists = {name: tuple(entry[name]) for name in ("sources", "files", "theirs", "ours")}
        return cls(**{**entry, **lists, "output": NvccOutput(entry["output"])})


def is_trial(sources: Sequence[str]) -> bool:
    """Whether compiling *sources* only asks what the compiler can do."""
    paths = [PurePath(source) for source in sources]
    return bool(paths) and all(_TRIAL_FILE.fullmatch(path.name) or _TRIALS.intersection(path.parts) for path in paths)


def is_excused(command: Command) -> bool:
    """Whether the recipe's rule, its own list for one kind of GPU each, or what it links justifies it."""
    if not (command.sources or command.theirs):
        return True
    lists_specific = is_specific(map(Codegen.of, command.theirs))
    return command.is_ruled or command.rule == Archs.KEEP or (bool(command.theirs) and lists_specific)


def missing(command: Command, offers: Sequence[GpuOffer], archs: GpuList) -> tuple[str, ...]:
    """What *archs* asks for and a fatbin of *command* with *offers* lacks, in nvcc's words."""
    is_linked = command.output in LINKS and not any(offer.code is GpuCodeKind.PTX for offer in offers)
    wanted = (want for request in archs for want in wants(request) if not (is_linked and want.code is GpuCodeKind.PTX))
    return lacking([offers], wanted)


def wants(request: GpuRequest) -> Iterator[GpuOffer]:
    if request.real:
        yield GpuOffer(GpuCodeKind.MACHINE, request.device)
    if request.ptx:
        yield GpuOffer(GpuCodeKind.PTX, request.device)


def lacking(fatbins: Iterable[Sequence[GpuOffer]], wanted: Iterable[GpuOffer]) -> tuple[str, ...]:
    """Those of *wanted* that none of *fatbins* serves, in nvcc's words."""
    lacking = tuple(fatbins)
    return written(
        want
        for want in wanted
        if all(
            service([offer for offer in offers if offer.code is want.code], want.arch) is Service.NONE
            for offers in lacking
        )
    )


def written(offers: Iterable[GpuOffer]) -> tuple[str, ...]:
    """*offers* in nvcc's words, machine code first."""
    words = sorted(
        {(offer.code is GpuCodeKind.PTX, offer.arch) for offer in offers if offer.code is not GpuCodeKind.OTHER}
    )
    return tuple(str(arch).replace("sm", "compute") if is_ptx else str(arch) for is_ptx, arch in words)


def contradiction(command: Command, archs: GpuList) -> str | None:
    """Why what *command* compiles would not do for *archs*, or None."""
    codes = [Codegen.of(code).offer for code in command.ours]
    is_ours = not command.theirs or is_excused(command) or is_trial(command.sources)
    if is_ours or not (codes and command.sources) or command.output not in {NvccOutput.OBJECT, NvccOutput.LIBRARY}:
        return None
    if any(code.code is GpuCodeKind.OTHER for code in codes) or not (lacks := missing(command, codes, archs)):
        return None
    subject = ", ".join(command.sources)
    return f"{subject}: compiled for {', '.join(written(codes))} only, asked for {', '.join(lacks)}; {HARD_CODED}"


def logged(log: Path) -> Iterator[Command]:
    if log.exists():
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):  # torn, where the disk was full or a command was killed
                yield Command.parse(line)
