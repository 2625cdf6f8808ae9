"""Groups of commands: each in its place, and what the library refuses as one line."""

from typing import Any

import click

from vbuild import terminal
from vbuild.errors import VbuildError


class Commands(click.Group):
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
