"""Which official library a bundled one is: proved by what the loader maps of both, or left as it was."""

import random
import struct
import zipfile
from pathlib import Path

import pytest

from tests.factories.elf import patchelfed
from tests.factories.official_wheels import (
    FFT,
    LINUX,
    PATH,
    bundled_copy,
    cufft,
    digest,
    entries_of,
    name_of,
    official_wheel,
    officials_of,
    origin_of,
)
from tests.factories.tools import needs
from tests.factories.wheels import everything, poked, record_of, wheel
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Loading
from vbuild.elf.records import ElfMachine
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.official import OfficialEvidence, Officials, Provenance, Unproved

pytestmark = needs("gcc")


def test_a_library_that_nobody_edited_is_identical(tmp_path: Path) -> None:
    wheels = [
        official_wheel(tmp_path / "made", version=f"11.{number}", files={PATH: cufft(number)}) for number in (1, 2)
    ]
    with officials_of(tmp_path, *wheels) as (officials, _):
        found = origin_of(officials, "libcufft.so.11", cufft(1))
        assert isinstance(found, Provenance)
        assert (found.evidence, found.wheel.version) == (OfficialEvidence.IDENTICAL, "11.1")
        assert found.library.path == PATH
        assert found.transferred > 0


def test_a_bundled_library_is_proved_by_what_is_loaded(tmp_path: Path) -> None:
    wheels = [
        official_wheel(tmp_path / "made", version=f"11.{number}", files={PATH: cufft(number)}) for number in (1, 2)
    ]
    with officials_of(tmp_path, *wheels) as (officials, _):
        found = origin_of(officials, name_of(cufft(1)), bundled_copy(cufft(1)))
        assert isinstance(found, Provenance)
        assert (found.evidence, found.wheel.version) == (OfficialEvidence.SECTIONS, "11.1")
        assert found.library.sha256 == digest(cufft(1))


def test_the_version_in_the_file_name_is_looked_at_first(tmp_path: Path) -> None:
    versions = ["11.0.1", "11.2.1.3", "11.2.1.4", "11.3.0"]
    wheels = [official_wheel(tmp_path / "made", version=version) for version in versions]
    with officials_of(tmp_path, *wheels) as (officials, server):
        found = origin_of(officials, name_of(cufft(1)), bundled_copy(cufft(1)))
        assert isinstance(found, Provenance)
        assert found.wheel.version == "11.2.1.3"
        assert server.files() == [wheels[1].name]
        # without a version in the name the newest one counts
        found = origin_of(officials, name_of(cufft(1), "11"), bundled_copy(cufft(1)))
        assert isinstance(found, Provenance)
        assert found.wheel.version == "11.3.0"


def test_the_packages_of_several_cuda_versions_are_looked_through(tmp_path: Path) -> None:
    wheels = [
        official_wheel(tmp_path / "made", "nvidia-cufft-cu11", "10.9.0", {PATH: cufft(2)}),
        official_wheel(tmp_path / "made"),
    ]
    with officials_of(tmp_path, *wheels) as (officials, _):
        found = origin_of(officials, name_of(cufft(1), "10"), bundled_copy(cufft(1)), "nvidia-cufft-cu11", FFT)
        assert isinstance(found, Provenance)
        assert found.wheel.project == FFT


def test_of_a_large_wheel_one_library_is_transferred_once(tmp_path: Path) -> None:
    noise = random.Random(2).randbytes(1 << 22)
    data = cufft(1)
    made = official_wheel(tmp_path / "made", files={PATH: data, "nvidia/cufft/lib/libcufftw.so.11": noise})
    with officials_of(tmp_path, made) as (officials, server):
        found = origin_of(officials, name_of(data), bundled_copy(data))
        assert isinstance(found, Provenance)
        assert found.evidence is OfficialEvidence.SECTIONS
        assert found.transferred < 600_000
        assert len(server.ranges) < 6
        asked = len(server.asked)
        again = origin_of(officials, name_of(data), bundled_copy(data))
        assert isinstance(again, Provenance)
        assert (again.transferred, len(server.asked)) == (0, asked)
        (kept,) = (tmp_path / "store").glob("*.so")
        kept.write_bytes(b"torn")
        torn = origin_of(officials, name_of(data), bundled_copy(data))
        assert isinstance(torn, Provenance)
        assert kept.read_bytes() == data


