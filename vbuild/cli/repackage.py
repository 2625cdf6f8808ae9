"""Repackage: wheels split, labelled and made portable."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import vbuild
from vbuild.cli import options, terminal
from vbuild.cli.render import split_lines
from vbuild.errors import VbuildError
from vbuild.files.wording import wrapped

if TYPE_CHECKING:
    from vbuild.verification.install_check import InstallCheck


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
    **given: Any,  # noqa: ANN401 - of SplitRequest
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
def stamp(wheel: Path, folder: Path, **given: Any) -> None:  # noqa: ANN401 - the options of StampRequest
    """Copy a wheel under a variant label, or remove its label."""
    terminal.show(None, [str(vbuild.stamp(wheel, folder, **given))])


@click.command(epilog=options.example("vbuild repair demo-1.0-cp313-cp313-linux_x86_64.whl wheelhouse"))
@click.argument("wheel", type=options.WHEEL)
@click.argument("folder", type=options.FOLDER, metavar="DEST_DIR")
@click.option("--recipe", type=options.PATH, help="Follow [repair] of this recipe. [default: the project here]")
def repair(wheel: Path, folder: Path, *, recipe: Path | None) -> None:
    """Make a wheel portable; use it as cibuildwheel's repair command.

    Writes WHEEL into DEST_DIR with the libraries that it needs and the manylinux tag that it fits. The tags in WHEEL
    become those of the file name, and libraries no longer want an executable stack if no code in them
    writes a trampoline to it.
    """
    portable = vbuild.repair(wheel, folder, recipe=recipe)
    notes = (line for note in portable.notes for line in wrapped(f"  {note}", indent=4))
    terminal.show(None, [str(portable.wheel), *notes])
