"""The values of a release: what every step of it knows, and what becomes of each target.

ReleaseContext, ReleaseFamily -> steps -> Product or Failure of each target -> ReleaseWheels -> ReleaseResult
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.build.plan import BuildBackend, FlagPlan, WrapperRules
from vbuild.build.reproducible import Unreproducible
from vbuild.build.wrappers import Override
from vbuild.errors import BuildError, VbuildError, at
from vbuild.files.atomic import LOGS
from vbuild.files.hashing import sha256_of
from vbuild.hardware.driver import Dotted
from vbuild.publishing.lint.index import DEFAULT_LIMIT, LARGEST_LIMIT, MB, PROJECT_LIMIT
from vbuild.recipe.model import AGAINST, Recipe, TrialResult
from vbuild.recipe.source import Sdist
from vbuild.recipe.target import Target, titled
from vbuild.recipe.variables import masked, masked_setting
from vbuild.release.cache import BuildCache
from vbuild.release.report import (
    FailureEntry,
    MachineChoice,
    PypiLimits,
    Report,
    TargetEntry,
    ToolkitEntry,
    WheelEntry,
)
from vbuild.toolchain.compiler_program import SINGLE_FILE
from vbuild.toolchain.nvcc_commands import is_trial
from vbuild.toolchain.toolkit import Toolkit
from vbuild.toolchain.toolkit_provision import FETCHED, Supply
from vbuild.variants.document import Document
from vbuild.variants.model import Property, Variant, VariantMetadata, read_providers
from vbuild.variants.providers import metadata_for
from vbuild.verification.bench import BenchReport
from vbuild.verification.level_emulation import LevelRun
from vbuild.verification.model import Verdict
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import WheelName

if TYPE_CHECKING:
    from vbuild.splitting.request import SplitRequest
    from vbuild.splitting.results import Split
    from vbuild.toolchain.interpreter import Interpreter
    from vbuild.variants.index import Indexed

OnProgress = Callable[[Target, str], None]


class Product(Struct, frozen=True):
    """A finished wheel: how it was built and in how many *seconds*, its verdict and the result of its test.

    *emulation* is its run in an emulator. *lists* are GPU architectures changed in commands of nvcc. It *is_built* in
    this run; it *is_kept* if an earlier one finished it. *not_reproducible* is None if not known.
    """

    target: Target
    wheel: Path
    plan: FlagPlan
    toolkit: Toolkit | None
    seconds: float
    overrides: tuple[Override, ...]
    lists: tuple[str, ...]
    verdict: Verdict
    trial: TrialResult
    emulation: LevelRun | None = None
    is_built: bool = True
    is_kept: bool = False
    not_reproducible: tuple[Unreproducible, ...] | None = None

    @property
    def label(self) -> str | None:
        return self.target.label

    @property
    def title(self) -> str:
        return titled(self.label, self.target.local)

    @property
    def size(self) -> int:
        return self.wheel.stat().st_size

    @property
    def unpacked(self) -> int:
        """Bytes of the wheel's files as they are installed."""
        with open_wheel(self.wheel) as wheel:
            return sum(member.size for member in wheel.members)

    def entry(self) -> WheelEntry:
        toolkit = self.toolkit
        return WheelEntry(
            **TargetEntry.fields(self.target),
            wheel=self.wheel.name,
            size=self.size,
            unpacked=self.unpacked,
            sha256=sha256_of(self.wheel),
            is_built=self.is_built,
            is_kept=self.is_kept,
            seconds=round(self.seconds, 3),
            test=self.trial,
            emulation_data=self.emulation.data() if self.emulation else None,
            environment={name: masked(value, name=name) for name, value in self.plan.environment},
            config_settings={name: masked_setting(name, value) for name, value in self.plan.config_settings},
            toolkit=ToolkitEntry(str(toolkit.version), toolkit.identity, toolkit.pins) if toolkit else None,
            overrides=self.overrides,
            lists=self.lists,
            not_reproducible=self.not_reproducible,
            verdict_data=self.verdict.data(),
        )

    @classmethod
    def of_entry(cls, entry: WheelEntry, wheel: Path) -> Self:
        """The product of another run, by its *entry* in a report, with its file at *wheel* now.

        It has what a report has of plan and toolkit. `HardwareError` for a GPU that does not exist.
        """
        toolkit = None
        if stated := entry.toolkit:
            # its folder is on another machine
            toolkit = Toolkit(Dotted.parse(stated.version), Path(), stated.identity, stated.components)
        target = entry.target(toolkit)
        environment, settings = tuple(entry.environment.items()), tuple(entry.config_settings.items())
        return cls(
            target=target,
            wheel=wheel,
            plan=FlagPlan(target.cpu, BuildBackend.OTHER, environment, settings, WrapperRules()),
            toolkit=toolkit,
            seconds=entry.seconds,
            overrides=entry.overrides,
            lists=entry.lists,
            verdict=replace(entry.verdict, wheel=wheel),
            trial=entry.test,
            emulation=entry.emulation,
            is_built=entry.is_built,
            is_kept=entry.is_kept,
            not_reproducible=entry.not_reproducible,
        )


