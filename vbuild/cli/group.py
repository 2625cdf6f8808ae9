"""Groups of commands: each in its place, and what the library or the machine refuses as one line."""

from typing import Any

import click

from vbuild.cli import terminal
from vbuild.errors import VbuildError, refusal_of
from vbuild.process.signals import interruptible


class Commands(click.Group):
    """The commands in the order of a wheel's way, with every `VbuildError` turned into one line.

    So is what the machine refuses anywhere: room, a file, or to read what its disk has lost. SIGTERM and a closed
    terminal count as Ctrl-C.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own signature
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        with interruptible() as interruption:
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                raise _interrupted() from None
            except Exception as error:  # whatever an interrupt was turned into, too
                if interruption.heard is not None:
                    raise _interrupted() from error
                if isinstance(error, VbuildError):
                    raise terminal.Refusal(str(error)) from error
                if isinstance(error, OSError) and (said := refusal_of(error)):
                    raise terminal.Refusal(said) from error
                raise


def _interrupted() -> terminal.Refusal:
    return terminal.Refusal("interrupted: nothing half-done was left behind")
