"""The layout variants: variant wheels as they are, their variants.json and a simple index (PEP 825).

    variants/demo-1.0-…-x86_64_v3.whl, demo-1.0-….whl, demo-1.0-variants.json
    variants/simple/demo/…                                the same files, hard links

The check of a folder compares labels, variants.json, METADATA and the index: without a variants.json that agrees with
the wheels, installers do not see variants.
https://peps.python.org/pep-0825/#index-level-metadata
"""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct

from vbuild.publishing.lint.agreement import label_problems, metadata_problems
from vbuild.publishing.lint.files import files_in, files_of, releases_among, spelling_twins, stray_documents
from vbuild.publishing.lint.index import index_problems
from vbuild.publishing.model import (
    RIVALS,
    ConsumerUse,
    LinkedFile,
    PublishPlan,
    SimpleIndex,
    Text,
    install_commands,
    uv_index_option,
)
from vbuild.publishing.releases import OfferedRelease, exact_pins, without_variants
from vbuild.variants.document import combine
from vbuild.verification.model import Finding


class Variants(Struct, frozen=True):
    url: str | None = None
    name: str = "variants"

    def plan(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        files: list[LinkedFile | Text] = []
        for offer in offers:
            files += [LinkedFile(PurePosixPath(wheel.path.name), wheel.path) for wheel in offer.wheels]
            if offer.sdist:
                files.append(LinkedFile(PurePosixPath(offer.sdist.name), offer.sdist))
            if documents := [(str(wheel.name), wheel.document) for wheel in offer.variants if wheel.document]:
                name = offer.variants[0].name.variants_json
                files.append(Text(PurePosixPath(name), combine(documents).pack()))
        index = SimpleIndex(PurePosixPath("simple"), tuple(file.target for file in files))
        return PublishPlan(self.name, (*files, index), tuple(self._uses(offers)), tuple(_notes(offers)))

    def _uses(self, offers: Sequence[OfferedRelease]) -> Iterator[ConsumerUse]:
        releases = [offer for offer in offers if not offer.is_companion]
        if any(offer.variants for offer in releases):
            option = uv_index_option(self.url)
            yield ConsumerUse(
                "With uv 0.13.8 or newer, the best variant for the machine:",
                f"uv pip install --preview-features wheel-variants {option} {exact_pins(releases)}",
            )
        plain, others = without_variants(offers)
        if others:
            yield ConsumerUse(
                f"With pip, and with uv without that feature, {plain}{RIVALS}:",
                install_commands(exact_pins(others), url=self.url, has_rivals=True),
            )


def _notes(offers: Sequence[OfferedRelease]) -> Iterator[str]:
    if any(offer.variants for offer in offers):
        yield "An index that is made by other means must list each variants.json next to the wheels: uv reads it first."
    for offer in offers:
        plain = {wheel.tag for wheel in offer.plain}
        if lacks := dict.fromkeys("-".join(wheel.tag) for wheel in offer.variants if wheel.tag not in plain):
            rest = "builds the sdist" if offer.sdist else "finds nothing"
            yield f"{offer} has no plain wheel for {', '.join(lacks)}; for these, pip {rest}."


def problems(folder: Path) -> Iterator[Finding]:
    files = files_in(files_of(folder), folder)
    releases = releases_among(files)
    beside = {release.project for release in releases}
    yield from (*files.damaged, *stray_documents(files, releases), *spelling_twins(releases))
    for release in releases:
        yield from label_problems(release)
        yield from metadata_problems(release, beside=beside - {release.project})
    yield from index_problems(folder)
