"""Splitting real wheelhouses: time against inflating them once, bytes before and after, passing, memory."""

from collections.abc import Iterator, Sequence

from tests.benchmarks.figure import Figure, Peer, Wheel
from tests.benchmarks.measuring import Command, Word, command, inside, packed, published, timed, vbuild
from tests.benchmarks.stamping import copying
from tests.benchmarks.wheels import CUBLAS, TORCH

PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
MUMAX = tuple(Wheel("mumaxplus==1.2.2", python) for python in PYTHONS)
SCIPY = tuple(Wheel("scipy==1.17.1", python) for python in PYTHONS[:3])
# of Python and its modules, seconds
START = 0.3


def figures() -> Iterator[Figure]:
    yield Figure(
        name="mumaxplus",
        what="split mumaxplus 1.2.2, five wheels of 272 MB",
        measure=timed(splitting(MUMAX)),
        peer=Peer("decompressing their members once", timed(inside("inflated", *MUMAX))),
        reach=1.5,
        memory=594,
        inputs=MUMAX,
    )
    yield Figure(
        name="mumaxplus-size",
        what="what is left of them",
        measure=packed(splitting(MUMAX)),
        unit="MB",
        peer=Peer("as published", published(*MUMAX)),
        limit=30,
        pairs=1,
        inputs=MUMAX,
    )
    yield Figure(
        name="scipy",
        what="split scipy 1.17.1, three wheels of 35 MB",
        measure=timed(splitting(SCIPY)),
        peer=Peer("`sha256sum` of them", timed(command("sha256sum", *SCIPY))),
        reach=2.5,
        start=START,
        inputs=SCIPY,
        note="To inflate each library once, to hold it against CRC and RECORD, and to deflate what is relinked takes "
        "about 1.4 s of CPU; the rest goes to what libraries and sources say of each other, and to 4,600 members.",
    )
    for name, wheel, title in (
        ("cublas", CUBLAS, "split nvidia-cublas-cu12 (581 MB), which has nothing to split"),
        ("torch", TORCH, "the same with torch 2.15.0 (539 MB), which has 13,000 members"),
    ):
        yield Figure(
            name=name,
            what=title,
            measure=timed(splitting([wheel])),
            peer=Peer("`cp` of the file, cached", timed(copying(wheel))),
            reach=3,
            start=START,
            inputs=(wheel,),
        )


def splitting(wheels: Sequence[Word], *options: str) -> Command:
    return vbuild("split", *wheels, "-o", "out", *options)
