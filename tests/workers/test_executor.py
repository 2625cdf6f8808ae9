"""Names of executors, and what is said where Dask is not installed."""

import subprocess
import sys

import pytest

from vbuild.errors import BuildError
from vbuild.workers.executor import LOCAL, Executor


def test_local_is_this_machine() -> None:
    assert Executor.parse("local") == LOCAL
    assert LOCAL.is_local
    assert str(LOCAL) == "local"


@pytest.mark.parametrize("address", ["localhost:8786", "10.0.0.5:1", "node-7.cluster.local:65535", "[::1]:8786"])
def test_a_scheduler_is_called_by_host_and_port(address: str) -> None:
    executor = Executor.parse(f"dask://{address}")
    assert executor.address == address
    assert not executor.is_local
    assert str(executor) == f"dask://{address}"


@pytest.mark.parametrize(
    "text", ["", "Local", "dask", "dask://", "dask://host", "dask://host:", "dask://host:0", "dask://host:65536"]
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(BuildError) as caught:
        Executor.parse(text)
    assert str(caught.value) == (
        f"no executor {text!r}; expected local or dask://host:port, as in dask://10.0.0.5:8786"
    )


def test_a_path_behind_the_port_is_refused() -> None:
    with pytest.raises(BuildError, match=r"no executor 'dask://host:8786/'"):
        Executor.parse("dask://host:8786/")


def run_python(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_what_runs_here_does_not_load_dask() -> None:
    program = "import sys, vbuild.release.matrix, vbuild.slimming.slim\n"
    program += "print({'distributed', 'dask', 'tornado'} & sys.modules.keys())"
    assert run_python(program) == "set()"


def test_that_dask_is_missing_is_said_with_what_to_install() -> None:
    program = """
import sys
sys.modules["distributed"] = None  # what Python takes for a package that is not there
from vbuild.workers.cluster import connected
from vbuild.workers.executor import Executor
from vbuild.errors import BuildError
try:
    with connected(Executor("127.0.0.1:1")):
        pass
except BuildError as error:
    print(error)
"""
    assert run_python(program) == ("dask://127.0.0.1:1: needs Dask; install it: pip install distributed")
