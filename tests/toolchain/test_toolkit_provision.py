"""Which toolkit a build gets."""

from pathlib import Path

import pytest

from tests.factories.toolkits import MACHINE, installed, places
from vbuild.errors import BuildError, FetchError
from vbuild.hardware.driver import Dotted
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.toolchain.toolkit import ToolkitPin
from vbuild.toolchain.toolkit_cache import ToolkitCache
from vbuild.toolchain.toolkit_provision import foreseen_toolkit, packaged_toolkit, provided_toolkit


def test_a_toolkit_that_no_index_has_is_named_with_the_places(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FetchError, match=r"^nvidia-cuda-(\w+)==13\.0\.\d+: no nvidia_cuda_\1-.*\.whl on file:"):
        packaged_toolkit(ToolkitSpec(Dotted(13, 0)), store=tmp_path / "store", indexes=places(tmp_path / "empty"))


def test_an_installed_toolkit_without_a_library_gives_way_to_the_index(tmp_path: Path) -> None:
    home = {"CUDA_HOME": str(installed(tmp_path / "cuda", 12080))}
    assert provided_toolkit(ToolkitSpec(Dotted(12, 8)), environment=home).root == tmp_path / "cuda"
    with pytest.raises(BuildError) as refused:
        provided_toolkit(ToolkitSpec(Dotted(12, 8), libraries=("cublas", "cufft")), environment=home)
    message = str(refused.value)
    assert message.startswith("CUDA 12.8: the package index has no nvcc for CUDA before 13.0, only 13.0 to 13.5; ")
    assert f"; there is CUDA 12.8 in {tmp_path}/cuda without cublas, cufft" in message
    with pytest.raises(BuildError, match=f"; there is CUDA 12.8 in {tmp_path}/cuda(;|$)"):
        provided_toolkit(ToolkitSpec(Dotted(12, 9)), environment=home)


@pytest.mark.parametrize(
    "spec",
    [
        ToolkitSpec(Dotted(7, 5)),
        ToolkitSpec(Dotted(99, 0)),
        ToolkitSpec(Dotted(13, 5), libraries=("nosuch",)),
        ToolkitSpec(Dotted(13, 5), libraries=("nccl==2.28.9", "nosuch")),
        ToolkitSpec(Dotted(13, 5), Path("/nowhere")),
    ],
    ids=["too old", "unknown", "no library", "no second library", "no folder"],
)
def test_what_is_refused_is_foreseen(spec: ToolkitSpec, tmp_path: Path) -> None:
    nccl = ToolkitPin("nvidia-nccl-cu13", "2.28.9", "nccl.whl", "0" * 64)
    ToolkitCache.at(tmp_path).remembered(f"nvidia-nccl-cu13-2.28.9-{MACHINE}", lambda: nccl)
    with pytest.raises(BuildError) as refused:
        provided_toolkit(spec, store=tmp_path, indexes=Indexes(no_index=True), environment={})
    with pytest.raises(BuildError) as foreseen_too:
        foreseen_toolkit(spec, store=tmp_path, environment={})
    assert str(refused.value) == str(foreseen_too.value)


def test_a_toolkit_that_is_not_kept_is_foreseen_and_nothing_is_fetched(tmp_path: Path) -> None:
    spec = ToolkitSpec(Dotted(13, 5), libraries=("nccl==2.28.9", f"cudnn==9.14.0.64 sha256:{'0' * 64}"))
    found = foreseen_toolkit(spec, store=tmp_path / "store", environment={})
    assert (found.version, found.root, found.identity) == (spec.version, Path("CUDA-13.5"), "")
    assert not (tmp_path / "store").exists()
