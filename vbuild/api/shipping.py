"""Ship: indexes, layouts, checks before an upload, and a mirror for a fleet."""

from collections.abc import Iterable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from vbuild.api.arguments import (
    attestations_of,
    known,
    layout_of,
    path_of,
    paths_of,
    places_of,
    silent,
    texts_of,
)
from vbuild.api.options import (
    Layout,
    MirrorOptions,
    PublishOptions,
    StrPath,
)

if TYPE_CHECKING:
    from vbuild.mirroring.check import MirrorCheck
    from vbuild.mirroring.mirror import Mirrored
    from vbuild.publishing.check import Checklist
    from vbuild.publishing.conda.channel import IndexedSubdir
    from vbuild.publishing.publish import PublishedLayout
    from vbuild.variants.index import Indexed


def index(folder: StrPath, *, simple: StrPath | None = None, remove: str | Iterable[str] = ()) -> "tuple[Indexed, ...]":
    """Write the variants.json of each release whose variant wheels are in *folder*, and return what each lists.

    *simple* is a folder that gets a static simple index (PEP 503, 691, 658) with copies of all files. An index that is
    there already keeps its other releases, but for those in *remove*: "demo==1.0", or "demo" for all of a project.
    Every wheel is compared with its RECORD first. `VariantError` if two wheels contradict each
    other, `WheelError` if one is damaged; then nothing is written.
    """
    from vbuild.variants.index import index as verb

    return verb(Path(folder), simple=path_of(simple), remove=texts_of(remove))


def index_channel(folder: StrPath) -> "tuple[IndexedSubdir, ...]":
    """Write the repodata of the channel *folder*, whose folders have packages for conda, and return what each lists.

    `RepackageError` if a package is damaged, or lies in the folder of another platform; then nothing is written.
    """
    from vbuild.publishing.conda.channel import index_channel as verb

    return verb(Path(folder))


def publish(
    wheels: "StrPath | Iterable[StrPath]",
    output_dir: StrPath | None = None,
    *,
    layouts: Iterable[Layout],
    **options: Unpack[PublishOptions],
) -> "tuple[PublishedLayout, ...]":
    """Lay *wheels*, files or folders of them, out in each of *layouts*: ``output_dir/<layout>``, with a README.md.

    Returns a result for each layout, with its files and how to use them. If *output_dir* is None nothing is written and
    the result says what would be. `RepackageError`, and nothing written, if the wheels do not belong together, a layout
    has no place for one of them, or a layout's folder is there and not empty.
    """
    from vbuild.publishing.publish import publish as verb

    asked = known(options, PublishOptions)
    return verb(
        paths_of(wheels),
        path_of(output_dir),
        layouts=[layout_of(name, asked) for name in dict.fromkeys(layouts)],
    )


def check(place: StrPath, *, pypi: bool = False, limit: int = 100, layout: Layout | None = None) -> "Checklist":
    """Returns what keeps the releases at *place* from being published: for any index, or with *pypi* for PyPI, too.

    A place is a folder, or the URL of a page of links or of a simple index, whose releases are compared with what the
    pages say, too. *limit* is the size that the index allows a file, in PyPI's MB of 2^20 bytes. With *layout* the
    folder that `publish` made in that layout is checked instead. Members of the wheels in a folder are compared with
    RECORD. ``failed`` of the result says whether there are errors. `RepackageError` if there is no such folder or
    nothing in it to publish, `FetchError` if there is no such page. Nothing is written.
    """
    from vbuild.publishing.check import check as verb
    from vbuild.publishing.check import check_layout

    if layout:
        return check_layout(Path(place), layout)
    return verb(places_of(place)[0], pypi=pypi, limit=limit)


def mirror(
    sources: "StrPath | Iterable[StrPath]", output_dir: StrPath | None = None, **options: Unpack[MirrorOptions]
) -> "Mirrored":
    """Make *output_dir* an index of what *sources* come to on a fleet's machines, cut to the GPUs that these have.

    *sources* are requirements.txt, pylock.toml or uv.lock files, or requirements such as "torch==2.9.1". Returns what
    the site has, with sizes in bytes. Without *output_dir* nothing is written, and what is fetched is thrown away.
    `HardwareError` for a machine or GPU that is not known, `BuildError` if requirements cannot be resolved,
    `FetchError` for a file that cannot be had, `WheelError` for one that is damaged, `RepackageError` if *output_dir*
    is something else: a site that was there is then as it was.
    """
    from vbuild.binary.edits import Strip
    from vbuild.hardware.cpu import Cpu
    from vbuild.mirroring.mirror import Common, fleet_of
    from vbuild.mirroring.mirror import mirror as verb
    from vbuild.mirroring.model import MirrorRequest
    from vbuild.publishing.model import folder_url

    asked = known(options, MirrorOptions)
    common = Common(Cpu.parse("x86-64"), asked.get("driver"), "2.28", texts_of(asked.get("pythons")))
    request = MirrorRequest(
        recompress=asked.get("recompress"),
        strip=Strip(asked.get("strip") or Strip.NOTHING),
        drop=texts_of(asked.get("drop")),
        accept_license=asked.get("accept_license", False),
        variants=asked.get("variants", False),
        prune=asked.get("prune", False),
        url=folder_url(url) if (url := asked.get("url")) else None,
        originals=path_of(asked.get("originals")),
        allow_builds=asked.get("allow_builds", False),
    )
    return verb(
        [str(source) for source in ([sources] if isinstance(sources, str | PathLike) else sources)],
        path_of(output_dir),
        fleet_of(paths_of(asked.get("machines", ())), texts_of(asked.get("gpus")), common),
        request,
        on_progress=asked.get("on_progress") or silent,
    )


def verify_mirror(folder: StrPath, *, attestations: bool = False) -> "MirrorCheck":
    """Hold every file, index page and lock of the mirror in *folder* against what its mirror.json says.

    With *attestations* also who published the originals (PEP 740), by Sigstore's root of trust. Returns what is wrong,
    a sentence each. `RepackageError` if *folder* is no mirror, `WheelError` if the root of trust, or what reads
    attestations, is not there.
    """
    from vbuild.mirroring.check import checked_mirror

    if not attestations:
        return checked_mirror(Path(folder))
    asked = attestations_of(publisher=None, trust_root=None, fetch=False)
    from vbuild.verification.attestations import attested_files

    return checked_mirror(Path(folder), attested=partial(attested_files, asked=asked))
