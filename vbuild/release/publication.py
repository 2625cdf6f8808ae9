"""Put the finished wheels of a release into the folder of results, with index and report, in one step at the end.

The report says which wheel standard machines, of those that the release could be for, get out of the finished folder.

    CPU levels without a GPU, then GPUs in the hosts that they usually stand in   x   the Pythons of the release
        -> `vbuild.variants.select` out of the finished folder -> MachineChoice

Drivers run the newest CUDA toolkit of the release, or the GPU's first if no variant asks for one.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from packaging.tags import compatible_tags, cpython_tags, generic_tags
from packaging.utils import canonicalize_name

from vbuild.build.source import fetched_source
from vbuild.errors import HardwareError, VariantError, VbuildError, at
from vbuild.files.atomic import linked, settle, settle_names, turn
from vbuild.files.cache import sweep_daily
from vbuild.files.reading import read_file
from vbuild.hardware.architectures import Arch
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.machine import Machine, glibc_platforms
from vbuild.recipe.matrix import SDIST
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Sdist
from vbuild.recipe.target import Target
from vbuild.release.model import Failure, Product, ReleaseContext, ReleaseResult
from vbuild.release.report import PAGE, REPORT, MachineChoice, page
from vbuild.sbom.statement import PROVENANCE, build_platform, dependencies_at, platform_at, statement
from vbuild.variants.document import Document
from vbuild.variants.index import Indexed, index
from vbuild.variants.model import Property
from vbuild.variants.select import select
from vbuild.wheel.archive import wheels_in
from vbuild.wheel.name import WheelName, escaped
from vbuild.wheel.sdist import SUFFIX, sdist_metadata

if TYPE_CHECKING:
    from vbuild.release.levels import ReleaseBench
    from vbuild.splitting.results import Split

_INTERPRETER = re.compile(r"(?P<implementation>[a-z]+)(?P<major>\d)(?P<minor>\d+)", re.ASCII)
_NVIDIA = "nvidia"
_LOWER_BOUND = "cuda_version_lower_bound"
_GLIBC = 39  # that of Ubuntu 24.04, 2.39
_MUSL = 2
_LAST_MINOR = 8  # of CUDA 11, the driver before 12; it stands for any driver of the major version before
# for wheels without an interpreter of their own
_PYTHON = ("cp312", "cp312")


class StandardMachine(Struct, frozen=True):
    name: str
    cpu: Cpu
    gpu: Arch | None = None


_V1, _V2, _V3, _V4 = (Cpu.known("x86_64", level) for level in ("v1", "v2", "v3", "v4"))
_ARM, _ARM_8_2, _ARM_8_4, _ARM_9 = (Cpu.known("aarch64", version) for version in ("8a", "8.2a", "8.4a", "9.0a"))

STANDARD = (
    StandardMachine("any x86-64", _V1),
    StandardMachine("Nehalem, Bulldozer", _V2),
    StandardMachine("Haswell, Zen", _V3),
    StandardMachine("Skylake-SP, Zen 4", _V4),
    StandardMachine("NVIDIA T4", _V4, Arch(75)),
    StandardMachine("NVIDIA A100", _V3, Arch(80)),
    StandardMachine("NVIDIA A10, RTX 3090", _V3, Arch(86)),
    StandardMachine("NVIDIA L4, RTX 4090", _V3, Arch(89)),
    StandardMachine("NVIDIA H100", _V4, Arch(90)),
    StandardMachine("NVIDIA B200", _V4, Arch(100)),
    StandardMachine("NVIDIA RTX 5090", _V3, Arch(120)),
    StandardMachine("any 64-bit Arm", _ARM),
    StandardMachine("Graviton2, Ampere Altra", _ARM_8_2),
    StandardMachine("Graviton3", _ARM_8_4),
    StandardMachine("Grace, Graviton4", _ARM_9),
    StandardMachine("NVIDIA GH200", _ARM_9, Arch(90)),
)
# asked with older drivers too: no driver of CUDA 11 or later is too old for it
_OLDER_DRIVERS = StandardMachine("NVIDIA A100", _V3, Arch(80))


def published(
    context: ReleaseContext,
    outcomes: Sequence[Product | Failure],
    split: "Split | None",
    *,
    notes: Sequence[str],
    bench: "ReleaseBench",
    is_remote: bool = False,
) -> ReleaseResult:
    """Index the finished wheels with those of the same release in the folder of results, then move all of it there.

    *split* is the account of what was taken out of the wheels. Earlier wheels that *bench* leaves out now are removed.
    """
    folder, stage = context.folder, context.stage
    products = tuple(outcome for outcome in outcomes if isinstance(outcome, Product))
    failures = tuple(outcome for outcome in outcomes if isinstance(outcome, Failure))
    together = stage / "release"
    with turn(folder):
        gone = {product.wheel.name for product in bench.left_out}
        indexed = _indexed(products, together, folder, gone)
        earlier = {label for item in indexed for label in item.labels} - {product.label for product in products}
        stale = dict.fromkeys(failure.target.label for failure in failures if failure.target.label in earlier)
        lost = (f"{label}: failed, and its wheel of an earlier run is still there, and indexed" for label in stale)
        release = ReleaseResult(
            context.recipe.name,
            context.source,
            products,
            failures,
            indexed,
            (*notes, *lost),
            split.moved(folder) if split else None,
            choices(context.recipe.name, together, together.glob("*.whl")),
            bench=bench.reports,
        )
        report = release.report()
        reports = (stage / REPORT, stage / PAGE)
        reports[0].write_text(json.dumps(report.data(), indent=2) + "\n", encoding="utf-8")
        reports[1].write_text(page(report), encoding="utf-8")
        wheels = [product.wheel for product in products] + [*(split.companion_paths if split else ())]
        files = [*wheels, *(item.path for item in indexed), *reports]
        if wheels:  # a statement is on something
            files.append(_provenance(context, wheels, is_remote=is_remote))
            if sdist := None if context.is_part else project_sdist(context.recipe):
                files.append(linked(sdist[1], stage / sdist[0]))
        files = list(dict.fromkeys(files))  # a dependency wheel may be given, and be made again
        # all that needs room on the disk is done
        settle(*files)
        for file in files:
            file.replace(folder / file.name)
        settle_names(folder)
        for name in gone:
            (folder / name).unlink(missing_ok=True)
    sweep_daily()
    return replace(
        release,
        products=tuple(replace(product, wheel=folder / product.wheel.name) for product in products),
        indexed=tuple(replace(item, path=folder / item.path.name) for item in indexed),
    )


def project_sdist(recipe: Recipe) -> tuple[str, Path] | None:
    """The project's own sdist with its file name (PEP 625) if it is the plain file of the release; `WheelError` if it
    is none that an index takes.
    """
    source = recipe.source
    if recipe.matrix.plain_requires != SDIST or not isinstance(source, Sdist):
        return None
    path = fetched_source(source)
    with at(recipe.file), at("matrix.plain"), at(source):
        sdist_metadata(path)
    return f"{escaped(source.name)}-{source.version}{SUFFIX}", path


def _provenance(context: ReleaseContext, wheels: Iterable[Path], *, is_remote: bool) -> Path:
    """The file with the statement on *wheels*; it names this platform unless workers made them."""
    path = context.stage / PROVENANCE
    platforms = {"" if is_remote else build_platform(), *map(platform_at, context.parts)}
    stated = statement(
        tuple(dict.fromkeys(wheels)),
        inputs=context.inputs,
        earlier=[dependency for part in context.parts for dependency in dependencies_at(part)],
        asked={"recipe": context.inputs[0].name} if context.inputs else {},
        platform="" if len(platforms) > 1 else platforms.pop(),
    )
    path.write_bytes(stated)
    return path


def _indexed(products: Iterable[Product], release: Path, folder: Path, gone: Collection[str]) -> tuple[Indexed, ...]:
    """The variants.json of the *products* and their elder siblings in *folder*, but for those that are *gone*."""
    release.mkdir()
    names = {product.wheel.name for product in products}
    wanted = {WheelName.parse(name).release for name in names}
    for old in wheels_in(folder):
        if old.name not in names and old.name not in gone and _release_of(old) in wanted:
            linked(old, release / old.name)
    for product in products:
        linked(product.wheel, release / product.wheel.name)
    return index(release, verify=False)


def _release_of(wheel: Path) -> str | None:
    try:
        return WheelName.parse(wheel.name).release
    except VbuildError:
        return None  # not a wheel's name: no business of this release


def without_twins(outcomes: Iterable[Product | Failure]) -> list[Product | Failure]:
    """*outcomes*; of two wheels of one name the second is a failure."""
    names: dict[str, Target] = {}
    single: list[Product | Failure] = []
    for outcome in outcomes:
        if isinstance(outcome, Product):
            first = names.setdefault(outcome.wheel.name, outcome.target)
            if first is not outcome.target:
                single.append(Failure.of_twin(outcome.target, outcome.wheel.name, first.python))
                continue
        single.append(outcome)
    return single


def choices(project: str, folder: Path, wheels: Iterable[Path]) -> tuple[MachineChoice, ...]:
    """What the standard machines get of the *wheels* of *project* in *folder*, for each Python of the release in turn.

    `VariantError` if a variants.json is not as PEP 825 says.
    """
    names = [WheelName.parse(path.name) for path in wheels]
    names = [name for name in names if name.project == canonicalize_name(project)]
    machines = [*_machines_asked(folder, names)]
    pythons = _pythons(names)
    platforms = " ".join(name.platform for name in names)
    is_musl = "musllinux" in platforms and "manylinux" not in platforms
    return tuple(
        _choice(project, folder, machine=machine, driver=driver, python=python, musl=is_musl)
        for machine, driver in machines
        for python in pythons
    )


def _nvidia_drivers(folder: Path, names: Iterable[WheelName]) -> list[Dotted] | None:
    """The CUDA versions that variants ask NVIDIA's driver for, the newest first; None if none asks for a GPU."""
    properties: list[Property] = []
    for path in {folder / name.variants_json for name in names}:
        if path.is_file():
            with at(path.name):
                variants = Document.parse(read_file(path)).variants
            properties += [prop for variant in variants for prop in variant.properties if prop.namespace == _NVIDIA]
    bounds = set()
    for prop in properties:
        if prop.feature == _LOWER_BOUND:
            with suppress(HardwareError):  # a provider of the namespace may know other values
                bounds.add(Dotted.parse(prop.value))
    return sorted(bounds, reverse=True) if properties else None


