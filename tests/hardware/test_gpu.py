import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vbuild.errors import HardwareError
from vbuild.hardware.architectures import ARCHITECTURES, Arch
from vbuild.hardware.driver import FORCED_CAPABILITY, FORCED_DRIVER, Dotted
from vbuild.hardware.gpu import GpuList, GpuRequest

archs = st.sampled_from(
    [
        Arch(number, suffix)
        for number, known in ARCHITECTURES.items()
        for suffix in ("", "a", "f")
        if known.first_toolkit(suffix)
    ]
)
requests = st.builds(GpuRequest, archs, st.booleans(), st.just(value=True)) | archs.map(
    lambda arch: GpuRequest(arch, ptx=True, real=False)
)


@given(st.lists(requests, min_size=1, max_size=6), st.sampled_from([",", ";", " ", ", ", " ; "]))
def test_a_list_is_written_in_one_way_however_it_was_given(asked: list[GpuRequest], separator: str) -> None:
    found = GpuList.parse(separator.join(map(str, asked)))
    assert GpuList.parse(str(found)) == found
    assert list(found) == sorted(found)
    assert {request.arch for request in found} == {request.arch for request in asked}
    assert {request.arch for request in found if request.ptx} == {request.arch for request in asked if request.ptx}
    assert set(found.native) == {request.device for request in asked if request.real}
    assert GpuList.of(asked) == found


def test_native_is_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_DRIVER, "13.0")
    monkeypatch.setenv(FORCED_CAPABILITY, "8.9")
    assert str(GpuList.asked("native,90")) == "sm_89,sm_90"


def test_code_for_one_gpu_alone_is_asked_for_by_its_gpu() -> None:
    assert GpuList.parse("90a 90 100f 103").devices == (Arch(90), Arch(100), Arch(103))


@pytest.mark.parametrize(
    ("text", "toolkit", "message"),
    [
        ("75,90", "12.9", None),
        ("70", "12.9", None),
        ("70", "13.0", "sm_70: CUDA 13.0 cannot compile for it; 9.0 to 12.9 can"),
        ("compute_70", "13.0", "sm_70: CUDA 13.0 cannot compile for it; 9.0 to 12.9 can"),
        ("90,90a", "11.8", "sm_90a: CUDA 11.8 cannot compile for it; 12.0 and newer can"),
        ("101f", "13.0", "sm_101f: CUDA 13.0 cannot compile for it; only 12.9 can"),
    ],
)
def test_a_toolkit_compiles_for_some_gpus_only(text: str, toolkit: str, message: str | None) -> None:
    gpus = GpuList.parse(text)
    if message is None:
        gpus.check_toolkit(Dotted.parse(toolkit))
        return
    with pytest.raises(HardwareError) as refused:
        gpus.check_toolkit(Dotted.parse(toolkit))
    assert str(refused.value) == message


def test_no_toolkit_is_known_to_compile_for_what_only_files_have() -> None:
    with pytest.raises(HardwareError, match="sm_140: no CUDA toolkit is known to compile for it"):
        GpuList((GpuRequest(Arch(140)),)).check_toolkit(Dotted(13, 0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no GPU in the list; expected at least one, as in sm_90 or 8.0,9.0+PTX"),
        (" ,; ", "no GPU in the list; expected at least one, as in sm_90 or 8.0,9.0+PTX"),
        ("80,sm_9", "there is no GPU architecture 'sm_9'; did you mean sm_90?"),
        ("sm_85", "there is no GPU architecture 'sm_85'; did you mean sm_86, sm_87, sm_88 or sm_89?"),
        ("8.5", "there is no GPU architecture '8.5'; did you mean sm_86, sm_87, sm_88 or sm_89?"),
        ("10", "there is no GPU architecture '10'; did you mean sm_100, sm_101, sm_103 or sm_107?"),
        ("35", "there is no GPU architecture '35'; did you mean sm_50, sm_52, sm_53 or sm_60?"),
        ("9999", "there is no GPU architecture '9999'; did you mean sm_107, sm_110, sm_120 or sm_121?"),
        ("4090", "there is no GPU architecture '4090'; did you mean RTX 4090?"),
        ("RTX 4095", "there is no GPU architecture 'RTX 4095'; did you mean RTX 4090 or RTX 4050?"),
        (
            "RTX 6000",
            "'RTX 6000' is the name of several GPUs; expected Quadro RTX 6000 or RTX 6000 Ada or RTX PRO 6000",
        ),
        ("80a", "there is no GPU architecture '80a', only sm_80"),
        ("90f", "there is no GPU architecture '90f', only sm_90, sm_90a"),
        ("90-real+PTX", "'90-real+PTX' is real and virtual at once; expected as in 90-real or 90-virtual"),
        ("compute_90-real", "'compute_90-real' is real and virtual at once; expected as in 90-real or 90-virtual"),
        (
            "gfx90a",
            "'gfx90a' is one of AMD's GPUs, for which no code is compiled here; expected NVIDIA's",
        ),
        ("9.0.1", "there is no GPU architecture '9.0.1'; expected one as in sm_90, 9.0, 90a, 90-real, 9.0+PTX or H100"),
        ("٩٠", "there is no GPU architecture '٩٠'; expected one as in sm_90, 9.0, 90a, 90-real, 9.0+PTX or H100"),
    ],
)
def test_what_is_no_gpu_is_refused(text: str, message: str) -> None:
    with pytest.raises(HardwareError) as refused:
        GpuList.parse(text)
    assert str(refused.value) == message


@given(st.text(alphabet="sm_compute0123456789.-+afptxrealvirtual ,;", max_size=20))
def test_any_text_is_a_list_or_refused_in_one_line(text: str) -> None:
    try:
        assert GpuList.parse(text).requests
    except HardwareError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_table_agrees_with_the_nvcc_at_hand() -> None:
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    version = Dotted.parse(said.partition("release ")[2].partition(",")[0])
    listed = subprocess.run(["nvcc", "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    expected = {
        str(Arch(number))
        for number, known in ARCHITECTURES.items()
        if known.since <= version and (known.until is None or version <= known.until)
    }
    assert set(listed.split()) == expected
