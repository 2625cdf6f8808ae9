"""Inspecting a large wheel, and merely inflating its shared libraries with zlib in one thread."""

from collections.abc import Iterator

from tests.benchmarks.figure import Figure, Peer
from tests.benchmarks.measuring import inside, timed
from tests.benchmarks.wheels import TORCH


def figures() -> Iterator[Figure]:
    yield Figure(
        name="torch",
        what="inspect torch 2.15.0 (539.1 MB)",
        measure=timed(inside("inspected", TORCH)),
        peer=Peer("decompressing its `.so` members with zlib", timed(inside("inflated_libraries", TORCH))),
        reach=0.9,
        inputs=(TORCH,),
    )
