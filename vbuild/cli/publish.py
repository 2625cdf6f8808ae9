from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.errors import HardwareError, RepackageError
from vbuild.files.wording import counted, wrapped

if TYPE_CHECKING:
    from vbuild.hardware.cpu import Cpu
    from vbuild.publishing.publish import PublishedLayout

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
    **given: Any,  # noqa: ANN401 - of PublishRequest
) -> None:
    """Lay wheels out so that people can install them.

    WHEELS are files, or folders of wheels. Every layout gets a folder of its name in the output folder, with a README
    that says how to use it: one wheel for all CPU levels (hwcaps), an sdist that fetches the right wheel (redirect),
    versions with labels (local), projects with suffixes (suffix), container images (oci), conda packages (conda), or
    variant wheels with their index (variants).
    """
    if folder is None and not dry_run:
        raise click.UsageError("expected --output-dir FOLDER, or --dry-run")
    laid = vbuild.publish(wheels, None if dry_run else folder, **given)
    lines = [line for layout in laid for line in laid_lines(layout)]
    terminal.show([layout.data() for layout in laid], lines, as_json=as_json)


def level_and_wheel(text: str) -> "tuple[Cpu, Path]":
    """The level and the wheel of ``v3=other.whl``; `HardwareError` for anything else."""
    from vbuild.api.arguments import level_named

    level, separator, wheel = text.partition("=")
    if not (separator and wheel):
        raise HardwareError(f"{text!r}: expected a CPU level and a wheel, as in v3=other.whl")
    return level_named(level), Path(wheel)


def two_names(text: str) -> tuple[str, str]:
    """The two names of ``torch=pytorch``; a `VbuildError` for anything else."""
    from vbuild.splitting.request import project_name

    project, separator, name = text.partition("=")
    if not (separator and project and name):
        raise RepackageError(f"{text!r}: expected two names, as in torch=pytorch")
    return project_name(project), name


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
