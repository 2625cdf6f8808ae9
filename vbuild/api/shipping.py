"""Ship: indexes, layouts, checks before an upload, and a mirror for a fleet."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from vbuild.api import PYPI_LIMIT, Layout
from vbuild.api.arguments import (
    attestations_of,
    layout_of,
    level_named,
    path_of,
    paths_of,
    places_of,
    texts_of,
)
from vbuild.api.request import (
    ALLOW_BUILDS,
    DROP,
    PROGRESS,
    STRIP,
    OnProgress,
    Paths,
    StripChoice,
    StrPath,
    Texts,
    option,
    takes,
)

if TYPE_CHECKING:
    from vbuild.hardware.cpu import Cpu
    from vbuild.mirroring.check import MirrorCheck
    from vbuild.mirroring.mirror import Mirrored
    from vbuild.publishing.check import Checklist
    from vbuild.publishing.conda.channel import IndexedSubdir
    from vbuild.publishing.publish import PublishedLayout
    from vbuild.variants.index import Indexed


@dataclass(frozen=True)
class IndexRequest:
    """Where the wheels of the releases are."""

    folder: StrPath
    _: KW_ONLY
    simple: StrPath | None = option(
        "Also write a static simple index (PEP 503, 691, 658) there, or update it.", default=None, parse="folder"
    )
    remove: Texts = option(
        "With --simple: remove this release, as in demo==1.0. Repeatable.",
        default=(),
        metavar="RELEASE",
        only="simple",
    )


@takes(IndexRequest)
def index(request: IndexRequest) -> "tuple[Indexed, ...]":
    """Write the variants.json of each release whose variant wheels are in *folder*, and return what each lists.

    *simple* is a folder that gets a static simple index (PEP 503, 691, 658) with copies of all files. An index that is
    there already keeps its other releases, but for those in *remove*: "demo==1.0", or "demo" for all of a project.
    Every wheel is compared with its RECORD first. `VariantError` if two wheels contradict each
    other, `WheelError` if one is damaged; then nothing is written.
    """
    from vbuild.variants.index import index as verb

    return verb(Path(request.folder), simple=path_of(request.simple), remove=texts_of(request.remove))


def index_channel(folder: StrPath) -> "tuple[IndexedSubdir, ...]":
    """Write the repodata of the channel *folder*, whose folders have packages for conda, and return what each lists.

    `RepackageError` if a package is damaged, or lies in the folder of another platform; then nothing is written.
    """
    from vbuild.publishing.conda.channel import index_channel as verb

    return verb(Path(folder))


@dataclass(frozen=True)
class PublishRequest:
    """Options for one layout are refused without it."""

    wheels: Paths
    output_dir: StrPath | None = None
    _: KW_ONLY
    layouts: Iterable[Layout]
    url: str | None = option(
        "Write links for this URL, where the output folder will be served.",
        default=None,
        parse="vbuild.publishing.model:folder_url",
        metavar="URL",
    )
    add: "Iterable[tuple[str | Cpu, StrPath]]" = option(
        "hwcaps: add this wheel as that level: v3=other.whl. Repeatable.",
        default=(),
        parse="vbuild.api.arguments:level_and_wheel",
        metavar="LEVEL=WHEEL",
        only="layouts hwcaps",
    )
    by_hardware: bool = option(
        "redirect: choose by CPU and GPU, not by tags only.", default=False, only="layouts redirect"
    )
    by_installed: bool = option(
        "redirect: make one sdist of wheels built against several versions of a package; the one installed decides.",
        default=False,
        only="layouts redirect",
    )
    base: StrPath | None = option(
        "oci: build on this image layout.", default=None, parse="path", metavar="DIR[:NAME]", only="layouts oci"
    )
    map: Mapping[str, str] | Iterable[tuple[str, str]] = option(
        "conda: name this required project like that: torch=pytorch. Repeatable.",
        default=(),
        parse="vbuild.api.arguments:two_names",
        metavar="PYPI=CONDA",
        only="layouts conda",
    )


@takes(PublishRequest)
def publish(request: PublishRequest) -> "tuple[PublishedLayout, ...]":
    """Lay *wheels*, files or folders of them, out in each of *layouts*: ``output_dir/<layout>``, with a README.md.

    Returns a result for each layout, with its files and how to use them. If *output_dir* is None nothing is written and
    the result says what would be. `RepackageError`, and nothing written, if the wheels do not belong together, a layout
    has no place for one of them, or a layout's folder is there and not empty.
    """
    from vbuild.publishing.publish import publish as verb

    layouts = [layout_of(name, request) for name in dict.fromkeys(request.layouts)]
    return verb(paths_of(request.wheels), path_of(request.output_dir), layouts=layouts)


@dataclass(frozen=True)
class CheckRequest:
    """Files, folders, and URLs of pages of links or of simple indexes, whose files are compared with the pages, too."""

    places: Paths
    _: KW_ONLY
    pypi: bool = option("Also check what only PyPI demands.", default=False)
    limit: int = option(
        "Refuse files larger than this, in units of 2**20 bytes as PyPI counts.",
        default=PYPI_LIMIT,
        metavar="MB",
        least=1,
    )


@takes(CheckRequest)
def check(request: CheckRequest) -> "Checklist":
    """Returns what keeps the releases at *places* from being published: for any index, or with *pypi* for PyPI, too.

    A folder that `publish` made, such as site/hwcaps, is checked as that layout. Members of wheels on this machine are
    compared with RECORD. ``failed`` of the result says whether there are errors. `RepackageError` if there is no such
    folder or nothing in it to publish, `FetchError` if there is no such page. Nothing is written.
    """
    from vbuild.publishing.check import check as verb

    return verb(*places_of(request.places), pypi=request.pypi, limit=request.limit)


@dataclass(frozen=True)
class MirrorRequest:
    """The machines of a fleet, and what to do to what they install."""

    sources: Paths
    output_dir: StrPath | None = None
    _: KW_ONLY
    machines: Paths = option(
        "Mirror for the machine that this file describes. Repeatable.",
        default=(),
        flags="--machine",
        parse="file",
        metavar="FILE",
    )
    gpus: Texts = option(
        "Mirror for a machine with these GPUs: H100, 80,90. Repeatable.", default=(), flags="--gpu", metavar="LIST"
    )
    driver: str | None = option(
        "With --gpu: NVIDIA's driver there, as in 580, or its CUDA: 12.8.", default=None, metavar="VERSION", only="gpus"
    )
    pythons: Texts = option("Its Python. Repeatable.", default=(), flags="--python", metavar="VERSION")
    recompress: bool | None = option(
        "Compress GPU code better. [default: where the drivers of all machines are known to read it]",
        default=None,
        flags="--recompress/--no-recompress",
    )
    strip: StripChoice = STRIP
    drop: Texts = DROP
    accept_license: "bool | Texts" = option(
        "Cut NAME though its licence forbids changes: you have permission. Repeatable; patterns too.",
        default=(),
        parse="vbuild.wheel.licence:accepted_pattern",
        metavar="NAME",
    )
    variants: bool = option("Add a variant wheel for each kind of GPUs, for uv.", default=False)
    prune: bool = option("Remove files that no machine installs any more.", default=False)
    url: str | None = option(
        "Name this, where the site will be served, in locks, instead of paths.", default=None, metavar="URL"
    )
    originals: StrPath | None = option(
        "Keep the original files here; look here before fetching.", default=None, parse="folder", metavar="DIR"
    )
    allow_builds: bool = ALLOW_BUILDS
    on_progress: OnProgress = PROGRESS


@takes(MirrorRequest)
def mirror(request: MirrorRequest) -> "Mirrored":
    """Make *output_dir* an index of what *sources* come to on a fleet's machines, cut to the GPUs that these have.

    *sources* are requirements.txt, pylock.toml or uv.lock files, or requirements such as "torch==2.9.1". Returns what
    the site has, with sizes in bytes. Without *output_dir* nothing is written, and what is fetched is thrown away.
    `HardwareError` for a machine or GPU that is not known, `BuildError` if requirements cannot be resolved,
    `FetchError` for a file that cannot be had, `WheelError` for one that is damaged, `RepackageError` if *output_dir*
    is something else: a site that was there is then as it was.
    """
    from vbuild.binary.edits import Strip
    from vbuild.mirroring import mirror as mirroring
    from vbuild.mirroring import model
    from vbuild.publishing.model import folder_url

    sources, url = request.sources, request.url
    common = mirroring.Common(level_named("v1"), request.driver, "2.28", texts_of(request.pythons))
    return mirroring.mirror(
        [str(source) for source in ([sources] if isinstance(sources, str | PathLike) else sources)],
        path_of(request.output_dir),
        mirroring.fleet_of(paths_of(request.machines), texts_of(request.gpus), common),
        model.MirrorRequest(
            recompress=request.recompress,
            strip=Strip(request.strip or Strip.NOTHING),
            drop=texts_of(request.drop),
            accept_license=request.accept_license,
            variants=request.variants,
            prune=request.prune,
            url=folder_url(url) if url else None,
            originals=path_of(request.originals),
            allow_builds=request.allow_builds,
        ),
        on_progress=request.on_progress,
    )


def verify_mirror(folder: StrPath, *, attestations: bool = False) -> "MirrorCheck":
    """Hold every file, index page and lock of the mirror in *folder* against what its mirror.json says.

    With *attestations* also who published the originals (PEP 740), by Sigstore's root of trust. Returns what is wrong,
    a sentence each. `RepackageError` if *folder* is not a mirror, `WheelError` if the root of trust, or what reads
    attestations, is not there.
    """
    from vbuild.mirroring.check import checked_mirror

    if not attestations:
        return checked_mirror(Path(folder))
    request = attestations_of(publisher=None, trust_root=None, fetch=False)
    from vbuild.verification.attestations import attested_files

    return checked_mirror(Path(folder), attested=partial(attested_files, request=request))
