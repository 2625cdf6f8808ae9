"""What a GPU needs of a fatbin. The driver's choice is modelled here once more, on its own: what it takes must be kept.

The driver takes machine code before PTX, of the nearest architecture that runs on the GPU; measured and read in the
driver by https://github.com/bechirBOUALI/cuda-fatbin-precedence.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.gpu_offers import offers, short_offer
from vbuild.hardware.architectures import Arch
from vbuild.hardware.gpu import GpuCodeKind, GpuList, GpuOffer, GpuRequest, Ptx, Service, kept_offers, service

FAMILIES = {  # NVIDIA's programming guide, compute capabilities, family-specific targets
    100: {100, 103, 107},
    101: {101},
    103: {103, 107},
    107: {107},
    110: {110},
    120: {120, 121},
    121: {121},
}
JETSONS = {53, 62, 72, 87, 101, 110}
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
with_ptx = st.sampled_from([Ptx.AUTO, Ptx.KEEP])


def kept(text: str, request: str, ptx: Ptx = Ptx.AUTO) -> str:
    """The offers of *text* that are kept for the GPU *request*, in short."""
    given_, (asked,) = offers(text), GpuList.parse(request)
    return " ".join(short_offer(given_[place]) for place in sorted(kept_offers(given_, asked, ptx=ptx)))


@pytest.mark.parametrize(
    ("fatbin", "gpu", "left"),
    [
        # the very architecture, else the nearest of the same major version below
        ("75 80 86 90", "90", "90"),
        ("75 80 86 90", "89", "86"),
        ("75 80 86 90", "80", "80"),
        ("80 90 80", "80", "80 80"),
        ("86", "80", ""),
        ("80", "90", ""),
        # every form of it: which of them a driver prefers is not published
        ("80 90 90a", "90", "90 90a"),
        ("90a ptx90", "90", "90a"),
        ("100 100a 100f 103", "100", "100 100a 100f"),
        # a request for a form means its GPU
        ("80 90 90a", "90a", "90 90a"),
        ("90 100 100f", "100f", "100 100f"),
        # code with a runs nowhere else, code with f in its family
        ("90a", "100", ""),
        ("100a 100f 100", "103", "100f 100"),
        ("100f 103", "103", "103"),
        ("100f 103a", "103", "103a"),
        ("120f 100f", "121", "120f"),
        ("103f", "100", ""),
        # what is built for a Tegra runs there alone, and there nothing else does
        ("80 87", "87", "87"),
        ("80 86", "87", ""),
        ("80 86 ptx80", "87", "ptx80"),
        ("87", "89", ""),
        ("87 ptx80", "89", "ptx80"),
        ("101f ptx100", "103", "ptx100"),
        ("72 75 70", "75", "75"),
        ("70 72", "75", "70 72"),
        # code for a Tegra between the nearest and the GPU is left in
        ("80 87", "89", "80 87"),
        ("86 87 80", "89", "86 87"),
        ("100 101 101a 101f", "103", "100 101 101f"),
        # PTX only where there is no machine code, of the nearest architecture
        ("80 ptx80", "80", "80"),
        ("80 ptx80", "90", "ptx80"),
        ("80 ptx70 ptx80 ptx86", "90", "ptx86"),
        ("ptx80 ptx100", "90", "ptx80"),
        ("ptx90 ptx90a", "90", "ptx90 ptx90a"),
        ("ptx90a ptx80", "100", "ptx80"),
        ("ptx100f ptx90", "103", "ptx100f"),
        ("ptx100f ptx90", "120", "ptx90"),
        ("ptx87", "90", "ptx87"),
        # what is neither is read by other libraries, as LTO-IR is by nvJitLink
        ("other75 80 90", "90", "other75 90"),
        ("other75", "90", "other75"),
        ("", "90", ""),
    ],
)
def test_a_gpu_needs_every_form_of_the_nearest_code(fatbin: str, gpu: str, left: str) -> None:
    assert kept(fatbin, gpu) == left


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


def arch_of(offer: GpuOffer) -> Arch:
    """The architecture of *offer*, one of NVIDIA's."""
    assert isinstance(offer.arch, Arch)
    return offer.arch


def runs(offer: GpuOffer, gpu: int) -> bool:
    """Whether the driver of *gpu* considers *offer*, told from NVIDIA's documents alone."""
    number, suffix = arch_of(offer)
    if offer.code is GpuCodeKind.OTHER:
        return False
    if number == gpu:
        return True
    if suffix == "a":
        return False
    if suffix == "f":
        return gpu in FAMILIES[number]
    if offer.code is GpuCodeKind.PTX:
        return number < gpu
    return number // 10 == gpu // 10 and number < gpu and not {number, gpu} & JETSONS


def chosen(fatbin: list[GpuOffer], gpu: int) -> list[GpuOffer]:
    """The best offers for *gpu*: machine code before PTX, the nearest first; empty where nothing runs."""
    candidates = [offer for offer in fatbin if runs(offer, gpu)]
    order = {GpuCodeKind.MACHINE: 1, GpuCodeKind.PTX: 0}
    best = max(((order[offer.code], arch_of(offer).number) for offer in candidates), default=None)
    return [offer for offer in candidates if (order[offer.code], arch_of(offer).number) == best]


@given(fatbins, requests, with_ptx)
def test_what_the_driver_would_choose_is_kept(fatbin: list[GpuOffer], request: GpuRequest, ptx: Ptx) -> None:
    left = [fatbin[place] for place in sorted(kept_offers(fatbin, request, ptx=ptx))]
    assert chosen(left, request.device.number) == chosen(fatbin, request.device.number)


@given(fatbins, requests, with_ptx)
def test_a_gpu_is_served_as_before(fatbin: list[GpuOffer], request: GpuRequest, ptx: Ptx) -> None:
    left = [fatbin[place] for place in kept_offers(fatbin, request, ptx=ptx)]
    assert service(left, request.device) is service(fatbin, request.device)
    best = {offer.code for offer in chosen(fatbin, request.device.number)}
    expected = {frozenset({GpuCodeKind.MACHINE}): Service.MACHINE, frozenset({GpuCodeKind.PTX}): Service.JIT}
    assert service(fatbin, request.device) is expected.get(frozenset(best), Service.NONE)


@given(fatbins, requests, policies)
def test_keeping_twice_is_keeping_once(fatbin: list[GpuOffer], request: GpuRequest, ptx: Ptx) -> None:
    left = [fatbin[place] for place in sorted(kept_offers(fatbin, request, ptx=ptx))]
    assert kept_offers(left, request, ptx=ptx) == frozenset(range(len(left)))


@given(fatbins, st.lists(requests, max_size=4), requests, with_ptx)
def test_what_is_kept_for_several_gpus_serves_each(
    fatbin: list[GpuOffer], several: list[GpuRequest], one: GpuRequest, ptx: Ptx
) -> None:
    places = {place for request in (*several, one) for place in kept_offers(fatbin, request, ptx=ptx)}
    left = [fatbin[place] for place in sorted(places)]
    again = {place for request in (*several, one) for place in kept_offers(left, request, ptx=ptx)}
    assert places >= kept_offers(fatbin, one, ptx=ptx)
    assert again == set(range(len(left)))
    assert service(left, one.device) is service(fatbin, one.device)
