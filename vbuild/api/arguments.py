"""Arguments of the public functions as the values that verbs take."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from vbuild.api.options import Layout, MatrixOptions, PublishOptions, SlimOptions, StrPath
from vbuild.errors import WheelError

if TYPE_CHECKING:
    from vbuild.build.init import AskedAxes
    from vbuild.hardware.cpu import Cpu
    from vbuild.hardware.driver import Dotted
    from vbuild.hardware.gpu import GpuList
    from vbuild.hardware.machine import Machine
    from vbuild.publishing.model import PublishLayout
    from vbuild.release.matrix import MatrixRequest
    from vbuild.slimming.request import Cuts, Share
    from vbuild.verification.attestations import AttestationRequest
    from vbuild.verification.required import Fetch

# options that say where and how, not what
_PLACES = frozenset({"on_progress", "provenance"})


def level_named(text: str) -> "Cpu":
    """The CPU level called *text*, as PEP 825's properties or compilers call it: v3, or x86-64-v3."""
    from vbuild.hardware.cpu import X86_64_LEVELS, Cpu

    return Cpu.known("x86_64", text) if text in X86_64_LEVELS else Cpu.parse(text)


def layout_of(name: Layout, asked: PublishOptions) -> "PublishLayout":  # noqa: PLR0911 - a layout, a line
    from vbuild.publishing.model import folder_url
    from vbuild.splitting.request import project_name

    below = f"{folder_url(url)}/{name}" if (url := asked.get("url")) else None
    match name:
        case "hwcaps":
            from vbuild.publishing.hwcaps.plan import Hwcaps

            added = tuple((value_of(level, level_named), Path(wheel)) for level, wheel in asked.get("add", ()))
            return Hwcaps(added=added, url=below)
        case "redirect":
            from vbuild.publishing.redirect.plan import Redirect

            by_hardware, by_installed = asked.get("by_hardware", False), asked.get("by_installed", False)
            return Redirect(url=below, by_hardware=by_hardware, by_installed=by_installed)
        case "local":
            from vbuild.publishing.local import Local

            return Local(url=below)
        case "suffix":
            from vbuild.publishing.suffix import Suffix

            return Suffix(url=below)
        case "oci":
            from vbuild.publishing.oci.plan import Oci

            return Oci(base=path_of(asked.get("base")))
        case "conda":
            from vbuild.publishing.conda.plan import Conda

            names = asked.get("map", ())
            pairs = names.items() if isinstance(names, Mapping) else names
            return Conda(url=below, names=tuple((project_name(project), other) for project, other in pairs))
        case "variants":
            from vbuild.publishing.variants import Variants

            return Variants(url=below)


def known(options: Any, kind: type[Any]) -> Any:  # noqa: ANN401 - the caller's TypedDict
    """The *options* of a call; `TypeError` for one that *kind* does not have."""
    for name in options.keys() - kind.__annotations__.keys():
        raise TypeError(f"unexpected option {name!r}; expected some of {', '.join(kind.__annotations__)}")
    # what can be read once only may be read twice
    return {name: tuple(value) if isinstance(value, Iterator) else value for name, value in options.items()}


def silent(*_: object) -> None:
    """Progress that nobody hears of."""


def value_of(value: Any, parse: Callable[[str], Any]) -> Any:  # noqa: ANN401 - a text, or what parse makes of one
    return parse(value) if isinstance(value, str) else value


def path_of(path: StrPath | None) -> Path | None:
    return None if path is None else Path(path)


def paths_of(paths: "StrPath | Iterable[StrPath]") -> list[Path]:
    return [Path(path) for path in ([paths] if isinstance(paths, str | PathLike) else paths)]


def places_of(places: "StrPath | Iterable[StrPath]") -> list[str | Path]:
    """Folders as paths, and URLs as they are."""
    several = [places] if isinstance(places, str | PathLike) else places
    return [place if isinstance(place, str) and "://" in place else Path(place) for place in several]


def texts_of(texts: str | Iterable[str] | None) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts or ())


def gpus_of(asked: "str | Iterable[str | GpuList] | GpuList") -> "GpuList | None":
    from vbuild.hardware.gpu import GpuList

    if isinstance(asked, GpuList):
        return asked
    several = (asked,) if isinstance(asked, str) else tuple(asked)
    return GpuList.asked(",".join(map(str, several))) if several else None


