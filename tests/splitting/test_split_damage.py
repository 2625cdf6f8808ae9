"""Damaged and hostile wheels and libraries through all that `vbuild split` reads.

A refusal in one line and an empty folder, or wheels in which everything is a library that was there, or an edit that
was proved; never another exception, a hang or a flood of memory. Each case is one seed, so that it can be run again:
``tried(Random(seed), folder)``.
"""

import random
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct

import pytest
from msgspec import structs

from tests.factories.cuda_packages import calling_libcufft
from tests.factories.damage import NEW_BYTES, in_time
from tests.factories.elf import patchelfed, stripped
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import NAME, repaired
from tests.factories.tools import needs
from tests.factories.wheels import contents, dist_info_of, record_of, wheel, with_entries
from vbuild.elf.image import ElfImage
from vbuild.elf.linkage import link_graph
from vbuild.elf.read import Loading
from vbuild.errors import RepackageError, VbuildError, WheelError
from vbuild.index_client.configuration import Indexes
from vbuild.inspection.inspect import inspect
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split
from vbuild.wheel.archive import open_wheel

pytestmark = needs("gcc")

OTHER = NAME.replace("311", "312")
ALONE = Indexes(no_index=True)

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
    "takes versions": calling_libcufft("libone.so.1", runpath="$ORIGIN/../demo.libs:/opt/lib"),
    "stripped": stripped(GIVES),
}


READ = {".dynamic", ".dynstr", ".dynsym", ".gnu.version", ".gnu.version_r", ".gnu.version_d", ".gnu.hash", ".shstrtab"}
ROW = Struct("<QQ")
TAGS = (0, 1, 5, 6, 10, 12, 14, 15, 25, 29, 0x6FFFFEF5, 0x6FFFFEFC, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE, 0x7FFFFFFF)


