"""`vbuild split` and what the loader, and code that opens libraries, find by other ways than NEEDED and a file name."""

import os
import py_compile
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.factories.bundle_reader import BundleReader
from tests.factories.elf import patchelfed, without_sections
from tests.factories.extensions import MODULE, library, module
from tests.factories.repaired_wheels import NAME, hashed, repaired
from tests.factories.site_packages import program_output, site_packages
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.errors import WheelError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.decisions import DecisionKind, decide
from vbuild.splitting.official import OfficialEvidence, OfficialLibrary, Officials, OfficialWheel, Provenance
from vbuild.splitting.other_packages import PackageFinder
from vbuild.splitting.patches import PatchMaker
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split

pytestmark = needs("gcc", "ldd")

Files = Mapping[str, bytes | str]

INIT = "from demo import _c\n"
COUNTS = "int count(void); int answer(void) { return count(); }"
TOP = library("libtop.so.1", ("libdeep.so.2",), source="int deep(void); int count(void) { return deep() + 1; }")
DEEP = library("libdeep.so.2", source="int deep(void) { return 41; }")
FILES: Files = {"demo/__init__.py": INIT, "demo/_c.so": module("libtop.so.1", source=COUNTS)}
LIBRARIES = {"libtop.so.1": TOP, "libdeep.so.2": DEEP}
TOP_NAME, DEEP_NAME = (hashed(soname, data) for soname, data in LIBRARIES.items())
ASKS = "import ctypes, demo; print(ctypes.CDLL(demo._c.__file__).answer())"
OTHER = NAME.replace("311", "312")
ALONE = Indexes(no_index=True)
PLUGIN = library("libplugin.so.3", source="int plug(void) { return 42; }")
# asks for a library by dlopen, by its name, and calls it
OPENS = """
#include <dlfcn.h>
int count(void) {{ void *it = dlopen("{0}", RTLD_NOW); return it ? ((int (*)(void))dlsym(it, "plug"))() : -1; }}
"""


def thinned(folder: Path, files: Files, *, names: tuple[str, ...] = (NAME, OTHER), **asked: object) -> Split:
    """What becomes of the wheels *names*, each with *files*."""
    fat = [wheel(folder, name, {**files, "demo/tag.txt": name}) for name in names]
    request = SplitRequest(**{"smallest": 0, **asked})  # type: ignore[arg-type]
    return split(fat, folder / "thin", request=request, indexes=lambda: ALONE)


def fates(result: Split) -> dict[str, tuple[str, str]]:
    """What becomes of each library by path, and why."""
    return {move.path: (str(move.kind), move.reason) for move in result.libraries}


def installed(folder: Path, result: Split) -> Path:
    first = result.wheels[0].path or result.wheels[0].wheel
    return site_packages(folder / "site", first, *(one.path for one in result.companions if one.path))


@pytest.fixture
def look(tmp_path: Path) -> Iterator[BundleReader]:
    with ExitStack() as stack:
        yield BundleReader(tmp_path, stack)


FFT = library("libfft.so.1", source="int fft(void) { return 41; }")
CALLS_FFT = library(
    "libtop.so.1",
    ("libfft.so.1",),
    source="int fft(void); int count(void) { return fft() + 1; }",
    stubs="int fft(void) { return 0; }",
    rpath_="$ORIGIN/../other/lib",
)


def with_fft(folder: Path) -> Path:
    (folder / "other/lib").mkdir(parents=True)
    (folder / "other/lib/libfft.so.1").write_bytes(FFT)
    return folder


def test_a_library_that_cannot_be_edited_stays_where_its_paths_lead_on(tmp_path: Path) -> None:
    data = without_sections(CALLS_FFT)
    files: Files = {
        "demo/__init__.py": INIT,
        "demo/_c.so": module("libtop.so.1", source=COUNTS, rpath_="$ORIGIN/../demo.libs"),
        "demo.libs/libtop.so.1": data,
    }
    result = thinned(tmp_path, files)
    why = "it cannot be edited: no section headers: expected some, by which patchelf finds the tables"
    assert fates(result) == {"demo.libs/libtop.so.1": ("keep", why)}
    assert program_output(with_fft(installed(tmp_path, result)), ASKS) == "42"


