"""The command line: options in, one library call, a report out.

Every command imports the verb it calls when it runs, so that ``vbuild --help`` loads click and nothing else.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vbuild import __version__, options, report, terminal
from vbuild.errors import ClaimError, VbuildError

if TYPE_CHECKING:
    from vbuild.hardware.cpu import Cpu
    from vbuild.hardware.gpu import GpuList
    from vbuild.slimming.request import Share
    from vbuild.variant.document import Schema
    from vbuild.variant.model import Property


class _Commands(click.Group):
    """The commands in the order of a wheel's way, with every `VbuildError` turned into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own signature
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        try:
            return super().invoke(ctx)
        except VbuildError as error:
            raise terminal.Refusal(str(error)) from error
        except KeyboardInterrupt:
            raise terminal.Refusal("interrupted: nothing half-done was left behind") from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vbuild")
def main() -> None:
    """Build wheels as families of hardware variants, prove them, and index them."""


@main.command(epilog=options.example("vbuild matrix recipes/annoy.toml -o dist --jobs 2"))
@click.argument("source", type=click.Path(path_type=Path))
@options.output
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Builds at a time.")
@click.option("--only", multiple=True, metavar="LABEL", help="Build this target, or 'plain'; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Print every target with its flags; build and write nothing.")
@click.option("--fresh", is_flag=True, help="Build everything again, also what was built before and is the same.")
@options.drafts
@options.as_json
def matrix(
    source: Path,
    folder: Path,
    *,
    jobs: int,
    only: tuple[str, ...],
    dry_run: bool,
    fresh: bool,
    schema: "Schema",
    as_json: bool,
) -> None:
    """Build a recipe, or the project in a folder, for every target."""
    from vbuild import matrix as verb
    from vbuild.release.store import Store

    if dry_run:
        plan = verb.planned(source, only=only)
        terminal.show([job.data() for job in plan], report.job_lines(plan), as_json=as_json)
        return
    with terminal.progress(quiet=as_json) as told:
        store = Store.of_user(fresh=fresh)
        release = verb.matrix(source, folder, jobs=jobs, only=only, schema=schema, store=store, told=told)
    terminal.show(release.data(), report.release_lines(release), as_json=as_json)
    if release.failures:
        raise ClaimError(f"{release.name}: {len(release.failures)} of {release.targets} targets failed")


@main.command(epilog=options.example("vbuild slim torch-*.whl --variant sm80=80,86,89 --variant sm90=90,90a -o out"))
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
    dry_run: bool,
    as_json: bool,
) -> None:
    """Cut the GPU code in WHEELS, or folders of wheels, down to the GPUs you name."""
    from vbuild.hardware.gpu import GpuList, Ptx
    from vbuild.slim import slim as slimmed
    from vbuild.slimming.request import Cuts, Empty, Share
    from vbuild.surgery.strip import Strip
    from vbuild.wheel.press import Codec

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
    )
    with terminal.bar(quiet=as_json) as told:
        results = slimmed(
            wheels,
            None if dry_run else folder,
            shares=asked,
            cuts=cuts,
            codec=Codec.ISAL if fast else Codec.LIBDEFLATE,
            accept_license=accept_license,
            told=told,
        )
    lines = [line for result in results for line in report.slimmed_lines(result)]
    terminal.show([result.data() for result in results], lines, as_json=as_json)


@main.command(epilog=options.example("vbuild inspect torch-*.whl --html torch.html"))
@click.argument("wheels", type=options.FILE, nargs=-1, required=True)
@click.option("--library", "globs", multiple=True, metavar="GLOB", help="All about these libraries, such as '*cuda*'.")
@click.option(
    "--html", "page", type=options.FILE, help="Also write a page that shows where the bytes are, for one wheel."
)
@options.as_json
def inspect(wheels: tuple[Path, ...], *, globs: tuple[str, ...], page: Path | None, as_json: bool) -> None:
    """Show what is in WHEELS: libraries, GPU code by architecture, and where the bytes are."""
    from vbuild.inspection import inspect as contents_of
    from vbuild.inspection import save_page

    if page and len(wheels) > 1:
        raise click.UsageError("expected one wheel with --html")
    found = [contents_of(wheel) for wheel in wheels]
    if page:
        save_page(found[0], page)
    lines = [line for contents in found for line in report.contents_lines(contents, globs)]
    terminal.show([contents.data() for contents in found], lines, as_json=as_json)


@main.command(epilog=options.example("vbuild verify dist/*.whl"))
@click.argument("wheels", type=options.FILE, nargs=-1, required=True)
@click.option("--cpu", type=options.LEVEL, help="Hold the code against this level, such as x86-64-v3.")
@click.option(
    "--baseline", type=options.FILE, help="The plain wheel of the same build: what it has is dispatched at run time."
)
@click.option("--allow", multiple=True, metavar="REGEX", help="Functions, or files, that may exceed the level.")
@options.as_json
def verify(
    wheels: tuple[Path, ...], *, cpu: "Cpu | None", baseline: Path | None, allow: tuple[str, ...], as_json: bool
) -> None:
    """Check that the bytes of WHEELS keep what their names and metadata promise."""
    from vbuild.verify import verify as verdict_of

    verdicts = [verdict_of(wheel, cpu=cpu, baseline=baseline, allow=allow) for wheel in wheels]
    lines = [line for verdict in verdicts for line in report.verdict_lines(verdict)]
    terminal.show([verdict.data() for verdict in verdicts], lines, as_json=as_json)
    if failed := [verdict.wheel.name for verdict in verdicts if verdict.failed]:
        raise ClaimError(f"{', '.join(failed)}: not what the name and metadata promise")


