"""Groups of commands: each command is imported when it is used, and every refusal is one or two lines."""

from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from traceback import walk_tb
from typing import Any

import click

from vbuild import DISTRIBUTION
from vbuild.cli import terminal
from vbuild.errors import VbuildError, refusal_of
from vbuild.process.signals import interruptible

_INTERRUPTED = "interrupted: nothing half-done was left behind"
_LARGE = frozenset({"matrix", "doctor"})
_SIGNALLED = 128  # and the number of the signal: what a shell says of a command that it ended


class LazyCommands(UserDict[str, click.Command]):
    """Commands by name; each is imported when used, from the module of its section or, if it fills one, its own."""

    def __init__(self, sections: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        modules = ((name, name if name in _LARGE else title) for title, names in sections.items() for name in names)
        self._modules = {name: f"vbuild.cli.{module.lower()}" for name, module in modules}
        self.data = dict.fromkeys(self._modules, click.Command(None))

    def __getitem__(self, name: str) -> click.Command:
        if self.data[name].name is None:
            self.data[name] = getattr(import_module(self._modules[name]), name)
        return self.data[name]


class Commands(click.Group):
    """A group that lists its commands under titles, in their order, and turns a `VbuildError` into one line.

    So is what the machine refuses, such as room on a disk. SIGTERM and a closed terminal count as Ctrl-C.
    """

    def __init__(self, *arguments: Any, sections: Mapping[str, Sequence[str]] | None = None, **options: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*arguments, **options)
        self._sections = sections or {}
        self.commands = LazyCommands(self._sections)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own signature
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in (self._sections or {"Commands": self.list_commands(ctx)}).items():
            rows = [(name, summary(self.commands[name])) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows, col_spacing=2 + max(map(len, self.commands)) - max(map(len, names)))

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:  # noqa: ANN401 - click's own signature
        with _in_few_lines():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        with interruptible() as interruption, _in_few_lines(ctx):
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                raise terminal.Refusal(_INTERRUPTED, exit_code=_SIGNALLED + interruption.number) from None
            except Exception as error:  # whatever an interrupt was turned into, too
                if interruption.heard is not None:
                    raise terminal.Refusal(_INTERRUPTED, exit_code=_SIGNALLED + interruption.number) from error
                if isinstance(error, VbuildError):
                    raise terminal.Refusal(str(error), type(error)) from error
                if isinstance(error, OSError) and (reason := refusal_of(error)):
                    raise terminal.Refusal(reason) from error
                raise


class DefaultCommand(Commands):
    """A group whose first command is meant if none is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def summary(command: click.Command) -> str:
    """The first paragraph of a command's help, without its final dot."""
    return " ".join((command.help or "").partition("\n\n")[0].split()).removesuffix(".")


@contextmanager
def _in_few_lines(ctx: click.Context | None = None) -> Iterator[None]:
    """A usage mistake ends in two lines, with how to get help; data that ends too early in one."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        called = error.ctx or ctx
        words = [called.command_path] if called else ["vbuild"]
        if called is ctx and ctx and ctx.invoked_subcommand:  # of an option without a value click names no command
            words.append(ctx.invoked_subcommand)
        raise terminal.UsageMistake(error, " ".join(words)) from error
    except EOFError as error:  # of which click says no more than "Aborted!"
        raise terminal.Refusal(_cut_short(error)) from error


def _cut_short(error: EOFError) -> str:
    """Which file ends too early: a module's compiled code, by the path in the importer's frames."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    compiled = [frame.f_locals["bytecode_path"] for frame in frames if "bytecode_path" in frame.f_locals]
    if compiled:
        return f"{compiled[-1]}: compiled code that ends too early: {error}; delete the file, and Python makes it again"
    code = frames[-1].f_code
    return f"{code.co_filename}: {code.co_name} read data that ends too early, a fault of {DISTRIBUTION}: report it"