THREE = OfficialWheel("nvidia-three-cu12", "3.0", "x.whl", (), ())


def official(*sonames: str) -> Provenance:
    """The proof that a library is the first of those *sonames*, which are all in one official wheel."""
    libraries = tuple(OfficialLibrary(f"nvidia/three/lib/{soname}", "", 1) for soname in sonames)
    found = OfficialWheel(THREE.project, THREE.version, THREE.file, libraries, ())
    return Provenance(found, libraries[0], OfficialEvidence.IDENTICAL, 0)


@pytest.mark.parametrize(
    ("sonames", "kind", "reason"),
    [
        (("libtop.so.1", "libplugin.so.3"), DecisionKind.REPLACE, ""),
        (("libtop.so.1",), DecisionKind.KEEP, "may open libplugin.so.3, which is not in nvidia-three-cu12"),
    ],
    ids=["that official wheels have", "that only this wheel has"],
)
def test_an_official_library_goes_unless_it_may_open_one(
    look: BundleReader, sonames: tuple[str, ...], kind: DecisionKind, reason: str
) -> None:
    look.origins = {"libtop.so.1": official(*sonames)}
    files: Files = {
        "demo/_c.so": module("libtop.so.1", rpath_="$ORIGIN/lib"),
        "demo/lib/libtop.so.1": library("libtop.so.1", source=OPENS.format("libplugin.so.3")),
        "demo/lib/libplugin.so.3": PLUGIN,
    }
    bundle = look.at(files)
    fate = decide([bundle], SplitRequest(smallest=0)).of(bundle, "demo/lib/libtop.so.1")
    assert (fate.kind, fate.reason) == (kind, reason)


def needing_by_path(files: dict[str, bytes | str], consumer: str, provider: str) -> dict[str, bytes | str]:
    """*files* in which *consumer* needs *provider* by its path, as link lines with a path make it."""
    data, way = files[consumer], os.path.relpath(provider, Path(consumer).parent)
    assert isinstance(data, bytes)
    return {**files, consumer: patchelfed(data, "--replace-needed", Path(provider).name, f"$ORIGIN/{way}")}


def test_a_library_that_needs_another_packages_one_by_its_path_stays(tmp_path: Path) -> None:
    files = repaired(FILES, {"libtop.so.1": CALLS_FFT})
    path = f"demo.libs/{hashed('libtop.so.1', CALLS_FFT)}"
    files[path] = patchelfed(files[path], "--replace-needed", "libfft.so.1", "$ORIGIN/../other/lib/libfft.so.1")  # type: ignore[arg-type]
    result = thinned(tmp_path, files)
    assert fates(result) == {path: ("keep", "needs $ORIGIN/../other/lib/libfft.so.1, a path from where it is")}


def test_versions_are_asked_of_the_official_name_where_needed_was_a_path(look: BundleReader) -> None:
    name = "libtop-1a2b3c4d.so.1"
    look.origins = {name: official("libtop.so.1")}
    script = "TOP_1 { global: count; local: *; };"
    stubs = "int count(void) { return 0; }"
    consumer = library(None, (name,), source=MODULE + COUNTS, stubs=stubs, stub_script=script)
    files: dict[str, bytes | str] = {
        "demo/_c.so": consumer,
        f"demo.libs/{name}": library(name, source="int count(void) { return 42; }", script=script),
    }
    files = needing_by_path(files, "demo/_c.so", f"demo.libs/{name}")
    # patchelf renames what versions are asked of as well; a linker writes the SONAME there
    data = patchelfed(consumer, "--remove-needed", name)
    files["demo/_c.so"] = patchelfed(data, "--add-needed", f"$ORIGIN/../demo.libs/{name}")
    bundle = look.at(files)
    request = SplitRequest(smallest=0)
    decision = decide([bundle], request)
    assert decision.of(bundle, f"demo.libs/{name}").kind is DecisionKind.REPLACE
    orders = PatchMaker(decision, PackageFinder(Officials("x86_64", indexes=lambda: ALONE), request))
    (order,) = (order for order in orders.for_bundle(bundle) if order.path == "demo/_c.so")
    assert dict(order.relink.renamed) == {
        f"$ORIGIN/../demo.libs/{name}": "libtop.so.1",
        name: "libtop.so.1",
    }


