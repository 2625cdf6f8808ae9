"""What is wrong with a folder of the layout variants: labels, variants.json, METADATA and the index, as they are there.

An index without variants.json, or with one that says other things than the wheels, hides variants from installers.
"""

from collections.abc import Iterator
from pathlib import Path

from vbuild.layout.indexes import index_problems
from vbuild.publishing.agreement import metadata_problems
from vbuild.publishing.files import found
from vbuild.publishing.labels import label_problems
from vbuild.publishing.model import Problem
from vbuild.publishing.releases import releases, strays, twins


def problems(folder: Path) -> Iterator[Problem]:
    """What is wrong with the releases in *folder* and with its index; `PublishError` where there is nothing in it."""
    there = found(folder)
    known = releases(there)
    beside = {release.project for release in known}
    yield from (*there.damaged, *strays(there, known), *twins(known))
    for release in known:
        yield from label_problems(release)
        yield from metadata_problems(release, beside=beside - {release.project})
    yield from index_problems(folder)
