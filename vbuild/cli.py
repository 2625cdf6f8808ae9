"""The command line: options in, one library call, a report out. The only file that prints.

Every command imports the verb it calls when it runs, so that ``vbuild --help`` loads click and nothing else.
"""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vbuild import __version__
from vbuild.errors import ClaimError, VbuildError

if TYPE_CHECKING:
    from vbuild.build.frontend import Job
    from vbuild.hardware.cpu import Cpu
    from vbuild.recipe.target import Target
    from vbuild.release.outcome import Release
    from vbuild.variant.document import Schema
    from vbuild.variant.model import Property
    from vbuild.verdict.model import Verdict

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)


class _Refusal(click.ClickException):
    """A `VbuildError` as the user meets it: one line, status 1."""

    def show(self, file: Any = None) -> None:  # noqa: ANN401 - click's own signature
        click.echo(f"vbuild: {' '.join(self.message.split())}", err=True, file=file)


class _Commands(click.Group):
    """The commands in the order of a wheel's way, with every `VbuildError` turned into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own signature
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        try:
            return super().invoke(ctx)
        except VbuildError as error:
            raise _Refusal(str(error)) from error
        except KeyboardInterrupt:
            raise _Refusal("interrupted: nothing half-done was left behind") from None


class _Value(click.ParamType[Any]):
    """An option whose text becomes a value at the door; what its parser refuses is a usage mistake."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        try:
            return self._parse(value) if isinstance(value, str) else value
        except VbuildError as error:
            self.fail(str(error), param, ctx)


def _schema(text: str) -> "Schema":
    from vbuild.variant.document import Schema

    return Schema.versioned(text)


def _property(text: str) -> "Property":
    from vbuild.variant.model import Property

    return Property.parse(text)


def _cpu(text: str) -> "Cpu":
    from vbuild.hardware.cpu import Cpu

    return Cpu.parse(text)


