"""Libraries that pretend to be official, damaged official wheels, and servers that mean ill.

Each case is one seed, so that it can be run again.
"""

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from struct import Struct

import pytest

from tests.factories.damage import NEW_BYTES, in_time
from tests.factories.official_wheels import PATH, cufft, digest, name_of, official_wheel, officials_of, origin_of
from tests.factories.official_wheels import bundled_copy as bundled
from tests.factories.ranges import simple_index
from tests.factories.tools import needs
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Dynamic, Loading
from vbuild.errors import BinaryError, VbuildError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.official import OfficialEvidence, Officials, Provenance, Unproved

pytestmark = needs("gcc")

ROW = Struct("<QQ")
OFFICIAL = cufft(1)
BUNDLED = bundled(OFFICIAL)


def with_row(tag: int, value: int, *, over: int | None = None) -> bytes:
    """The bundled library with a row more in .dynamic, or another in place of that with the tag *over*."""
    rows = Dynamic.of(ElfImage.parse(BUNDLED)).rows
    place = next((row.offset for row in rows if row.tag == over), rows[-1].offset + ROW.size)
    return BUNDLED[:place] + ROW.pack(tag, value) + BUNDLED[place + ROW.size :]


def with_byte(section_name: str) -> bytes:
    """The bundled library with another byte in the middle of a section."""
    section = ElfImage.parse(BUNDLED).section(section_name)
    assert section
    place = section.span[len(section.span) // 2]
    return BUNDLED[:place] + bytes([BUNDLED[place] ^ 1]) + BUNDLED[place + 1 :]


def with_load(number: int) -> bytes:
    """The bundled library with the bytes behind its PT_LOAD of that number taken from elsewhere in the file."""
    image = ElfImage.parse(BUNDLED)
    loads = [place for place, one in enumerate(image.segments) if one.p_type == 1]
    place = image.header.e_phoff + 56 * loads[number] + 8
    start = int.from_bytes(BUNDLED[place : place + 8], "little") - 0x1000
    return BUNDLED[:place] + start.to_bytes(8, "little") + BUNDLED[place + 8 :]


PRETENDERS: Mapping[str, Callable[[], bytes]] = {
    "DT_AUDIT": lambda: with_row(0x6FFFFEFC, 1),
    "DT_DEPAUDIT": lambda: with_row(0x6FFFFEFB, 1),
    "DT_FILTER": lambda: with_row(0x7FFFFFFF, 1),
    "DT_NEEDED": lambda: with_row(1, 1),
    "DT_INIT elsewhere": lambda: with_row(12, 0x1234, over=12),
    "DT_INIT_ARRAY elsewhere": lambda: with_row(25, 0x3000, over=25),
    "DT_SYMTAB elsewhere": lambda: with_row(6, 0x200, over=6),
    "DT_GNU_HASH elsewhere": lambda: with_row(0x6FFFFEF5, 0x200, over=0x6FFFFEF5),
    "symbols": lambda: with_byte(".dynsym"),
    "names": lambda: with_byte(".dynstr"),
    "build-id": lambda: with_byte(".note.gnu.build-id"),
    "code": lambda: with_byte(".text"),
    "relocations": lambda: with_byte(".rela.dyn"),
    "the last byte of its data": lambda: with_byte(".data"),
    "code mapped from elsewhere": lambda: with_load(1),
    "data mapped from elsewhere": lambda: with_load(2),
}


def test_a_library_whose_names_are_elsewhere_is_not_read() -> None:
    with pytest.raises(BinaryError, match=r"string at 0x\w+ has no end in 0x\w+ bytes"):
        Loading.parse(with_row(5, 0x200, over=5))


@pytest.mark.nightly
def test_whatever_pretends_to_be_official_is_not_believed(tmp_path: Path) -> None:
    """The right name, with the first digits of the right hash; one thing is other than it was, also to the loader."""
    with officials_of(tmp_path, official_wheel(tmp_path)) as (officials, _):
        for what, make in PRETENDERS.items():
            found = origin_of(officials, name_of(OFFICIAL), make())
            assert isinstance(found, Unproved), what
        proved = origin_of(officials, name_of(OFFICIAL), BUNDLED)
        assert isinstance(proved, Provenance)
        assert proved.evidence is OfficialEvidence.SECTIONS


@pytest.mark.sampled(1)
@pytest.mark.parametrize("marker", ['os_name ~= "posix"', 'python_version > "zz"', 'platform_release >= "$"'])
def test_a_marker_that_cannot_be_evaluated_holds_nowhere(tmp_path: Path, marker: str) -> None:
    with officials_of(tmp_path, official_wheel(tmp_path, requires=[f"nvidia-x; {marker}"])) as (officials, _):
        found = origin_of(officials, name_of(OFFICIAL), BUNDLED)
        assert isinstance(found, Provenance)
        assert [one.project for one in officials.closure(found.wheel)] == [found.wheel.project]


@pytest.mark.nightly
def test_damaged_official_wheels_prove_what_is_true_or_nothing(tmp_path: Path) -> None:
    data = official_wheel(tmp_path).read_bytes()
    for seed in range(25):
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        copy = official_wheel(folder)
        whole = bytearray(data)
        for _ in range(dice.choice((1, 3))):
            at = dice.randrange(dice.choice((0, len(whole) - 900)), len(whole))
            whole[at : at + 1] = dice.choice(NEW_BYTES)
        copy.write_bytes(whole)
        with officials_of(folder, copy) as (officials, _), suppress(VbuildError), in_time():
            found = origin_of(officials, name_of(OFFICIAL), BUNDLED)
            if isinstance(found, Provenance):
                assert (found.library.path, found.library.sha256) == (PATH, digest(OFFICIAL))


_RANGE = re.compile(r"bytes=(?P<first>\d*)-(?P<last>\d*)")


class _Hostile(SimpleHTTPRequestHandler):
    """A server of files whose answers to ranges are of one *mood*."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *args: object, folder: Path, mood: str) -> None:
        self.mood = mood
        super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

    def handle(self) -> None:
        with suppress(OSError):  # who has seen enough hangs up
            super().handle()

    def do_GET(self) -> None:
        if not (match := _RANGE.fullmatch(self.headers.get("Range", ""))):
            super().do_GET()
        elif self.mood.startswith("to "):
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", self.path if self.mood == "to itself" else self.mood.removeprefix("to "))
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._part(Path(self.translate_path(self.path)).read_bytes(), match["first"], match["last"])

    def _part(self, whole: bytes, first: str, last: str) -> None:
        size = int(self.mood.partition(" ")[2]) if self.mood.startswith("claims ") else len(whole)
        start = int(first) if first else max(size - int(last), 0)
        stop = min(int(last) + 1, size) if first else size
        data = whole[max(start - size + len(whole), 0) :][: stop - start].rjust(stop - start, b"\0")
        if size > len(whole):
            data = endless(size, len(data))
        said = {"no size": f"bytes {start}-{stop - 1}/*", "digits": "bytes \N{SUPERSCRIPT TWO}-3/9"}.get(self.mood)
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Range", said or f"bytes {start}-{stop - 1}/{size}")
        if self.mood == "endless":
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        match self.mood:
            case "endless":
                for _ in range(10_000):
                    self.wfile.write(bytes(1 << 16))
            case "dripping":
                for place in range(len(data)):
                    self.wfile.write(data[place : place + 1])
                    time.sleep(0.05)
            case "short":
                self.wfile.write(data[:10])
                self.close_connection = True
            case _:
                self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        pass


def endless(size: int, tail: int) -> bytes:
    """The end of an archive of *size* bytes that are nearly all its directory."""
    record = size - 98
    end = Struct("<IQHHIIQQQQ").pack(0x06064B50, 44, 45, 45, 0, 0, 1, 1, record - 100, 100)
    end += Struct("<IIQI").pack(0x07064B50, 0, record, 1)
    end += Struct("<IHHHHIIH").pack(0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return end.rjust(tail, b"\0")


@contextmanager
def hostile(folder: Path, mood: str) -> Iterator[Officials]:
    """What is asked of a server in that *mood*, which has one official wheel."""
    simple_index(folder / "index", official_wheel(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Hostile, folder=folder / "index", mood=mood)) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        indexes = Indexes(index_url=f"http://127.0.0.1:{server.server_port}", timeout=3.0)
        yield Officials("x86_64", indexes=lambda: indexes, store=folder / "store")
        server.shutdown()


MOODS: Mapping[str, str] = {
    "to itself": "Exceeded maximum allowed redirects.",
    "to file:///etc/passwd": "redirected to 'file:///etc/passwd', expected http or https",
    "to FILE://localhost/etc/passwd": "redirected to 'FILE://localhost/etc/passwd', expected http or https",
    "to http://[::1": "Invalid URL in location header",
    "no size": "/*' for bytes=-131072",
    "digits": " for bytes=-131072",
    "endless": ": more than ",
    "short": "peer closed connection without sending complete message body",
    "dripping": "which is too slow",
}


@pytest.mark.nightly
@pytest.mark.parametrize("mood", MOODS)
def test_a_hostile_server_is_one_line(tmp_path: Path, mood: str) -> None:
    with hostile(tmp_path, mood) as officials, pytest.raises(VbuildError) as error, in_time():
        origin_of(officials, name_of(OFFICIAL), BUNDLED)
    assert MOODS[mood] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [10**9, 10**12, 10**18])
def test_a_server_that_claims_exabytes_is_asked_for_kilobytes(tmp_path: Path, size: int) -> None:
    with hostile(tmp_path, f"claims {size}") as officials, in_time():
        found = origin_of(officials, name_of(OFFICIAL), BUNDLED)
    assert isinstance(found, Unproved)
    assert found.transferred < 1_000_000
