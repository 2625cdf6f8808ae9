"""`vbuild split`: bundled shared libraries moved into wheels of their own."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vbuild.cli import options, terminal
from vbuild.cli.render import split_lines
from vbuild.errors import VbuildError
from vbuild.files.wording import wrapped

if TYPE_CHECKING:
    from vbuild.verification.install_check import InstallCheck


@click.command(epilog=options.example("vbuild split wheelhouse/*.whl -o thin --check"))
@click.argument("wheels", type=options.WHEELS, nargs=-1, required=True)
@options.folder
@click.option(
    "--replace/--no-replace", default=True, help="Require official wheels for bundled libraries that are theirs."
)
@click.option("--share/--no-share", default=True, help="Move libraries that several wheels have to a -libs wheel.")
@click.option(
    "--rpath",
    is_flag=True,
    help="Also require the wheels of CUDA libraries that are needed and not bundled, and find them by RPATH.",
)
@click.option(
    "--cuda",
    type=options.Value("version", "vbuild.splitting.request:cuda_version"),
    metavar="VERSION",
    help="Take needed libraries from this CUDA: 12, 12.6.",
)
@click.option("--keep", multiple=True, metavar="GLOB", help="Leave these libraries where they are. Repeatable.")
@click.option("--move", multiple=True, metavar="GLOB", help="Move these libraries whatever opens them. Repeatable.")
@click.option(
    "--try",
    "tries",
    multiple=True,
    metavar="COMMAND",
    help="Run this before and after, and move what does not change it. Repeatable.",
)
@click.option(
    "--libs",
    type=options.Value("name", "vbuild.splitting.request:libs_name"),
    metavar="NAME[==VERSION]",
    help="Name the wheel of shared libraries. [default: PROJECT-libs, of the release's version]",
)
@click.option(
    "--against",
    type=options.LISTED,
    metavar="FOLDER|URL",
    help="Require a wheel of shared libraries that is in this folder or simple index, if it has the same.",
)
@click.option(
    "--min-size",
    "smallest",
    type=click.IntRange(min=0),
    default=1_000_000,
    show_default=True,
    metavar="BYTES",
    help="Share libraries only if that saves this much.",
)
@options.provenance
@click.option("--check", is_flag=True, help="Install the results with pip and uv; load and import them.")
@click.option(
    "--allow-builds",
    is_flag=True,
    help="With --check and --try: build requirements that have no wheel, which runs their code.",
)
@options.dry_run
@options.as_json
def split(wheels: tuple[Path, ...], folder: Path | None, **asked: Any) -> None:  # noqa: ANN401 - the options above
    """Move bundled shared libraries into wheels of their own.

    WHEELS are files, or folders of wheels, and sdists of their releases. A library that is NVIDIA's or another
    project's, byte for byte, becomes a requirement of that project's wheel; one that several wheels bundle moves to a
    wheel that all of them require.
    """
    from vbuild.splitting.request import SplitRequest
    from vbuild.splitting.split import split as verb

    dry_run, check, provenance, as_json = (asked.pop(name) for name in ("dry_run", "check", "provenance", "as_json"))
    if folder is None and not (dry_run or check):
        raise click.UsageError("expected --output-dir FOLDER, --dry-run or, for wheels that are split, --check")
    builds = asked["allow_builds"]
    if builds and not (check or asked["tries"]):
        raise click.UsageError("--allow-builds goes with --check and --try only")
    if check and dry_run:
        raise click.UsageError("expected --check or --dry-run: what is not written cannot be installed")
    against = asked["against"]
    request = SplitRequest(**{**asked, "cuda": asked["cuda"] or ()})
    if folder is None and not dry_run:
        checked = _checked(wheels, (), against, builds=builds, quiet=as_json)
        terminal.show([one.data() for one in checked], checked_lines(checked), as_json=as_json)
        _refuse_failed(checked)
        return
    with terminal.bar(quiet=as_json) as on_progress:
        result = verb(
            wheels,
            None if dry_run else folder,
            request=request,
            looks_at_all=check,
            on_progress=on_progress,
        )
    for glob in request.unmatched([move.path for move in result.libraries]):
        terminal.note(
            f"warning: {glob!r}: no bundled library is called so; --keep and --move take globs, as in 'libfoo*'"
        )
    if provenance:
        options.state_provenance(result.paths, [one.wheel for one in result.wheels])
    checked = _checked(result.paths, result.absent, against, builds=builds, quiet=as_json) if check else ()
    data = {**result.data(), "checked": [one.data() for one in checked]}
    terminal.show(data, [*split_lines(result), *checked_lines(checked)], as_json=as_json)
    _refuse_failed(checked)


def _checked(
    wheels: Sequence[Path], absent: Sequence[str], against: str | Path | None, *, builds: bool, quiet: bool
) -> "tuple[InstallCheck, ...]":
    from vbuild.api import repackaging

    with terminal.status(quiet=quiet) as on_progress:
        return repackaging.install_check(
            wheels, absent=absent, against=against, allow_builds=builds, on_progress=on_progress
        )


def _refuse_failed(checked: "Sequence[InstallCheck]") -> None:
    if failed := list(dict.fromkeys(one.wheel for one in checked if not one.ok)):
        raise VbuildError(f"{', '.join(failed)}: does not work after installation")


def checked_lines(checked: Iterable["InstallCheck"]) -> Iterator[str]:
    """What came of installing the results, a wheel and an installer at a time."""
    for one in checked:
        for line in one.lines():
            yield from wrapped(line, indent=6)
