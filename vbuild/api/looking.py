"""Look: which wheel a machine gets, what is in one, and whether it keeps what it promises."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vbuild.api.arguments import (
    active_environment,
    attestations_of,
    fetch_of,
    gpus_of,
    level_named,
    machine_of,
    path_of,
    paths_of,
    places_of,
    texts_of,
    value_of,
)
from vbuild.api.request import ALLOW_BUILDS, Gpus, Paths, RequestError, StrPath, Texts, option, silent, takes
from vbuild.errors import HardwareError, RepackageError

if TYPE_CHECKING:
    import re

    from vbuild.hardware.cpu import Cpu
    from vbuild.hardware.machine import Machine
    from vbuild.inspection.doctor import Checkup
    from vbuild.inspection.model import Contents
    from vbuild.publishing.oci.select import ImageSelection
    from vbuild.variants.select import Selection
    from vbuild.verification.bench import BenchReport
    from vbuild.verification.level_emulation import LevelReport
    from vbuild.verification.model import Verdict


@dataclass(frozen=True)
class SelectRequest:
    """Without *machine* and *cpu* the machine is this one, with what its active environment has installed."""

    name: str
    find_links: Paths = option(
        "Look for wheels in this folder, page of links or simple index. Repeatable.",
        default=(),
        flags="-f --find-links",
        parse="place",
        metavar="FOLDER|URL",
    )
    _: KW_ONLY
    machine: "StrPath | Machine | None" = None
    cpu: "str | Cpu | None" = option(
        "Choose for a machine with this CPU level, as in v3, and with what --gpu says.",
        default=None,
        parse="vbuild.api.arguments:level_named",
        metavar="LEVEL",
    )
    gpus: Gpus = option(
        "With --cpu: its GPUs. [default: none]",
        default=(),
        flags="--gpu",
        parse="vbuild.hardware.gpu:GpuList.asked",
        metavar="LIST",
        only="cpu",
    )
    installed: "Iterable[str | tuple[str, str]]" = option(
        "Choose as if this were installed: torch==2.11.1. Repeatable. [default: what the active environment has]",
        default=(),
        flags="--with",
        parse="vbuild.hardware.machine:pinned",
        metavar="NAME==VERSION",
    )
    without: Texts = option(
        "Take no variant that names this namespace, such as nvidia. Repeatable.", default=(), metavar="NAMESPACE"
    )


@takes(SelectRequest)
def select(request: SelectRequest) -> "Selection":
    """Returns the wheel of project *name* at the places *find_links* that a machine gets, and the ranking of all.

    A place is a folder, or the URL of a page of links or of a simple index. *machine* is a machine.toml, or a
    `Machine`. `VariantError` if no wheel fits, `HardwareError` if the machine's file is wrong, `FetchError` for a place
    that cannot be read. Nothing is written.
    """
    from vbuild.variants.doctor import compared_with
    from vbuild.variants.select import select as verb

    if not request.find_links:
        raise RequestError("expected {find_links} FOLDER, where the wheels are")
    machine = machine_of(
        request.machine,
        cpu=request.cpu,
        gpus=request.gpus,
        installed=request.installed,
        without=request.without,
    )
    selection = verb(request.name, places_of(request.find_links), machine=machine)
    environment = active_environment() if request.machine is None and request.cpu is None else None
    return compared_with(selection, environment) if environment else selection


def select_image(folder: StrPath, *, machine: "StrPath | Machine | None" = None) -> "ImageSelection":
    """Returns the image in the image layout *folder* that a machine gets, and the ranking of all: ``select oci:DIR``.

    A layout with several indexes is ``DIR:NAME``. *machine* is as for `select`. `RepackageError` if there is no such
    layout or index, or no image fits. Nothing is written.
    """
    from vbuild.publishing.oci.model import folder_and_name
    from vbuild.publishing.oci.select import select_image as verb

    place, ref = folder_and_name(Path(folder))
    return verb(place, machine_of(machine), ref=ref)


@dataclass(frozen=True)
class DoctorRequest:
    """Without *places* it is the environment that is active, or the one that runs this."""

    places: Paths = ()
    _: KW_ONLY
    gpus: Gpus = option(
        "Ask about these GPUs. [default: those of this machine]",
        default=(),
        flags="--gpu",
        parse="vbuild.hardware.gpu:GpuList.asked",
        metavar="LIST",
    )
    html: StrPath | None = option(
        "Also write a page that shows where the bytes of one place are, and what commands would save.",
        default=None,
        parse="file",
        metavar="FILE",
    )


@takes(DoctorRequest)
def doctor(request: DoctorRequest) -> "Checkup":
    """Returns on which GPUs the GPU code in *places* runs: environments, wheels, folders of libraries, or libraries.

    For each library there is whether it runs natively, by JIT or not at all, the oldest driver, and what slimming would
    save in bytes; without *gpus* also whether installed variants are for this machine, which may have no GPU, and which
    wheels would be better out of folders of wheels among *places*. With *gpus* the wheels in such folders are examined.

    `HardwareError` for a GPU that does not exist, `RepackageError` for a place that is not an environment, `WheelError`
    for a wheel that cannot be read, `VariantError` for a variants.json.
    """
    from msgspec.structs import replace

    from vbuild.hardware.driver import Nvidia
    from vbuild.hardware.machine import Machine
    from vbuild.inspection.doctor import checkup, has_wheels
    from vbuild.wheel.archive import wheels_in

    gpus, here, notes = gpus_of(request.gpus), None, list[str]()
    if gpus is None:
        here = Machine.here()
        try:
            gpus = gpus_of("native")
        except HardwareError as error:
            notes.append(str(error))
    places = [*paths_of(request.places)]
    if not here:  # the wheels of a folder are looked at, not compared with what is installed
        places = [path for place in places for path in (wheels_in(place) if has_wheels(place) else [place])]
    if all(map(has_wheels, places)):
        places.append(active_environment() or Path(sys.prefix))
    shown = [place for place in places if not has_wheels(place)]
    if request.html and len(shown) != 1:
        raise RepackageError(f"html: {len(shown)} places; expected one for a page, besides folders of wheels")
    checked = checkup(places, gpus.every if gpus else (), driver=Nvidia.here().driver, machine=here)
    if request.html:
        from vbuild.inspection.inspect import contents_at, save_page
        from vbuild.inspection.model import Advice
        from vbuild.slimming.environment import savings

        contents = contents_at(shown[0])
        advice = [
            Advice(contents.slimmed_by(saving.option), saving.unpacked, saving.packed)
            for saving in (savings(shown[0], gpus) if contents.slim else ())
        ]
        save_page(contents, Path(request.html), advice)
    return replace(checked, notes=(*notes, *checked.notes))


@dataclass(frozen=True)
class VerifyRequest:
    """What to compare a wheel with, besides its name and metadata."""

    wheel: StrPath
    _: KW_ONLY
    cpu: "str | Cpu | None" = option(
        "Say first whether the code runs on processors of this level, such as v2 or armv8.2-a.",
        default=None,
        parse="vbuild.hardware.cpu:Cpu.parse",
        metavar="LEVEL",
    )
    allow: "str | Iterable[str | re.Pattern[str]]" = option(
        "Let these functions or files exceed the level. Repeatable.",
        default=(),
        parse="vbuild.verification.verify:pattern",
        metavar="REGEX",
    )
    fetch: bool = option("Fetch required -libs wheels, and attestations, that do not lie beside them.", default=False)
    attestations: bool = option("Also check who published the wheels (PEP 740), by signatures.", default=False)
    publisher: str | None = option(
        "With --attestations: expect this repository to have published them.",
        default=None,
        metavar="URL",
        only="attestations",
    )
    trust_root: StrPath | None = option(
        "With --attestations: trust this trusted_root.json, not Sigstore's own.",
        default=None,
        parse="file",
        only="attestations",
    )
    on_progress: Callable[[str], None] = option("Call this with each step.", default=silent, flags=None)


@takes(VerifyRequest)
def verify(request: VerifyRequest) -> "Verdict":
    """Compare the code in *wheel* with what its name and metadata promise, and return the findings.

    Symbols of torch and the like are looked up in the wheels beside it, and in the active environment.
    Signatures of attestations are checked without a network. ``failed`` of the result says whether a promise is broken.
    `WheelError` if the wheel cannot be read, `FetchError` if no index answers. Nothing is written.
    """
    from vbuild.verification.verify import verify as verb

    allow = (request.allow,) if isinstance(request.allow, str) else request.allow
    verdict = verb(
        Path(request.wheel),
        cpu=value_of(request.cpu, level_named),
        is_question=request.cpu is not None,
        allow=tuple(allow),
        fetch=fetch_of(fetch=request.fetch),
        environment=active_environment(),
        on_progress=request.on_progress,
    )
    if not request.attestations:
        return verdict
    from vbuild.verification.attestations import attested

    wanted = attestations_of(publisher=request.publisher, trust_root=path_of(request.trust_root), fetch=request.fetch)
    return attested(verdict, wanted)


def run_levels(
    wheel: StrPath,
    *,
    cpu: "str | Cpu | None" = None,
    test: str | None = None,
    processors: Texts = (),
    allow_builds: bool = False,
    on_progress: Callable[[str], None] = silent,
) -> "LevelReport":
    """Install *wheel* and import it as a CPU of each level in it would: ``vbuild verify --run``.

    *cpu* is the level of a wheel that claims none, by default the baseline. *test* is a command to run at each level,
    too. *processors* are further ones to run it on, by the names that ``qemu-x86_64 -cpu`` takes, such as the
    ``processors`` of a verdict. With *allow_builds*, requirements without a wheel are built, which runs their code.
    ``failures`` of the result say what does not work, ``untried`` which levels this machine cannot run. `WheelError` if
    the wheel cannot be installed.
    """
    from vbuild.recipe.model import Check
    from vbuild.verification import level_runs

    settings = level_runs.LevelSettings(
        check=Check(command=test),
        cpu=value_of(cpu, level_named),
        builds=allow_builds,
        processors=texts_of(processors),
    )
    return level_runs.run_levels(Path(wheel), settings, on_progress=on_progress)


@dataclass(frozen=True)
class BenchRequest:
    """Each wheel is run *rounds* times, at least twice, and up to three times as often while noise hides the winner."""

    wheels: Paths
    script: StrPath
    _: KW_ONLY
    rounds: int = 5
    allow_builds: bool = ALLOW_BUILDS
    on_progress: Callable[[str], None] = silent


@takes(BenchRequest)
def bench(request: BenchRequest) -> "BenchReport":
    """Time *script* with each of *wheels*, files or folders of them, in turns, and compare with the first.

    *script* prints lines such as "encrypt 12.5 ms", uses pyperf, or is a file of pytest-benchmark. Each wheel has an
    environment of its own, also with the dependencies that the script states (PEP 723); with *allow_builds*, those
    without a wheel are built, which runs their code. ``wheels`` of the result have seconds and ratios; ``untried`` of
    one says that this machine cannot run its level. `WheelError` if a wheel cannot be installed, or if the script fails
    or prints no figures.
    """
    from vbuild.recipe.model import Bench
    from vbuild.verification import bench as timing

    return timing.bench(
        timing.wheels_to_compare(paths_of(request.wheels)),
        Bench(script=Path(request.script), rounds=request.rounds),
        builds=request.allow_builds,
        on_progress=request.on_progress,
    )


@dataclass(frozen=True)
class InspectRequest:
    """What to show of a wheel."""

    wheel: StrPath
    _: KW_ONLY
    html: StrPath | None = option(
        "Also write a page that shows where the bytes of one wheel are, or of the later of two, and what changed.",
        default=None,
        parse="file",
    )
    closure: bool = option("Show which library loads which, from where, and why each is there.", default=False)
    before: "Contents | None" = option(
        "With html: say on the page what changed since the wheel with these contents.", default=None, flags=None
    )


@takes(InspectRequest)
def inspect(request: InspectRequest) -> "Contents":
    """Returns what is in *wheel*: libraries, GPU code by architecture, duplicates, and sizes in bytes.

    With *closure* also which library loads which. *html* is a file to write a page about the wheel to, which says what
    changed since a wheel of which *before* are the contents; `Contents.changes_from` returns that. `WheelError` if the
    wheel cannot be read, `RepackageError` if the page cannot be written.
    """
    from vbuild.inspection import inspect as inspection

    html = path_of(request.html)
    contents = inspection.inspect(Path(request.wheel), closure=request.closure, densities=html is not None)
    if html:
        inspection.save_page(contents, html, before=request.before)
    return contents
