"""The ``[variant]`` table of a project's pyproject.toml or of a ``variant.toml``: what its variants may be.

    [variant.default-priorities]
    namespace = ["x86_64", "blas_lapack"]
    [variant.providers.blas_lapack]
    static-properties.library = ["openblas", "mkl"]
    [variant.variants.v3_openblas]
    x86_64.level = ["v3"]
    blas_lapack.library = ["openblas"]

Providers that vbuild knows (x86_64, aarch64, nvidia) need not be written out.
The building draft of wheelnext: https://github.com/wheelnext/peps/blob/HEAD/peps/pep-9998.rst
"""

from dataclasses import dataclass
from typing import Self

from vbuild.errors import TableError, VariantError
from vbuild.table import Table
from vbuild.variant.document import Schema, read_variants
from vbuild.variant.metadata import Metadata, read_namespaces, read_providers
from vbuild.variant.model import Variant
from vbuild.variant.providers import check_values, metadata_for


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a project says of its variants: the metadata they share, and those it names."""

    metadata: Metadata
    variants: tuple[Variant, ...] = ()

    @classmethod
    def read(cls, table: Table) -> Self:
        """The declaration in the keys of *table*, the one called ``variant``."""
        if "$schema" in table:
            table.parsed("$schema", Schema.parse)
        metadata = metadata_for(read_namespaces(table), read_providers(table))
        variants = read_variants(table) if "variants" in table else ()
        for variant in variants:
            metadata.check(variant)
            check_values(variant, metadata)
        return cls(metadata, variants)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The declaration in the text of a ``variant.toml``; `VariantError` with the key's place for what is wrong."""
        try:
            top = Table.parse(text)
            with top.table("variant") as table:
                declaration = cls.read(table)
            top.finish()
        except TableError as error:
            raise VariantError(str(error)) from error
        return declaration

    def variant(self, label: str) -> Variant:
        """The variant that the project calls *label*; `VariantError` where it names none of that label."""
        for variant in self.variants:
            if variant.label == label:
                return variant
        known = ", ".join(variant.label for variant in self.variants) or "none"
        raise VariantError(f"no variant {label!r} in the [variant.variants] table, which has {known}")
