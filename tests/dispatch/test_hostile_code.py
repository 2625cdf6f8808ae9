"""Code that is written to take long to follow: what is too large is a doubt, never an answer, and takes its bound."""

from time import process_time

import pytest

from tests.factories.hostile_code import KINDS, hostile_library
from vbuild.dispatch.isa import Isa
from vbuild.dispatch.judge import Dispatch
from vbuild.dispatch.reach import Doubt
from vbuild.elf.code import Elf


@pytest.mark.parametrize("kind", KINDS)
def test_code_that_takes_long_to_follow_is_in_doubt(kind: str) -> None:
    elf = Elf.parse(hostile_library(kind, 10_000))
    (judged,) = Dispatch({"hostile.so": (elf, Isa.scan(elf))}).judged("hostile.so", 0)
    # stores and branches of this size are followed to their end: AVX2 is asked for, but not whether AVX is switched on
    lacking = "OSXSAVE" if kind == "stores and branches" else "AVX2"
    assert judged.reason is None
    assert judged.features == {lacking}
    assert judged.doubt


@pytest.mark.parametrize("kind", KINDS)
def test_code_that_takes_too_long_is_not_followed_to_its_end(kind: str) -> None:
    elf = Elf.parse(hostile_library(kind, 60_000))
    start = process_time()
    (judged,) = Dispatch({"hostile.so": (elf, Isa.scan(elf))}).judged("hostile.so", 0)
    assert judged.doubt == Doubt.UNFOLLOWED
    # 0.4 to 1.2 s on a machine that does nothing else
    assert process_time() - start < 5
