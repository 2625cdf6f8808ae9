"""Choosing by hardware in redirecting sdists: one order for all machines, and what the backend can tell of this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.clients import masked
from tests.factories.tools import needs
from tests.factories.variants import document, machine, metadata, variant
from vbuild.hardware.cpu import X86_64_FEATURES
from vbuild.hardware.driver import FORCED_CAPABILITY, FORCED_DRIVER
from vbuild.hardware.machine import Machine
from vbuild.publishing.redirect import redirecthardware as hardware
from vbuild.publishing.redirect.sdist import RedirectChoice, ranked_choices
from vbuild.variants.model import Variant, VariantProvider
from vbuild.variants.select import ranked

LEVEL, DRIVER, BELOW, GPU = (
    "x86_64 :: level :: ",
    "nvidia :: cuda_version_lower_bound :: ",
    "nvidia :: cuda_version_upper_bound :: ",
    "nvidia :: sm_arch :: ",
)
_ROOM = Path(hardware.__file__).parent
_LABEL = "import json, sys; sys.path.insert(0, {!r}); import redirecthardware as r; print(r.label({}, {}))"
_DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 8 + device : attribute == 76 ? 6 * !device : 77;
    return 0;
}
"""

bounds = st.sampled_from(["11", "11.8", "12", "12.0", "12.4", "12.8", "13", "13.0"])
gpus = st.sampled_from(["75_real", "80_real", "80_virtual", "86_real", "89_real", "90_real", "90_virtual", "120_real"])
properties = st.tuples(
    st.none() | st.sampled_from(["v1", "v2", "v3", "v4"]).map(LEVEL.__add__),
    st.none() | bounds.map(DRIVER.__add__),
    st.none() | bounds.map(BELOW.__add__),
    st.sampled_from([None, "blas :: library :: mkl", "blas :: library :: openblas", "blas :: library :: none"]),
    st.lists(gpus.map(GPU.__add__), max_size=3, unique=True),
)
BLAS = VariantProvider.static({"library": ["openblas", "mkl"]})


def test_the_levels_of_the_shipped_module_are_those_of_the_table() -> None:
    table = {level: " ".join(sorted(each.cpuinfo for each in added)) for level, added in X86_64_FEATURES.items()}
    assert table == hardware._LEVELS  # noqa: SLF001 - wheels have the module with this name in it


def labelled(found: list[tuple[str | None, str | None, str | None, str | None, list[str]]]) -> list[Variant]:
    """A variant for each different set of properties; the null variant for none."""
    sets = {frozenset(filter(None, (*single, *several))) for *single, several in found}
    return [variant(f"l{number}" if one else "null", *one) for number, one in enumerate(sorted(sets, key=sorted))]


def first(choices: tuple[RedirectChoice, ...], supported: set[str]) -> str | None:
    return next((choice.label for choice in choices if supported.issuperset(choice.properties)), None)