@main.command(epilog=options.example('vbuild stamp demo-1.0-py3-none-any.whl -o dist -l v3 -p "x86_64::level::v3"'))
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
    from vbuild.stamp import declaration_at, described, stamped, unstamped
    from vbuild.variant.model import NULL

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


@main.command(epilog=options.example("vbuild index dist --simple site"))
@click.argument("folder", type=options.FOLDER)
@click.option("--simple", type=options.FOLDER, help="Also write a static simple index (PEP 503, 691, 658) there.")
@options.as_json
def index(folder: Path, *, simple: Path | None, as_json: bool) -> None:
    """Write the variants.json of every release in FOLDER."""
    from vbuild.index import index as write_index

    indexed = write_index(folder, simple=simple)
    data = {"variants": [item.data() for item in indexed], "simple": str(simple) if simple else None}
    lines = [f"{item.path.name}: {', '.join(item.labels)}" for item in indexed] or [f"{folder}: no variant wheels"]
    terminal.show(data, [*lines, *([str(simple)] if simple else [])], as_json=as_json)


@main.command(epilog=options.example("vbuild select annoy --find-links dist"))
@click.argument("name", required=False)
@click.option("-f", "--find-links", "folders", type=options.FOLDER, multiple=True, help="A folder of wheels.")
@click.option("--machine", "described", type=options.FILE, help="Choose for the machine that this TOML file describes.")
@click.option("--write-machine", type=options.FILE, help="Save this machine's description, for --machine elsewhere.")
@click.option("--version", help="Choose among the wheels of this version only.")
@options.as_json
def select(
    name: str | None,
    *,
    folders: tuple[Path, ...],
    described: Path | None,
    write_machine: Path | None,
    version: str | None,
    as_json: bool,
) -> None:
    """Say which wheel of project NAME a machine gets, and why."""
    from vbuild.hardware.machine import Machine
    from vbuild.selection import machine_at, save_machine
    from vbuild.selection import select as choose

    machine = machine_at(described) if described else Machine.here()
    if write_machine:
        save_machine(machine, write_machine)
    if name is None:
        if not write_machine:
            raise click.UsageError("expected NAME, or --write-machine FILE")
        terminal.show({"machine": str(write_machine)}, [str(write_machine)], as_json=as_json)
        return
    if not folders:
        raise click.UsageError("expected --find-links FOLDER, where the wheels are")
    selection = choose(name, folders, machine=machine, version=version)
    lines = [str(selection.wheel.name)]
    for place, candidate in enumerate(selection.ranking, 1):
        lines += [f"{place:3}. {candidate.path.name}", f"     {candidate.why}"]
    terminal.show(selection.data(), lines, as_json=as_json)


@main.group(cls=_Commands, epilog=options.example("vbuild toolkit install 13.0 nccl==2.28.9"))
def toolkit() -> None:
    """Keep CUDA toolkits of the package index, as matrix uses them."""


@toolkit.command("list", epilog=options.example("vbuild toolkit list --json"))
@options.as_json
def list_toolkits(*, as_json: bool) -> None:
    """List the toolkits that are kept, and those installed."""
    from vbuild import provision

    listing = provision.listing()
    terminal.show(listing.data(), listing.lines(), as_json=as_json)


@toolkit.command("install", epilog=options.example("vbuild toolkit install 13.0 cublas nccl==2.28.9"))
@click.argument("version")
@click.argument("libraries", nargs=-1)
@options.as_json
def install_toolkit(version: str, libraries: tuple[str, ...], *, as_json: bool) -> None:
    """Fetch toolkit VERSION of the package index.

    LIBRARIES are further components of it, or packages with a version, such as nccl==2.28.9.
    """
    from vbuild import provision

    with terminal.status(quiet=as_json) as told:
        provided = provision.install(version, libraries, told=told)
    terminal.show(provided.data(), provided.lines(), as_json=as_json)


@toolkit.command("path", epilog=options.example('CUDA_HOME="$(vbuild toolkit path 13.0)" make'))
@click.argument("version")
@click.argument("libraries", nargs=-1)
@options.as_json
def toolkit_path(version: str, libraries: tuple[str, ...], *, as_json: bool) -> None:
    """Print the CUDA_HOME of the kept toolkit VERSION with LIBRARIES."""
    from vbuild import provision

    kept = provision.path(version, libraries)
    terminal.show(kept.data(), kept.lines(), as_json=as_json)


@toolkit.command("prune", epilog=options.example("vbuild toolkit prune --unused-for 30"))
@click.option("--unused-for", type=click.IntRange(0, 36500), metavar="DAYS", help="Only what was not used for so long.")
@options.as_json
def prune_toolkits(*, unused_for: int | None, as_json: bool) -> None:
    """Take kept toolkits away, and what only they used.

    No build should be running then: one that has begun does not show that it uses its toolkit.
    """
    from vbuild import provision

    pruned = provision.prune(unused_for=unused_for)
    terminal.show(pruned.data(), pruned.lines(), as_json=as_json)


if __name__ == "__main__":
    main()
