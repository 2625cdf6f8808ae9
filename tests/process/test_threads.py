"""Work on many things in threads, and what an interrupt does to it."""

import signal
import threading
import time

import pytest

from vbuild.process.threads import in_threads


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals go to processes there")
def test_an_interrupt_is_told_to_what_is_at_work_and_begins_nothing_more() -> None:
    stop, begun, told = threading.Event(), [], []

    def work(number: int) -> None:
        begun.append(number)
        time.sleep(0.2)  # a pool forgets a thread that is interrupted while it starts
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        told.append(stop.wait(20))

    with pytest.raises(KeyboardInterrupt):
        in_threads(work, [1, 2, 3], size=lambda _: 1, threads=1, stop=stop)
    assert (begun, told) == ([1], [True])
