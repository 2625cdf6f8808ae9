"""Ship: indexes, checks before an upload, layouts, and a mirror for a fleet."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.cli.group import DefaultCommand
from vbuild.errors import RepackageError, WheelError
from vbuild.files.wording import counted, percent, shown, sized, wrapped

if TYPE_CHECKING:
    from vbuild.mirroring.mirror import Mirrored
    from vbuild.publishing.check import Checklist
    from vbuild.publishing.publish import PublishedLayout


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild index dist --simple site"))
@click.argument("folder", type=options.FOLDER)
@options.of("vbuild.api.shipping:IndexRequest")
def index(folder: Path, **given: options.Given) -> None:
    """Write the variants.json of every release in a folder, or the repodata of a channel for conda.

    An index at --simple that is there already keeps its other releases. It is replaced in one step. FOLDER is a channel
    if it has packages for conda in folders such as linux-64, and no wheels.
    """
    from vbuild.wheel.archive import wheels_in

    if folder.is_dir() and not wheels_in(folder):
        from vbuild.publishing.conda.channel import packages_in

        if packages_in(folder):
            if given["simple"]:
                raise click.UsageError("--simple is for wheels; expected none for a channel of packages for conda")
            channel = vbuild.index_channel(folder)
            terminal.show(None, [f"{subdir.path}: {counted(len(subdir.packages), 'package')}" for subdir in channel])
            return
    lines = []
    for release in vbuild.index(folder, **given):
        lines += [f"{release.path.name}: {', '.join(release.labels)}", *(f"  note: {note}" for note in release.notes)]
    lines = lines or [f"{folder}: no variant wheels"]
    terminal.show(None, [*lines, *filter(None, [given["simple"] and str(given["simple"])])])


@click.command(cls=options.RequestCommand, epilog=options.example("vbuild check dist --pypi"))
@click.argument("places", type=options.Place(listed=True), nargs=-1, required=True, metavar="FILE|FOLDER|URL...")
@options.of("vbuild.api.shipping:CheckRequest")
@options.as_json
def check(places: tuple[Path | str, ...], *, as_json: bool, **given: options.Given) -> None:
    """Find what keeps wheels from being published, or what is wrong with a page or an index of them.

    Looks for what an index refuses or installers stumble over: metadata that differs among variants, labels without
    files, a missing plain wheel or sdist, damaged files, and sizes. Of a URL, the page of a project or a simple index,
    it reads what the check needs, and compares that with what the pages say. Of a folder that 'vbuild publish' made,
    such as site/hwcaps, it checks the layout.
    """
    checklist = vbuild.check(places, **given)
    terminal.show(checklist.data(), check_lines(checklist), as_json=as_json)
    if checklist.failed:
        raise WheelError(f"{checklist.place}: cannot be published as it is")


def check_lines(checklist: "Checklist") -> Iterator[str]:
    for problem in checklist.problems:
        yield from wrapped(f"{problem.severity}: {problem.sentence}")
        yield from wrapped(f"  {problem.advice} [{problem.rule}]", indent=4)
    sums = f"{counted(checklist.errors, 'error')}, {counted(checklist.warnings, 'warning')}"
    subject = ", ".join(checklist.releases) or checklist.place
    yield from wrapped(f"{subject}: {counted(checklist.files, 'file')}, {sums}")


_SHIPPED = (".whl", ".tar.gz", ".conda", "oci-layout")
_FILES = 12


@click.command(
    cls=options.RequestCommand, epilog=options.example("vbuild publish dist --layout hwcaps --layout local -o site")
)
@click.argument("wheels", type=options.WHEELS, nargs=-1, required=True)
@options.folder
@click.option(
    "--layout",
    "layouts",
    type=options.LAYOUT,
    multiple=True,
    required=True,
    help="Make this layout. Repeatable.",
)
@options.of("vbuild.api.shipping:PublishRequest")
@options.dry_run
@options.as_json
def publish(
    wheels: tuple[Path, ...],
    folder: Path | None,
    *,
    dry_run: bool,
    as_json: bool,
    **given: options.Given,
) -> None:
    """Lay wheels out so that people can install them.

    WHEELS are files, or folders of wheels. Every layout gets a folder of its name in the output folder, with a README
    that says how to use it: one wheel for all CPU levels (hwcaps), an sdist that fetches the right wheel (redirect),
    versions with labels (local), projects with suffixes (suffix), container images (oci), conda packages (conda), or
    variant wheels with their index (variants).
    """
    laid = vbuild.publish(wheels, options.output_of(folder, dry_run=dry_run), **given)
    lines = [line for layout in laid for line in laid_lines(layout)]
    terminal.show([layout.data() for layout in laid], lines, as_json=as_json)


def laid_lines(laid: "PublishedLayout") -> Iterator[str]:
    links = sum(file.is_linked for file in laid.files)
    if laid.folder:
        written = f"{laid.size / 1e6:.2f} MB in {counted(len(laid.files) - links, 'file')}, {counted(links, 'link')}"
        yield from wrapped(f"{laid.folder}: {written}; how to use it: {laid.folder / 'README.md'}")
        there = [file.path for file in laid.files]
    else:
        yield f"{laid.plan.layout}: would be made"
        there = [output.target for output in laid.plan.outputs]
    # links for an index have the names of what they lead to
    shown = sorted(path for path in there if path.name.endswith(_SHIPPED) and "simple" not in path.parts)
    yield from (f"  {path}" for path in shown[:_FILES])
    if len(shown) > _FILES:
        yield f"  and {len(shown) - _FILES} more"
    for note in laid.plan.notes:
        yield from wrapped(f"  {note}", indent=4)


_NAME = 44
_PLACE = re.compile(r" \([^)]*\)")


@click.group(cls=DefaultCommand, epilog=options.example("vbuild mirror requirements.txt -o site --gpu H100,A100"))
def mirror() -> None:
    """Make an index of what a fleet installs, with wheels cut to the GPUs that it has."""


@mirror.command(
    "make",
    cls=options.RequestCommand,
    epilog=options.example("vbuild mirror requirements.txt -o site --machine h100.toml"),
)
@click.argument("sources", nargs=-1, required=True)
@options.folder
@options.of("vbuild.api.shipping:MirrorRequest")
@options.dry_run
def make(sources: tuple[str, ...], folder: Path | None, *, dry_run: bool, **given: options.Given) -> None:
    """Make an index of what a fleet installs, with wheels cut to the GPUs that it has.

    SOURCES are requirements.txt, pylock.toml or uv.lock files, or requirements such as torch==2.9.1. Each --machine,
    and each --gpu, is a kind of machine of the fleet and gets a lock. A second run fetches what is new.
    """
    with terminal.bar() as on_progress:
        result = vbuild.mirror(sources, options.output_of(folder, dry_run=dry_run), **given, on_progress=on_progress)
    terminal.show(None, mirrored_lines(result))


@mirror.command("verify", epilog=options.example("vbuild mirror verify site"))
@click.argument("folder", type=options.FOLDER)
@click.option("--attestations", is_flag=True, help="Also check who published the originals (PEP 740), by signatures.")
@options.as_json
def verify(folder: Path, *, attestations: bool, as_json: bool) -> None:
    """Hold every file, index page and lock of a mirror against what its mirror.json says."""
    check = vbuild.verify_mirror(folder, attestations=attestations)
    terminal.show(check.data(), check.lines(), as_json=as_json)
    if check.problems:
        raise RepackageError(f"{folder}: {counted(len(check.problems), 'problem')}")


@mirror.command("oci", epilog=options.example("vbuild mirror oci site -o layout"))
@click.argument("site", type=options.FOLDER)
@options.required_folder
def oci(site: Path, folder: Path) -> None:
    """Write an OCI artifact for each machine of a mirror, with a layer for each wheel."""
    from vbuild.mirroring.site import write_artifacts

    terminal.show(None, write_artifacts(site, folder).lines())


def mirrored_lines(result: "Mirrored") -> Iterator[str]:
    changed = [file for file in result.files if file.is_changed]
    if changed:
        yield f"{'package':{_NAME}} {'before':>9} {'after':>9}"
    for file in sorted(changed, key=lambda file: file.size - file.original.size):
        label = f" {file.cut.label}" if file.cut.label else ""
        name = f"{file.original.project} {file.version}{label}"
        yield f"{_short(name):{_NAME}} {sized(file.original.size):>9} {sized(file.size):>9}"
    why: dict[str, list[str]] = {}
    for file in result.files:
        if file.why_left:
            # where the licence says so differs from file to file
            why.setdefault(_PLACE.sub("", file.why_left), []).append(file.original.project)
    for reason, projects in why.items():
        yield from wrapped(f"left as it was: {', '.join(dict.fromkeys(projects))}: {reason}", indent=2)
    data = result.data()
    before, after = data["download_before"], data["download"]
    installed, now = data["installed_before"], data["installed"]
    yield f"download:  {sized(before):>9} -> {sized(after):>9}  {percent(after, before)}"
    yield f"installed: {sized(installed):>9} -> {sized(now):>9}  {percent(now, installed)}"
    how = f"{result.fetched} fetched, {result.kept} kept, {result.removed} removed"
    yield f"{counted(len(result.files), 'file')}: {how}"
    if result.replaced:
        names = shown([path.rpartition("/")[2] for path in result.replaced], 1)
        yield from wrapped(f"note: other bytes than before, which old locks do not install: {names}", indent=2)
    for name in result.dropped:
        yield f"note: {name} is not a machine of this run: its lock is gone"
    yield from (line if line.endswith(":") else f"  {line}" for line in result.usage())


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
