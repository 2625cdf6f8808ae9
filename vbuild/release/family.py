"""The variants of one release: which label and properties each target's wheel gets, and the metadata they share.

One build for all GPUs of a toolkit, divided into the variant wheels that are for some of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from msgspec import Struct

from vbuild.errors import RepackageError, at
from vbuild.files.atomic import linked
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.slim import slim_wheel
from vbuild.variants.document import Document, Schema
from vbuild.variants.metadata import VariantMetadata, read_providers
from vbuild.variants.model import Property, Variant
from vbuild.variants.providers import metadata_for
from vbuild.variants.stamp import stamped


class ReleaseFamily(Struct, frozen=True):
    """What the wheels of a release have in common; no *metadata* where all of them are plain."""

    metadata: VariantMetadata | None
    schema: Schema
    hashed: bool

    @classmethod
    def of(cls, recipe: Recipe, targets: Iterable[Target], *, schema: Schema) -> Self:
        """The family of *targets*; `VariantError`, before anything is built, where a label or property is not valid."""
        labelled = [target for target in targets if target.label is not None]
        with at(recipe.file):
            providers = read_providers(recipe.variant) if recipe.variant else {}
            namespaces = recipe.namespaces()
            metadata = metadata_for(namespaces, providers) if namespaces else None
            family = cls(metadata, schema, recipe.matrix.hash_labels)
            for target in labelled:
                family.document(target)
        return family

    def variant(self, target: Target) -> Variant | None:
        """The variant that *target*'s wheel is; None for the plain wheel."""
        if target.label is None:
            return None
        properties = [Property.parse(text) for text in target.properties]
        return Variant.hashed(properties) if self.hashed else Variant.of(target.label, properties)

    def document(self, target: Target) -> Document | None:
        """The variant.json of *target*'s wheel; None for the plain wheel."""
        variant = self.variant(target)
        return Document.of(variant, self.metadata, schema=self.schema) if variant and self.metadata else None

    def stamped(self, target: Target, wheel: Path, folder: Path) -> Path:
        """*wheel* under the name it is published by, in *folder*, on the same file system; a plain one as it is."""
        variant = self.variant(target)
        if variant is None:
            folder.mkdir(parents=True, exist_ok=True)
            return linked(wheel, folder / wheel.name)  # a labelled target may be made of the same build
        return stamped(wheel, folder, variant=variant, metadata=self.metadata, schema=self.schema)


def divided(wheel: Path, targets: Sequence[Target], *, family: ReleaseFamily, folder: Path) -> Mapping[Target, Path]:
    """The variant wheels of *targets* in *folder*, cut from the *wheel* of their build in one pass over it.

    `RepackageError` where the wheel cannot be divided so. What each library serves is for `vbuild verify` to judge:
    some are for some GPUs only.
    """
    shares = [_share(target, family) for target in targets]
    # whoever builds a project may change what comes of it; whether it has a bill of materials, its build has decided
    cut = slim_wheel(wheel, folder, shares=shares, cuts=Cuts(unsupported=True, bill=False), accept_license=True)
    if len(cut) != len(targets):  # it passes a wheel without GPU code as it is
        raise RepackageError(f"{wheel.name}: no GPU code to divide among {', '.join(map(str, targets))}")
    return {target: result.path for target, result in zip(targets, cut, strict=True) if result.path}


def _share(target: Target, family: ReleaseFamily) -> Share:
    variant = family.variant(target)
    return Share(target.gpus, variant.label if variant else None, family.document(target))
