"""A Dask scheduler and its workers, as a client uses them.

    connected(executor) -> Cluster.submit(function, arguments, key, needs) -> Cluster.each -> results, or BuildErrors

A job that fails returns the error as its result. The job of a lost worker is done elsewhere, until it has cost several.
If the scheduler or the last worker is lost, all unfinished jobs fail. Dask is an extra, imported when used.
"""

import importlib
import logging
import queue
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

import vbuild
from vbuild.errors import BuildError
from vbuild.workers.executor import TOPIC, Executor, another, called, fingerprint

T = TypeVar("T")

CONNECTS = 10.0  # seconds that a scheduler may take to answer
JOINS = 10.0  # seconds in which a first worker has to be there
PATIENCE = 30.0  # seconds that jobs wait for a worker that can do them, if there was one before
_LOOKS = 2.0  # seconds between two looks at the workers
_BRINGS = 600.0  # seconds that a result may take from its worker
_LEAVES = 3.0  # seconds to tell the scheduler that the client leaves

_GREETING = 1 << 16  # bytes; more than Dask's
_PRELOAD = "--preload vbuild.workers.worker"

# a stopped job that a client wants again: see `executor.while_wanted`
_RETRIES = 1


class Promise(Struct, frozen=True, eq=False):
    """A job's future result, and the resources that it and its arguments need."""

    future: Any  # Dask's
    needs: tuple[Mapping[str, float], ...] = ()

    @property
    def key(self) -> str:
        return str(self.future.key)


class Cluster:
    """The workers of the scheduler of *executor*, through Dask's *client*."""

    def __init__(self, client: Any, executor: Executor) -> None:  # noqa: ANN401 - Dask has half its types
        self._client = client
        self._executor = executor
        self._fingerprint = fingerprint()

    def brought(self, data: bytes, *, key: str) -> Promise:
        """*data* as an argument for many jobs, sent once.

        Scattered data would be lost with its worker; the scheduler makes this again.
        """
        return self._promised(bytes, data, key=key)

    def submit(
        self,
        function: str,
        *arguments: object,
        key: str,
        needs: Mapping[str, float] | None = None,
        priority: int = 0,
    ) -> Promise:
        """The job of calling *function*, ``module:name``, on a worker with the resources that it *needs*.

        *arguments* are of Python's own types, or promises. Jobs with the same *key* are one. Higher *priority* goes
        first. `BuildError` if the scheduler is lost.
        """
        promises = [argument for argument in arguments if isinstance(argument, Promise)]
        plain = [argument.future if isinstance(argument, Promise) else argument for argument in arguments]
        job = self._promised(
            called,
            function,
            self._fingerprint,
            *plain,
            key=key,
            resources=dict(needs or {}) or None,
            priority=priority,
            retries=_RETRIES,
        )
        inherited = (need for promise in promises for need in promise.needs)
        return replace(job, needs=(*inherited, *([needs] if needs else [])))

    def each(self, jobs: Mapping[Promise, T]) -> Iterator[tuple[T, Any]]:
        """The value and result of each of *jobs*, as they end; a `BuildError` if no worker did it."""
        ended = queue.SimpleQueue[Any]()
        waiting = {promise.key: promise for promise in jobs}
        for promise in jobs:
            promise.future.add_done_callback(ended.put)
        stuck = _Stuck(self.resources)
        while waiting:
            try:
                future = ended.get(timeout=_LOOKS)
            except queue.Empty:
                for promise, why in stuck.among(list(waiting.values())):
                    del waiting[promise.key]
                    yield jobs[promise], BuildError(f"{self._executor}: {why}")
                continue
            if str(future.key) in waiting:
                promise = waiting.pop(str(future.key))
                outcome = self._outcome(promise)
                future.release()  # its bytes are here
                yield jobs[promise], outcome

    def result(self, promise: Promise) -> Any:  # noqa: ANN401 - whatever the job gives
        """The result of one job; a `BuildError`, as a value, if no worker did it."""
        return next(result for _, result in self.each({promise: None}))

    def listen(self, heard: Callable[[Mapping[str, Any]], None]) -> None:
        """Call *heard*, from a thread of Dask's, with every event that jobs of any client send."""
        self._client.subscribe_topic(TOPIC, lambda event: heard(event[1]))

    def resources(self) -> list[Mapping[str, float]]:
        """The resources of each worker; `BuildError` if the scheduler is lost."""
        return [worker["resources"] for worker in self._workers()]

    @property
    def threads(self) -> int:
        return sum(int(worker["nthreads"]) for worker in self._workers())

    def check(self) -> None:
        """`BuildError` if there is no worker, or if vbuild is not the same everywhere."""
        try:
            self._client.wait_for_workers(1, timeout=JOINS)
        except TimeoutError as error:
            raise BuildError(
                f"{self._executor}: no worker has joined the scheduler in {JOINS:g} s; expected one at least: "
                f"dask worker tcp://{self._executor.address} {_PRELOAD}"
            ) from error
        try:
            self._client.run_on_scheduler(fingerprint)
        except Exception as error:  # whatever Dask makes of an import that fails there
            raise BuildError(f"{self._executor}: the scheduler has no vbuild, or another; {_EXPECTED}") from error
        for worker, answer in self._client.run(fingerprint, on_error="return").items():
            if answer != self._fingerprint:
                raise BuildError(f"{self._executor}: the worker at {worker} {self._vbuild_of(worker, answer)}")

    def _promised(self, *arguments: object, **options: object) -> Promise:
        try:
            return Promise(self._client.submit(*arguments, **options))
        except Exception as error:  # Dask has no one error for a lost connection; the arguments are always valid
            raise self._lost() from error

    def _workers(self) -> list[Mapping[str, Any]]:
        try:
            return list(self._client.scheduler_info()["workers"].values())
        except Exception as error:  # as in `_promised`
            raise self._lost() from error

    def _lost(self) -> BuildError:
        return BuildError(f"{self._executor}: the scheduler was lost before this was done; what is done is kept")

    def _vbuild_of(self, worker: str, answer: object) -> str:
        other = self._client.run(version, vbuild.DISTRIBUTION, workers=[worker], on_error="return").get(worker)
        if not isinstance(answer, str) and not isinstance(other, str):
            return f"has no vbuild; {_EXPECTED}"
        if isinstance(other, str) and other != vbuild.__version__:
            return f"has vbuild {other}, and this is {vbuild.__version__}; {_EXPECTED}"
        return f"has a vbuild with other files, {vbuild.__version__} too; {_EXPECTED}"

    def _outcome(self, promise: Promise) -> Any:  # noqa: ANN401 - whatever the job gives
        from distributed import KilledWorker  # noqa: PLC0415 - an extra
        from distributed.comm.core import CommClosedError  # noqa: PLC0415 - as above

        try:
            return promise.future.result(timeout=_BRINGS)
        except BuildError as error:
            return BuildError(f"{self._executor}: {error}")
        except KilledWorker as error:
            return BuildError(
                f"{self._executor}: {error.allowed_failures + 1} workers were lost at this, one after the other, the "
                f"last at {error.last_worker.address}; expected enough memory there, or fewer jobs at a time"
            )
        except (CancelledError, CommClosedError, TimeoutError):
            return self._lost()
        except ImportError as error:
            return BuildError(f"{self._executor}: {another('a worker')}: {error}")


