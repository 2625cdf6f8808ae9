"""What a slimmed wheel may promise, from an account of what is left in it."""

from pathlib import Path

import pytest

import vbuild
from tests.factories.fatbins import device_library, entry, fatbin
from tests.factories.variants import variant
from tests.factories.wheels import wheel
from vbuild.errors import RepackageError
from vbuild.gpu_code.coverage import Amount, Coverage
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind
from vbuild.hardware.architectures import Arch
from vbuild.hardware.driver import ANY_DRIVER, Dotted
from vbuild.slimming.request import Share
from vbuild.slimming.results import LibraryCut
from vbuild.slimming.slim import nvidia_properties, slim
from vbuild.variants.stamp import stamped
from vbuild.verification.verify import verify

ONE = Amount(1, 100)
CUBIN = (Path(__file__).parents[1] / "samples/cubins/cuda-12.8.cubin").read_bytes()


def cut(*served: Coverage, kept: int = 1, virtual: tuple[Coverage, ...] = ()) -> LibraryCut:
    return LibraryCut(member="_C.so", before=9, after=9, kept=kept, served=served, virtual=virtual)


def machine(number: int, driver: Dotted | None = ANY_DRIVER) -> Coverage:
    return Coverage(Arch(number), machine=ONE, driver=driver)


def ptx(number: int, driver: Dotted | None = ANY_DRIVER) -> Coverage:
    return Coverage(Arch(number), jit=ONE, driver=driver)


def said(*cuts: LibraryCut, major: int | None = None) -> list[str]:
    return [f"{prop.feature} {prop.value}" for prop in nvidia_properties(cuts, major=major)]


def test_ptx_is_claimed_only_where_all_libraries_with_gpu_code_have_it() -> None:
    both = cut(machine(90), virtual=(ptx(90), ptx(100)))
    assert said(both, cut(machine(90), virtual=(ptx(100),))) == ["sm_arch 90_real", "sm_arch 100_virtual"]
    assert said(both, cut(machine(90))) == ["sm_arch 90_real"]
    assert said(both, cut(kept=0)) == ["sm_arch 90_real", "sm_arch 90_virtual", "sm_arch 100_virtual"]


@pytest.mark.parametrize(
    ("containers", "bound"),
    [
        ([fatbin(entry(arch=80, code=CUBIN), entry(FatbinKind.PTX, 80, major=9, minor=0))], "13.0"),
        ([fatbin(entry(arch=80, code=CUBIN))], "12.0"),
        ([fatbin(entry(arch=80, code=CUBIN)), fatbin(entry(FatbinKind.PTX, 80, major=8, minor=6))], "12.7"),
        ([fatbin(entry(arch=80, code=CUBIN, flags=FatbinFlag.ZSTD))], "12.4"),
    ],
)
def test_a_variant_claims_the_driver_that_doctor_names(tmp_path: Path, containers: list[bytes], bound: str) -> None:
    """And verify names one that admits older drivers, or all."""
    name = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
    path = wheel(tmp_path, name, {"demo/_C.so": device_library(*containers)})
    gpus = "80,90" if len(containers[0]) > len(CUBIN) + 300 else "80"
    share = Share.parse(f"x={gpus}")
    (slimmed,) = slim([path], tmp_path / "out", shares=[share])
    assert slimmed.path
    (library,) = vbuild.doctor([path], gpus=gpus).examined
    drivers = [fit.oldest_driver for fit in library.fits]
    claimed = [prop.value for prop in slimmed.properties if prop.feature == "cuda_version_lower_bound"]
    assert claimed == [bound] == [str(max(filter(None, drivers)))]
    assert not verify(slimmed.path).failed
    for claims, severity in (((), "warning"), (("nvidia :: cuda_version_lower_bound :: 11.0",), "error")):
        labelled = stamped(path, tmp_path / severity, variant=variant("v", "nvidia :: sm_arch :: 80_real", *claims))
        findings = [finding for finding in verify(labelled).findings if finding.rule == "gpu-driver"]
        assert [finding.severity for finding in findings] == [severity]


@pytest.mark.parametrize("cuts", [(), (cut(kept=0),), (cut(ptx(89)),)])
def test_a_wheel_of_which_nothing_can_be_said_is_refused(cuts: tuple[LibraryCut, ...]) -> None:
    with pytest.raises(RepackageError) as caught:
        nvidia_properties(cuts, major=None)
    assert str(caught.value) == "PTX alone serves the GPUs asked for, and sm_arch can say so only of M.0; choose others"