@pytest.mark.parametrize("kind", ["-F", "-f"], ids=["DT_FILTER", "DT_AUXILIARY"])
def test_a_filter_goes_with_the_library_behind_it(tmp_path: Path, kind: str) -> None:
    behind = library("libbehind.so.1", source="int count(void) { return 42; }")
    flags = (f"-Wl,{kind},libbehind.so.1",)
    top = library("libtop.so.1", source="int count(void) { return 0; }", flags=flags, rpath_="$ORIGIN")
    files: Files = {
        "demo/__init__.py": INIT,
        "demo/_c.so": module("libtop.so.1", source=COUNTS, rpath_="$ORIGIN/../demo.libs"),
        "demo.libs/libtop.so.1": top,
        "demo.libs/libbehind.so.1": behind,
    }
    result = thinned(tmp_path, files)
    assert {kind for kind, _ in fates(result).values()} == {"share"}
    assert program_output(installed(tmp_path, result), ASKS) == "42"


def test_a_library_stays_with_that_which_newer_cpus_load_in_its_stead(tmp_path: Path) -> None:
    files = repaired(FILES, LIBRARIES)
    base = f"demo.libs/{DEEP_NAME}"
    better = f"demo.libs/glibc-hwcaps/x86-64-v2/{DEEP_NAME}"
    newer = library("libdeep.so.2", source="int deep(void) { return 99; }")
    files[better] = patchelfed(newer, "--set-soname", DEEP_NAME)
    before = program_output(site_packages(tmp_path / "before", wheel(tmp_path / "fat", NAME, files)), ASKS)
    result = thinned(tmp_path, files)
    assert fates(result) == {
        f"demo.libs/{TOP_NAME}": ("keep", f"needs {DEEP_NAME}, which stays in the wheel"),
        base: ("keep", f"newer CPUs load {better} instead"),
        better: ("keep", f"newer CPUs load it instead of {base}"),
    }
    assert program_output(installed(tmp_path, result), ASKS) == before


NAMED: Mapping[str, Files] = {
    "a script": {"demo-1.0.data/scripts/run": f"#!python\nimport ctypes\nctypes.CDLL(root + '{DEEP_NAME}')\n"},
    "JSON": {"demo/config.json": f'{{"engine": "../demo.libs/{DEEP_NAME}"}}'},
    "TOML": {"demo/config.toml": f'engine = ["x/{DEEP_NAME}"]'},
    "a list": {"demo/files.txt": f"one\n{DEEP_NAME}\n"},
    "a sentence": {"demo/notes.txt": f"It opens {DEEP_NAME}."},
    "data outside": {"demo-1.0.data/data/share/demo.cfg": f"engine={DEEP_NAME}"},
    "the folder behind the package's name": {"demo/a.py": 'root = f"{__name__}.libs"'},
    "the folder behind any name": {"demo/a.py": 'root = "%s.libs" % name'},
    "a pattern of its name": {"demo/a.py": 'glob(folder + "/libdeep-*.so.*")'},
}


def opened_by(file: str) -> tuple[str, str]:
    """The fate of a library that *file* may open."""
    return "share", f"a stub stays, because {file} names it, and may open it by its path"


@pytest.mark.parametrize("where", NAMED)
def test_a_library_is_named_in(look: BundleReader, where: str) -> None:
    bundle = look.at({**repaired(FILES, LIBRARIES), **NAMED[where]})
    assert [bundle.namer(bundle.binaries[f"demo.libs/{DEEP_NAME}"])] == [*NAMED[where]]


OPENED: Mapping[str, str] = {
    "by a name that does not begin with lib": 'ctypes.CDLL(os.path.join(here, "lib", "engine.so.1"))',
    "by the start of it": 'ctypes.CDLL(f"{here}/lib/engine.so.{1}")',
    "by a version behind it": 'ctypes.CDLL(here + "/lib/engine.so.%d" % 1)',
    "by a pattern": '[ctypes.CDLL(path) for path in glob.glob(os.path.join(here, "lib", "*.so*"))]',
}


