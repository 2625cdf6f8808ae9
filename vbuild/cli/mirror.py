import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.cli.group import DefaultCommand
from vbuild.errors import RepackageError
from vbuild.files.wording import counted, percent, shown, sized, wrapped

if TYPE_CHECKING:
    from vbuild.mirroring.mirror import Mirrored

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
def make(sources: tuple[str, ...], folder: Path | None, *, dry_run: bool, **given: Any) -> None:  # noqa: ANN401 - of MirrorRequest
    """Make an index of what a fleet installs, with wheels cut to the GPUs that it has.

    SOURCES are requirements.txt, pylock.toml or uv.lock files, or requirements such as torch==2.9.1. Each --machine,
    and each --gpu, is a kind of machine of the fleet and gets a lock. A second run fetches what is new.
    """
    if (folder is None) != dry_run:
        raise click.UsageError("expected either --output-dir FOLDER or --dry-run")
    with terminal.bar() as on_progress:
        result = vbuild.mirror(sources, folder, **given, on_progress=on_progress)
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
