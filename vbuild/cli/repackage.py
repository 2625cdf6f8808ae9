"""Repackage: wheels cut to GPUs, split, labelled and made portable."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.cli.render import split_lines
from vbuild.errors import RepackageError, VbuildError
from vbuild.files.wording import counted, mb, sized, wrapped

if TYPE_CHECKING:
    from vbuild.publishing.oci.slimming import SlimmedImage
    from vbuild.slimming.results import LibraryCut, Slimmed, SlimmedDistribution, SlimmedEnvironment
    from vbuild.verification.install_check import InstallCheck


@click.command(
    cls=options.RequestCommand,
    epilog=options.example("vbuild slim torch-*.whl --variant sm80=80,86,89 --variant sm90=90,90a -o out"),
)
@click.argument("wheels", type=options.NAMED, nargs=-1)
@click.option(
    "--environment",
    "place",
    type=options.PATH,
    metavar="PATH",
    help="Slim all that this venv, prefix of a Python or conda, or tree of an unpacked image has.",
)
@click.option(
    "--backup", type=options.FOLDER, metavar="DIR", help="With --environment: keep the old files in this folder."
)
@click.option("--undo", type=options.FOLDER, metavar="DIR", help="Put the files of this backup back; do no more.")
@options.folder
@options.of("vbuild.api.repackaging:SlimRequest")
@options.dry_run
@options.as_json
def slim(wheels: tuple[Any, ...], folder: Path | None, *, dry_run: bool, as_json: bool, **given: options.Given) -> None:
    """Cut the GPU code in wheels down to the GPUs you name.

    WHEELS are files, folders of wheels, or names on the package index, as in torch==2.9.1. --gpu keeps a wheel's name;
    each --variant makes a variant wheel of its own, and the output folder gets their index. --recompress alone keeps
    the code for every GPU. --environment needs no WHEELS: it cuts what is installed, in place. oci:DIR is an image
    layout, of which the output folder becomes a slimmed one.
    """
    from vbuild.api.repackaging import InstalledRequest
    from vbuild.api.request import options_of

    place, backup, undo = (given.pop(name) for name in ("place", "backup", "undo"))
    installed = options_of(InstalledRequest)
    if (place or undo) and wheels:
        raise click.UsageError("expected --environment PATH or --undo DIR without WHEELS")
    if undo:
        options.refuse_others("undo", "as_json", where="with --undo")
        undone = vbuild.undo_slim(undo)
        terminal.show(undone.data(), undone.lines, as_json=as_json)
    elif place:
        options.refuse_others("place", "backup", "dry_run", "as_json", *installed, where="on what is installed")
        cuts = {name: given[name] for name in given.keys() & installed}
        with terminal.bar(quiet=as_json) as on_progress:
            result = vbuild.slim_environment(place, backup=backup, dry_run=dry_run, **cuts, on_progress=on_progress)
        terminal.show(result.data(), environment_lines(result), as_json=as_json)
    elif backup:
        raise click.UsageError("--backup goes with --environment only")
    elif any(str(wheel).startswith(options.IMAGES) for wheel in wheels):
        if len(wheels) != 1:
            raise click.UsageError("expected one oci:DIR, and no WHEELS")
        options.refuse_others("folder", "dry_run", "as_json", *installed, where="on images")
        layout, output = str(wheels[0]).removeprefix(options.IMAGES), options.output_of(folder, dry_run=dry_run)
        cuts = {name: given[name] for name in given.keys() & installed}
        with terminal.bar(quiet=as_json) as on_progress:
            images = vbuild.slim_images(layout, output, **cuts, on_progress=on_progress)
        lines = [line for image in images for line in _image_lines(image)]
        terminal.show([image.data() for image in images], lines, as_json=as_json)
    else:
        if not wheels:
            raise click.UsageError("expected WHEELS, or --environment PATH")
        _slim_wheels(wheels, options.output_of(folder, dry_run=dry_run), given, as_json=as_json)


def _slim_wheels(wheels: Sequence[Any], folder: Path | None, given: Mapping[str, Any], *, as_json: bool) -> None:
    """Slim all *wheels*; refuse with one line after what has become of the others."""
    refusals: dict[Path, VbuildError] = {}
    fetched = options.here(wheels, on_refusal=refusals.__setitem__)
    with terminal.bar(quiet=as_json) as on_progress:
        results = vbuild.slim(fetched, folder, **given, on_refusal=refusals.__setitem__, on_progress=on_progress)
    if not results and len(refusals) == 1:
        raise next(iter(refusals.values()))
    lines = [line for result in results for line in slimmed_lines(result)]
    count = len({result.wheel for result in results}) + len(refusals)
    lines += _table(results, refusals) if count > 1 else ()
    refused = [{"wheel": path.name, "refused": str(error)} for path, error in refusals.items()]
    terminal.show([*(result.data() for result in results), *refused], lines, as_json=as_json)
    if refusals:
        raise RepackageError(f"{len(refusals)} of {counted(count, 'wheel')} refused")


def _table(results: "Sequence[Slimmed]", refusals: Mapping[Path, VbuildError]) -> Iterator[str]:
    """What became of each wheel, in MB, and why it was left or refused."""
    yield ""
    yield f"{'':7} {'before':>9} {'after':>9}  MB"
    for result in results:
        fate = "left" if result.is_untouched else "cut"
        yield f"{fate:7} {mb(result.before):>9} {mb(result.packed):>9}  {result.name}"
        yield from wrapped(f"  {result.why_untouched}", indent=2) if result.why_untouched else ()
    for path, error in refusals.items():
        size = mb(path.stat().st_size) if path.exists() else "-"
        yield f"{'refused':7} {size:>9} {'-':>9}  {path.name}"
        yield from wrapped(f"  {str(error).removeprefix(f'{path.name}: ')}", indent=2)


def _image_lines(image: "SlimmedImage") -> Iterator[str]:
    yield image.ref
    yield from list(environment_lines(image.environment))[1:]
    for left in image.linked:
        yield from wrapped(f"  left: {left.path}: {left.why}", indent=4)
    layers = f"{image.rewritten} of {counted(image.layers, 'layer')} new"
    yield f"  {layers}: {sized(image.packed_before)} -> {sized(image.packed)}"


_IMAGES = "oci:"
_NAME_WIDTH = 44


def environment_lines(result: "SlimmedEnvironment") -> Iterator[str]:
    yield str(result.root)
    if result.completed:
        yield f"  completed what an earlier run had begun: {counted(result.completed, 'file')}"
    changed = [distribution for distribution in result.distributions if distribution.saves]
    if changed:
        yield f"  {'distribution':{_NAME_WIDTH}} {'before':>10} {'after':>10} {'saves':>10}"
    for distribution in sorted(changed, key=lambda distribution: -distribution.saves):
        before, after, saves = map(sized, (distribution.before, distribution.after, distribution.saves))
        yield f"  {distribution.name:{_NAME_WIDTH}} {before:>10} {after:>10} {saves:>10}"
    for distribution in result.distributions:
        yield from _left_lines(distribution)
    if not changed:
        yield "  nothing to cut"
    arrow = "would become" if result.is_dry_run else "->"
    count = counted(len(result.distributions), "distribution")
    yield f"  {count}: {sized(result.before)} {arrow} {sized(result.after)}"
    if result.linked:
        yield from wrapped(
            f"  {sized(result.linked)} of the old files stay on the disk under other names, as in uv's or conda's "
            "cache; they are free once that is cleaned",
            indent=4,
        )
    if result.backup and changed:
        yield f"  old files are in {result.backup}: vbuild slim --undo {result.backup}"


def _left_lines(distribution: "SlimmedDistribution") -> Iterator[str]:
    for why, files in distribution.reasons.items():
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        spared = sum(file.saves for file in files)
        saving = f" (would save {sized(spared)})" if spared else ""
        yield from wrapped(f"  left: {distribution.name}: {files[0].path}{more}: {why}{saving}", indent=4)
    if distribution.why_left and (distribution.is_editable or not distribution.left):
        yield from wrapped(f"  left: {distribution.name}: {distribution.why_left}", indent=4)
    for warning in distribution.warnings:
        yield from wrapped(f"  warning: {distribution.name}: {warning}", indent=4)


def slimmed_lines(slimmed: "Slimmed") -> Iterator[str]:
    yield slimmed.name
    if slimmed.why_untouched:
        yield f"  unchanged: {slimmed.why_untouched}"
    about = "" if slimmed.path else "about "
    packed = f"{mb(slimmed.before)} -> {about}{mb(slimmed.packed)} MB"
    yield f"  {packed}, unpacked {mb(slimmed.unpacked_before)} -> {mb(slimmed.unpacked)} MB"
    if slimmed.how:
        yield from wrapped(f"  {slimmed.how}", indent=4)
    for library in slimmed.libraries:
        for line in _cut_lines(library):
            yield from wrapped(f"  {line}", indent=6)
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
    if cut.alone:
        gone = f", {cut.gone} left out" if cut.gone else ""
        yield f"{cut.alone}: {mb(cut.before)} -> {mb(cut.after)} MB, {counted(cut.files, 'file')}{gone}"
        if cut.why_whole:
            yield f"  left as it was: {cut.why_whole}"
        return
    yield f"{cut.member}: {mb(cut.before)} -> {mb(cut.after)} MB"
    if cut.has_gpu_code:
        pinned = f", {counted(cut.pinned, 'fatbin')} pinned" if cut.pinned else ""
        yield f"  {cut.kept} of {cut.kept + cut.dropped} entries kept{pinned}"
    for served in cut.served:
        yield f"  {served.device}: {served}"
    if cut.why_whole:
        yield f"  left as it was: {cut.why_whole}"
    yield from (f"  left alone: {note}" for note in cut.notes)


@click.command(
    cls=options.RequestCommand,
    epilog=options.example("vbuild split wheelhouse/*.whl -o thin --check"),
)
@click.argument("wheels", type=options.WHEELS, nargs=-1, required=True)
@options.folder
@options.of("vbuild.api.repackaging:SplitRequest")
@click.option("--check", is_flag=True, help="Install the results with pip and uv; load and import them.")
@options.dry_run
@options.as_json
def split(
    wheels: tuple[Path, ...],
    folder: Path | None,
    *,
    check: bool,
    dry_run: bool,
    as_json: bool,
    **given: options.Given,
) -> None:
    """Move bundled shared libraries into wheels of their own.

    WHEELS are files, or folders of wheels, and sdists of their releases. A library that is NVIDIA's or another
    project's, byte for byte, becomes a requirement of that project's wheel; one that several wheels bundle moves to a
    wheel that all of them require.
    """
    from vbuild.splitting.request import unmatched

    if folder is None and not (dry_run or check):
        raise click.UsageError("expected --output-dir FOLDER, --dry-run or, for wheels that are split, --check")
    against, builds = given["against"], given["allow_builds"]
    if builds and not (check or given["tries"]):
        raise click.UsageError("--allow-builds goes with --check and --try only")
    if check and dry_run:
        raise click.UsageError("expected --check or --dry-run: what is not written cannot be installed")
    if folder is None and not dry_run:
        options.refuse_others("check", "against", "allow_builds", "as_json", where="without --output-dir")
        checked = _checked(wheels, (), against, builds=builds, quiet=as_json)
        terminal.show([install.data() for install in checked], checked_lines(checked), as_json=as_json)
        _refuse_failed(checked)
        return
    with terminal.bar(quiet=as_json) as on_progress:
        result = vbuild.split(wheels, None if dry_run else folder, **given, looks_at_all=check, on_progress=on_progress)
    for glob in unmatched((*given["keep"], *given["move"]), [move.path for move in result.libraries]):
        terminal.note(
            f"warning: {glob!r}: no bundled library is called so; --keep and --move take globs, as in 'libfoo*'"
        )
    checked = _checked(result.paths, result.absent, against, builds=builds, quiet=as_json) if check else ()
    data = {**result.data(), "checked": [install.data() for install in checked]}
    terminal.show(data, [*split_lines(result), *checked_lines(checked)], as_json=as_json)
    _refuse_failed(checked)


def _checked(
    wheels: Sequence[Path], absent: Sequence[str], against: str | Path | None, *, builds: bool, quiet: bool
) -> "tuple[InstallCheck, ...]":
    with terminal.status(quiet=quiet) as on_progress:
        return vbuild.install_check(
            wheels, absent=absent, against=against, allow_builds=builds, on_progress=on_progress
        )


def _refuse_failed(checked: "Sequence[InstallCheck]") -> None:
    if failed := list(dict.fromkeys(install.wheel for install in checked if not install.ok)):
        raise VbuildError(f"{', '.join(failed)}: does not work after installation")


def checked_lines(checked: Iterable["InstallCheck"]) -> Iterator[str]:
    for install in checked:
        for line in install.lines():
            yield from wrapped(line, indent=6)


@click.command(
    cls=options.RequestCommand,
    epilog=options.example('vbuild stamp demo-1.0-py3-none-any.whl -o dist -l v3 -p "x86_64::level::v3"'),
)
@click.argument("wheel", type=options.WHEEL)
@options.required_folder
@options.of("vbuild.api.repackaging:StampRequest")
def stamp(wheel: Path, folder: Path, **given: options.Given) -> None:
    """Copy a wheel under a variant label, or remove its label."""
    terminal.show(None, [str(vbuild.stamp(wheel, folder, **given))])


@click.command(
    cls=options.RequestCommand,
    epilog=options.example("vbuild repair demo-1.0-cp313-cp313-linux_x86_64.whl wheelhouse"),
)
@click.argument("wheel", type=options.WHEEL)
@click.argument("folder", type=options.FOLDER, metavar="DEST_DIR")
@options.of("vbuild.api.repackaging:RepairRequest")
def repair(wheel: Path, folder: Path, **given: options.Given) -> None:
    """Make a wheel portable; use it as cibuildwheel's repair command.

    Writes WHEEL into DEST_DIR with the libraries that it needs and the manylinux tag that it fits. The tags in WHEEL
    become those of the file name, and libraries no longer want an executable stack if no code in them
    writes a trampoline to it.
    """
    portable = vbuild.repair(wheel, folder, **given)
    notes = (line for note in portable.notes for line in wrapped(f"  {note}", indent=4))
    terminal.show(None, [str(portable.wheel), *notes])
