"""Libraries that published wheels bundle, and the official wheels they are from: only the library is fetched."""

import hashlib
import time
from pathlib import Path

import pytest

from tests.factories.published_wheels import Published, PublishedWheels
from vbuild.elf.catalogue import by_stem
from vbuild.elf.read import Loading
from vbuild.splitting.official import OfficialEvidence, Officials, Provenance
from vbuild.wheel.archive import open_wheel

pytestmark = pytest.mark.network

MUMAX = Published("mumaxplus==1.2.2", python="312", platforms=("manylinux_2_34",))
TORCHCODEC = Published("torchcodec==0.17.0", python="312")


@pytest.fixture(scope="module")
def published_wheels(tmp_path_factory: pytest.TempPathFactory) -> PublishedWheels:
    return PublishedWheels(tmp_path_factory)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("published", "stem", "expected"),
    [
        pytest.param(TORCHCODEC, "libnvjpeg", ("nvidia-nvjpeg", "13.0.1.86")),
        pytest.param(MUMAX, "libcufft", ("nvidia-cufft-cu12", "11.2.1.3"), marks=pytest.mark.slow),
        pytest.param(MUMAX, "libcurand", ("nvidia-curand-cu12", "10.3.5.147"), marks=pytest.mark.slow),
    ],
)
def test_a_bundled_library_is_proved_to_be_the_official_one(
    published_wheels: PublishedWheels, tmp_path: Path, published: Published, stem: str, expected: tuple[str, ...]
) -> None:
    officials = Officials("x86_64", store=tmp_path)
    with open_wheel(published_wheels.wheel(published)) as wheel:
        member = next(member for member in wheel.members if f".libs/{stem}-" in member.path)
        with wheel.mapped(member) as data:
            name, loading, sha256 = Path(member.path).name, Loading.parse(data), hashlib.sha256(data).hexdigest()
            begin = time.perf_counter()
            found = officials.provenance(name, loading, data, sha256=sha256, entries=by_stem(name))
            seconds = time.perf_counter() - begin
    assert isinstance(found, Provenance)
    print(f"{name}: {found.wheel.file}: {seconds:.2f} s, {found.transferred / 1e6:.2f} MB")
    assert found.evidence is OfficialEvidence.SECTIONS
    assert found.transferred < found.library.size + 2_000_000
    assert (found.wheel.project, found.wheel.version) == expected
