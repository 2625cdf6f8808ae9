"""Which toolkit a build gets."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.toolkits import installed, places
from vbuild.errors import FetchError, ToolkitError
from vbuild.hardware.driver import Dotted
from vbuild.recipe.cuda import ToolkitSpec
from vbuild.toolkit.provision import packaged, provided


def test_a_toolkit_that_no_index_has_is_named_with_the_places(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FetchError, match=r"^nvidia-cuda-cccl==13\.0\.85: no nvidia_cuda_cccl-.*\.whl on file://"):
        packaged(ToolkitSpec(Dotted(13, 0)), store=tmp_path / "store", indexes=places(tmp_path / "empty"))


def test_an_installed_toolkit_without_a_library_gives_way_to_the_index(tmp_path: Path) -> None:
    home = {"CUDA_HOME": str(installed(tmp_path / "cuda", 12080))}
    assert provided(ToolkitSpec(Dotted(12, 8)), environment=home).root == tmp_path / "cuda"
    with pytest.raises(ToolkitError) as refused:
        provided(ToolkitSpec(Dotted(12, 8), libraries=("cublas", "cufft")), environment=home)
    message = str(refused.value)
    assert message.startswith("CUDA 12.8: the package index has no nvcc for CUDA before 13.0, only 13.0 to 13.5; ")
    assert f"; there is CUDA 12.8 in {tmp_path}/cuda without cublas, cufft" in message
    with pytest.raises(ToolkitError, match=f"; there is CUDA 12.8 in {tmp_path}/cuda(;|$)"):
        provided(ToolkitSpec(Dotted(12, 9)), environment=home)


def test_another_machine_has_no_toolkit(tmp_path: Path) -> None:
    """A process may ask to be told that it runs on i686 (personality(2), PER_LINUX32)."""
    program = (
        "import ctypes, sys\n"
        "ctypes.CDLL(None).personality(8)\n"
        "from vbuild.errors import ToolkitError\n"
        "from vbuild.provision import install\n"
        "from pathlib import Path\n"
        f"try: install('13.0', store=Path({str(tmp_path)!r}))\n"
        "except ToolkitError as error: sys.exit(str(error))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if "i686" not in ran.stderr:
        pytest.skip("a system without that personality")
    expected = "CUDA 13.0: the package index has toolkits for Linux on aarch64 and x86_64, not for Linux on i686\n"
    assert ran.stderr == expected
