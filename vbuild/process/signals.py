"""Signals that ask a run to end: the first is an interrupt, and what is half-done goes; no other disturbs that.

with interruptible(): ...    a signal is a KeyboardInterrupt
with uninterrupted(): ...    but later, at the end of what must not be left in the middle: few steps, and short ones
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_CLEANING = 10.0  # seconds after an interrupt in which further ones are not heard; systems send SIGKILL then

# what Python does with each, unless somebody has asked for something else; Windows has no SIGHUP
_USUAL = {
    signal.SIGINT: signal.default_int_handler,
    **{getattr(signal, name): signal.SIG_DFL for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)},
}


@dataclass(slots=True)
class Interruption:
    """The handler of these signals, which raises `KeyboardInterrupt`; *heard* is when, on the monotonic clock.

    *number* is the signal that was heard. While it is *held*, by so many blocks, it raises nothing, and is *due*
    afterwards.
    """

    heard: float | None = None
    number: int = signal.SIGINT
    held: int = 0
    is_due: bool = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.heard is None or now >= self.heard + _CLEANING:
            self.heard, self.number = now, number
            self.is_due = self.held > 0
            if not self.held:
                raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """In the block SIGTERM and a closed terminal are what Ctrl-C is: a `KeyboardInterrupt` in the main thread.

    Whoever asks again while that cleans up is not heard. Signals that someone has other plans for, such as nohup for
    SIGHUP, keep what they do. What is yielded also tells of interrupts that ended as some other error: until Python
    3.12 those in ``__set_name__``, which importing a module runs, do.
    """
    interruption = Interruption()
    is_main = threading.current_thread() is threading.main_thread()  # no other may set handlers
    taken = {number: usual for number, usual in _USUAL.items() if is_main and signal.getsignal(number) == usual}
    for number in taken:
        signal.signal(number, interruption)
    try:
        yield interruption
    finally:
        for number, usual in taken.items():
            signal.signal(number, usual)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """The block is run to its end; the `KeyboardInterrupt` of a signal that came meanwhile is raised then.

    That is so in `interruptible`, in the main thread, which alone hears signals.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = next((found for number in _USUAL if isinstance(found := signal.getsignal(number), Interruption)), None)
    if handler is None or not is_main:
        yield
        return
    handler.held += 1
    try:
        yield
    finally:
        handler.held -= 1
        if handler.is_due and not handler.held:
            handler.is_due = False
            raise KeyboardInterrupt
