"""Checks where what a wheel requires is not as it should be: not published for a Python to come, of another build."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.extensions import library, module
from tests.factories.processes import is_running, until
from tests.factories.split_results import OTHER, TAG, TO_LIBS, SplitResults, failures, notes
from vbuild.verification.environments import Installer, RequirementChoice

LATER = f"demo-1.0-{OTHER}-{OTHER}-manylinux_2_17_x86_64.whl"
LATER_FREE = f"demo-1.0-{OTHER}-{OTHER}t-manylinux_2_17_x86_64.whl"
TORCH = "torch-2.9-py3-none-any.whl"
CHECK = """
import sys
from pathlib import Path
from vbuild.verification.install_check import check
from vbuild.verification.environments import Installer
from vbuild.index_client.configuration import Indexes
wheel, url, installer = sys.argv[1:]
check([Path(wheel)], indexes=lambda: Indexes(index_url=url), using=[Installer(installer)])
"""


@pytest.fixture
def results(tmp_path: Path) -> SplitResults:
    return SplitResults(tmp_path)


def official(results: SplitResults) -> None:
    """The packages that bring libcufft.so.11, and libnvJitLink.so.12 with it."""
    results.beside(
        "cuda_toolkit-12.4.1-py3-none-any.whl",
        requires=["Provides-Extra: cufft", "Requires-Dist: nvidia-cufft-cu12==11.2.*; extra == 'cufft'"],
    )
    results.beside(
        "nvidia_cufft_cu12-11.2.1.3-py3-none-any.whl",
        {"nvidia/cufft/lib/libcufft.so.11": library("libcufft.so.11")},
        requires=["Requires-Dist: nvidia-nvjitlink-cu12"],
    )
    results.beside(
        "nvidia_nvjitlink_cu12-12.4.1-py3-none-any.whl",
        {"nvidia/nvjitlink/lib/libnvJitLink.so.12": library("libnvJitLink.so.12")},
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            LATER,
            (
                "uv: No solution found when resolving dependencies: Because nowhere was not found in the provided "
                "package locations and you require nowhere>=1, we can conclude that your requirements are "
                "unsatisfiable."
            ),
        ),
        (LATER_FREE, "pip: No matching distribution found for nowhere>=1"),
    ],
    ids=["uv", "pip"],
)
def test_what_has_no_wheels_for_another_python_is_left_out(name: str, said: str, results: SplitResults) -> None:
    official(results)
    paths = f"{TO_LIBS}:$ORIGIN/../nvidia/cufft/lib:$ORIGIN/../nvidia/nvjitlink/lib"
    needs = ("liba.so", "libcufft.so.11", "libnvJitLink.so.12")
    requires = [
        "demo-libs==0.1; platform_machine == 'x86_64'",
        "cuda-toolkit[cufft]==12.4.*",
        "nowhere>=1",
        "elsewhere; python_version == '3.0'",
        "more; extra == 'more'",
    ]
    results.thin({"demo/_c.so": module(*needs, rpath_=paths)}, name=name, requires=requires)
    results.libs({"liba.so": library("liba.so")})
    result = results.only()
    assert (failures(result), result.resolved) == ([], 7)
    assert notes(result) == [f"install: nowhere left out, which the loader does not need: {said}"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("requires", "said"),
    [
        (["demo-libs==0.2", "nowhere"], "you require demo-libs==0.2, we"),
        (["nvidia-cufft-cu12==12"], "demo==1.0 depends on nvidia-cufft-cu12==12, we"),
        # each can be installed, but not both
        (["nvidia-cufft-cu12==11.2.1.3", "jealous"], "demo==1.0 and all versions of jealous are incompatible."),
    ],
)
def test_what_the_loader_needs_is_never_left_out(requires: list[str], said: str, results: SplitResults) -> None:
    official(results)
    results.beside("jealous-1.0-py3-none-any.whl", requires=["Requires-Dist: nvidia-cufft-cu12<11"])
    results.beside("nvidia_cufft_cu12-10.0-py3-none-any.whl")
    results.thin({"demo/_c.so": module()}, name=LATER, requires=requires)
    results.libs({"liba.so": library("liba.so")})
    results.thin({"other.py": ""}, name=f"other-1.0-{TAG}.whl", requires=[])
    lacking, _ = results.check()
    (failure,) = failures(lacking)
    assert failure.startswith("install: uv: No solution found when resolving dependencies: Because ")
    assert said in failure


def test_requirements_that_nobody_can_read_are_nobodys() -> None:
    lines = ["demo-libs==0.1", "not one at all", "odd; python_version > 'x' and os_name > 'y'", "odder; 'a' == 'b'"]
    choice = RequirementChoice.of(lines, companions=["demo-libs"], markers={"python_version": "3.15"})
    assert choice == RequirementChoice(("demo-libs==0.1",), ())


def test_a_library_that_the_torch_installed_does_not_have_is_noted(results: SplitResults) -> None:
    results.beside(TORCH, {"torch/__init__.py": "", "torch/lib/libtorch.so": library("libtorch.so")})
    needs = ("libtorch.so", "libc10_cuda.so", "libtorch_cuda.so")
    linked = module(*needs, rpath_="$ORIGIN/../torch/lib")
    results.thin({"demo/__init__.py": "from demo import _c\n", "demo/_c.so": linked}, requires=["torch"])
    result = results.only()
    assert (failures(result), result.resolved) == ([], 3)
    hardware = "which the torch installed does not have: a build for other hardware?"
    assert notes(result) == [
        f"resolve: demo/_c.so: needs libc10_cuda.so, libtorch_cuda.so, {hardware}",
        f"load: demo/_c.so: not loaded: needs libc10_cuda.so, {hardware}",
        f"import: demo: not imported: needs libc10_cuda.so, {hardware}",
    ]


def test_a_library_of_the_torch_installed_to_which_no_rpath_leads_is_a_failure(results: SplitResults) -> None:
    results.beside(TORCH, {"torch/__init__.py": "", "torch/lib/libtorch.so": library("libtorch.so")})
    results.thin({"demo/_c.so": module("libtorch.so", rpath_="$ORIGIN/../torch")}, requires=["torch"])
    assert failures(results.only()) == [
        (
            "resolve: demo/_c.so: needs libtorch.so, which is at torch/lib/libtorch.so, but no RPATH leads there; "
            "searched $ORIGIN/../torch"
        )
    ]


def test_a_library_of_a_torch_that_was_left_out_is_noted(results: SplitResults) -> None:
    results.thin({"demo/_c.so": module("libtorch.so", rpath_="$ORIGIN/../torch/lib")}, name=LATER, requires=["torch"])
    result = results.only()
    assert result.ok
    assert notes(result)[1:] == ["resolve: demo/_c.so: needs libtorch.so, part of torch, which was left out"]


@pytest.mark.nightly
@pytest.mark.parametrize("installer", Installer)
def test_an_interrupt_ends_the_installer_and_leaves_no_environment(installer: Installer, results: SplitResults) -> None:
    results.thin({"demo.py": ""}, requires=["nowhere"])
    place = results.folder / "environments"
    place.mkdir()
    variables = {**os.environ, "TMPDIR": str(place)}
    with socket.create_server(("127.0.0.1", 0)) as index:  # one that never answers
        index.settimeout(60)
        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        command = [sys.executable, "-c", CHECK, str(results.wheels[0]), url, installer]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables) as run:
            asking, _ = index.accept()
            with asking:
                children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
                assert len(children) == 1
                assert list(place.iterdir()) != []
                run.send_signal(signal.SIGINT)
                said = run.communicate(timeout=30)[1]
    assert said.endswith("KeyboardInterrupt\n")
    assert list(place.iterdir()) == []
    until(lambda: not is_running(int(children[0])))
