"""Commands that make other wheels of wheels: `vbuild repair`, `vbuild slim`, `vbuild split`, `vbuild stamp`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vbuild.cli import options, terminal
from vbuild.cli import render as report
from vbuild.errors import WheelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vbuild.hardware.gpu import GpuList
    from vbuild.slimming.request import Share
    from vbuild.splitting.plan import Cut
    from vbuild.variants.document import Schema
    from vbuild.variants.model import Property
    from vbuild.verification.install_check import InstallCheck
    from vbuild.workers.executor import Executor

# what says where, and not what
_PLACES = frozenset({"wheels", "folder", "executor", "as_json", "dry_run", "provenance", "check"})


@click.command(epilog=options.example("vbuild repair demo-1.0-cp313-cp313-linux_x86_64.whl wheelhouse"))
@click.argument("wheel", type=options.FILE)
@click.argument("folder", type=options.FOLDER, metavar="DEST_DIR")
@click.option("--recipe", type=click.Path(path_type=Path), help="Whose [repair] to follow. [default: the project here]")
@options.as_json
def repair(wheel: Path, folder: Path, *, recipe: Path | None, as_json: bool) -> None:
    """Make WHEEL portable; for repair-wheel-command."""
    from vbuild.build.repair import repair as repaired

    result = repaired(wheel, folder, recipe=recipe)
    terminal.show(result.data(), [str(result.wheel)], as_json=as_json)


@click.command(epilog=options.example("vbuild slim torch-*.whl --variant sm80=80,86,89 --variant sm90=90,90a -o out"))
@click.argument("wheels", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("-o", "--output-dir", "folder", type=options.FOLDER, help="Where the results go.")
@click.option(
    "--gpu",
    "gpus",
    type=options.GPUS,
    multiple=True,
    metavar="LIST",
    help="GPUs to keep code for: sm_90, 9.0, 80,86,90+PTX.",
)
@click.option(
    "--variant",
    "shares",
    type=options.SHARE,
    multiple=True,
    metavar="LABEL=LIST",
    help="Write a variant wheel for these GPUs; may be repeated.",
)
@click.option(
    "--ptx",
    type=click.Choice(["auto", "keep", "none"]),
    default="auto",
    show_default=True,
    help="Keep PTX where a GPU has nothing else; the newest as well; or none.",
)
@click.option("--strip", type=click.Choice(["debug", "unneeded"]), help="Also cut debug data, or all local symbols.")
@click.option("--drop", multiple=True, metavar="GLOB", help="Leave these members out: '*.a', 'torch/include/*'.")
@click.option("--zstd", is_flag=True, help="Compress kept GPU code again; needs the driver of CUDA 12.4 or later.")
@click.option(
    "--empty",
    type=click.Choice(["smallest", "nothing"]),
    default="smallest",
    show_default=True,
    help="What a fatbin with no code for the GPUs keeps.",
)
@click.option("--fast", is_flag=True, help="Deflate in a third of the time, to wheels an eighth larger.")
@click.option("--allow-unsupported", is_flag=True, help="Go on where a library has no code for a GPU asked for.")
@click.option("--accept-license", is_flag=True, help="Go on where the licence forbids changes: you may make them.")
@click.option("--force", is_flag=True, help="Cut libraries even so that GNU strip would destroy them later.")
@options.bill
@options.provenance
@options.executor
@click.option("--dry-run", is_flag=True, help="Print the outcome; write nothing.")
@options.as_json
def slim(
    wheels: tuple[Path, ...],
    folder: Path | None,
    *,
    gpus: tuple["GpuList", ...],
    shares: tuple["Share", ...],
    ptx: str,
    strip: str | None,
    drop: tuple[str, ...],
    zstd: bool,
    empty: str,
    fast: bool,
    allow_unsupported: bool,
    accept_license: bool,
    force: bool,
    bill: bool,
    provenance: bool,
    executor: "Executor",
    dry_run: bool,
    as_json: bool,
) -> None:
    """Cut the GPU code in WHEELS, or folders of wheels, down to the GPUs you name."""
    from vbuild.elf.surgery.strip import Strip
    from vbuild.hardware.gpu import GpuList, Ptx
    from vbuild.slimming.request import Cuts, Empty, Share
    from vbuild.slimming.slim import slim as slimmed
    from vbuild.wheel.deflate import Codec

    if gpus and shares:
        raise click.UsageError("expected --gpu for one wheel, or --variant for a family; not both")
    if folder is None and not dry_run:
        raise click.UsageError("expected --output-dir FOLDER, or --dry-run")
    asked = shares or (Share(GpuList.parse(",".join(map(str, gpus))) if gpus else None),)
    cuts = Cuts(
        ptx=Ptx(ptx),
        strip=Strip(strip) if strip else Strip.NOTHING,
        drop=drop,
        empty=Empty(empty),
        zstd=zstd,
        force=force,
        unsupported=allow_unsupported,
        bill=bill,
    )
    with terminal.bar(quiet=as_json) as on_progress:
        results = slimmed(
            wheels,
            None if dry_run else folder,
            shares=asked,
            cuts=cuts,
            codec=Codec.ISAL if fast else Codec.LIBDEFLATE,
            accept_license=accept_license,
            executor=executor,
            on_progress=on_progress,
        )
    for result in results if provenance else ():
        _state([result.path] if result.path else [], [result.wheel])
    lines = [line for result in results for line in report.slimmed_lines(result)]
    terminal.show([result.data() for result in results], lines, as_json=as_json)


@click.command(epilog=options.example("vbuild split wheelhouse/*.whl -o thin --check"))
@click.argument("wheels", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("-o", "--output-dir", "folder", type=options.FOLDER, help="Where the results go.")
@click.option("--replace/--no-replace", default=True, help="Require official wheels for libraries that are theirs.")
@click.option("--share/--no-share", default=True, help="Move what several wheels have to a -libs wheel.")
@click.option("--rpath", is_flag=True, help="Also lead to CUDA libraries that are needed and not bundled.")
@click.option("--rpath-only", is_flag=True, help="Do that, and nothing else.")
@click.option(
    "--pin",
    type=click.Choice(["exact", "compatible"]),
    help="How official wheels are required. [default: exact, and compatible for what is not bundled]",
)
@click.option("--cuda", type=options.CUDA, metavar="VERSION", help="The CUDA that needed libraries are from: 12, 12.6.")
@click.option("--keep", multiple=True, metavar="GLOB", help="Leave these libraries where they are.")
@click.option(
    "--libs",
    type=options.PROJECT,
    metavar="NAME",
    help="What the wheel of shared libraries is called. [default: PROJECT-libs]",
)
@click.option(
    "--min-size",
    "smallest",
    type=click.IntRange(min=0),
    default=1_000_000,
    show_default=True,
    metavar="BYTES",
    help="Share only where this much is saved.",
)
@click.option("--drop-unneeded", is_flag=True, help="Leave bundled libraries out that nothing needs.")
@click.option("--outputs", is_flag=True, help="Move headers, static libraries and CMake files to a -dev wheel.")
@click.option("--preload", is_flag=True, help="Add a module that loads libraries where no RPATH leads to them.")
@click.option("--fetch-official", "fetch", is_flag=True, help="Download official wheels' libraries to compare them.")
@click.option("--gpu", "gpus", type=options.GPUS, metavar="LIST", help="Also cut GPU code down to these GPUs.")
@click.option("--fast", is_flag=True, help="Deflate in a third of the time, to wheels an eighth larger.")
@options.bill
@options.provenance
@click.option("--check", is_flag=True, help="Install the results with pip and uv, load and import them.")
@click.option("--dry-run", is_flag=True, help="Print the outcome; write nothing.")
@options.as_json
def split(
    wheels: tuple[Path, ...],
    folder: Path | None,
    *,
    rpath_only: bool,
    pin: str | None,
    cuda: tuple[int, ...] | None,
    gpus: "GpuList | None",
    fast: bool,
    check: bool,
    dry_run: bool,
    provenance: bool,
    as_json: bool,
    **asked: Any,  # noqa: ANN401 - whatever the options hold
) -> None:
    """Take bundled shared libraries out of WHEELS, or folders of wheels, into dependency wheels."""
    from vbuild.splitting.request import OfficialPin, SplitRequest
    from vbuild.splitting.split import split as thinned
    from vbuild.wheel.deflate import Codec

    if folder is None and not (dry_run or check):
        raise click.UsageError("expected --output-dir FOLDER, --dry-run or, for wheels that are split, --check")
    if check and dry_run:
        raise click.UsageError("expected --check or --dry-run: what is not written cannot be installed")
    if rpath_only:
        asked |= {"replace": False, "share": False, "rpath": True}
    request = SplitRequest(**asked, pin=OfficialPin(pin) if pin else None, cuda=cuda or ())
    if folder is None and not dry_run:
        checked = _checked(wheels, (), quiet=as_json)
        terminal.show([one.data() for one in checked], report.checked_lines(checked), as_json=as_json)
        _refuse_failed(checked)
        return
    with terminal.bar(quiet=as_json) as on_progress:
        result = thinned(
            wheels,
            None if dry_run else folder,
            request=request,
            cut=_cut(wheels, gpus) if gpus else None,
            codec=Codec.ISAL if fast else Codec.LIBDEFLATE,
            looks_at_all=check,
            on_progress=on_progress,
        )
    if provenance:
        _state(result.paths, [one.wheel for one in result.wheels])
    checked = _checked(result.paths, result.absent, quiet=as_json) if check else ()
    data = {**result.data(), "checked": [one.data() for one in checked]}
    terminal.show(data, [*report.split_lines(result), *report.checked_lines(checked)], as_json=as_json)
    _refuse_failed(checked)


def _state(made: "Sequence[Path]", inputs: "Sequence[Path]") -> None:
    """Write beside each wheel of *made* a statement of what it was made from, *inputs*, and with which options."""
    from vbuild.sbom.statement import state_each

    context = click.get_current_context()
    told = {name: value for name, value in context.params.items() if name not in _PLACES and value not in {None, ()}}
    options_told = {
        name: [*map(str, value)] if isinstance(value, tuple) else str(value) for name, value in told.items()
    }
    verb = str(context.info_name)
    state_each(made, inputs=inputs, verb=verb, asked={"command": f"vbuild {verb}", "options": options_told})


def _cut(wheels: tuple[Path, ...], gpus: "GpuList") -> "Cut":
    from vbuild.slimming.slim import library_cutter
    from vbuild.wheel.extract import gathered

    return library_cutter(gathered(wheels), gpus)


def _checked(wheels: "Sequence[Path]", absent: "Sequence[str]", *, quiet: bool) -> "tuple[InstallCheck, ...]":
    from vbuild.verification.install_check import check

    with terminal.status(quiet=quiet) as status:
        return check(wheels, absent=absent, on_progress=status)


def _refuse_failed(checked: "Sequence[InstallCheck]") -> None:
    if failed := list(dict.fromkeys(one.wheel for one in checked if not one.ok)):
        raise WheelError(f"{', '.join(failed)}: does not work as it was written")


@click.command(epilog=options.example('vbuild stamp demo-1.0-py3-none-any.whl -o dist -l v3 -p "x86_64::level::v3"'))
@click.argument("wheel", type=options.FILE)
@options.output
@click.option("-l", "--label", help="The variant label, from a-z, 0-9, _ and dots.")
@click.option("--hash-label", is_flag=True, help="Label by a hash of the properties, eight hex digits.")
@click.option("--null", is_flag=True, help="Stamp the null variant: no properties, after all others.")
@click.option("--remove", is_flag=True, help="Take label and variant.json away.")
@click.option(
    "-p",
    "--property",
    "properties",
    type=options.PROPERTY,
    multiple=True,
    help="ns :: feature :: value.",
)
@click.option("--metadata", "declared", type=options.FILE, help="TOML with the [variant] table: priorities, providers.")
@click.option("--check", is_flag=True, help="Hold every member against RECORD first, not only those that are read.")
@options.drafts
@options.as_json
def stamp(
    wheel: Path,
    folder: Path,
    *,
    label: str | None,
    hash_label: bool,
    null: bool,
    remove: bool,
    properties: tuple["Property", ...],
    declared: Path | None,
    check: bool,
    schema: "Schema",
    as_json: bool,
) -> None:
    """Copy WHEEL under a variant label."""
    from vbuild.variants.model import NULL
    from vbuild.variants.stamp import declaration_at, described, stamped, unstamped

    if sum((label is not None, hash_label, null, remove)) != 1:
        raise click.UsageError("expected exactly one of --label, --hash-label, --null and --remove")
    if (null or remove) and properties:
        raise click.UsageError("--property goes with --label or --hash-label")
    if remove:
        path = unstamped(wheel, folder, check=check)
    else:
        declaration = declaration_at(declared) if declared else None
        variant = NULL if null else described(properties, label=label, declaration=declaration)
        metadata = declaration.metadata if declaration else None
        path = stamped(wheel, folder, variant=variant, metadata=metadata, schema=schema, check=check)
    terminal.show({"wheel": str(path), "bytes": path.stat().st_size}, [str(path)], as_json=as_json)
