"""Damaged and hostile wheels, libraries and indexes through all that `vbuild split` reads.

A refusal in one line and an empty folder, or wheels in which everything is a library that was there, or an edit that
was proved; never another exception, a hang or a flood of memory. Each case is one seed, so that it can be run again:
``tried(Random(seed), folder)``.
"""

import random
import re
import shutil
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from struct import Struct

import pytest

from tests.factories.elf import patchelfed, stripped
from tests.factories.extensions import library, module
from tests.factories.market import calls_fft
from tests.factories.officials import PATH, asked, cufft, digest, name_of, officials_of, published
from tests.factories.officials import repaired as bundled
from tests.factories.ranges import simple_index
from tests.factories.repaired import NAME, repaired
from tests.factories.tools import needs
from tests.factories.wheels import contents, dist_info_of, record_of, wheel, with_entries
from vbuild.binary.image import Image
from vbuild.binary.loading import Loading
from vbuild.errors import BinaryError, SplitError, SurgeryError, VbuildError, WheelError
from vbuild.fetching import ranged
from vbuild.fetching.indexes import Indexes
from vbuild.inspection import inspect, save_page
from vbuild.linkage.graph import Graph
from vbuild.provenance.official import Evidence, Officials, Provenance, Unproved
from vbuild.rope import Rope
from vbuild.split import split
from vbuild.splitting.fates import Kind
from vbuild.splitting.outcome import Split
from vbuild.splitting.request import Request
from vbuild.surgery.dynamic import Dynamic
from vbuild.surgery.relinking import Relink, relinked
from vbuild.wheel.archive import open_wheel

pytestmark = needs("gcc")

OTHER = NAME.replace("311", "312")
ALONE = Indexes(no_index=True)
FRUITLESS = 20  # seconds that nothing may take

FILES = repaired(
    {
        "demo/__init__.py": "from demo import _c\n",
        "demo/_c.so": module("libone.so.1"),
        "demo/_d.so": module("libtwo.so"),
    },
    {"libone.so.1": library("libone.so.1", ("libtwo.so",)), "libtwo.so": library("libtwo.so")},
)
COMPILED = {path: data for path, data in FILES.items() if isinstance(data, bytes)}
GIVES = library("libcufft.so.11", flags=("-lm",), script="CUFFT_11 { global: here; local: *; };", rpath_="$ORIGIN")
LIBRARIES = {
    **COMPILED,
    "gives versions": GIVES,
    "takes versions": calls_fft("libone.so.1", runpath="$ORIGIN/../demo.libs:/opt/lib"),
    "stripped": stripped(GIVES),
}
ORDERS = (
    Relink(renamed=(("libcufft.so.11", "libcufft-12345678.so.11"),)),
    Relink(rpath=("$ORIGIN/../nvidia/cufft/lib", "$ORIGIN/../demo_libs/lib")),
    Relink(rpath=()),
)
READ = {".dynamic", ".dynstr", ".dynsym", ".gnu.version", ".gnu.version_r", ".gnu.version_d", ".gnu.hash", ".shstrtab"}
NEW = (b"\0", b"\1", b"\x40", b"\xff", b"/", b":", b"@", b"$", b"\n", b"\x1b", b"\xff" * 7 + b"\x7f", b"\xff" * 8)
ROW = Struct("<QQ")
TAGS = (0, 1, 5, 6, 10, 12, 14, 15, 25, 29, 0x6FFFFEF5, 0x6FFFFEFC, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE, 0x7FFFFFFF)


def read_of(data: bytes) -> list[range]:
    """The file offsets of everything that is looked at."""
    image = Image.parse(data)
    header = image.header
    tables = [
        range(64),
        range(header.e_phoff, header.e_phoff + 56 * header.e_phnum),
        range(header.e_shoff, header.e_shoff + 64 * header.e_shnum),
    ]
    return tables + [section.span for section in image.sections if section.name in READ and section.span]


SPANS = {name: read_of(data) for name, data in LIBRARIES.items()}


