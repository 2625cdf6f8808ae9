"""Signals that end a run: the first is an interrupt, after which the run cleans up; no other disturbs that.

with interruptible(): ...    a signal is a KeyboardInterrupt
with uninterrupted(): ...    but only at the end of the block, which has few and short steps
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType

_CLEANING = 10.0  # seconds after an interrupt in which others are ignored; systems send SIGKILL then
_LOOK = 0.1  # seconds between a signal and the look whether its handler was called, and interrupted
# an interrupt in here may leave the lock of all imports held, for which other threads then wait for ever
_UNSAFE = {"<frozen importlib._bootstrap>"} if os.name == "posix" else ()

# Python's own handlers; Windows has no SIGHUP
_USUAL = {
    signal.SIGINT: signal.default_int_handler,
    **{getattr(signal, name): signal.SIG_DFL for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)},
}


@dataclass(slots=True)
class Interruption:
    """The handler of these signals, which raises `KeyboardInterrupt`; *heard* is when, on the monotonic clock.

    *number* is that signal. Within *held* uninterrupted blocks it raises nothing; the interrupt *is_due* afterwards.
    Where it is unsafe the signal is not heard, and comes again.
    """

    heard: float | None = None
    number: int = signal.SIGINT
    held: int = 0
    is_due: bool = False

    @property
    def is_cleaning(self) -> bool:
        return self.heard is not None and time.monotonic() < self.heard + _CLEANING

    def __call__(self, number: int, frame: FrameType | None) -> None:
        is_unsafe = frame is not None and frame.f_code.co_filename in _UNSAFE
        if not self.is_cleaning and not is_unsafe:
            self.heard, self.number = time.monotonic(), number
            self.is_due = self.held > 0
            if not self.held:
                raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """In the block SIGTERM and a closed terminal are like Ctrl-C: a `KeyboardInterrupt` in the main thread.

    Further signals during cleanup are ignored. Signals with another handler, such as nohup's for SIGHUP, keep it. The
    yielded value also tells of interrupts that became other errors, as in ``__set_name__`` until Python 3.12.
    """
    interruption = Interruption()
    is_main = threading.current_thread() is threading.main_thread()  # no other may set handlers
    taken = {number: usual for number, usual in _USUAL.items() if is_main and signal.getsignal(number) == usual}
    for number in taken:
        signal.signal(number, interruption)
    try:
        with _delivering(interruption) if taken and os.name == "posix" else nullcontext():
            yield interruption
    finally:
        for number, usual in taken.items():
            signal.signal(number, usual)


@contextmanager
def _delivering(interruption: Interruption) -> Iterator[None]:
    """Repeats a signal of whose coming Python knows, but has not called the handler, or where that could not interrupt.

    Python looks for signals before it waits for a lock, and a wait that has begun ends with a signal. One that comes
    in between, while the main thread gives the interpreter to another one, would be heard of when the wait is over.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    main = threading.get_ident()

    def deliver() -> None:
        while number := os.read(reading, 1):
            time.sleep(_LOOK)
            if not interruption.is_cleaning and signal.getsignal(number[0]) is interruption:
                signal.pthread_kill(main, number[0])

    thread = threading.Thread(target=deliver, daemon=True)
    thread.start()
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.close(writing)
        thread.join()
        os.close(reading)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """The block runs to its end, and raises the `KeyboardInterrupt` of a signal only then.

    It works within `interruptible`, in the main thread.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = next((own for number in _USUAL if isinstance(own := signal.getsignal(number), Interruption)), None)
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