def read_of(data: bytes) -> list[range]:
    """The file offsets of everything that is looked at."""
    image = ElfImage.parse(data)
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
                rows = next(
                    section for section in ElfImage.parse(LIBRARIES[name]).sections if section.name == ".dynamic"
                )
                at = dice.choice(rows.span[:: ROW.size])
                data[at : at + ROW.size] = ROW.pack(dice.choice(TAGS), dice.choice((0, 1, 0x300, (1 << 63) - 1)))
            case 1:
                number = dice.choice((0, 1, 8, dice.randrange(len(data) + 1), 1 << 31, 1 << 62))
                data[at // 8 * 8 : at // 8 * 8 + 8] = number.to_bytes(8, "little")
            case 2 if len(data) > len(LIBRARIES[name]) // 2:
                del data[dice.randrange(8, len(data)) :]
            case _:
                new = dice.choice(NEW_BYTES)
                data[at : at + len(new)] = new
    return bytes(data)


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
            whole[at : at + 1] = dice.choice(NEW_BYTES)
        path.write_bytes(whole[: dice.choice((len(whole), len(whole), dice.randrange(len(whole))))])
    return paths


def rewritten(dice: random.Random, path: Path) -> None:
    """Put odd bytes into a file of the .dist-info folder of the wheel at *path*, with a RECORD that fits or not."""
    files, folder = contents(path), dist_info_of(path.name)
    file = f"{folder}/{dice.choice(('RECORD', 'WHEEL', 'METADATA'))}"
    text = bytearray(files[file])
    for _ in range(dice.choice((1, 2, 4))):
        at = dice.randrange(len(text))
        text[at : at + dice.choice((0, 1, 5))] = dice.choice((*NEW_BYTES, b",", b"\r", b'"', b"sha256=", b"\n\n", b"A"))
    files[file] = bytes(text)
    if not file.endswith("RECORD") and dice.random() < 0.8:
        del files[f"{folder}/RECORD"]
        files[f"{folder}/RECORD"] = record_of(files, folder).encode()
    with_entries(path, files)


def tried(dice: random.Random, folder: Path) -> None:
    """Split two wheels, one of them damaged: nothing at all, or what can be accounted for."""
    paths, thin = released(dice, folder), folder / "thin"
    rpath, preload = (dice.random() < chance for chance in (0.3, 0.2))
    request = SplitRequest(smallest=0, replace=False, rpath=rpath, preload=preload)
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
    for path in result.companion_paths:
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
            moves = [move for move in result.libraries if move.path == name and account.wheel.name in move.wheels]
            if name in after and not any(move.stub for move in moves):
                assert after[name] == data or name in changed
            else:
                assert [(move.kind, move.stub) for move in moves] == [(DecisionKind.SHARE, name in after)]
                assert alike(libraries[Path(name).name], data)


def alike(after: bytes, before: bytes) -> bool:
    """Whether the sections of code and data are the same."""
    if after == before:
        return True
    first, second = ElfImage.parse(after), ElfImage.parse(before)
    pairs = [(first.section(name), second.section(name)) for name in (".text", ".data", ".gnu.version", ".gnu.hash")]
    return all(
        one is not None and other is not None and first.view(one.span) == second.view(other.span)
        for one, other in pairs
        if one or other
    )


@pytest.mark.nightly
def test_damaged_wheels_are_split_or_refused(tmp_path: Path) -> None:
    for seed in range(200):
        folder = tmp_path / str(seed)
        folder.mkdir()
        tried(random.Random(seed), folder)
        shutil.rmtree(folder)


def thinned(folder: Path, files: Mapping[str, bytes | str], **asked_for: object) -> Split:
    paths = [wheel(folder, name, {**files, "demo/tag.txt": name}) for name in (NAME, OTHER)]
    request = SplitRequest(**{"smallest": 0, "replace": False, **asked_for})  # type: ignore[arg-type]
    with in_time():
        return split(paths, folder / "thin", request=request, indexes=lambda: ALONE)


ODD = ("lib\nx.so", "lib\x1b]0;x\7.so", "lib:x.so", "$ORIGIN/libx.so", "../../libx.so", "/etc/libx.so", "l" * 4000)


@pytest.mark.parametrize("name", ODD, ids=["line", "escape", "colon", "origin", "above", "absolute", "long"])
def test_names_that_are_no_file_names_move_nothing(tmp_path: Path, name: str) -> None:
    """What is needed or called so stays where it is; the rest goes its way."""
    needing = {**FILES, "demo/_c.so": patchelfed(COMPILED["demo/_c.so"], "--add-needed", name)}
    result = thinned(tmp_path / "needing", needing, rpath=True, preload=True)
    assert {move.kind for move in result.libraries} == {DecisionKind.SHARE}
    (path,) = (path for path in FILES if "libone" in path)
    module_ = patchelfed(COMPILED["demo/_c.so"], "--replace-needed", Path(path).name, name)
    called = {**FILES, path: patchelfed(COMPILED[path], "--set-soname", name), "demo/_c.so": module_}
    result = thinned(tmp_path / "called", called)
    assert {move.kind for move in result.libraries if move.path == path} == {DecisionKind.KEEP}


@pytest.mark.parametrize("new", [b"\xff\xfe", b"\n\x1b", b"::"], ids=["not UTF-8", "escape", "colons"])
def test_names_in_no_encoding_are_kept_as_they_are(tmp_path: Path, new: bytes) -> None:
    (path,) = (path for path in FILES if "libone" in path)
    old = Path(path).name.encode()
    files = {name: data.replace(old, b"li" + new + old[4:]) for name, data in COMPILED.items()}
    result = thinned(tmp_path, {**FILES, **files})
    assert all(move.kind is not DecisionKind.SHARE for move in result.libraries if move.path == path)


@pytest.mark.nightly
def test_code_with_megabytes_in_one_word_takes_no_time(tmp_path: Path) -> None:
    """Digits in a string, as generated code has them, and names that never end."""
    code = ("deadbeef" * 200_000, "lib-" * 250_000, "a." * 250_000, "lib" + ".a" * 250_000)
    files = {f"demo/code{number}.py": f'DATA = "{text}"\n' for number, text in enumerate(code)}
    assert {move.kind for move in thinned(tmp_path, {**FILES, **files}).libraries} == {DecisionKind.SHARE}
    idle = {"demo.libs/libidle.so": library("libidle.so")}
    with in_time():
        inspect(wheel(tmp_path, NAME, {**FILES, **files, **idle}), closure=True).data()


def test_a_record_that_gives_one_library_the_hash_of_another_is_found_out(tmp_path: Path) -> None:
    """Each content is looked at once for all wheels: the second wheel's lie must not pass for that."""
    (path,) = (path for path in FILES if "libtwo" in path)
    sound = wheel(tmp_path, NAME, FILES)
    true = contents(wheel(tmp_path, OTHER, FILES))[f"{dist_info_of(OTHER)}/RECORD"].decode()
    lying = wheel(tmp_path, OTHER, {**FILES, path: COMPILED[path].replace(b"GCC", b"gcc")}, record=true)
    with pytest.raises(WheelError) as error:
        split([sound, lying], tmp_path / "thin", request=SplitRequest(smallest=0, replace=False), indexes=lambda: ALONE)
    assert str(error.value) == f"{OTHER}: {path}: does not match its hash in RECORD"


def test_a_dependency_wheel_never_has_the_place_or_the_name_of_what_requires_it(tmp_path: Path) -> None:
    """Installers remove the files of the old wheel after they have installed those that the new one requires."""
    (path,) = (path for path in FILES if "libtwo" in path)
    place = f"demo_libs/lib/{Path(path).name}"
    with pytest.raises(RepackageError) as error:
        thinned(tmp_path / "place", {**FILES, place: b"other"})
    how = "say with --libs what else their wheel is to be called"
    assert str(error.value) == f"{NAME}: {place} is where its shared libraries would be; {how}"
    names = [name.replace("demo", "demo_libs") for name in (NAME, OTHER)]
    paths = [wheel(tmp_path / "name", name, FILES) for name in names]
    request = SplitRequest(smallest=0, replace=False, libs="demo")
    with pytest.raises(RepackageError) as error:
        split(paths, tmp_path / "thin", request=request, indexes=lambda: ALONE)
    assert str(error.value) == f"{names[0]}: its shared libraries would be a wheel of its own name; {how}"
    assert not (tmp_path / "thin").exists()


def test_a_circle_of_a_thousand_libraries_is_followed_in_seconds() -> None:
    """Each by the DT_RPATH of whoever loads it, which is the most that can be asked of the graph."""
    one = Loading.parse(COMPILED["demo/_d.so"])

    def needing(name: str, *rpath: str) -> Loading:
        return structs.replace(
            one, modules=(), outline=structs.replace(one.outline, soname=None, needed=(name,), rpath=rpath)
        )

    files = {f"demo.libs/lib{number}.so": needing(f"lib{(number + 1) % 1000}.so") for number in range(1000)}
    files["demo/_c.so"] = needing("lib0.so", "$ORIGIN/../demo.libs")
    with in_time():
        graph = link_graph(files)
        assert all(edge.provider for edge in graph.edges)
        assert len(graph.chains("demo.libs/lib999.so")[0]) == 1001
        assert graph.unneeded(()) == ("demo/_c.so",)