def damaged(dice: random.Random, name: str) -> bytes:
    """The library *name* with something wrong: bytes, numbers, rows of .dynamic, its end."""
    data = bytearray(LIBRARIES[name])
    for _ in range(dice.choice((1, 1, 2, 3, 6))):
        at = dice.choice(dice.choice(SPANS[name]))
        match dice.randrange(8):
            case 0:
                rows = next(section for section in Image.parse(LIBRARIES[name]).sections if section.name == ".dynamic")
                at = dice.choice(rows.span[:: ROW.size])
                data[at : at + ROW.size] = ROW.pack(dice.choice(TAGS), dice.choice((0, 1, 0x300, (1 << 63) - 1)))
            case 1:
                number = dice.choice((0, 1, 8, dice.randrange(len(data) + 1), 1 << 31, 1 << 62))
                data[at // 8 * 8 : at // 8 * 8 + 8] = number.to_bytes(8, "little")
            case 2 if len(data) > len(LIBRARIES[name]) // 2:
                del data[dice.randrange(8, len(data)) :]
            case _:
                new = dice.choice(NEW)
                data[at : at + len(new)] = new
    return bytes(data)


@contextmanager
def in_time() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < FRUITLESS


def looked_at(dice: random.Random) -> None:
    """Parse a damaged library, and ask the graph of it among others everything."""
    with suppress(BinaryError), in_time():
        loading = Loading.parse(damaged(dice, dice.choice(sorted(LIBRARIES))))
        sound = {path: Loading.parse(data) for path, data in COMPILED.items()}
        graph = Graph.of({**sound, dice.choice([*sound, "demo/_e.so"]): loading})
        for path in graph.files:
            graph.chains(path)
        graph.unneeded(("libone.so",))


def edited(dice: random.Random, folder: Path) -> None:
    """Relink a damaged library."""
    data = damaged(dice, dice.choice(sorted(LIBRARIES)))
    with (
        suppress(SurgeryError),
        in_time(),
        relinked(Rope.whole(memoryview(data)), dice.choice(ORDERS), folder=folder) as view,
    ):
        assert len(view) < len(data) + (1 << 20)
    assert not list(folder.iterdir())


def test_damaged_libraries_are_read_or_refused() -> None:
    for seed in range(400):
        looked_at(random.Random(seed))


def test_damaged_libraries_are_edited_or_refused(tmp_path: Path) -> None:
    for seed in range(300):
        edited(random.Random(seed), tmp_path)


LINES = (
    'Requires-Dist: demo-libs; os_name ~= "posix"',
    "Requires-Dist: \1",
    "Requires-Dist: x @ file:///nowhere",
    "Name: ../../demo",
    "Version: 2",
    "License: a\n  b\n  Name: c",
    "License-File: ../../x",
    "Classifier: License :: \x1b[31m",
)


def released(dice: random.Random, folder: Path) -> list[Path]:
    """Two wheels of which one at least has something wrong: a library, METADATA, WHEEL, RECORD, the archive."""
    files, what = dict(FILES), dice.randrange(10)
    if what < 5:
        for name in dice.choices(sorted(COMPILED), k=dice.choice((1, 1, 2))):
            files[name] = damaged(dice, name)
    lines = "".join(f"{line}\n" for line in dice.sample(LINES, 2)) if what == 5 else ""
    both = dice.random() < 0.6
    paths = [
        wheel(folder, name, {**(files if both or name == NAME else FILES), "demo/tag.txt": name}, metadata=lines)
        for name in (NAME, OTHER)
    ]
    if what in {6, 7}:
        rewritten(dice, dice.choice(paths))
    elif what > 7:
        path = dice.choice(paths)
        whole = bytearray(path.read_bytes())
        for _ in range(dice.choice((1, 2, 4))):
            at = dice.randrange(dice.choice((0, len(whole) - 900)), len(whole))
            whole[at : at + 1] = dice.choice(NEW)
        path.write_bytes(whole[: dice.choice((len(whole), len(whole), dice.randrange(len(whole))))])
    return paths


def rewritten(dice: random.Random, path: Path) -> None:
    """Put odd bytes into a file of the .dist-info folder of the wheel at *path*, with a RECORD that fits or not."""
    files, folder = contents(path), dist_info_of(path.name)
    file = f"{folder}/{dice.choice(('RECORD', 'WHEEL', 'METADATA'))}"
    text = bytearray(files[file])
    for _ in range(dice.choice((1, 2, 4))):
        at = dice.randrange(len(text))
        text[at : at + dice.choice((0, 1, 5))] = dice.choice((*NEW, b",", b"\r", b'"', b"sha256=", b"\n\n", b"A"))
    files[file] = bytes(text)
    if not file.endswith("RECORD") and dice.random() < 0.8:
        del files[f"{folder}/RECORD"]
        files[f"{folder}/RECORD"] = record_of(files, folder).encode()
    with_entries(path, files)


def tried(dice: random.Random, folder: Path) -> None:
    """Split two wheels, one of them damaged: nothing at all, or what can be accounted for."""
    paths, thin = released(dice, folder), folder / "thin"
    yes = partial(dice.choices, (True, False))
    drop, rpath, preload = (yes((chance, 1 - chance))[0] for chance in (0.3, 0.3, 0.2))
    request = Request(smallest=0, replace=False, drop_unneeded=drop, rpath=rpath, preload=preload)
    said = ""
    with in_time():
        if dice.random() < 0.2:
            with suppress(VbuildError):
                inspect(paths[0], closure=True).data()
        try:
            result = split(paths, thin, request=request, indexes=lambda: ALONE)
        except VbuildError as error:
            said = str(error)
    assert "\n" not in said
    if said:
        assert not (thin.exists() and list(thin.iterdir()))
        assert sorted(folder.glob("*.whl")) == sorted(paths)
        return
    assert sorted(thin.iterdir()) == sorted(result.paths)
    libraries: dict[str, bytes] = {}
    for path in result.made_beside:
        with open_wheel(path, check=True):
            libraries |= {name.rpartition("/")[2]: data for name, data in contents(path).items()}
    for account in result.wheels:
        try:
            before = contents(account.wheel)
        except (zipfile.BadZipFile, zlib.error, EOFError):
            continue  # what nobody edits is passed on as it is
        after = contents(account.path) if account.path else {}
        changed = {one.path for one in account.edited} | {"demo/__init__.py" if preload else ""}
        for name, data in before.items():
            if name.endswith(("/RECORD", "/METADATA")):
                continue
            if name in after:
                assert after[name] == data or name in changed
            else:
                (move,) = [one for one in result.libraries if one.path == name and account.wheel.name in one.wheels]
                assert move.kind in {Kind.SHARE, Kind.DROP}
                assert move.kind is Kind.DROP or alike(libraries[Path(name).name], data)


def alike(after: bytes, before: bytes) -> bool:
    """Whether the sections of code and data are the same."""
    if after == before:
        return True
    first, second = Image.parse(after), Image.parse(before)
    pairs = [(first.section(name), second.section(name)) for name in (".text", ".data", ".gnu.version", ".gnu.hash")]
    return all(
        one is not None and other is not None and first.view(one.span) == second.view(other.span)
        for one, other in pairs
        if one or other
    )


def test_damaged_wheels_are_split_or_refused(tmp_path: Path) -> None:
    for seed in range(200):
        folder = tmp_path / str(seed)
        folder.mkdir()
        tried(random.Random(seed), folder)
        shutil.rmtree(folder)


def thinned(folder: Path, files: Mapping[str, bytes | str], **asked_for: object) -> Split:
    paths = [wheel(folder, name, {**files, "demo/tag.txt": name}) for name in (NAME, OTHER)]
    request = Request(**{"smallest": 0, "replace": False, **asked_for})  # type: ignore[arg-type]
    with in_time():
        return split(paths, folder / "thin", request=request, indexes=lambda: ALONE)


ODD = ("lib\nx.so", "lib\x1b]0;x\7.so", "lib:x.so", "$ORIGIN/libx.so", "../../libx.so", "/etc/libx.so", "l" * 4000)


@pytest.mark.parametrize("name", ODD, ids=["line", "escape", "colon", "origin", "above", "absolute", "long"])
def test_names_that_are_no_file_names_move_nothing(tmp_path: Path, name: str) -> None:
    """What is needed or called so stays where it is; the rest goes its way."""
    needing = {**FILES, "demo/_c.so": patchelfed(COMPILED["demo/_c.so"], "--add-needed", name)}
    result = thinned(tmp_path / "needing", needing, rpath=True, preload=True)
    assert {move.kind for move in result.libraries} == {Kind.SHARE}
    (path,) = (path for path in FILES if "libone" in path)
    module_ = patchelfed(COMPILED["demo/_c.so"], "--replace-needed", Path(path).name, name)
    called = {**FILES, path: patchelfed(COMPILED[path], "--set-soname", name), "demo/_c.so": module_}
    result = thinned(tmp_path / "called", called)
    assert {move.kind for move in result.libraries if move.path == path} == {Kind.KEEP}


@pytest.mark.parametrize("new", [b"\xff\xfe", b"\n\x1b", b"::"], ids=["not UTF-8", "escape", "colons"])
def test_names_in_no_encoding_are_kept_as_they_are(tmp_path: Path, new: bytes) -> None:
    (path,) = (path for path in FILES if "libone" in path)
    old = Path(path).name.encode()
    files = {name: data.replace(old, b"li" + new + old[4:]) for name, data in COMPILED.items()}
    result = thinned(tmp_path, {**FILES, **files})
    assert all(move.kind is not Kind.SHARE for move in result.libraries if move.path == path)


def test_code_with_megabytes_in_one_word_takes_no_time(tmp_path: Path) -> None:
    """Digits in a string, as generated code has them, and names that never end."""
    code = ("deadbeef" * 200_000, "lib-" * 250_000, "a." * 250_000, "lib" + ".a" * 250_000)
    files = {f"demo/code{number}.py": f'DATA = "{text}"\n' for number, text in enumerate(code)}
    assert {move.kind for move in thinned(tmp_path, {**FILES, **files}).libraries} == {Kind.SHARE}
    idle = {"demo.libs/libidle.so": library("libidle.so")}
    with in_time():
        inspect(wheel(tmp_path, NAME, {**FILES, **files, **idle}), closure=True).data()


def test_more_python_code_than_anybody_writes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WheelError) as error:
        thinned(tmp_path, {**FILES, "demo/bomb.py": b"#" * 70_000_000})
    said = "demo/bomb.py: 70000000 bytes of Python code, expected 67108864 at most"
    assert str(error.value) == f"{NAME}: {said}"