def _machines_asked(folder: Path, names: Sequence[WheelName]) -> Iterator[tuple[StandardMachine, Dotted | None]]:
    """The standard machines for which there could be a wheel, and their drivers."""
    drivers = _nvidia_drivers(folder, names)
    platforms = {tag for name in names for tag in name.platform.split(".")}
    machines = {
        machine
        for machine in ("x86_64", "aarch64")
        if any(tag == "any" or (tag.endswith(f"_{machine}") and "linux" in tag) for tag in platforms)
    }
    for standard in STANDARD:
        if standard.cpu.machine not in machines:
            continue
        if standard.gpu is None:
            yield standard, None
        elif drivers is not None and (toolkits := standard.gpu.toolkits):
            yield standard, max((toolkits[0], *drivers[:1]))
    if drivers and _OLDER_DRIVERS.cpu.machine in machines:
        last = drivers[-1]
        too_old = Dotted(last.major, last.minor - 1) if last.minor else Dotted(last.major - 1, _LAST_MINOR)
        for driver in (*drivers[1:], too_old):
            yield _OLDER_DRIVERS, driver


def _pythons(names: Iterable[WheelName]) -> list[tuple[str, str]]:
    pythons: set[tuple[str, str]] = set()
    for name in names:
        for tag in name.tags:
            if match := _INTERPRETER.fullmatch(tag.interpreter):
                is_own = tag.abi.startswith((tag.interpreter, "pypy", "graalpy"))
                if is_own or match["implementation"] == "cp":
                    pythons.add((tag.interpreter, tag.abi if is_own else tag.interpreter))
    return sorted(pythons, key=lambda python: (_version(python[0]), python)) or [_PYTHON]


