"""Work on many things in threads, and what an interrupt does to it."""

import signal
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from vbuild.process.threads import in_threads, stoppable_pool


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


def test_the_end_of_a_pool_begins_nothing_more_and_stops_what_checks() -> None:
    begun, stopped = threading.Event(), list[bool]()

    def work() -> None:
        begun.set()
        try:
            while True:
                check_stopped()
        except CancelledError:
            stopped.append(True)

    with suppress(KeyboardInterrupt), stoppable_pool(1) as (pool, check_stopped):
        pool.submit(work)
        after = pool.submit(work)
        begun.wait(20)
        raise KeyboardInterrupt
    assert (stopped, after.cancelled()) == ([True], True)