def test_a_record_that_gives_one_library_the_hash_of_another_is_found_out(tmp_path: Path) -> None:
    """Each content is looked at once for all wheels: the second wheel's lie must not pass for that."""
    (path,) = (path for path in FILES if "libtwo" in path)
    sound = wheel(tmp_path, NAME, FILES)
    true = contents(wheel(tmp_path, OTHER, FILES))[f"{dist_info_of(OTHER)}/RECORD"].decode()
    lying = wheel(tmp_path, OTHER, {**FILES, path: COMPILED[path].replace(b"GCC", b"gcc")}, record=true)
    with pytest.raises(WheelError) as error:
        split([sound, lying], tmp_path / "thin", request=Request(smallest=0, replace=False), indexes=lambda: ALONE)
    assert str(error.value) == f"{OTHER}: {path}: does not match its hash in RECORD"


def test_a_dependency_wheel_never_has_the_place_or_the_name_of_what_requires_it(tmp_path: Path) -> None:
    """Installers remove the files of the old wheel after they have installed those that the new one requires."""
    (path,) = (path for path in FILES if "libtwo" in path)
    place = f"demo_libs/lib/{Path(path).name}"
    with pytest.raises(SplitError) as error:
        thinned(tmp_path / "place", {**FILES, place: b"other"})
    how = "say with --libs what else their wheel is to be called"
    assert str(error.value) == f"{NAME}: {place} is where its shared libraries would be; {how}"
    names = [name.replace("demo", "demo_libs") for name in (NAME, OTHER)]
    paths = [wheel(tmp_path / "name", name, FILES) for name in names]
    request = Request(smallest=0, replace=False, libs="demo")
    with pytest.raises(SplitError) as error:
        split(paths, tmp_path / "thin", request=request, indexes=lambda: ALONE)
    assert str(error.value) == f"{names[0]}: its shared libraries would be a wheel of its own name; {how}"
    assert not (tmp_path / "thin").exists()