def _version(interpreter: str) -> tuple[int, int]:
    match = _INTERPRETER.fullmatch(interpreter)
    return (int(match["major"]), int(match["minor"])) if match else (3, 0)


def _choice(
    project: str, folder: Path, *, machine: StandardMachine, driver: Dotted | None, python: tuple[str, str], musl: bool
) -> MachineChoice:
    interpreter, abi = python
    numbers = _version(interpreter)
    version, is_cpython = ".".join(map(str, numbers)), interpreter.startswith("cp")
    # as people call it: 3.11, 3.13t, pp310
    spoken = f"{version}{'t' if abi.endswith('t') else ''}" if is_cpython else interpreter
    name = machine.cpu.machine
    musllinux = [*(f"musllinux_1_{minor}_{name}" for minor in range(_MUSL, -1, -1)), f"linux_{name}"]
    platforms = musllinux if musl else glibc_platforms(name, _GLIBC)
    own = cpython_tags(numbers, [abi], platforms) if is_cpython else generic_tags(interpreter, [abi, "none"], platforms)
    capability = Dotted(*divmod(machine.gpu.number, 10)) if machine.gpu else None
    asking_machine = Machine(
        f"{version}.99",  # Requires-Python may name a release with bug fixes: the machine has it
        tuple(map(str, (*own, *compatible_tags(numbers, interpreter, platforms)))),
        machine.cpu,
        Nvidia(driver, (capability,)) if capability else Nvidia(),
    )
    choice = MachineChoice(
        machine=machine.name,
        python=spoken,
        cpu=str(machine.cpu),
        gpu=str(machine.gpu) if machine.gpu else None,
        driver=str(driver) if driver else None,
    )
    try:
        selection = select(project, [folder], machine=asking_machine)
    except VariantError as error:
        # without the reasons for each wheel, which are behind it
        return replace(choice, why=str(error).removeprefix(f"{project}: ").partition(": ")[0])
    why = next(candidate.why for candidate in selection.ranking if candidate.path == selection.wheel)
    size = selection.wheel.stat().st_size
    return replace(choice, wheel=selection.wheel.name, label=selection.name.variant, size=size, why=why)
