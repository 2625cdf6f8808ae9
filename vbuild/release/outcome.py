"""What `vbuild matrix` leaves behind: the wheels of a release, what is verified of each, and what failed."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, to_builtins

from vbuild.build.plan import BuildBackend, FlagPlan, Rewriting
from vbuild.build.trial import TrialResult
from vbuild.build.wrappers import Override
from vbuild.files.hashing import sha256_of
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.cuda import CudaBuild, ToolkitSpec
from vbuild.recipe.target import Target
from vbuild.toolchain.toolkit.model import Toolkit, ToolkitPin

if TYPE_CHECKING:
    from vbuild.release.report_comparison import Comparison
    from vbuild.release.report_machines import MachineChoice
    from vbuild.splitting.split import Split
    from vbuild.variants.index import Indexed
    from vbuild.verification.model import Verdict


class Product(Struct, frozen=True):
    """A finished wheel: how it was built and in how many *seconds*, what is verified of it, what became of its test.

    *lists* are the lists of GPU architectures that were changed in commands of nvcc. It *is_built* in this run, or its
    build is of an earlier one; *is_kept* where everything was done then.
    """

    target: Target
    wheel: Path
    label: str | None
    plan: FlagPlan
    toolkit: Toolkit | None
    seconds: float
    overrides: tuple[Override, ...]
    lists: tuple[str, ...]
    verdict: "Verdict"
    trial: TrialResult
    is_built: bool = True
    is_kept: bool = False

    @property
    def size(self) -> int:
        """The size of the wheel in bytes."""
        return self.wheel.stat().st_size

    @property
    def unpacked(self) -> int:
        """The size of the wheel's files in bytes, as they lie in an installation."""
        from vbuild.wheel.archive import open_wheel

        with open_wheel(self.wheel) as wheel:
            return sum(member.size for member in wheel.members)

    def data(self) -> dict[str, Any]:
        return {
            **_target(self.target),
            "label": self.label,
            "wheel": self.wheel.name,
            "bytes": self.size,
            "unpacked_bytes": self.unpacked,
            "sha256": sha256_of(self.wheel),
            "built": self.is_built,
            "kept": self.is_kept,
            "build_seconds": round(self.seconds, 3),
            "test": str(self.trial),
            "environment": dict(self.plan.environment),
            "config_settings": dict(self.plan.config_settings),
            "toolkit": _toolkit(self.toolkit) if self.toolkit else None,
            "overrides": [to_builtins(override) for override in self.overrides],
            "architectures": list(self.lists),
            "verdict": self.verdict.data(),
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any], wheel: Path) -> Self:
        """The product of another run whose report has *data* of it, and whose file is *wheel* now.

        It has what a report has of plan and toolkit. `HardwareError` for a GPU that there is not.
        """
        from vbuild.verification.model import Verdict

        target = target_of(data)
        settings = {name: value if isinstance(value, str) else tuple(value) for name, value in _settings(data).items()}
        environment = tuple(data["environment"].items())
        return cls(
            target=target,
            wheel=wheel,
            label=data["label"],
            plan=FlagPlan(target.cpu, BuildBackend.OTHER, environment, tuple(settings.items()), Rewriting()),
            toolkit=_toolkit_of(data["toolkit"]) if data["toolkit"] else None,
            seconds=data["build_seconds"],
            overrides=tuple(map(Override.of_data, data["overrides"])),
            lists=tuple(data["architectures"]),
            verdict=Verdict.of_data(data["verdict"], wheel),
            trial=TrialResult(data["test"]),
            is_built=data["built"],
            is_kept=data["kept"],
        )