def test_a_circle_of_a_thousand_libraries_is_followed_in_seconds() -> None:
    """Each by the DT_RPATH of whoever loads it, which is the most that can be asked of the graph."""
    one = Loading.parse(COMPILED["demo/_d.so"])

    def needing(name: str, *rpath: str) -> Loading:
        return replace(one, modules=(), outline=replace(one.outline, soname=None, needed=(name,), rpath=rpath))

    files = {f"demo.libs/lib{number}.so": needing(f"lib{(number + 1) % 1000}.so") for number in range(1000)}
    files["demo/_c.so"] = needing("lib0.so", "$ORIGIN/../demo.libs")
    with in_time():
        graph = Graph.of(files)
        assert all(edge.provider for edge in graph.edges)
        assert len(graph.chains("demo.libs/lib999.so")[0]) == 1001
        assert graph.unneeded(()) == ("demo/_c.so",)


def test_a_hundred_libraries_that_mention_each_other_can_be_drawn(tmp_path: Path) -> None:
    names = [f"lib{number:03}.so" for number in range(100)]
    model = library("lib000.so", ("libyyy.so",), rpath_="$ORIGIN")
    pairs = zip(names, [*names[1:], names[0]], strict=True)
    files = {
        f"demo.libs/{name}": model.replace(b"lib000", name[:6].encode()).replace(b"libyyy", needed[:6].encode())
        for name, needed in pairs
    }
    found = inspect(wheel(tmp_path, NAME, files), closure=True)
    with in_time():
        save_page(found, tmp_path / "page.html")
        assert len(found.data()["closure"]["chains"]) == 100