def test_where_nothing_can_be_kept_it_is_fetched_each_time(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no folder")
    with officials_of(tmp_path, official_wheel(tmp_path / "made")) as (officials, _):
        for _ in range(2):
            found = origin_of(officials, name_of(cufft(1)), bundled_copy(cufft(1)))
            assert isinstance(found, Provenance)
            assert found.transferred > 0


def test_what_no_release_has_stays_as_it_is(tmp_path: Path) -> None:
    with officials_of(tmp_path, official_wheel(tmp_path / "made")) as (officials, _):
        other = bundled_copy(cufft(2))
        found = origin_of(officials, name_of(cufft(2)), other, FFT, "nvidia-cufft-cu11")
        assert isinstance(found, Unproved)
        assert found.reason == (
            f"no release of {FFT}, nvidia-cufft-cu11 for x86_64 has a library whose SHA-256 begins with "
            f"{digest(cufft(2))[:8]}"
        )
        assert found.transferred > 0
        found = origin_of(officials, "libcufft.so.11", cufft(2))
        assert isinstance(found, Unproved)
        assert found.reason == f"no release of {FFT} for x86_64 has just these bytes"
        found = officials.provenance(
            "libcufft.so", Loading.parse(other), memoryview(other), sha256=digest(other), entries=()
        )
        assert found == Unproved("no official package has a library of its name", 0)


def test_a_library_for_another_machine_is_not_looked_for(tmp_path: Path) -> None:
    arm = bytearray(cufft(1))
    arm[18:20] = struct.pack("<H", ElfMachine.AARCH64)
    with officials_of(tmp_path, official_wheel(tmp_path / "made")) as (officials, server):
        found = origin_of(officials, name_of(cufft(1)), bytes(arm))
        assert found == Unproved("it is for aarch64, and not for x86_64", 0)
        assert server.asked == []


def test_another_library_under_the_same_hash_is_never_believed(tmp_path: Path) -> None:
    """The first 32 bits of a SHA-256 say little: here the file name says those of a library that it is not."""
    other = patchelfed(cufft(2), "--set-soname", name_of(cufft(1)), "--remove-rpath")
    has = f"{FFT} 11.2.1.3 has a libcufft.so.11 whose SHA-256 begins with {digest(cufft(1))[:8]}, but "
    with officials_of(tmp_path, official_wheel(tmp_path / "made")) as (officials, _):
        found = origin_of(officials, name_of(cufft(1)), other)
        assert isinstance(found, Unproved)
        assert found.reason.startswith(f"{has}its section ")
        assert found.reason.endswith(" is another: it is another library")


def test_a_library_whose_symbols_were_renamed_is_another(tmp_path: Path) -> None:
    data = cufft(1)
    (tmp_path / "names").write_text("fft fast_fourier")
    renamed = patchelfed(bundled_copy(data), "--rename-dynamic-symbols", str(tmp_path / "names"))
    with officials_of(tmp_path, official_wheel(tmp_path / "made")) as (officials, _):
        found = origin_of(officials, name_of(data), renamed)
        assert isinstance(found, Unproved)
        assert found.reason.endswith("but its section .gnu.hash is another: it is another library")


def test_a_library_that_cannot_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    data = cufft(1)
    broken = bytearray(bundled_copy(data))
    broken[4] = 1  # a 32-bit file, it says
    with officials_of(tmp_path, official_wheel(tmp_path / "made")) as (officials, _):
        found = officials.provenance(
            name_of(data),
            Loading.parse(data),
            memoryview(broken),
            sha256=digest(bytes(broken)),
            entries=entries_of(FFT),
        )
        assert isinstance(found, Unproved)
        assert found.reason == (
            f"{FFT} 11.2.1.3 has a libcufft.so.11 whose SHA-256 begins with {digest(data)[:8]}, but it cannot be "
            "compared: ELF of class 0x1, byte order 0x1: expected 0x2 and 0x1 (64-bit little-endian)"
        )


def test_a_damaged_release_is_passed_over(tmp_path: Path) -> None:
    damaged = official_wheel(tmp_path / "made", version="11.9")
    damaged.write_bytes(b"no zip")
    with officials_of(tmp_path, damaged, official_wheel(tmp_path / "made")) as (officials, _):
        found = origin_of(officials, name_of(cufft(1), "11"), bundled_copy(cufft(1)))
        assert isinstance(found, Provenance)
        assert found.wheel.version == "11.2.1.3"


def test_an_official_library_that_cannot_be_inflated_proves_nothing(tmp_path: Path) -> None:
    made = official_wheel(tmp_path / "made")
    with zipfile.ZipFile(made) as archive:
        start = archive.getinfo(PATH).header_offset + 30 + len(PATH)
    poked(made, start, b"\xff" * 64)
    with officials_of(tmp_path, made) as (officials, _):
        found = origin_of(officials, name_of(cufft(1)), bundled_copy(cufft(1)))
        assert isinstance(found, Unproved)
        assert "but it cannot be compared: nvidia_cufft_cu12-11.2.1.3-" in found.reason


def test_an_official_wheel_that_is_not_what_its_record_says_proves_nothing(tmp_path: Path) -> None:
    name = f"nvidia_cufft_cu12-11.2.1.3-py3-none-{LINUX}.whl"
    files = everything(name, {PATH: cufft(2)})
    record = record_of({**files, PATH: cufft(1)}, "nvidia_cufft_cu12-11.2.1.3.dist-info")
    made = wheel(tmp_path / "made", name, files, record=record)
    with officials_of(tmp_path, made) as (officials, _):
        found = origin_of(officials, name_of(cufft(1)), bundled_copy(cufft(1)))
        assert isinstance(found, Unproved)
        assert found.reason.endswith(f"{name}: damaged: {PATH} is not what its RECORD says")
        assert not list((tmp_path / "store").glob("*.so"))


def test_wheels_in_a_folder_will_do(tmp_path: Path) -> None:
    official_wheel(tmp_path / "made")
    (tmp_path / "made" / "nvidia_cufft_cu12-not-a-wheel.whl").write_bytes(b"")
    places = Indexes(no_index=True, find_links=((tmp_path / "made").as_uri(),))
    officials = Officials("x86_64", indexes=lambda: places, store=tmp_path / "store")
    found = origin_of(officials, name_of(cufft(1)), bundled_copy(cufft(1)))
    assert isinstance(found, Provenance)
    assert (found.evidence, found.transferred) == (OfficialEvidence.SECTIONS, 0)


@pytest.mark.nightly
def test_flipped_bits_in_a_bundled_library_never_prove_anything(tmp_path: Path) -> None:
    official = cufft(1)
    sound, places = bundled_copy(official), random.Random(17)
    header = Loading.parse(sound)
    loaded = [
        section.span for section in ElfImage.parse(sound).sections if section.is_loaded and section.name[:4] != ".dyn"
    ]
    with officials_of(tmp_path, official_wheel(tmp_path / "made")) as (officials, _):
        for _ in range(60):
            damaged, place = bytearray(sound), places.choice((places.randrange(8192), places.randrange(len(official))))
            damaged[place] ^= 1 << places.randrange(8)
            found = officials.provenance(
                name_of(official),
                header,
                memoryview(damaged),
                sha256=digest(bytes(damaged)),
                entries=entries_of(FFT),
            )
            # headers, and what lies where patchelf moved something away from, are of no matter
            if any(place in span for span in loaded):
                assert isinstance(found, Unproved)
