"""What `vbuild matrix` leaves behind: the wheels of a release, what was proved of each, and what failed."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vbuild.build.launcher import Override
from vbuild.build.plan import Plan
from vbuild.build.trial import Trial
from vbuild.digest import sha256_of
from vbuild.index import Indexed
from vbuild.recipe.target import Target
from vbuild.splitting.outcome import Split
from vbuild.toolkit.model import Toolkit
from vbuild.verdict.model import Verdict


@dataclass(frozen=True, slots=True)
class Product:
    """A finished wheel: how it was built and in how many *seconds*, what was proved of it, what became of its test.

    *lists* are the lists of GPU architectures that were changed in commands of nvcc. It *is_built* in this run, or its
    build is of an earlier one; *is_kept* where everything was done then.
    """

    target: Target
    wheel: Path
    label: str | None
    plan: Plan
    toolkit: Toolkit | None
    seconds: float
    overrides: tuple[Override, ...]
    lists: tuple[str, ...]
    verdict: Verdict
    trial: Trial
    is_built: bool = True
    is_kept: bool = False

    @property
    def size(self) -> int:
        """The size of the wheel in bytes."""
        return self.wheel.stat().st_size

    def data(self) -> dict[str, Any]:
        return {
            **_target(self.target),
            "label": self.label,
            "wheel": self.wheel.name,
            "bytes": self.size,
            "sha256": sha256_of(self.wheel),
            "built": self.is_built,
            "kept": self.is_kept,
            "build_seconds": round(self.seconds, 3),
            "test": str(self.trial),
            "environment": dict(self.plan.environment),
            "config_settings": dict(self.plan.config_settings),
            "toolkit": _toolkit(self.toolkit) if self.toolkit else None,
            "overrides": [asdict(override) for override in self.overrides],
            "architectures": list(self.lists),
            "verdict": self.verdict.data(),
        }


@dataclass(frozen=True, slots=True)
class Failure:
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


@dataclass(frozen=True, slots=True)
class Release:
    """The outcome for every target of a recipe, in the recipe's order, and the indexes written for them.

    *notes* tell what whoever built should know of the tools, and *split* what was taken out of the finished wheels.
    """

    name: str
    source: str
    products: tuple[Product, ...]
    failures: tuple[Failure, ...]
    indexed: tuple[Indexed, ...]
    notes: tuple[str, ...] = ()
    split: Split | None = None

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
        """The flags of the project's own that launchers took out of some command."""
        return tuple(sorted({flag for made in self.products for change in made.overrides for flag in change.removed}))

    @property
    def lists(self) -> tuple[str, ...]:
        """The lists of GPU architectures that were changed in some command."""
        return tuple(sorted({text for made in self.products for text in made.lists}))

    def data(self) -> dict[str, Any]:
        """The release as ``report.json`` holds it."""
        return {
            "name": self.name,
            "source": self.source,
            "wheels": [product.data() for product in self.products],
            "failures": [failure.data() for failure in self.failures],
            "variants": [indexed.data() for indexed in self.indexed],
            "notes": list(self.notes),
            "split": self.split.data() if self.split else None,
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


def _toolkit(toolkit: Toolkit) -> dict[str, Any]:
    return {
        "version": str(toolkit.version),
        "identity": toolkit.identity,
        "components": [asdict(pin) for pin in toolkit.pins],
    }
