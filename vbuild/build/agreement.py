"""Whether what was compiled is what was asked for: every fatbin of a build against the request, with the files named.

    fatbins of the libraries        what is in them: sm_80, for one
    the commands of the nvcc log    whose they are: a.cu was compiled for sm_80
      -> agrees      it serves every GPU asked for, or is for other GPUs by the recipe's rule or its own nature
      -> falls short a file of the project has no code for some GPU: the build fails, and names it

What no command made was compiled before, or passed the wrapper by: it falls short only if a GPU gets nothing from all
of it together.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from msgspec import Struct

from vbuild.errors import BuildError
from vbuild.files.wording import shown
from vbuild.hardware.architectures import Device
from vbuild.hardware.gpu import GpuCodeKind, GpuList, GpuOffer, Service, service
from vbuild.recipe.compiling import Archs, FileRule
from vbuild.toolchain.nvcc_commands import (
    HARD_CODED,
    LINKS,
    Codegen,
    Command,
    NvccOutput,
    is_excused,
    is_trial,
    lacking,
    matches,
    missing,
    wants,
    written,
)
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import WheelName

Fatbins = Mapping[tuple[GpuOffer, ...], int]

_SHOWN = 5
_FILES = frozenset({NvccOutput.FATBIN, NvccOutput.CUBIN, NvccOutput.PTX})  # which programs load by themselves
_MAKES_FATBINS = frozenset({NvccOutput.OBJECT, NvccOutput.FATBIN, *LINKS})

_NOT_REPLACED = "their commands take no list of several: see the commands of nvcc in the log of the build"
_OLDER = "link a library that was compiled for them, or leave them out of the request"
_UNASKED = "a wheel with kernels says which GPUs it is for: matrix.cuda[].gpus, or --cuda 80,90"
_BYPASSED = (
    "no command passed the wrapper of nvcc: the project calls another one by its path, and has to be told to take "
    "CUDA_HOME's or CUDACXX"
)
_NO_CODE = (
    "no library has GPU code: set what switches the project's CUDA on in build.config-settings or build.env; if it "
    "calls CUDA's libraries alone, leave matrix.cuda[].gpus out"
)


_PURE = "it is pure Python, with nothing to compile for a GPU: one wheel serves all machines"
_LEFT_OUT = (
    "; if the project has code for GPUs that it left out, set what switches it on in build.config-settings or "
    "build.env, or name in build.requires what its setup.py looks for"
)
_SOURCES = (".cu", ".cuh")


class Shortfall(Struct, frozen=True):
    """A file or library, *what*, that is compiled for less than the request: *missing*, in nvcc's words."""

    what: str
    found: tuple[str, ...]
    missing: tuple[str, ...]
    advice: str

    def __str__(self) -> str:
        return f"{self.what}: compiled for {', '.join(self.found)} only, asked for {', '.join(self.missing)}"


class Agreement(Struct, frozen=True):
    """How GPU code falls short of the request.

    *notes* are on older libraries that serve every GPU with some kernels.
    """

    shortfalls: tuple[Shortfall, ...] = ()
    notes: tuple[Shortfall, ...] = ()
    is_empty: bool = False

    def __bool__(self) -> bool:
        return not (self.shortfalls or self.is_empty)

    @property
    def lines(self) -> tuple[str, ...]:
        lines = tuple(f"{shortfall}; {shortfall.advice}" for shortfall in self.shortfalls)
        return (_NO_CODE,) if self.is_empty else lines

    def check(self, wheel: Path) -> None:
        """`BuildError` that names the files of *wheel* that fall short."""
        if self.is_empty:
            raise BuildError(_without_code(wheel))
        if self.shortfalls:
            shown = [str(shortfall) for shortfall in self.shortfalls[:_SHOWN]]
            if len(self.shortfalls) > _SHOWN:
                shown.append(f"and {len(self.shortfalls) - _SHOWN} more")
            advice = dict.fromkeys(shortfall.advice for shortfall in self.shortfalls)
            raise BuildError("; ".join([*shown, *advice]))


def _without_code(wheel: Path) -> str:
    with open_wheel(wheel) as source:
        sources = [member.path for member in source.members if member.path.endswith(_SOURCES)]
    later = f"compiles its CUDA sources when they are used: {shown(sources, 1)}" if sources else ""
    if WheelName.parse(wheel.name).platform == "any":
        return f"{_PURE}{f', and {later}' if later else ''}{_LEFT_OUT}"
    return f"{_NO_CODE}{f'; or it {later}' if later else ''}"


