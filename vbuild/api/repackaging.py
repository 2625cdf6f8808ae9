"""Repackage: wheels, packages for conda, images and environments made smaller, split or labelled."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vbuild.api.arguments import (
    cuts_of,
    gpus_of,
    path_of,
    paths_of,
    state_inputs,
    texts_of,
    value_of,
)
from vbuild.api.request import (
    DROP,
    PROGRESS,
    STRIP,
    Gpus,
    OnProgress,
    Paths,
    PtxChoice,
    RequestError,
    StripChoice,
    StrPath,
    Texts,
    option,
    options_of,
    silent,
    takes,
)
from vbuild.errors import VbuildError

if TYPE_CHECKING:
    from vbuild.build.repair import Portable
    from vbuild.publishing.oci.slimming import SlimmedImage
    from vbuild.slimming.in_place import Undone
    from vbuild.slimming.request import Share
    from vbuild.slimming.results import Slimmed, SlimmedEnvironment
    from vbuild.splitting.results import Split
    from vbuild.variants.model import Property
    from vbuild.verification.install_check import InstallCheck

# options of `slim` for wheels, and for what is installed
_GPUS: Gpus = option(
    "Keep code for these GPUs: sm_90, 9.0, 80,86,90+PTX, H100, gfx942, MI300X.",
    default=(),
    flags="--gpu",
    parse="vbuild.hardware.gpu:GpuList.asked",
    metavar="LIST",
)
_PTX: PtxChoice = option(
    "Keep PTX for GPUs without machine code (auto), also the newest (keep), or none.",
    default="auto",
    choices=("auto", "keep", "none"),
)
_RECOMPRESS: bool | None = option(
    "Compress GPU code better, alone or with --gpu; it then needs the driver of CUDA 12.4 or later. [default: in "
    "variants that need such a driver anyway]",
    default=None,
    flags="--recompress/--no-recompress",
)
_UNSUPPORTED = option("Go on if a wheel has no code for a GPU that you name.", default=False)
_LICENSE: "bool | Texts" = option(
    "Change NAME though its licence forbids it: you have permission. Repeatable; patterns too.",
    default=(),
    flags="--accept-license",
    parse="vbuild.wheel.licence:accepted_pattern",
    metavar="NAME",
)
_FORCE = option("Cut libraries even if GNU strip would destroy them later.", default=False)
_PROVENANCE = option("Write <wheel>.provenance.json, ready to sign, next to each wheel.", default=False)


@dataclass(frozen=True)
class SlimRequest:
    """Give either *gpus* or *variants*, or neither to strip or drop only."""

    wheels: Paths
    output_dir: StrPath | None = None
    _: KW_ONLY
    gpus: Gpus = _GPUS
    variants: "Mapping[str, str | Iterable[str]] | Iterable[Share]" = option(
        "Write a variant wheel with this label for these GPUs. Repeatable.",
        default=(),
        flags="--variant",
        parse="vbuild.slimming.request:Share.parse",
        metavar="LABEL=LIST",
    )
    under: str | int | None = option(
        "Lose as little as makes a wheel fit under this size: compress GPU code better, strip debug data, then "
        "symbols, and last the code for GPUs that --gpu does not name, if that is given: the oldest first.",
        default=None,
        parse="vbuild.slimming.request:size_limit",
        metavar="SIZE",
    )
    ptx: PtxChoice = _PTX
    strip: StripChoice = STRIP
    drop: Texts = DROP
    recompress: bool | None = _RECOMPRESS
    allow_unsupported: bool = _UNSUPPORTED
    strict: bool = option("Refuse a wheel if any of its fatbins has no code for a GPU that you name.", default=False)
    accept_license: "bool | Texts" = _LICENSE
    force: bool = _FORCE
    provenance: bool = _PROVENANCE
    on_refusal: "Callable[[Path, VbuildError], None] | None" = option(
        "Call this with each wheel that is refused, and why, and go on; without it the first refusal ends the run.",
        default=None,
        flags=None,
    )
    on_progress: OnProgress = PROGRESS


@takes(SlimRequest)
def slim(request: SlimRequest) -> "tuple[Slimmed, ...]":
    """Cut the GPU code in *wheels*, files or folders of them, down to the GPUs asked for.

    Returns a result for each wheel that comes out, with sizes in bytes and what was cut. *output_dir* gets the wheels,
    and a variants.json if they are variants; if it is None nothing is written and the result says what would be.
    `HardwareError` for a GPU that does not exist, `RepackageError` if a wheel has no code for a GPU or a licence
    forbids changes, `WheelError` if a wheel is damaged.
    """
    from vbuild.slimming.request import Share, size_limit
    from vbuild.slimming.slim import slim as verb

    gpus, shares = gpus_of(request.gpus), request.variants
    if isinstance(shares, Mapping):
        shares = [Share.parse(f"{label}={','.join(texts_of(texts))}") for label, texts in shares.items()]
    if gpus and shares:
        raise RequestError("expected {gpus} for one wheel, or {variants} for a family; not both")
    if request.under is not None and (shares or request.strip or request.recompress is not None):
        raise RequestError("{under} chooses what to strip and to compress by itself, for wheels under their own names")
    results = verb(
        paths_of(request.wheels),
        path_of(request.output_dir),
        shares=tuple(shares) or (Share(gpus),),
        limit=value_of(request.under, size_limit),
        cuts=cuts_of(request, drop=request.drop, strict=request.strict),
        accept_license=request.accept_license,
        on_refusal=request.on_refusal,
        on_progress=request.on_progress,
    )
    if request.provenance:
        for result in results:
            # what was accepted for one package is stated of that one alone
            own = replace(request, accept_license=result.accepted)
            state_inputs("slim", own, [result.path] if result.path else [], [result.wheel])
    return results


@dataclass(frozen=True, kw_only=True)
class InstalledRequest:
    """What to cut of what is installed."""

    gpus: Gpus = _GPUS
    ptx: PtxChoice = _PTX
    strip: StripChoice = STRIP
    recompress: bool | None = _RECOMPRESS
    allow_unsupported: bool = _UNSUPPORTED
    accept_license: "bool | Texts" = _LICENSE
    force: bool = _FORCE
    on_progress: OnProgress = PROGRESS


@dataclass(frozen=True)
class SlimEnvironmentRequest(InstalledRequest):
    """What to cut of what is installed, and where the old files stay."""

    place: StrPath
    _: KW_ONLY
    backup: StrPath | None = None
    dry_run: bool = False


@takes(SlimEnvironmentRequest)
def slim_environment(request: SlimEnvironmentRequest) -> "SlimmedEnvironment":
    """Cut the GPU code of all that is installed in *place*, where it lies: ``slim --environment``.

    *place* is a venv, the prefix of a Python or of conda, a folder of packages, or the tree of an unpacked image.
    *backup* is a folder that keeps the old files, for `undo_slim`; with *dry_run* nothing is written. Returns what
    became of each distribution, in bytes, and which files were left, with reasons. `RepackageError` if there is no
    environment, or it cannot be written to; `RecipeError` if the disk is full: every file is then the old or the new
    one.
    """
    from vbuild.slimming.environment import slim_environment as verb
    from vbuild.slimming.request import Share
    from vbuild.wheel.installed import Environment

    return verb(
        Environment.at(Path(request.place)),
        Share(gpus_of(request.gpus)),
        cuts_of(request),
        dry_run=request.dry_run,
        backup=path_of(request.backup),
        accept_license=request.accept_license,
        on_progress=request.on_progress,
    )


@dataclass(frozen=True)
class SlimImagesRequest(InstalledRequest):
    """What to cut of what is installed in images."""

    place: StrPath
    output_dir: StrPath | None = None


@takes(SlimImagesRequest)
def slim_images(request: SlimImagesRequest) -> "tuple[SlimmedImage, ...]":
    """Cut the GPU code of all that is installed in the images of an OCI image layout: ``slim oci:DIR``.

    *place* is the layout, or ``DIR:NAME`` for one of its images; *output_dir* becomes a layout with the same names, in
    which the layers that hold GPU code are new. If it is None nothing is kept. Returns what became of each image.
    `RepackageError` if there is no layout, an image has no packages, or *output_dir* is not empty.
    """
    from vbuild.publishing.oci.slimming import slim_images as verb
    from vbuild.slimming.request import Share

    return verb(
        Path(request.place),
        path_of(request.output_dir),
        Share(gpus_of(request.gpus)),
        cuts_of(request),
        accept_license=request.accept_license,
        on_progress=request.on_progress,
    )


def undo_slim(backup: StrPath) -> "Undone":
    """Put the files that `slim_environment` kept in *backup* back where they were; the folder goes if all are back.

    Returns how many files and bytes came back, and which were left because they were changed since. `RepackageError` if
    *backup* is not such a folder, or its environment is gone.
    """
    from vbuild.slimming.in_place import undo

    return undo(Path(backup))


@dataclass(frozen=True)
class SplitRequest:
    """What moves, and what the wheels require afterwards."""

    wheels: Paths
    output_dir: StrPath | None = None
    _: KW_ONLY
    replace: bool = option(
        "Require official wheels for bundled libraries that are theirs.", default=True, flags="--replace/--no-replace"
    )
    share: bool = option(
        "Move libraries that several wheels have to a -libs wheel.", default=True, flags="--share/--no-share"
    )
    private: bool = option("Move none; give each a name that no other wheel has, after its contents.", default=False)
    exact: bool = option(
        "Share only libraries that are the same byte for byte, not other builds of them.", default=False, only="share"
    )
    rpath: bool = option(
        "Also require the wheels of CUDA libraries that are needed and not bundled, and find them by RPATH.",
        default=False,
    )
    cuda: str | tuple[int, ...] | None = option(
        "Take needed libraries from this CUDA: 12, 12.6.",
        default=None,
        parse="vbuild.splitting.request:cuda_version",
        metavar="VERSION",
    )
    keep: Texts = option("Leave these libraries where they are. Repeatable.", default=(), metavar="GLOB")
    move: Texts = option("Move these libraries whatever opens them. Repeatable.", default=(), metavar="GLOB")
    tries: Texts = option(
        "Run this before and after, and move what does not change it. Repeatable.",
        default=(),
        flags="--try",
        metavar="COMMAND",
    )
    libs: str | None = option(
        "Name the wheel of shared libraries, or of those that several projects have. [default: PROJECT-libs of each]",
        default=None,
        parse="vbuild.splitting.request:libs_name",
        metavar="NAME[==VERSION]",
        only="share",
    )
    against: StrPath | None = option(
        "Require a wheel of shared libraries that is in this folder or simple index, if it has the same.",
        default=None,
        parse="place",
        metavar="FOLDER|URL",
        only="share",
    )
    min_size: int = option(
        "Share libraries only if that saves this much.", default=1_000_000, metavar="BYTES", least=0, only="share"
    )
    provenance: bool = _PROVENANCE
    allow_builds: bool = option(
        "With --check and --try: build requirements that have no wheel, which runs their code.", default=False
    )
    looks_at_all: bool = option(
        "Also say what wheels lack whose file names promise nothing, for `install_check`.", default=False, flags=None
    )
    on_progress: OnProgress = PROGRESS


@takes(SplitRequest)
def split(request: SplitRequest) -> "Split":
    """Move bundled shared libraries out of *wheels*, files or folders of them, into wheels that these require.

    Returns what went where, with sizes in bytes. *output_dir* gets all wheels; if it is None nothing is written and the
    result says what would be. `RepackageError` if libraries cannot be taken out as asked, `WheelError` if a wheel is
    damaged, `FetchError` if an official wheel cannot be downloaded.
    """
    from vbuild.splitting import request as splitting
    from vbuild.splitting.split import split as verb

    for name, (declared, default) in options_of(request).items() if request.private else ():
        if (declared.only == "share" or name in {"move", "tries"}) and getattr(request, name) != default:
            raise RequestError(f"{{{name}}} is for libraries that leave a wheel, and with {{private}} they stay")
    result = verb(
        paths_of(request.wheels),
        path_of(request.output_dir),
        request=splitting.SplitRequest(
            replace=request.replace,
            share=request.share,
            private=request.private,
            exact=request.exact,
            rpath=request.rpath,
            cuda=value_of(request.cuda, splitting.cuda_version) or (),
            keep=texts_of(request.keep),
            move=texts_of(request.move),
            tries=texts_of(request.tries),
            libs=request.libs,
            against=value_of(request.against, splitting.place_of),
            smallest=request.min_size,
            allow_builds=request.allow_builds,
        ),
        looks_at_all=request.looks_at_all,
        on_progress=request.on_progress,
    )
    if request.provenance:
        state_inputs("split", request, result.paths, [split.wheel for split in result.wheels])
    return result


def install_check(
    wheels: Paths,
    *,
    absent: Texts = (),
    against: StrPath | None = None,
    allow_builds: bool = False,
    on_progress: Callable[[str], None] = silent,
) -> "tuple[InstallCheck, ...]":
    """Install *wheels*, files or folders of them, with pip and with uv; load and import them: ``vbuild split --check``.

    Returns a result for each wheel and installer, whose ``ok`` says whether it works. *absent* are the libraries that
    no path led to before a split either, ``absent`` of its result; *against* is a folder or an index with what they
    require besides. With *allow_builds*, requirements without a wheel are built, which runs their code.
    `RepackageError` if no wheel can be installed.
    """
    from vbuild.index_client.configuration import Indexes
    from vbuild.verification.install_check import check

    return check(
        paths_of(wheels),
        absent=texts_of(absent),
        builds=allow_builds,
        indexes=lambda: Indexes.configured().with_place(against) if against else Indexes.configured(),
        on_progress=on_progress,
    )


@dataclass(frozen=True)
class RepairRequest:
    """A wheel, and whose settings to follow."""

    wheel: StrPath
    output_dir: StrPath
    _: KW_ONLY
    recipe: StrPath | None = option(
        "Follow [repair] of this recipe. [default: the project here]", default=None, parse="path"
    )


@takes(RepairRequest)
def repair(request: RepairRequest) -> "Portable":
    """Write the portable wheel of *wheel* into *output_dir*, and return its path and what was mended besides.

    *recipe* is a recipe or project with a [repair] table, by default that of the current folder. `BuildError` with the
    end of its output if the repair command fails, `RecipeError` for wrong settings, `WheelError` for a damaged wheel.
    """
    from vbuild.build.repair import repair as verb

    return verb(Path(request.wheel), Path(request.output_dir), recipe=path_of(request.recipe))


@dataclass(frozen=True)
class StampRequest:
    """Give either *label* or *remove*."""

    wheel: StrPath
    output_dir: StrPath
    _: KW_ONLY
    label: str | None = option(
        "Use this variant label, made of a-z, 0-9, _ and dots. null has no properties, and ranks after all others.",
        default=None,
        flags="-l --label",
        parse="vbuild.variants.model:checked_label",
    )
    remove: bool = option("Remove the label and variant.json.", default=False)
    properties: "Iterable[str | Property]" = option(
        "Add this property, written as namespace :: feature :: value. Repeatable.",
        default=(),
        flags="-p --property",
        parse="vbuild.variants.model:Property.parse",
        metavar="PROPERTY",
        only="label",
    )
    metadata: StrPath | None = option(
        "Take priorities and providers from the [variant] table of this TOML file.",
        default=None,
        parse="file",
        only="label",
    )


@takes(StampRequest)
def stamp(request: StampRequest) -> Path:
    """Write the copy of *wheel* that has a variant label, or no longer has one, into *output_dir*; returns its path.

    `VariantError` if label, properties and metadata do not go together, `WheelError` if the wheel is damaged.
    """
    from vbuild.variants.model import Property
    from vbuild.variants.stamp import declaration_at, described, stamped, unstamped

    wheel, folder, label = Path(request.wheel), Path(request.output_dir), request.label
    if (label is not None) == request.remove:
        raise RequestError("expected either {label} or {remove}")
    if request.remove:
        return unstamped(wheel, folder)
    declaration = declaration_at(Path(request.metadata)) if request.metadata else None
    properties = [value_of(text, Property.parse) for text in request.properties]
    variant = described(properties, label=label, declaration=declaration)
    return stamped(wheel, folder, variant=variant, metadata=declaration.metadata if declaration else None)
