"""What a GPU needs of a fatbin. The driver's choice is modelled here once more, on its own: what it takes must be kept.

The driver takes machine code before PTX, of the nearest architecture that runs on the GPU; measured and read in the
driver by https://github.com/bechirBOUALI/cuda-fatbin-precedence.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.gpu_offers import offers, short_offer
from vbuild.hardware.architectures import Arch
from vbuild.hardware.gpu import GpuCodeKind, GpuList, GpuOffer, GpuRequest, Ptx, kept_offers

FAMILIES = {  # NVIDIA's programming guide, compute capabilities, family-specific targets
    100: {100, 103, 107},
    101: {101},
    103: {103, 107},
    107: {107},
    110: {110},
    120: {120, 121},
    121: {121},
}
NUMBERS = [75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121]

numbers = st.sampled_from(NUMBERS)
forms = st.one_of(
    numbers.map(Arch),
    st.builds(Arch, st.sampled_from([90, 100, 101, 103, 120, 121]), st.just("a")),
    st.builds(Arch, st.sampled_from(sorted(FAMILIES)), st.just("f")),
)
fatbins = st.lists(st.builds(GpuOffer, st.sampled_from(list(GpuCodeKind)), forms), max_size=12)
requests = st.builds(GpuRequest, st.builds(Arch, numbers), st.booleans())
policies = st.sampled_from(list(Ptx))


def kept(text: str, request: str, ptx: Ptx = Ptx.AUTO) -> str:
    """The offers of *text* that are kept for the GPU *request*, in short."""
    given_, (asked,) = offers(text), GpuList.parse(request)
    return " ".join(short_offer(given_[place]) for place in sorted(kept_offers(given_, asked, ptx=ptx)))


@pytest.mark.parametrize(
    ("fatbin", "gpu", "auto", "keep", "none"),
    [
        ("80 90 ptx80 ptx90", "90", "90", "90 ptx90", "90"),
        ("80 90 ptx80 ptx90", "90+PTX", "90 ptx90", "90 ptx90", "90"),
        ("80 90 ptx80 ptx90", "80", "80", "80 ptx90", "80"),
        ("80 90 ptx80 ptx90", "80+PTX", "80 ptx80", "80 ptx80 ptx90", "80"),
        ("80 ptx80", "90", "ptx80", "ptx80", ""),
        ("80 ptx80", "90+PTX", "ptx80", "ptx80", ""),
        ("90 ptx90a", "90", "90", "90", "90"),
        ("90 ptx80 ptx90a", "90", "90", "90 ptx80", "90"),
        ("90 ptx80 ptx100f", "90", "90", "90 ptx80 ptx100f", "90"),
        ("90 ptx80f ptx100", "90", "90", "90 ptx100", "90"),
        ("other75 ptx75", "75", "other75 ptx75", "other75 ptx75", "other75"),
    ],
)
def test_the_policy_decides_about_ptx(fatbin: str, gpu: str, auto: str, keep: str, none: str) -> None:
    assert [kept(fatbin, gpu, ptx) for ptx in (Ptx.AUTO, Ptx.KEEP, Ptx.NONE)] == [auto, keep, none]


@given(fatbins, requests, policies)
def test_keeping_twice_is_keeping_once(fatbin: list[GpuOffer], request: GpuRequest, ptx: Ptx) -> None:
    left = [fatbin[place] for place in sorted(kept_offers(fatbin, request, ptx=ptx))]
    assert kept_offers(left, request, ptx=ptx) == frozenset(range(len(left)))
