"""What builds wait for, begun before they do: pip's configuration, the environment of each, and the library of watches.

    with ahead(builder) as begin:
        ...                         # it is not known yet what there is to build
        begin(jobs)                 # on threads; the builds find what is there, and wait for what is being made

Errors are left to the builds, which meet them again.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from vbuild.build.frontend import begin as begin_build
from vbuild.build.job import Job
from vbuild.build.watching import library_of
from vbuild.errors import VbuildError
from vbuild.process.run import supervised
from vbuild.release.builder import Builder

# one environment and one library: with more of them the first build would wait for the others
_THREADS = 2


@contextmanager
def ahead(builder: Builder) -> Iterator[Callable[[Iterable[Job]], None]]:
    """Yield what begins the preparations of jobs of *builder*; leaving the block by an error stops them."""
    with ThreadPoolExecutor(_THREADS) as executor, supervised():

        def begin(jobs: Iterable[Job]) -> None:
            for job in jobs:
                executor.submit(_environment, builder, job)
                if builder.context.cache:
                    executor.submit(library_of, job.compilers)

        try:
            yield begin
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def _environment(builder: Builder, job: Job) -> None:
    with suppress(VbuildError):
        begin_build(job, builder.project, builder.environments)
