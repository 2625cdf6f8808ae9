"""What every step of a release knows: one frozen value that each of them gets."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from vbuild.errors import VbuildError, at
from vbuild.files.staging import LOGS
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.release.cache import BuildCache
from vbuild.release.outcome import Failure, Product
from vbuild.release.report import Report
from vbuild.variants.document import Document, Schema
from vbuild.variants.model import Property, Variant

if TYPE_CHECKING:
    from vbuild.splitting.request import SplitRequest
    from vbuild.toolchain.interpreter import Interpreter
    from vbuild.toolchain.toolkit.provision import Supply
    from vbuild.variants.metadata import VariantMetadata

OnProgress = Callable[[Target, str], None]


class ReleaseFamily(Struct, frozen=True):
    """What the variant wheels of a release have in common; *metadata* is None if all of its wheels are plain."""

    metadata: "VariantMetadata | None" = None
    schema: Schema = Schema.PEP_850
    hashed: bool = False

    @classmethod
    def of(cls, recipe: Recipe, targets: Iterable[Target], *, schema: Schema) -> Self:
        """The family of *targets*; `VariantError`, before anything is built, for a label or property that is wrong."""
        labelled = [target for target in targets if target.label is not None]
        if not labelled and recipe.variant is None:
            return cls(None, schema, recipe.matrix.hash_labels)
        from vbuild.variants.metadata import read_providers
        from vbuild.variants.providers import metadata_for

        with at(recipe.file):
            providers = read_providers(recipe.variant) if recipe.variant else {}
            namespaces = recipe.namespaces()
            metadata = metadata_for(namespaces, providers) if namespaces else None
            family = cls(metadata, schema, recipe.matrix.hash_labels)
            for target in labelled:
                family.document(target)
        return family

    def variant(self, target: Target) -> Variant | None:
        """The variant that the wheel of *target* is, or None for the plain wheel."""
        if target.label is None:
            return None
        properties = [Property.parse(text) for text in target.properties]
        return Variant.hashed(properties) if self.hashed else Variant.of(target.label, properties)

    def label(self, target: Target) -> str | None:
        """The label in the name of the wheel of *target*, or None for the plain wheel."""
        variant = self.variant(target)
        return variant.label if variant else None

    def document(self, target: Target) -> Document | None:
        """The variant.json of the wheel of *target*, or None for the plain wheel."""
        variant = self.variant(target)
        return Document.of(variant, self.metadata, schema=self.schema) if variant and self.metadata else None


class ReleaseContext(Struct, frozen=True, kw_only=True):
    """The release of *targets* of a *recipe*, or a part of it if it *is_part*, and where its steps work.

    Results go into *folder* and work in progress into *stage*. *on_progress* is called with each target and each step
    of it. Builds and wheels of earlier runs are taken from *cache*, and None keeps nothing. *supply* gives CUDA
    toolkits and zig; by default they are fetched.

    At the end, *split* says what is taken out of all wheels, and the report has what differs from *before*. The
    statement of provenance names *source*, the files in *inputs* and the folders in *parts*.
    """

    recipe: Recipe
    targets: tuple[Target, ...]
    folder: Path
    stage: Path
    on_progress: OnProgress = lambda _target, _step: None
    family: ReleaseFamily = ReleaseFamily()
    cache: BuildCache | None = None
    supply: "Supply | None" = None
    is_part: bool = False
    split: "SplitRequest | None" = None
    before: Report | None = None
    source: str = ""
    inputs: tuple[Path, ...] = ()
    parts: tuple[Path, ...] = ()

    def place(self, step: str, target: Target) -> Path:
        """The folder for what *step* makes of *target*."""
        return self.stage / step / slug(target)

    def log(self, target: Target) -> Path:
        """The file that the commands for *target* write to."""
        return self.folder / LOGS / f"{self.recipe.name}-{slug(target)}.log"

    def failure(self, target: Target, error: VbuildError, log: Path | None = None) -> Failure:
        """The *error* for which there is no wheel of *target*, with *log* if there is such a file."""
        self.on_progress(target, "failed")
        return Failure(target, str(error), log if log and log.exists() else None)


class ReleaseWheels(Struct, frozen=True):
    """What became of each target, and how wheels that change afterwards, by a split or a merge, are tested again.

    *test_again* tests a wheel as it is now, with the wheels that it requires in a folder. *python* finds the Python of
    a target on this machine, or raises `BuildError`. *siblings* are the targets of the same Python, by default those of
    the release. *notes* are for the user. If the run *is_remote*, workers have made and tested them.
    *split_note* is a further note if wheels were split.
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