_EXPECTED = f"expected vbuild {vbuild.__version__} as here everywhere"


class _Stuck:
    """The jobs that no worker could do for longer than `PATIENCE`."""

    def __init__(self, resources: Callable[[], list[Mapping[str, float]]]) -> None:
        self._resources = resources
        self._since: dict[str, float] = {}

    def among(self, waiting: list[Promise]) -> Iterator[tuple[Promise, str]]:
        """Those of *waiting*, each with what is missing."""
        try:
            workers = self._resources()
        except BuildError:  # lost for a moment, or for good: then the promises fail by themselves
            return
        now = time.monotonic()
        for promise in waiting:
            why = "" if workers else "no worker is left"
            for need in promise.needs:
                if workers and not any(need.keys() <= has.keys() for has in workers):
                    why = f"no worker is left that has {' and '.join(need)}"
            since = self._since.setdefault(promise.key, now)
            if not why:
                self._since[promise.key] = now
            elif now - since > PATIENCE:
                yield promise, f"{why} for this, for {PATIENCE:g} s"


@contextmanager
def connected(executor: Executor) -> Iterator[Cluster]:
    """The cluster of *executor*; unfinished jobs are cancelled at the end of the block.

    `BuildError` if Dask is not installed, no scheduler answers, there is no worker, or one with another vbuild.
    """
    try:
        distributed = importlib.import_module("distributed")
        dask = importlib.import_module("dask")
    except ImportError as error:
        raise BuildError(f"{executor}: needs Dask; install it: pip install distributed") from error
    # sources may be large
    with _quiet(), dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 PB"}):
        client = _client(distributed.Client, executor)
        try:
            cluster = Cluster(client, executor)
            try:
                cluster.check()
            except (OSError, CancelledError) as error:
                raise BuildError(f"{executor}: the scheduler was lost before it was asked for anything") from error
            yield cluster
        finally:
            # the scheduler forgets jobs that only we wanted; we do not wait for it
            with suppress(TimeoutError, OSError, CancelledError):
                client.close(timeout=_LEAVES)


def _client(kind: Any, executor: Executor) -> Any:  # noqa: ANN401 - Dask's
    host, _, port = str(executor.address).rpartition(":")
    try:
        # Dask's client would wait for ever for another server; Dask's greeting is short, and starts with its size
        with socket.create_connection((host.strip("[]"), int(port)), CONNECTS) as connection:
            connection.settimeout(CONNECTS)
            size = connection.recv(8, socket.MSG_WAITALL)
        if not 0 < int.from_bytes(size, "little") < _GREETING:
            raise ValueError(size)  # noqa: TRY301 - whatever answers there, the message is one
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about versions of packages that vbuild does not need
            return kind(f"tcp://{executor.address}", timeout=CONNECTS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise BuildError(
            f"{executor}: no scheduler answers there; expected one, as `dask scheduler` starts it"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client", "distributed.core")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