def cuts_of(asked: SlimOptions) -> "Cuts":
    """What the options of `slim` do to every library."""
    from vbuild.binary.edits import Strip
    from vbuild.hardware.gpu import Ptx
    from vbuild.slimming.request import Cuts

    return Cuts(
        ptx=Ptx(asked.get("ptx", "auto")),
        strip=Strip(asked.get("strip") or Strip.NOTHING),
        drop=texts_of(asked.get("drop")),
        zstd=asked.get("zstd"),
        force=asked.get("force", False),
        unsupported=asked.get("allow_unsupported", False),
    )


def toolkits_of(asked: "str | Dotted | Iterable[str | Dotted] | None") -> "tuple[Dotted, ...]":
    """The versions of CUDA that are *asked* for, each once: ``12.9,13.0``; `HardwareError` for others."""
    from vbuild.hardware.driver import Dotted

    several = asked.split(",") if isinstance(asked, str) else () if asked is None else asked
    found = (several,) if isinstance(several, Dotted) else several
    return tuple(dict.fromkeys(value_of(each, Dotted.parse) for each in found))


def axes_of(cpu: Any, cuda: Any, toolkit: Any = None, python: Any = None) -> "AskedAxes":  # noqa: ANN401 - as MatrixOptions has them
    from vbuild.build.init import AskedAxes
    from vbuild.hardware.machine import cpus_asked

    levels = ",".join(map(str, texts_of(cpu)))
    return AskedAxes(
        cpus=cpus_asked(levels) if levels else (),
        gpus=gpus_of(cuda or ()),
        toolkits=toolkits_of(toolkit),
        pythons=texts_of(python),
    )


def matrix_request(**options: Unpack[MatrixOptions]) -> "MatrixRequest":
    """What *options* ask `matrix` for."""
    from vbuild.release.matrix import MatrixRequest
    from vbuild.workers.executor import Executor

    asked = known(options, MatrixOptions)
    return MatrixRequest(
        jobs=asked.get("jobs"),
        only=texts_of(asked.get("only")),
        executor=value_of(asked.get("executor", "local"), Executor.parse),
        is_part=asked.get("part", False),
        is_locked=asked.get("locked", False),
        fresh=asked.get("fresh", False),
        axes=axes_of(asked.get("cpu"), asked.get("cuda"), asked.get("toolkit"), asked.get("python")),
        on_note=asked.get("on_note", silent),
    )


def shares_of(asked: "Mapping[str, str | Iterable[str]] | Iterable[Share]") -> "tuple[Share, ...]":
    from vbuild.slimming.request import Share

    if not isinstance(asked, Mapping):
        return tuple(asked)
    return tuple(Share.parse(f"{label}={','.join(texts_of(gpus))}") for label, gpus in asked.items())


def machine_of(machine: "StrPath | Machine | None") -> "Machine":
    from vbuild.hardware.machine import Machine
    from vbuild.variants.select import machine_at

    return machine if isinstance(machine, Machine) else machine_at(Path(machine)) if machine else Machine.here()


def state_inputs(verb: str, asked: Mapping[str, Any], made: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Write next to each wheel of *made* what it was made from, *inputs*, and with which options; see `state_each`."""
    from vbuild.sbom.statement import state_each

    given = {name: value for name, value in asked.items() if name not in _PLACES and value is not None}
    texts: dict[str, str | list[str]] = {}
    for name, value in given.items():
        if isinstance(value, Mapping):
            texts[name] = [f"{label}={','.join(texts_of(gpus))}" for label, gpus in value.items()]
        elif isinstance(value, Iterable) and not isinstance(value, str):
            texts[name] = [*map(str, value)]
        else:
            texts[name] = str(value)
    state_each(made, inputs=inputs, verb=verb, asked={"command": f"vbuild {verb}", "options": texts})


def attestations_of(*, publisher: str | None, trust_root: Path | None, fetch: bool) -> "AttestationRequest":
    """How attestations are checked; with *fetch* those on the indexes that pip is configured with count, too.

    `WheelError` if the packages that check them are not installed.
    """
    try:
        from vbuild.verification.attestations import AttestationRequest
    except ImportError as error:
        what = f"attestations: {error.name} is not installed: pip install 'vbuild-wheels[attestations]'"
        raise WheelError(what) from error
    if not fetch:
        return AttestationRequest(trust_root, publisher)
    from vbuild.index_client.pages import provenance_of

    return AttestationRequest(trust_root, publisher, provenance_of)


def fetch_of(*, fetch: bool) -> "Fetch | None":
    """What downloads a project's file from the indexes that pip is configured with; None if nothing is to be fetched.

    `FetchError` if pip's configuration cannot be read.
    """
    if not fetch:
        return None
    from vbuild.index_client.configuration import Indexes
    from vbuild.index_client.packages import download_best

    return partial(download_best, indexes=Indexes.configured())
