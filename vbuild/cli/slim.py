"""`vbuild slim`: CUDA wheels cut to the GPUs that one names."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vbuild.cli import options, terminal
from vbuild.cli.provenance import state
from vbuild.files.wording import counted, mb, wrapped

if TYPE_CHECKING:
    from vbuild.slimming.results import LibraryCut, Slimmed


@click.command(epilog=options.example("vbuild slim torch-*.whl --variant sm80=80,86,89 --variant sm90=90,90a -o out"))
@click.argument("wheels", type=options.NAMED, nargs=-1, required=True)
@options.folder
@click.option(
    "--gpu",
    "gpus",
    type=options.GPUS,
    multiple=True,
    metavar="LIST",
    help="Keep code for these GPUs: sm_90, 9.0, 80,86,90+PTX.",
)
@click.option(
    "--variant",
    "shares",
    type=options.Value("label=gpus", "vbuild.slimming.request:Share.parse"),
    multiple=True,
    metavar="LABEL=LIST",
    help="Write a variant wheel with this label for these GPUs. Repeatable.",
)
@click.option(
    "--ptx",
    type=click.Choice(["auto", "keep", "none"]),
    default="auto",
    show_default=True,
    help="Keep PTX for GPUs without machine code (auto), also the newest (keep), or none.",
)
@click.option("--strip", type=click.Choice(["debug", "unneeded"]), help="Also remove debug data, or all local symbols.")
@click.option(
    "--drop", multiple=True, metavar="GLOB", help="Leave out these files: '*.a', 'torch/include/*'. Repeatable."
)
@click.option(
    "--recompress/--no-recompress",
    "--zstd/--no-zstd",
    "zstd",
    default=None,
    help="Compress GPU code better, alone or with --gpu; it then needs the driver of CUDA 12.4 or later. [default: in "
    "variants that need such a driver anyway]",
)
@click.option(
    "--members",
    type=click.Choice(["deflate", "zstd"]),
    default="deflate",
    show_default=True,
    help="Compress the files in variant wheels so; zstd is smaller, and uv reads it, pip does not.",
)
@click.option(
    "--empty",
    type=click.Choice(["smallest", "nothing"]),
    default="smallest",
    show_default=True,
    help="Keep this of a fatbin without code for the GPUs: its smallest entry, or nothing.",
)
@options.fast
@click.option("--allow-unsupported", is_flag=True, help="Go on if a wheel has no code for a GPU that you name.")
@click.option("--strict", is_flag=True, help="Refuse a wheel if one library has no code for a GPU that you name.")
@click.option("--accept-license", is_flag=True, help="Go on if the licence forbids changes: you have permission.")
@click.option("--force", is_flag=True, help="Cut libraries even if GNU strip would destroy them later.")
@options.bill
@options.provenance
@options.executor
@click.option("--no-fetch", is_flag=True, help="Print the command that downloads the wheels named; do no more.")
@options.dry_run
@options.as_json
def slim(wheels: tuple[Any, ...], folder: Path | None, **asked: Any) -> None:  # noqa: ANN401 - the options above
    """Cut the GPU code in wheels down to the GPUs you name.

    WHEELS are files, folders of wheels, or names on the package index, as in torch==2.9.1. --gpu keeps a wheel's name;
    each --variant makes a variant wheel of its own, and the output folder gets their index. --recompress alone keeps
    the code for every GPU.
    """
    from vbuild.api import functions
    from vbuild.index_client.packages import download_command

    if asked.pop("no_fetch"):
        names = [wheel for wheel in wheels if not isinstance(wheel, Path)]
        if not names:
            raise click.UsageError("--no-fetch goes with names on the package index; expected one, as in torch==2.9.1")
        terminal.write("".join(f"{download_command(name)}\n" for name in names))
        return
    if asked["gpus"] and asked["shares"]:
        raise click.UsageError("expected --gpu for one wheel, or --variant for a family; not both")
    dry_run, provenance, as_json = (asked.pop(name) for name in ("dry_run", "provenance", "as_json"))
    if folder is None and not dry_run:
        raise click.UsageError("expected --output-dir FOLDER, or --dry-run")
    asked |= {"variants": asked.pop("shares"), "sbom": asked.pop("bill")}
    with terminal.bar(quiet=as_json) as on_progress:
        results = functions.slim(options.here(wheels), None if dry_run else folder, **asked, on_progress=on_progress)
    for result in results if provenance else ():
        state([result.path] if result.path else [], [result.wheel])
    lines = [line for result in results for line in slimmed_lines(result)]
    terminal.show([result.data() for result in results], lines, as_json=as_json)


def slimmed_lines(slimmed: "Slimmed") -> Iterator[str]:
    """One output of slimming: the wheel, and two lines or so for each library that was looked at."""
    yield slimmed.name
    if slimmed.why_untouched:
        yield f"  unchanged: {slimmed.why_untouched}"
    about = "" if slimmed.path else "about "
    packed = f"{mb(slimmed.before)} -> {about}{mb(slimmed.packed)} MB"
    yield f"  {packed}, unpacked {mb(slimmed.unpacked_before)} -> {mb(slimmed.unpacked)} MB"
    for library in slimmed.libraries:
        yield from (f"  {line}" for line in _cut_lines(library))
    if slimmed.removed:
        yield f"  dropped: {len(slimmed.removed)} members, {slimmed.removed[0]} first"
    yield from (f"  {prop}" for prop in slimmed.properties)
    for warning in slimmed.warnings:
        yield from wrapped(f"  warning: {warning}", indent=4)
    for saving in slimmed.more:
        yield from wrapped(
            f"  {saving.option} would save about {mb(saving.packed)} MB more, unpacked {mb(saving.unpacked)} MB",
            indent=4,
        )


def _cut_lines(cut: "LibraryCut") -> Iterator[str]:
    yield f"{cut.member}: {mb(cut.before)} -> {mb(cut.after)} MB"
    if cut.has_gpu_code:
        pinned = f", {counted(cut.pinned, 'fatbin')} pinned" if cut.pinned else ""
        yield f"  {cut.kept} of {cut.kept + cut.dropped} entries kept{pinned}"
    for served in cut.served:
        jit = f", PTX in {served.jit} (compiled at first use)" if served.jit else ""
        nothing = f", nothing in {served.nothing}" if served.nothing else ""
        yield f"  {served.device}: machine code in {counted(served.machine, 'fatbin')}{jit}{nothing}"
    if cut.why_whole:
        yield f"  left as it was: {cut.why_whole}"
    yield from (f"  left alone: {note}" for note in cut.notes)