class Failure(Struct, frozen=True):
    """A target of which there is no wheel, and why."""

    target: Target
    error: str
    log: Path | None

    def data(self) -> dict[str, Any]:
        return {
            **_target(self.target),
            "label": self.target.label,
            "error": self.error,
            "log": str(self.log) if self.log else None,
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """The failure of another run whose report has *data* of it."""
        return cls(target_of(data), data["error"], Path(data["log"]) if data["log"] else None)

    @classmethod
    def of_twin(cls, target: Target, wheel: str, python: str) -> Self:
        """That *target* would give the *wheel* that *python* gives, and one would overwrite the other."""
        return cls(target, f"{wheel}: Python {python} gives the same file", None)


class ReleaseResult(Struct, frozen=True):
    """The outcome for every target of a recipe, in the recipe's order, and the indexes written for them.

    *notes* tell the builder what to know about the tools, and *split* what was taken out of the finished wheels.
    *choices* say what standard machines get, and *changes* what is not as in the release before, if that was given.
    """

    name: str
    source: str
    products: tuple[Product, ...]
    failures: tuple[Failure, ...]
    indexed: "tuple[Indexed, ...]"
    notes: tuple[str, ...] = ()
    split: "Split | None" = None
    choices: "tuple[MachineChoice, ...]" = ()
    changes: "Comparison | None" = None

    @property
    def targets(self) -> int:
        """How many wheels there should be."""
        return len(self.products) + len(self.failures)

    @property
    def kept(self) -> int:
        """How many wheels were finished in an earlier run."""
        return sum(product.is_kept for product in self.products)

    @property
    def kept_builds(self) -> int:
        """How many builds of an earlier run became wheels in this one."""
        made = (product for product in self.products if not (product.is_kept or product.is_built))
        return len({product.target.build_key for product in made})

    @property
    def removed(self) -> tuple[str, ...]:
        """The flags of the project's own that compiler wrappers took out of some command."""
        return tuple(sorted({flag for made in self.products for change in made.overrides for flag in change.removed}))

    @property
    def lists(self) -> tuple[str, ...]:
        """The lists of GPU architectures that were changed in some command."""
        return tuple(sorted({text for made in self.products for text in made.lists}))

    def data(self) -> dict[str, Any]:
        """The release as ``report.json`` holds it; report.schema.json describes it."""
        from vbuild.release.report import FORMAT

        return {
            "format": FORMAT,
            "name": self.name,
            "source": self.source,
            "wheels": [product.data() for product in self.products],
            "failures": [failure.data() for failure in self.failures],
            "variants": [indexed.data() for indexed in self.indexed],
            "machines": [choice.data() for choice in self.choices],
            "limits": limits(),
            "notes": list(self.notes),
            "split": self.split.data() if self.split else None,
        }


def limits() -> dict[str, int]:
    """PyPI's limits in bytes: for a file, for a file once its project has asked for more, and for a whole project.

    PyPI's documentation, "Storage limits"
    """
    from vbuild.publishing.lint.model import DEFAULT_LIMIT, LARGEST_LIMIT, MB, PROJECT_LIMIT

    return {
        "file_bytes": DEFAULT_LIMIT * MB,
        "file_bytes_on_request": LARGEST_LIMIT * MB,
        "project_bytes": PROJECT_LIMIT,
    }


def _target(target: Target) -> dict[str, Any]:
    return {
        "python": target.python,
        "cpu": str(target.cpu),
        "properties": list(target.properties),
        "choices": dict(target.choices),
        "gpus": str(target.gpus) if target.gpus else None,
        "compiled_for": str(target.cuda.archs) if target.cuda else None,
    }


def target_of(data: Mapping[str, Any]) -> Target:
    """The target of which a report has *data*, as far as it tells; `HardwareError` for a GPU that there is not."""
    toolkit = data.get("toolkit")
    # of a failure the report has no toolkit; what it was compiled for is said all the same
    version = Dotted.parse(toolkit["version"]) if toolkit else Dotted(0, 0)
    archs = data["compiled_for"]
    return Target(
        label=data["label"],
        python=data["python"],
        cpu=Cpu.parse(data["cpu"]),
        properties=tuple(data["properties"]),
        choices=tuple(data["choices"].items()),
        cuda=CudaBuild(ToolkitSpec(version), GpuList.parse(archs)) if archs else None,
        gpus=GpuList.parse(data["gpus"]) if data["gpus"] else None,
    )


def _settings(data: Mapping[str, Any]) -> Mapping[str, str | list[str]]:
    found: Mapping[str, str | list[str]] = data["config_settings"]
    return found


def _toolkit_of(data: Mapping[str, Any]) -> Toolkit:
    pins = tuple(ToolkitPin(**{name: pin[name] for name in ToolkitPin.__struct_fields__}) for pin in data["components"])
    return Toolkit(Dotted.parse(data["version"]), Path(), data["identity"], pins)  # its folder is on another machine


def _toolkit(toolkit: Toolkit) -> dict[str, Any]:
    return {
        "version": str(toolkit.version),
        "identity": toolkit.identity,
        "components": [to_builtins(pin) for pin in toolkit.pins],
    }