_output = click.option("-o", "--output-dir", "folder", type=_FOLDER, required=True, help="Where the results go.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
_drafts = click.option(
    "--schema",
    type=_Value("draft", _schema),
    default="850/0.2.0",
    show_default=True,
    help="The draft that variant metadata follows; 825/0.1.1 has no providers.",
)


def _example(command: str) -> str:
    """The end of a help text: *command*, its lines kept as they are."""
    return f"\b\nExample:\n  {command}"


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vbuild")
def main() -> None:
    """Build wheels as families of hardware variants, prove them, and index them."""


@main.command(epilog=_example("vbuild matrix recipes/annoy.toml -o dist --jobs 2"))
@click.argument("source", type=click.Path(path_type=Path))
@_output
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Builds at a time.")
@click.option("--only", multiple=True, metavar="LABEL", help="Build this target, or 'plain'; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Print every target with its flags; build and write nothing.")
@_drafts
@_as_json
def matrix(
    source: Path, folder: Path, *, jobs: int, only: tuple[str, ...], dry_run: bool, schema: "Schema", as_json: bool
) -> None:
    """Build a recipe, or the project in a folder, for every target."""
    from vbuild import matrix as verb

    if dry_run:
        plan = verb.planned(source, only=only)
        _report([job.data() for job in plan], "\n".join(map(_job_text, plan)), as_json=as_json)
        return
    with _progress(quiet=as_json) as told:
        release = verb.matrix(source, folder, jobs=jobs, only=only, schema=schema, told=told)
    _report(release.data(), _release_text(release), as_json=as_json)
    if release.failures:
        raise ClaimError(f"{release.name}: {len(release.failures)} of {release.targets} targets failed")


@main.command(epilog=_example("vbuild verify dist/*.whl"))
@click.argument("wheels", type=_FILE, nargs=-1, required=True)
@click.option("--cpu", type=_Value("level", _cpu), help="Hold the code against this level, such as x86-64-v3.")
@click.option(
    "--baseline", type=_FILE, help="The plain wheel of the same build: what it has is dispatched at run time."
)
@click.option("--allow", multiple=True, metavar="REGEX", help="Functions, or files, that may exceed the level.")
@_as_json
def verify(
    wheels: tuple[Path, ...], *, cpu: "Cpu | None", baseline: Path | None, allow: tuple[str, ...], as_json: bool
) -> None:
    """Check that the bytes of WHEELS keep what their names and metadata promise."""
    from vbuild.verify import verify as verdict_of

    verdicts = [verdict_of(wheel, cpu=cpu, baseline=baseline, allow=allow) for wheel in wheels]
    lines = [line for verdict in verdicts for line in _verdict_lines(verdict)]
    _report([verdict.data() for verdict in verdicts], "\n".join(lines), as_json=as_json)
    if failed := [verdict.wheel.name for verdict in verdicts if verdict.failed]:
        raise ClaimError(f"{', '.join(failed)}: not what the name and metadata promise")


@main.command(epilog=_example('vbuild stamp demo-1.0-py3-none-any.whl -o dist -l v3 -p "x86_64::level::v3"'))
@click.argument("wheel", type=_FILE)
@_output
@click.option("-l", "--label", help="The variant label, from a-z, 0-9, _ and dots.")
@click.option("--hash-label", is_flag=True, help="Label by a hash of the properties, eight hex digits.")
@click.option("--null", is_flag=True, help="Stamp the null variant: no properties, after all others.")
@click.option("--remove", is_flag=True, help="Take label and variant.json away.")
@click.option(
    "-p", "--property", "properties", type=_Value("property", _property), multiple=True, help="ns :: feature :: value."
)
@click.option("--metadata", "declared", type=_FILE, help="TOML with the [variant] table: priorities and providers.")
@click.option("--check", is_flag=True, help="Hold every member against RECORD first, not only those that are read.")
@_drafts
@_as_json
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
    _report({"wheel": str(path), "bytes": path.stat().st_size}, str(path), as_json=as_json)


@main.command(epilog=_example("vbuild index dist --simple site"))
@click.argument("folder", type=_FOLDER)
@click.option("--simple", type=_FOLDER, help="Also write a static simple index (PEP 503, 691, 658) there.")
@_as_json
def index(folder: Path, *, simple: Path | None, as_json: bool) -> None:
    """Write the variants.json of every release in FOLDER."""
    from vbuild.index import index as write_index

    indexed = write_index(folder, simple=simple)
    data = {"variants": [item.data() for item in indexed], "simple": str(simple) if simple else None}
    lines = [f"{item.path.name}: {', '.join(item.labels)}" for item in indexed] or [f"{folder}: no variant wheels"]
    _report(data, "\n".join([*lines, *([str(simple)] if simple else [])]), as_json=as_json)


@main.command(epilog=_example("vbuild select annoy --find-links dist"))
@click.argument("name", required=False)
@click.option("-f", "--find-links", "folders", type=_FOLDER, multiple=True, help="A folder of wheels.")
@click.option("--machine", "described", type=_FILE, help="Choose for the machine that this TOML file describes.")
@click.option("--write-machine", type=_FILE, help="Save this machine's description, for --machine elsewhere.")
@click.option("--version", help="Choose among the wheels of this version only.")
@_as_json
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
        _report({"machine": str(write_machine)}, str(write_machine), as_json=as_json)
        return
    if not folders:
        raise click.UsageError("expected --find-links FOLDER, where the wheels are")
    selection = choose(name, folders, machine=machine, version=version)
    lines = [str(selection.wheel.name)]
    for place, candidate in enumerate(selection.ranking, 1):
        lines += [f"{place:3}. {candidate.path.name}", f"     {candidate.why}"]
    _report(selection.data(), "\n".join(lines), as_json=as_json)


def _report(data: Any, text: str, *, as_json: bool) -> None:  # noqa: ANN401 - whatever JSON holds
    """Print *data* as JSON, or *text* for people."""
    click.echo(json.dumps(data, indent=2) if as_json else text)


def _release_text(release: "Release") -> str:
    """The release as a table of 80 columns: two lines a wheel, then what failed."""
    lines = [f"{'variant':<22} {'size':>9} {'build':>8}  {'instruction sets':<22} test"]
    for product in release.products:
        size, seconds = f"{product.size / 1e6:.2f} MB", f"{product.seconds:.1f} s"
        label = product.label or "plain"
        lines.append(f"{label:<22} {size:>9} {seconds:>8}  {product.verdict.isa:<22} {product.trial}")
        lines.append(f"  {product.wheel.name}")
    lines += [f"{indexed.path.name}: {', '.join(indexed.labels)}" for indexed in release.indexed]
    if removed := release.removed:
        lines.append(f"taken out of the project's own flags: {' '.join(removed)}")
    for failure in release.failures:
        lines.append(f"{failure.target} failed: {failure.error}")
    return "\n".join(lines)


def _verdict_lines(verdict: "Verdict") -> Iterator[str]:
    yield f"{verdict.wheel.name}: {'failed' if verdict.failed else 'ok'}"
    yield f"  instruction sets: {verdict.isa}{f', held against {verdict.cpu}' if verdict.cpu else ''}"
    for library in verdict.libraries:
        highest = f"{library.level} at most" if library.level else "not disassembled"
        yield f"  {library.member}: {library.code_size / 1e6:.2f} MB of {library.machine} code, {highest}"
    yield from (f"  {finding}" for finding in verdict.findings)


def _job_text(job: "Job") -> str:
    """A job as the shell would be told: variables, config settings, and what the launchers do."""
    lines = [f"{job.target} (Python {job.target.python}, {job.target.cpu}, {job.plan.backend})"]
    lines += [f"  {name}={shlex.quote(value)}" for name, value in job.plan.environment]
    lines += [f"  -C{key}={value}" for key, value in job.plan.config_settings]
    rules = job.plan.rewriting
    lines.append(f"  launchers: put last {' '.join((*rules.compile, *rules.link))}")
    return "\n".join(lines)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[["Target", str], None]]:
    """Lines on stderr that say which target is at which step; nothing where that is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _target, _step: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    steps: dict[str, str] = {}
    with console.status("fetching the source") as status:

        def told(target: "Target", step: str) -> None:
            steps[str(target)] = step
            at_work = [f"{label}: {said}" for label, said in steps.items() if said.endswith("ing")]
            status.update(", ".join(at_work) or step)

        yield told


if __name__ == "__main__":
    main()