@pytest.mark.nightly
@given(
    st.lists(properties, min_size=1, max_size=8),
    st.permutations(["x86_64", "nvidia", "blas"]),
    st.sampled_from(["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]),
    st.sampled_from([None, "11.8", "12.4", "12.8", "13.0"]),
    st.sampled_from(["7.5", "8.0", "8.6", "8.9", "9.0", "12.0"]),
)
def test_the_first_choice_that_a_machine_supports_is_its_best_variant(
    found: list[tuple[str | None, str | None, str | None, str | None, list[str]]],
    namespaces: list[str],
    cpu: str,
    driver: str | None,
    gpu: str,
) -> None:
    """What `vbuild select` ranks first is what the backend takes, whose own answers decide."""
    whole = document(*labelled(found), metadata=metadata(*namespaces, blas=BLAS))
    on = machine(cpu, driver=driver, gpus=(gpu,) if driver else ())
    best = ranked(whole, on)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FORCED_DRIVER, driver or "0")
        patch.setenv(FORCED_CAPABILITY, gpu if driver else "0")
        asked = {text for choice in ranked_choices(whole) for text in choice.properties}
        supported = {text for text in asked if supports(text, on)}
    assert first(ranked_choices(whole), supported) == (best.variant.label if best.is_supported else None)


def supports(text: str, on: Machine) -> bool | None:
    """What the backend says, but for levels: this machine has its own."""
    if text.startswith(LEVEL):
        return bool(on.cpu and text.removeprefix(LEVEL) in on.cpu.supported_levels)
    return hardware._supports(*text.split(" :: "))  # noqa: SLF001 - one property at a time


def test_a_variant_for_several_gpus_stands_once_for_each() -> None:
    variants = variant("a", f"{GPU}80_real", f"{GPU}90_real"), variant("b", f"{GPU}86_real")
    found = document(*variants, metadata=metadata("nvidia"))
    assert [choice.data() for choice in ranked_choices(found)] == [
        ["a", [f"{GPU}90_real"]],
        ["b", [f"{GPU}86_real"]],
        ["a", [f"{GPU}80_real"]],
    ]


def test_what_cannot_be_checked_is_marked_and_what_is_off_left_out() -> None:
    providers = {
        "blas": VariantProvider.static({"library": ["mkl"]}),
        "npu": VariantProvider(requires=("npu-provider",)),
        "off": VariantProvider(requires=("off-provider",), optional=True),
        "x86_64": VariantProvider(requires=("another-provider",)),
    }
    found = [
        variant("a", "blas :: library :: mkl"),
        variant("b", "npu :: arch :: atom"),
        variant("c", "off :: arch :: x"),
        variant("d", f"{LEVEL}v3"),
        variant("e", "aarch64 :: version :: 8.2a"),
        variant("f", f"{DRIVER}new"),
        variant("g", "abi_dependency :: torch :: 2.9"),
    ]
    names = (*providers, "aarch64", "nvidia", "abi_dependency")
    assert [choice.data() for choice in ranked_choices(document(*found, metadata=metadata(*names, **providers)))] == [
        ["a", []],
        ["b", ["unknown npu :: arch :: atom"]],
        ["d", ["unknown x86_64 :: level :: v3"]],
        ["e", ["unknown aarch64 :: version :: 8.2a"]],
        ["f", ["unknown nvidia :: cuda_version_lower_bound :: new"]],
        ["g", ["unknown abi_dependency :: torch :: 2.9"]],
    ]


@pytest.mark.parametrize(
    ("cpu", "expected"), [("x86-64", "x86_64_v1"), ("x86-64-v3", "x86_64_v3")], ids=lambda value: value
)
def test_the_level_is_what_cpuinfo_says(tmp_path: Path, cpu: str, expected: str) -> None:
    """As archspec, and so `vbuild select`, has it: see clients.masked."""
    levels = [f"v{number}" for number in (4, 3, 2, 1)]
    order = [[f"x86_64_{level}", [LEVEL + level]] for level in levels]
    wheels = [{"label": label} for label, _ in order]
    command = [*masked(cpu, tmp_path), sys.executable, "-c", _LABEL.format(str(_ROOM), order, wheels)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == f"{expected}\n"
    assert run.stderr == (f"chose {expected} for this machine; on others that share its cache, install without cache\n")


@needs("gcc")
def test_nvidias_driver_is_asked_for_the_best_gpu(tmp_path: Path) -> None:
    """A library with the driver's interface is the machine: GPUs of 8.6 and 9.0, and a driver for CUDA 12.8."""
    (tmp_path / "driver.c").write_text(_DRIVER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"], check=True)
    script = f"import sys; sys.path.insert(0, {str(_ROOM)!r}); import redirecthardware as r; print(r._nvidia())"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NV_")}
    said = {}
    for forced in ({}, {FORCED_DRIVER: "13"}, {FORCED_CAPABILITY: "8.9"}):
        command = [sys.executable, "-c", script]
        variables = {**clean, "LD_LIBRARY_PATH": str(tmp_path), **forced}
        said[tuple(forced)] = subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout
    assert said == {
        (): "((12, 8), (9, 0))\n",
        (FORCED_DRIVER,): "((13, 0), (9, 0))\n",
        (FORCED_CAPABILITY,): "((12, 8), (8, 9))\n",
    }


def test_a_version_that_is_forced_and_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_CAPABILITY, "sm_90")
    with pytest.raises(SystemExit) as refusal:
        hardware.label([["sm90", [f"{GPU}90_real"]]], [{"label": "sm90"}, {}])
    assert str(refusal.value) == "no version 'sm_90', expected two numbers as in 12.8"


def test_where_no_cpu_is_described_nothing_is_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_CPUINFO", tmp_path / "none")
    order = [["x86_64_v3", [f"{LEVEL}v3"]]]
    with pytest.raises(SystemExit) as refusal:
        hardware.label(order, [{"label": "x86_64_v3"}, {}])
    assert str(refusal.value) == (
        "no way to tell if this machine has ['x86_64 :: level :: v3']: set VBUILD_SELECT to x86_64_v3 or plain"
    )
    # nor asked, where only a plain wheel fits
    assert hardware.label(order, [{}]) == "plain"


def test_what_the_machine_may_or_may_not_have_is_asked_of_the_user() -> None:
    order = [["fast", ["unknown npu :: arch :: atom"]], ["plainer", []]]
    with pytest.raises(SystemExit) as refusal:
        hardware.label(order, [{"label": "fast"}, {}])
    assert str(refusal.value) == (
        "no way to tell if this machine has ['unknown npu :: arch :: atom']: set VBUILD_SELECT to fast or plain"
    )
    # not where another property is missing, or no wheel of it fits
    order[0][1] = ["unknown npu :: arch :: atom", f"{LEVEL}v1", f"{GPU}00_none"]
    assert hardware.label(order, [{"label": "fast"}, {"label": "plainer"}]) == "plainer"
    assert hardware.label(order[:1], [{}]) == "plain"