@pytest.mark.parametrize("how", OPENED)
def test_a_stub_stays_of_a_projects_own_library_that_python_opens(tmp_path: Path, how: str) -> None:
    engine = library("engine.so.1", source="int count(void) { return 42; }")
    imports = "import ctypes, glob, os\nhere = os.path.dirname(__file__)\n"
    files: Files = {
        "demo/__init__.py": f"{imports}opened = {OPENED[how]}\n{INIT}",
        "demo/_c.so": module("engine.so.1", source=COUNTS, rpath_="$ORIGIN/lib"),
        "demo/lib/engine.so.1": engine,
    }
    result = thinned(tmp_path, files)
    assert fates(result) == {"demo/lib/engine.so.1": opened_by("demo/__init__.py")}
    assert program_output(installed(tmp_path, result), ASKS) == "42"


ELSEWHERE: Mapping[str, str] = {
    "macOS, by the end of the name": 'ctypes.CDLL(f"{here}/lib/libengine.dylib")',
    "macOS, by a pattern": 'glob.glob(os.path.join(here, "lib", "libengine*.dylib"))',
    "Windows, by the end of the name": 'ctypes.CDLL(f"{here}/lib/libengine-{1}.dll")',
}


@pytest.mark.parametrize("system", ELSEWHERE)
def test_what_code_opens_on_other_systems_moves(tmp_path: Path, system: str) -> None:
    imports = "import ctypes, glob, os, sys\nhere = os.path.dirname(__file__)\n"
    files: Files = {
        "demo/__init__.py": f"{imports}opened = lambda: {ELSEWHERE[system]}\n{INIT}",
        "demo/_c.so": module("libengine.so.1", source=COUNTS, rpath_="$ORIGIN/lib"),
        "demo/lib/libengine.so.1": library("libengine.so.1", source="int count(void) { return 42; }"),
    }
    result = thinned(tmp_path, files)
    assert fates(result) == {"demo/lib/libengine.so.1": ("share", "")}
    assert program_output(installed(tmp_path, result), ASKS) == "42"


def compiled(folder: Path, source: str) -> bytes:
    (folder / "a.py").write_text(source)
    py_compile.compile(str(folder / "a.py"), cfile=str(folder / "a.pyc"), dfile="a.py", doraise=True)
    return (folder / "a.pyc").read_bytes()


@pytest.mark.parametrize(
    "source",
    [
        f"opened = open('../demo.libs/{DEEP_NAME}')",
        "import os; names = os.listdir('../demo.libs')",
        "import os; names = os.listdir(f'../{__package__}.libs')",
    ],
    ids=["file", "folder", "folder behind the package's name"],
)
def test_bytecode_counts_where_there_is_no_source(tmp_path: Path, source: str) -> None:
    code = compiled(tmp_path, source)
    for number, extra in enumerate(({"demo/__pycache__/a.cpython-311.pyc": code}, {"demo/a.pyc": code})):
        alone = thinned(tmp_path / f"alone{number}", {**repaired(FILES, LIBRARIES), **extra})
        beside = thinned(tmp_path / f"beside{number}", {**repaired(FILES, LIBRARIES), **extra, "demo/a.py": ""})
        (file,) = extra
        assert fates(alone)[f"demo.libs/{DEEP_NAME}"] == opened_by(file)
        assert fates(beside)[f"demo.libs/{DEEP_NAME}"] == ("share", "")


def test_bytecode_may_have_the_start_of_a_name(tmp_path: Path) -> None:
    files: Files = {
        "demo/a.pyc": compiled(tmp_path, "name = f'libtop{__name__}'"),
        "demo/_c.so": module("libtop.so.1", rpath_="$ORIGIN/lib"),
        "demo/lib/libtop.so.1": library("libtop.so.1"),
    }
    assert fates(thinned(tmp_path / "wheels", files))["demo/lib/libtop.so.1"] == opened_by("demo/a.pyc")