OFFICIAL = cufft(1)
BUNDLED = bundled(OFFICIAL)


def with_row(tag: int, value: int, *, over: int | None = None) -> bytes:
    """The bundled library with a row more in .dynamic, or another in place of that with the tag *over*."""
    rows = Dynamic.of(Image.parse(BUNDLED)).rows
    place = next((row.offset for row in rows if row.tag == over), rows[-1].offset + ROW.size)
    return BUNDLED[:place] + ROW.pack(tag, value) + BUNDLED[place + ROW.size :]


def with_byte(section_name: str) -> bytes:
    """The bundled library with another byte in the middle of a section."""
    section = Image.parse(BUNDLED).section(section_name)
    assert section
    place = section.span[len(section.span) // 2]
    return BUNDLED[:place] + bytes([BUNDLED[place] ^ 1]) + BUNDLED[place + 1 :]


def with_load(number: int) -> bytes:
    """The bundled library with the bytes behind its PT_LOAD of that number taken from elsewhere in the file."""
    image = Image.parse(BUNDLED)
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
    "DT_STRTAB elsewhere": lambda: with_row(5, 0x200, over=5),
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


def test_whatever_pretends_to_be_official_is_not_believed(tmp_path: Path) -> None:
    """The right name, with the first digits of the right hash; one thing is other than it was, also to the loader."""
    with officials_of(tmp_path, published(tmp_path)) as (officials, _):
        for what, make in PRETENDERS.items():
            for fetch in (False, True):
                found = asked(officials, name_of(OFFICIAL), make(), fetch=fetch)
                assert isinstance(found, Unproved), what
        proved = asked(officials, name_of(OFFICIAL), BUNDLED)
        assert isinstance(proved, Provenance)
        assert proved.evidence is Evidence.RESTORED


@pytest.mark.parametrize("marker", ['os_name ~= "posix"', 'python_version > "zz"', 'platform_release >= "$"'])
def test_a_marker_that_cannot_be_evaluated_holds_nowhere(tmp_path: Path, marker: str) -> None:
    with officials_of(tmp_path, published(tmp_path, requires=[f"nvidia-x; {marker}"])) as (officials, _):
        found = asked(officials, name_of(OFFICIAL), BUNDLED)
        assert isinstance(found, Provenance)
        assert [one.project for one in officials.closure(found.wheel)] == [found.wheel.project]


def test_damaged_official_wheels_prove_what_is_true_or_nothing(tmp_path: Path) -> None:
    data = published(tmp_path).read_bytes()
    for seed in range(25):
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        copy = published(folder)
        whole = bytearray(data)
        for _ in range(dice.choice((1, 3))):
            at = dice.randrange(dice.choice((0, len(whole) - 900)), len(whole))
            whole[at : at + 1] = dice.choice(NEW)
        copy.write_bytes(whole)
        with officials_of(folder, copy) as (officials, _), suppress(VbuildError), in_time():
            found = asked(officials, name_of(OFFICIAL), BUNDLED, fetch=dice.random() < 0.5)
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
    simple_index(folder / "index", published(folder))
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


@pytest.mark.parametrize("mood", MOODS)
def test_a_hostile_server_is_one_line(tmp_path: Path, mood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "_PATIENCE", 1)
    with hostile(tmp_path, mood) as officials, pytest.raises(VbuildError) as error, in_time():
        asked(officials, name_of(OFFICIAL), BUNDLED)
    assert MOODS[mood] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [10**9, 10**12, 10**18])
def test_a_server_that_claims_exabytes_is_asked_for_kilobytes(tmp_path: Path, size: int) -> None:
    with hostile(tmp_path, f"claims {size}") as officials, in_time():
        found = asked(officials, name_of(OFFICIAL), BUNDLED)
    assert isinstance(found, Unproved)
    assert found.transferred < 1_000_000
