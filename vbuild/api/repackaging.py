"""Repackage: wheels, packages for conda, images and environments made smaller, split or labelled."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from vbuild.api.arguments import (
    cuts_of,
    gpus_of,
    known,
    path_of,
    paths_of,
    shares_of,
    silent,
    state_inputs,
    texts_of,
    value_of,
)
from vbuild.api.options import (
    SlimOptions,
    SplitOptions,
    StampOptions,
    StrPath,
)
from vbuild.errors import RepackageError, VariantError

if TYPE_CHECKING:
    from vbuild.publishing.oci.slimming import SlimmedImage
    from vbuild.slimming.in_place import Undone
    from vbuild.slimming.results import Slimmed, SlimmedEnvironment
    from vbuild.splitting.results import Split
    from vbuild.verification.install_check import InstallCheck


def slim(
    wheels: "StrPath | Iterable[StrPath]", output_dir: StrPath | None = None, **options: Unpack[SlimOptions]
) -> "tuple[Slimmed, ...]":
    """Cut the GPU code in *wheels*, files or folders of them, down to the GPUs asked for.

    Returns a result for each wheel that comes out, with sizes in bytes and what was cut. *output_dir* gets the wheels,
    and a variants.json if they are variants; if it is None nothing is written and the result says what would be.
    `HardwareError` for a GPU that does not exist, `RepackageError` if a wheel has no code for a GPU or a licence
    forbids changes, `WheelError` if a wheel is damaged.
    """
    from vbuild.slimming.request import Share
    from vbuild.slimming.slim import slim as verb

    asked = known(options, SlimOptions)
    gpus, shares = gpus_of(asked.get("gpus", ())), shares_of(asked.get("variants", ()))
    if gpus and shares:
        raise RepackageError("gpus and variants: expected one of them, GPUs for one wheel or labels for a family")
    results = verb(
        paths_of(wheels),
        path_of(output_dir),
        shares=shares or (Share(gpus),),
        cuts=cuts_of(asked),
        accept_license=asked.get("accept_license", False),
        on_progress=asked.get("on_progress", silent),
    )
    if asked.get("provenance"):
        for result in results:
            state_inputs("slim", asked, [result.path] if result.path else [], [result.wheel])
    return results


def slim_environment(
    place: StrPath,
    *,
    backup: StrPath | None = None,
    dry_run: bool = False,
    **options: Unpack[SlimOptions],
) -> "SlimmedEnvironment":
    """Cut the GPU code of all that is installed in *place*, where it lies: ``slim --environment``.

    *place* is a venv, the prefix of a Python or of conda, a folder of packages, or the tree of an unpacked image.
    *backup* is a folder that keeps the old files, for `undo_slim`; with *dry_run* nothing is written. Of the options,
    those apply that say what goes, *accept_license* and *on_progress*. Returns what became of each distribution, in
    bytes, and which files were left, with reasons. `RepackageError` if there is no environment, or it cannot be written
    to; `RecipeError` if the disk is full: every file is then the old or the new one.
    """
    from vbuild.slimming.environment import slim_environment as verb
    from vbuild.slimming.request import Share
    from vbuild.wheel.installed import Environment

    asked = known(options, SlimOptions)
    return verb(
        Environment.at(Path(place)),
        Share(gpus_of(asked.get("gpus", ()))),
        cuts_of(asked),
        dry_run=dry_run,
        backup=path_of(backup),
        accept_license=asked.get("accept_license", False),
        on_progress=asked.get("on_progress", silent),
    )


def slim_images(
    place: StrPath, output_dir: StrPath | None = None, **options: Unpack[SlimOptions]
) -> "tuple[SlimmedImage, ...]":
    """Cut the GPU code of all that is installed in the images of an OCI image layout: ``slim oci:DIR``.

    *place* is the layout, or ``DIR:NAME`` for one of its images; *output_dir* becomes a layout with the same names, in
    which the layers that hold GPU code are new. If it is None nothing is kept. Of the options, those apply that say
    what goes, *accept_license* and *on_progress*. Returns what became of each image. `RepackageError` if there is no
    layout, an image has no packages, or *output_dir* is not empty.
    """
    from vbuild.publishing.oci.slimming import slim_images as verb
    from vbuild.slimming.request import Share

    asked = known(options, SlimOptions)
    return verb(
        Path(place),
        path_of(output_dir),
        Share(gpus_of(asked.get("gpus", ()))),
        cuts_of(asked),
        accept_license=asked.get("accept_license", False),
        on_progress=asked.get("on_progress", silent),
    )


def undo_slim(backup: StrPath) -> "Undone":
    """Put the files that `slim_environment` kept in *backup* back where they were; the folder goes if all are back.

    Returns how many files and bytes came back, and which were left because they were changed since. `RepackageError` if
    *backup* is not such a folder, or its environment is gone.
    """
    from vbuild.slimming.in_place import undo

    return undo(Path(backup))


def split(
    wheels: "StrPath | Iterable[StrPath]", output_dir: StrPath | None = None, **options: Unpack[SplitOptions]
) -> "Split":
    """Move bundled shared libraries out of *wheels*, files or folders of them, into wheels that these require.

    Returns what went where, with sizes in bytes. *output_dir* gets all wheels; if it is None nothing is written and the
    result says what would be. `RepackageError` if libraries cannot be taken out as asked, `WheelError` if a wheel is
    damaged, `FetchError` if an official wheel cannot be downloaded.
    """
    from vbuild.splitting.request import SMALLEST, SplitRequest, cuda_version, place_of
    from vbuild.splitting.split import split as verb

    asked = known(options, SplitOptions)
    request = SplitRequest(
        **{name: asked[name] for name in asked.keys() & _SPLITS},
        cuda=value_of(asked.get("cuda"), cuda_version) or (),
        keep=texts_of(asked.get("keep")),
        move=texts_of(asked.get("move")),
        tries=texts_of(asked.get("tries")),
        smallest=asked.get("min_size", SMALLEST),
        against=value_of(asked.get("against"), place_of),
        allow_builds=asked.get("allow_builds", False),
    )
    result = verb(
        paths_of(wheels),
        path_of(output_dir),
        request=request,
        on_progress=asked.get("on_progress", silent),
    )
    if asked.get("provenance"):
        state_inputs("split", asked, result.paths, [one.wheel for one in result.wheels])
    return result


# options of `split` that are attributes of a SplitRequest under the same name
_SPLITS = frozenset({"replace", "share", "rpath", "libs"})


def install_check(
    wheels: "StrPath | Iterable[StrPath]",
    *,
    absent: Iterable[str] = (),
    against: StrPath | None = None,
    allow_builds: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> "tuple[InstallCheck, ...]":
    """Install *wheels*, files or folders of them, with pip and with uv; load and import them: ``vbuild split --check``.

    Returns a result for each wheel and installer, whose ``ok`` says whether it works. *absent* are the libraries that
    no path led to before a split either, ``absent`` of its result; *against* is a folder or an index with what they
    require besides. With *allow_builds*, requirements without a wheel are built, which runs their code.
    `RepackageError` if no wheel can be installed.
    """
    from vbuild.index_client.configuration import Indexes
    from vbuild.verification.install_check import check

    def indexes() -> Indexes:
        return Indexes.configured().with_place(against) if against else Indexes.configured()

    return check(
        paths_of(wheels),
        absent=texts_of(absent),
        builds=allow_builds,
        indexes=indexes,
        on_progress=on_progress or silent,
    )


def stamp(wheel: StrPath, output_dir: StrPath, **options: Unpack[StampOptions]) -> Path:
    """Write the copy of *wheel* that has a variant label, or no longer has one, into *output_dir*; returns its path.

    `VariantError` if label, properties and metadata do not go together, `WheelError` if the wheel is damaged.
    """
    from vbuild.variants.model import NULL, Property
    from vbuild.variants.stamp import declaration_at, described, stamped, unstamped

    asked = known(options, StampOptions)
    label, null = asked.get("label"), asked.get("null", False)
    if sum((label is not None, null, asked.get("remove", False))) != 1:
        raise VariantError("expected exactly one of label, null and remove")
    if asked.get("remove"):
        return unstamped(Path(wheel), Path(output_dir))
    properties = [value_of(each, Property.parse) for each in asked.get("properties", ())]
    file = path_of(asked.get("metadata"))
    declaration = declaration_at(file) if file else None
    return stamped(
        Path(wheel),
        Path(output_dir),
        variant=NULL if null else described(properties, label=label, declaration=declaration),
        metadata=declaration.metadata if declaration else None,
    )
