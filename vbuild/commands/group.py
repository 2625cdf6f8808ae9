"""Groups of commands: each in its place, and what the library or the machine refuses as one line."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import click

from vbuild import terminal
from vbuild.errors import VbuildError, refusal_of


class Commands(click.Group):
    """The commands in the order of a wheel's way, with every `VbuildError` turned into one line.

    So is what the machine refuses anywhere: room, a file, or to read what its disk has lost. SIGTERM counts as Ctrl-C.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own signature
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        try:
            with _terminable():
                return super().invoke(ctx)
        except VbuildError as error:
            raise terminal.Refusal(str(error)) from error
        except OSError as error:
            if said := refusal_of(error):
                raise terminal.Refusal(said) from error
            raise
        except KeyboardInterrupt:
            raise terminal.Refusal("interrupted: nothing half-done was left behind") from None


@contextmanager
def _terminable() -> Iterator[None]:
    """In the block SIGTERM, unless someone has other plans for it, is an interrupt: what is half-done goes."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