def agreement(
    commands: Iterable[Command], libraries: Mapping[str, Fatbins], archs: GpuList, *, mode: Archs = Archs.INTERSECT
) -> Agreement:
    """How *libraries*, counts of fatbins by path and offers, agree with *archs*."""
    own = [command for command in commands if not is_trial(command.sources)]
    if not archs.requests:
        return Agreement(tuple(_unasked(own)) if any(libraries.values()) else ())
    if not any(libraries.values()) and not any(command.output in _FILES for command in own):
        return Agreement(is_empty=True)
    makers = _makers(own)
    advice = _NOT_REPLACED if mode is Archs.REPLACE else HARD_CODED
    shortfalls: dict[str, Shortfall] = {}
    notes: list[Shortfall] = []
    for path, fatbins in libraries.items():
        for offers in fatbins:
            for shortfall in _of_project(makers.get(_shape(offers), ()), offers, archs, advice):
                shortfalls[shortfall.what] = shortfall
        others = {offers: count for offers, count in fatbins.items() if _shape(offers) not in makers}
        if lacking_others := _older(others, archs, is_own=not own):
            lacks, is_short = lacking_others
            counted = f"{path}: {sum(others.values())} of {sum(fatbins.values())} fatbins"
            name = f"{counted}, which no command of nvcc made" if own else counted
            has = written(offer for offers in others for offer in offers)
            shortfall = Shortfall(name, has, lacks, _OLDER if own else _BYPASSED)
            if is_short:
                shortfalls[name] = shortfall
            else:
                notes.append(shortfall)
    return Agreement(tuple(shortfalls[name] for name in sorted(shortfalls)), tuple(notes))


def _of_project(
    makers: Sequence[Command], offers: tuple[GpuOffer, ...], archs: GpuList, advice: str
) -> Iterator[Shortfall]:
    # a link is to blame for what no file is: its list, if it has one, is the project's too
    for command in [maker for maker in makers if maker.sources] or makers:
        if (lacks := missing(command, offers, archs)) and not is_excused(command):
            links = tuple(f"link of {PurePath(file).name}" for file in command.files)
            for name in command.sources or links or ("link",):
                yield Shortfall(name, written(offers), lacks, advice)


def _unasked(commands: Iterable[Command]) -> Iterator[Shortfall]:
    for command in commands:
        if command.sources and command.output in _MAKES_FATBINS | _FILES:
            yield Shortfall(", ".join(command.sources), command.ours or ("nvcc's default",), ("no GPU",), _UNASKED)


def unused_globs(files: Iterable[FileRule], commands: Iterable[Command]) -> tuple[str, ...]:
    sources = {source for command in commands if not is_trial(command.sources) for source in command.sources}
    # the log has the paths of a project's own files from its folder on
    paths = [source if source.startswith("/") else f"/{source}" for source in sorted(sources)]
    return tuple(rule.glob for rule in files if not any(matches(path, rule.glob) for path in paths))


def _makers(commands: Iterable[Command]) -> dict[frozenset[tuple[GpuCodeKind, Device]], list[Command]]:
    makers: dict[frozenset[tuple[GpuCodeKind, Device]], list[Command]] = defaultdict(list)
    for command in commands:
        offers = [Codegen.of(code).offer for code in command.ours if command.output in _MAKES_FATBINS]
        shapes = {_shape(offers)} if command.sources else set[frozenset[tuple[GpuCodeKind, Device]]]()
        if command.output in LINKS:
            shapes.add(_shape(offer for offer in offers if offer.code is GpuCodeKind.MACHINE))
        for shape in shapes - {frozenset()}:
            makers[shape].append(command)
    return makers


def _shape(offers: Iterable[GpuOffer]) -> frozenset[tuple[GpuCodeKind, Device]]:
    """Its kinds and devices: nvcc makes sm_103f of sm_103 from compute_100f."""
    return frozenset((offer.code, offer.arch.device) for offer in offers)


def _older(fatbins: Fatbins, archs: GpuList, *, is_own: bool) -> tuple[tuple[str, ...], bool] | None:
    """What *fatbins* that no command made lack, if anything, and whether that fails the build.

    The project's *own* code has to serve each request; other code fails if some GPU gets nothing at all.
    """
    unserved = [
        device for device in archs.devices if all(service(offers, device) is Service.NONE for offers in fatbins)
    ]
    if fatbins and unserved and not is_own:
        return tuple(map(str, unserved)), True
    wanted = [want for request in archs for want in wants(request) if is_own or want.code is GpuCodeKind.MACHINE]
    lacks = {code for offers in fatbins for code in lacking([offers], wanted)}
    return (tuple(code for code in written(wanted) if code in lacks), is_own) if lacks else None
