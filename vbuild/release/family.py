"""The variants of one release: which label and properties each target's wheel gets, and the metadata they share."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from vbuild.errors import at
from vbuild.linking import linked
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.stamp import stamped
from vbuild.variant.document import Document, Schema
from vbuild.variant.metadata import Metadata, read_providers
from vbuild.variant.model import Property, Variant
from vbuild.variant.providers import metadata_for


@dataclass(frozen=True, slots=True)
class Family:
    """What the wheels of a release have in common; no *metadata* where all of them are plain."""

    metadata: Metadata | None
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
