"""Libraries beside a toolkit, as they are written."""

import pytest
from packaging.version import Version

from vbuild.errors import RecipeError
from vbuild.recipe.source import ToolkitLibrary

ONE, OTHER = "1" * 64, "a" * 64


@pytest.mark.parametrize(
    ("text", "library", "canonical"),
    [
        ("cublas", ToolkitLibrary("cublas"), "cublas"),
        ("NVIDIA_cuFFT", ToolkitLibrary("nvidia-cufft"), "nvidia-cufft"),
        (" nccl == 2.28.09 ", ToolkitLibrary("nccl", Version("2.28.9")), "nccl==2.28.9"),
        (
            f"nccl==2.28.9  sha256:{OTHER} sha256:{ONE}",
            ToolkitLibrary("nccl", Version("2.28.9"), frozenset({ONE, OTHER})),
            f"nccl==2.28.9 sha256:{ONE} sha256:{OTHER}",
        ),
    ],
    ids=["component", "package", "version", "hashes"],
)
def test_a_library_has_one_spelling(text: str, library: ToolkitLibrary, canonical: str) -> None:
    assert ToolkitLibrary.parse(text) == library == ToolkitLibrary.parse(canonical)
    assert str(library) == canonical


EXPECTED = "is not a library of CUDA; expected as in cublas, nccl==2.28.9, or nccl==2.28.9 sha256:…"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"'' {EXPECTED}"),
        ("nccl>=2", f"'nccl>=2' {EXPECTED}"),
        ("nccl==2.28.9 sha256:beef", f"'nccl==2.28.9 sha256:beef' {EXPECTED}"),
        (f"nccl sha256:{ONE}", f"'nccl sha256:{ONE}' {EXPECTED}"),
        ("nccl==two", "'nccl==two': 'two' is not a version (PEP 440)"),
    ],
    ids=["nothing", "a range", "half a hash", "a hash of any version", "no number"],
)
def test_what_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        ToolkitLibrary.parse(text)
    assert str(refused.value) == message