@pytest.mark.parametrize("platform", ["any", "linux_unheard"])
def test_a_wheel_whose_tag_names_no_machine_keeps_all(tmp_path: Path, platform: str) -> None:
    idle = {**LIBRARIES, "libidle.so.1": library("libidle.so.1")}
    names = tuple(f"demo-1.0-py{number}-none-{platform}.whl" for number in (2, 3))
    result = thinned(tmp_path, repaired(FILES, idle), names=names)
    assert {*fates(result).values()} == {("keep", "the wheel's tag names no machine")}
    assert all(one.is_untouched for one in result.wheels)


def test_a_library_that_cannot_be_edited_stays_with_what_it_needs(look: BundleReader) -> None:
    files: dict[str, bytes | str] = repaired(FILES, LIBRARIES)
    bundles = [look.at(files, name) for name in (NAME, OTHER)]
    path = f"demo.libs/{TOP_NAME}"
    decision = decide(bundles, SplitRequest(smallest=0), uneditable={(bundle, path): "it is odd" for bundle in bundles})
    for bundle in bundles:
        assert decision.of(bundle, path).reason == "it cannot be edited: it is odd"
        assert decision.of(bundle, f"demo.libs/{DEEP_NAME}").reason == f"{path} cannot be edited: it is odd"


def test_code_that_is_too_large_to_be_read_is_refused(tmp_path: Path) -> None:
    size = (1 << 26) + 1
    with pytest.raises(WheelError) as refused:
        thinned(tmp_path, {**repaired(FILES, LIBRARIES), "demo/a.py": b"#" * size}, names=(NAME,), rpath=True)
    assert str(refused.value) == f"{NAME}: demo/a.py: {size} bytes of Python code, expected {size - 1} at most"


# code before data, as newer binutils lay it out
CODE_FIRST = """
SECTIONS
{
  . = SIZEOF_HEADERS;
  .init : { KEEP (*(.init)) }
  .plt : { *(.plt) *(.iplt) }
  .text : { *(.text .text.*) }
  .fini : { KEEP (*(.fini)) }
  . = ALIGN(CONSTANT (MAXPAGESIZE));
  .gnu.hash : { *(.gnu.hash) }
  .dynsym : { *(.dynsym) }
  .dynstr : { *(.dynstr) }
  .rela.dyn : { *(.rela.dyn) *(.rela.data .rela.got .rela.*_array) }
  .rela.plt : { *(.rela.plt) }
  .rodata : { *(.rodata .rodata.*) }
  .eh_frame : { KEEP (*(.eh_frame)) }
  . = DATA_SEGMENT_ALIGN (CONSTANT (MAXPAGESIZE), CONSTANT (COMMONPAGESIZE));
  .dynamic : { *(.dynamic) }
  .got : { *(.got) *(.got.plt) }
  .data : { *(.data .data.*) }
  .bss : { *(.bss .bss.*) *(COMMON) }
}
"""


@pytest.mark.parametrize("layout", ["data first", "code first"])
def test_gnu_strip_keeps_what_a_split_writes(tmp_path: Path, layout: str) -> None:
    is_code_first = layout == "code first"
    (tmp_path / "script.ld").write_text(CODE_FIRST)
    flags = ("-Wl,--build-id=none", f"-Wl,-T,{tmp_path / 'script.ld'}") if is_code_first else ()
    name, source = "libdeep-0123abcd.so.2", "int deep(void); int answer(void) { return deep(); }"
    user = library(None, (name,), source=source, runpath="$ORIGIN/../demo.libs", flags=flags)
    deep = library(name, source="int deep(void) { return 41; }")
    result = thinned(tmp_path, {"demo/__init__.py": "", "demo/_user.so": user, f"demo.libs/{name}": deep})
    kind, reason = fates(result)[f"demo.libs/{name}"]
    assert kind == ("keep" if is_code_first else "share")
    assert ("GNU strip destroys such a file" in reason) is is_code_first
    site = installed(tmp_path, result)
    for path in site.rglob("*.so*"):
        subprocess.run(["strip", path], check=True)
    loads = f"import ctypes; print(ctypes.CDLL({str(site / 'demo' / '_user.so')!r}).answer())"
    assert program_output(site, loads) == "41"
