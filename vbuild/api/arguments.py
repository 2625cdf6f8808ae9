"""Arguments of the public functions as the values that verbs take."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vbuild.api import Layout
from vbuild.api.request import Gpus, Paths, RequestError, StrPath, Texts, options_of
from vbuild.errors import HardwareError, RepackageError, WheelError

if TYPE_CHECKING:
    from vbuild.api.building import MatrixRequest
    from vbuild.api.repackaging import InstalledRequest, SlimRequest
    from vbuild.api.shipping import PublishRequest
    from vbuild.build.init import AskedAxes
    from vbuild.hardware.cpu import Cpu
    from vbuild.hardware.driver import Dotted
    from vbuild.hardware.gpu import GpuList
    from vbuild.hardware.machine import Machine
    from vbuild.publishing.model import PublishLayout
    from vbuild.release import matrix as release
    from vbuild.slimming.request import Cuts
    from vbuild.verification.attestations import AttestationRequest
    from vbuild.verification.required import Fetch


def level_named(text: str) -> "Cpu":
    from vbuild.hardware.cpu import Cpu

    return Cpu.parse(text)


def level_and_wheel(text: str) -> "tuple[Cpu, Path]":
    """The level and the wheel of ``v3=other.whl``; `HardwareError` for anything else."""
    level, separator, wheel = text.partition("=")
    if not (separator and wheel):
        raise HardwareError(f"{text!r}: expected a CPU level and a wheel, as in v3=other.whl")
    return level_named(level), Path(wheel)


def two_names(text: str) -> tuple[str, str]:
    """The two names of ``torch=pytorch``; a `VbuildError` for anything else."""
    from vbuild.splitting.request import project_name

    project, separator, name = text.partition("=")
    if not (separator and project and name):
        raise RepackageError(f"{text!r}: expected two names, as in torch=pytorch")
    return project_name(project), name


def layout_of(name: Layout, request: "PublishRequest") -> "PublishLayout":  # noqa: PLR0911 - a layout, a line
    from vbuild.publishing.model import folder_url
    from vbuild.splitting.request import project_name

    below = f"{folder_url(request.url)}/{name}" if request.url else None
    match name:
        case "hwcaps":
            from vbuild.publishing.hwcaps.plan import Hwcaps

            added = tuple((value_of(level, level_named), Path(wheel)) for level, wheel in request.add)
            return Hwcaps(added=added, url=below)
        case "redirect":
            from vbuild.publishing.redirect.plan import Redirect

            return Redirect(url=below, by_hardware=request.by_hardware, by_installed=request.by_installed)
        case "local":
            from vbuild.publishing.local import Local

            return Local(url=below)
        case "suffix":
            from vbuild.publishing.suffix import Suffix

            return Suffix(url=below)
        case "oci":
            from vbuild.publishing.oci.plan import Oci

            return Oci(base=path_of(request.base))
        case "conda":
            from vbuild.publishing.conda.plan import Conda

            pairs = request.map.items() if isinstance(request.map, Mapping) else request.map
            return Conda(url=below, names=tuple((project_name(project), other) for project, other in pairs))
        case "variants":
            from vbuild.publishing.variants import Variants

            return Variants(url=below)


def value_of(value: Any, parse: Callable[[str], Any]) -> Any:  # noqa: ANN401 - a text, or what parse makes of one
    return parse(value) if isinstance(value, str) else value


def path_of(path: StrPath | None) -> Path | None:
    return None if path is None else Path(path)


def paths_of(paths: Paths) -> list[Path]:
    return [Path(path) for path in ([paths] if isinstance(paths, str | PathLike) else paths)]


def places_of(places: Paths) -> list[str | Path]:
    """Folders as paths, and URLs as they are."""
    several = [places] if isinstance(places, str | PathLike) else places
    return [place if isinstance(place, str) and "://" in place else Path(place) for place in several]


def texts_of(texts: Texts | None) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts or ())


def labels_of(labels: Texts) -> tuple[str, ...]:
    """The labels in *labels*, of which a text may have several: ``x86_64_v3,plain``."""
    return tuple(label.strip() for text in texts_of(labels) for label in text.split(","))


def gpus_of(asked: Gpus) -> "GpuList | None":
    from vbuild.hardware.gpu import GpuList

    if isinstance(asked, GpuList):
        return asked
    several = (asked,) if isinstance(asked, str | float | int) else tuple(asked)
    return GpuList.asked(",".join(map(str, several))) if several else None


def cuts_of(request: "SlimRequest | InstalledRequest", *, drop: Texts = (), strict: bool = False) -> "Cuts":
    """What *request* asks to do to every library, and which files to leave out."""
    from vbuild.binary.edits import Strip
    from vbuild.hardware.gpu import Ptx
    from vbuild.slimming.request import Cuts

    return Cuts(
        ptx=Ptx(request.ptx),
        strip=Strip(request.strip or Strip.NOTHING),
        drop=texts_of(drop),
        zstd=request.recompress,
        force=request.force,
        unsupported=request.allow_unsupported,
        strict=strict,
    )


def toolkits_of(asked: "str | Dotted | Iterable[str | Dotted] | None") -> "tuple[Dotted, ...]":
    """The versions of CUDA that are *asked* for, each once: ``12.9,13.0``; `HardwareError` for others."""
    from vbuild.hardware.driver import Dotted

    several = asked.split(",") if isinstance(asked, str) else () if asked is None else asked
    versions = (several,) if isinstance(several, Dotted) else several
    return tuple(dict.fromkeys(value_of(version, Dotted.parse) for version in versions))


def axes_of(cpu: Any, cuda: Any, toolkit: Any = None, python: Any = None) -> "AskedAxes":  # noqa: ANN401 - as MatrixRequest has them
    from vbuild.build.init import AskedAxes
    from vbuild.hardware.machine import cpus_asked

    levels = ",".join(map(str, texts_of(cpu)))
    return AskedAxes(
        cpus=cpus_asked(levels) if levels else (),
        gpus=gpus_of(cuda or ()),
        toolkits=toolkits_of(toolkit),
        pythons=texts_of(python),
    )


def matrix_request(request: "MatrixRequest") -> "release.MatrixRequest":
    """What *request* asks a release for."""
    from msgspec.structs import replace

    from vbuild.release import matrix as release
    from vbuild.workers.executor import Executor

    return release.MatrixRequest(
        jobs=request.jobs,
        only=labels_of(request.only),
        executor=value_of(request.executor, Executor.parse),
        is_part=request.part,
        is_locked=request.locked,
        fresh=request.fresh,
        axes=replace(axes_of(request.cpu, request.cuda, request.toolkit, request.python), is_one_wheel=request.hwcaps),
        on_note=request.on_note,
    )


def active_environment() -> Path | None:
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    return Path(active) if active else None


def machine_of(
    machine: "StrPath | Machine | None",
    *,
    cpu: "str | Cpu | None" = None,
    gpus: Gpus = (),
    installed: "Iterable[str | tuple[str, str]]" = (),
    without: Texts = (),
) -> "Machine":
    """The *machine* of a value or a file, else one with *cpu* and *gpus*, else this one and its active environment.

    It has *installed*, too, and takes no variants of the namespaces *without*.
    """
    from msgspec.structs import replace

    from vbuild.hardware.driver import Dotted
    from vbuild.hardware.machine import Machine, pinned
    from vbuild.variants.select import machine_at
    from vbuild.wheel.installed import installed_versions

    if machine and cpu:
        raise RequestError("{cpu} describes another machine; expected no {machine}")
    if cpu:
        wanted = gpus_of(gpus)
        devices = wanted.devices if wanted else ()
        described = Machine.described(
            value_of(cpu, level_named),
            [Dotted(device.major, device.number % 10) for device in devices],
            processors=[target.processor for target in wanted.targets] if wanted else (),
        )
    elif machine:
        described = machine if isinstance(machine, Machine) else machine_at(Path(machine))
    else:
        described = Machine.here()
        if active := active_environment():
            with suppress(RepackageError):
                described = replace(described, installed=installed_versions(active))
    return replace(
        described,
        without=(*described.without, *texts_of(without)),
        installed=(*described.installed, *(value_of(text, pinned) for text in installed)),
    )


def state_inputs(verb: str, request: Any, made: Sequence[Path], inputs: Sequence[Path]) -> None:  # noqa: ANN401 - of a verb
    """Write next to each wheel of *made* what it was made from, *inputs*, and with which options; see `state_each`.

    An option is left out if it is as by default.
    """
    from vbuild.sbom.statement import state_each

    texts: dict[str, str | list[str]] = {}
    for name, (declared, default) in options_of(request).items():
        value = getattr(request, name)
        if declared.flags is None or name == "provenance" or value == default:
            continue
        if isinstance(value, Mapping):
            value = [f"{key}={','.join(texts_of(text))}" for key, text in value.items()]
        is_text = isinstance(value, str) or not isinstance(value, Iterable)
        texts[name] = str(value) if is_text else [*map(str, value)]
    state_each(made, inputs=inputs, verb=verb, asked={"command": f"vbuild {verb}", "options": texts})


def attestations_of(*, publisher: str | None, trust_root: Path | None, fetch: bool) -> "AttestationRequest":
    """How attestations are checked; with *fetch* those on the indexes that pip is configured with count, too.

    `WheelError` if the packages that check them are not installed.
    """
    try:
        from vbuild.verification.attestations import AttestationRequest
    except ImportError as error:
        raise WheelError(
            f"attestations: {error.name} is not installed: pip install 'vbuild-wheels[attestations]'"
        ) from error
    from vbuild.index_client.pages import provenance_of

    return AttestationRequest(trust_root, publisher, provenance_of if fetch else None)


def fetch_of(*, fetch: bool) -> "Fetch | None":
    """What downloads a project's file from the indexes that pip is configured with; None if nothing is to be fetched.

    `FetchError` if pip's configuration cannot be read.
    """
    if not fetch:
        return None
    from vbuild.index_client.configuration import Indexes
    from vbuild.index_client.packages import download_best

    return partial(download_best, indexes=Indexes.configured())
