"""Variant wheels as they are, with their variants.json and a simple index: what installers of variants read (PEP 825).

variants/demo-1.0-…-x86_64_v3.whl, demo-1.0-….whl, demo-1.0-variants.json
variants/simple/demo/…                                the same files, hard links
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from vbuild.layout.model import Linked, Plan, SimpleIndex, Text, Use
from vbuild.layout.offer import Offer
from vbuild.variant.document import combine
from vbuild.wheel.name import escaped


@dataclass(frozen=True, slots=True)
class Variants:
    """The layout of the main job; *url* is where its folder will be served."""

    url: str | None = None
    name: str = "variants"

    def planned(self, offers: Sequence[Offer]) -> Plan:
        """Every wheel, a variants.json for each release that has variants, and the index of all of them."""
        files = tuple(output for offer in offers for output in _files(offer))
        index = SimpleIndex(PurePosixPath("simple"), tuple(file.target for file in files))
        return Plan(self.name, (*files, index), tuple(self._uses(offers)))

    def _uses(self, offers: Sequence[Offer]) -> Iterator[Use]:
        where = self.url.rstrip("/") if self.url else "file://$PWD"
        projects = " ".join(offer.project for offer in offers if not offer.is_companion)
        yield Use(
            "With uv, which takes the best variant for the machine; what else is required must be in the index:",
            f"uv pip install --preview-features wheel-variants --index-url {where}/simple {projects}",
        )
        yield Use("With pip, which takes the plain wheel:", f"pip install --index-url {where}/simple {projects}")


def _files(offer: Offer) -> Iterator[Linked | Text]:
    for wheel in offer.wheels:
        yield Linked(PurePosixPath(wheel.path.name), wheel.path)
    documents = [(str(wheel.name), wheel.document) for wheel in offer.variants if wheel.document]
    if documents:
        name = f"{escaped(offer.project)}-{offer.version}-variants.json"
        yield Text(PurePosixPath(name), combine(documents).pack())