class Failure(Struct, frozen=True):
    target: Target
    error: str
    log: Path | None

    def entry(self) -> FailureEntry:
        log = str(self.log) if self.log else None
        return FailureEntry(**TargetEntry.fields(self.target), error=self.error, log=log)

    @classmethod
    def of_entry(cls, entry: FailureEntry) -> Self:
        return cls(entry.target(), entry.error, Path(entry.log) if entry.log else None)

    @classmethod
    def of_twin(cls, target: Target, wheel: str, python: str) -> Self:
        """The failure of *target*, whose *wheel* would overwrite that of *python*."""
        return cls(target, f"{wheel}: Python {python} gives the same file", None)


class ReleaseResult(Struct, frozen=True):
    """The outcome for every target of a recipe, in the recipe's order, and the indexes written for them.

    *notes* are for the user, *split* is what was taken out of the wheels, *choices* what standard machines get, *bench*
    what the recipe's bench says.
    """

    name: str
    source: str
    products: tuple[Product, ...]
    failures: tuple[Failure, ...]
    indexed: "tuple[Indexed, ...]"
    notes: tuple[str, ...] = ()
    split: "Split | None" = None
    choices: tuple[MachineChoice, ...] = ()
    bench: tuple[BenchReport, ...] = ()

    @property
    def targets(self) -> int:
        return len(self.products) + len(self.failures)

    @property
    def kept_wheels(self) -> int:
        """How many wheels were finished in an earlier run."""
        return sum(product.is_kept for product in self.products)

    @property
    def kept_builds(self) -> int:
        """How many builds of an earlier run became wheels in this one."""
        finished = (product for product in self.products if not (product.is_kept or product.is_built))
        return len({product.target.build_key for product in finished})

    @property
    def removed(self) -> tuple[str, ...]:
        """The flags of the project's own that compiler wrappers took out."""
        changes = (change for product in self.products for change in product.overrides if not is_trial(change.sources))
        return tuple(sorted({flag for change in changes for flag in change.removed}))

    @property
    def kept_flags(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The flags of the project's own that stayed for single files, each with these."""
        files: dict[str, dict[str, None]] = {}
        for change in (change for product in self.products for change in product.overrides):
            sources = [] if is_trial(change.sources) else change.sources
            for flag in (flag for flag, why in change.why if flag in change.kept and why == SINGLE_FILE and sources):
                files.setdefault(flag, {}).update(dict.fromkeys(sources))
        return tuple((flag, tuple(files[flag])) for flag in sorted(files))

    @property
    def lists(self) -> tuple[str, ...]:
        return tuple(sorted({text for product in self.products for text in product.lists}))

    def report(self) -> Report:
        return Report(
            name=self.name,
            source=self.source,
            wheels=tuple(product.entry() for product in self.products),
            failures=tuple(failure.entry() for failure in self.failures),
            variants=tuple(indexed.data() for indexed in self.indexed),
            choices=self.choices,
            limits=limits(),
            notes=self.notes,
            bench=self.bench,
            split=self.split.data() if self.split else None,
        )

    def data(self) -> dict[str, Any]:
        """The release as ``report.json`` holds it; report.schema.json describes it."""
        return self.report().data()


def limits() -> PypiLimits:
    """PyPI's limits, by its documentation, "Storage limits"."""
    return PypiLimits(DEFAULT_LIMIT * MB, LARGEST_LIMIT * MB, PROJECT_LIMIT)


class ReleaseFamily(Struct, frozen=True):
    """What the variant wheels of a release have in common; *metadata* is None if all wheels are plain."""

    metadata: VariantMetadata | None = None

    @classmethod
    def of(cls, recipe: Recipe, targets: Iterable[Target]) -> Self:
        """The family of *targets*; `VariantError` for a label or property that is wrong."""
        labelled = [target for target in targets if target.label is not None]
        if not labelled and recipe.variant is None:
            return cls()
        with at(recipe.file):
            providers = read_providers(recipe.variant) if recipe.variant else {}
            namespaces = recipe.namespaces()
            metadata = metadata_for(namespaces, providers) if namespaces else None
            family = cls(metadata)
            for target in labelled:
                family.document(target)
        return family

    def variant(self, target: Target) -> Variant | None:
        if target.label is None:
            return None
        properties = [Property.parse(text) for text in target.properties]
        return Variant.of(target.label, properties)

    def document(self, target: Target) -> Document | None:
        variant = self.variant(target)
        return Document.of(variant, self.metadata) if variant and self.metadata else None


class ReleaseContext(Struct, frozen=True, kw_only=True):
    """The release of a *recipe*'s *targets*, or a part if it *is_part*; of plain wheels alone if it *is_one_wheel*.

    Results go into *folder*, work in progress into *stage*. The statement of provenance names *source*, *inputs* and
    *parts*.
    """

    recipe: Recipe
    targets: tuple[Target, ...]
    folder: Path
    stage: Path
    on_progress: OnProgress = lambda _target, _step: None
    family: ReleaseFamily = ReleaseFamily()
    cache: BuildCache | None = None
    supply: Supply = FETCHED
    is_part: bool = False
    is_one_wheel: bool = False
    split: "SplitRequest | None" = None
    source: str = ""
    inputs: tuple[Path, ...] = ()
    parts: tuple[Path, ...] = ()

    @property
    def published(self) -> Path | str | None:
        """The published wheel to compare with, or its version, "" for the one built; or None."""
        against = self.recipe.verify.against
        if against == "none" or (against == "auto" and not isinstance(self.recipe.source, Sdist)):
            return None
        return "" if against in AGAINST else against

    def owns(self, wheel: Path) -> bool:
        return WheelName.parse(wheel.name).project == canonicalize_name(self.recipe.name)

    def check_project(self, wheel: Path) -> None:
        if not self.owns(wheel):
            raise BuildError(f"{wheel.name}: not of {self.recipe.name}, which the recipe builds")

    def stage_folder(self, step: str, target: Target) -> Path:
        return self.stage / step / slug(target)

    def log(self, target: Target) -> Path:
        return self.folder / LOGS / f"{self.recipe.name}-{slug(target)}.log"

    def failure(self, target: Target, error: VbuildError, log: Path | None = None) -> Failure:
        self.on_progress(target, "failed")
        return Failure(target, str(error), log if log and log.exists() else None)


class ReleaseWheels(Struct, frozen=True):
    """The outcome of each target, and how wheels that a split or a merge changes are tested again.

    *test_again* tests a wheel with those in a folder. *python* finds the Python of a target here, or raises
    `BuildError`. *siblings* are the targets of the same Python.
    """

    outcomes: Sequence[Product | Failure]
    test_again: Callable[[Product, Path], Product | Failure]
    python: "Callable[[Target], Interpreter]"
    notes: list[str]
    is_remote: bool = False
    siblings: Callable[[Target], Iterable[Target]] | None = None
    split_note: str | None = None


def slug(target: Target) -> str:
    """A file name for what belongs to *target* alone."""
    python = "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in target.python)
    return f"{target}-{python.strip('_')}"
