"""Checks where what a wheel requires is of another build, or cannot be had."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.extensions import library, module
from tests.factories.processes import is_running, until
from tests.factories.split_results import SplitResults, failures, notes
from vbuild.verification.environments import Installer

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
        "resolve: demo/_c.so: needs libtorch.so, which is at torch/lib/libtorch.so, but no RPATH leads there"
    ]


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
