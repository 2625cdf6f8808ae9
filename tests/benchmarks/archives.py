"""Reading and copying the members of a real wheel (132 MB, one library of 237 MB), against zipfile and cp."""

from collections.abc import Iterator

from tests.benchmarks.figure import Figure, Peer
from tests.benchmarks.measuring import inside, timed
from tests.benchmarks.stamping import copying
from tests.benchmarks.wheels import XGBOOST

LIBRARY = "xgboost/lib/libxgboost.so"


def figures() -> Iterator[Figure]:
    yield Figure(
        name="mapped",
        what="map the library of xgboost 3.2.0 (237 MB)",
        measure=timed(inside("mapped", XGBOOST, LIBRARY)),
        peer=Peer("extracting it with `zipfile`", timed(inside("extracted", XGBOOST, LIBRARY))),
        reach=0.7,
        inputs=(XGBOOST,),
    )
    yield Figure(
        name="copied",
        what="write a wheel whose members are copied",
        measure=timed(inside("copied", XGBOOST)),
        peer=Peer("`cp` of the file, cached", timed(copying(XGBOOST))),
        reach=9,
        inputs=(XGBOOST,),
    )
