"""`vbuild split` and libraries that several wheels have: each once in a wheel of its own, found by all that load it."""

from pathlib import Path

from tests.factories.elf import patchelfed, program
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import LINUX, NAME, hashed, release, repaired
from tests.factories.site_packages import loader_complaints, program_output, site_packages
from tests.factories.tools import needs
from tests.factories.variants import variant
from tests.factories.wheels import contents, wheel
from vbuild.elf.read import Loading
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split
from vbuild.variants.index import index
from vbuild.variants.stamp import stamped

pytestmark = needs("gcc", "ldd")

INIT = "from demo import _c\n"
COUNTS = "int count(void); int answer(void) { return count(); }"
TOP = library("libtop.so.1", ("libdeep.so.2",), source="int deep(void); int count(void) { return deep() + 1; }")
DEEP = library("libdeep.so.2", source="int deep(void) { return 41; }")
FILES: dict[str, bytes | str] = {"demo/__init__.py": INIT, "demo/_c.so": module("libtop.so.1", source=COUNTS)}
LIBRARIES = {"libtop.so.1": TOP, "libdeep.so.2": DEEP}
ASKS = "import ctypes, demo; print(ctypes.CDLL(demo._c.__file__).answer())"
OTHER = NAME.replace("311", "312")
ALONE = Indexes(no_index=True)


def thinned(folder: Path, *wheels: Path, smallest: int = 0, **asked: object) -> Split:
    request = SplitRequest(smallest=smallest, **asked)  # type: ignore[arg-type]
    return split(wheels, folder / "thin", request=request, indexes=lambda: ALONE)


def kept(result: Split) -> dict[str, str]:
    """The libraries that stay, with the reason."""
    return {move.path: move.reason for move in result.libraries if move.kind is DecisionKind.KEEP}


def libs(result: Split, number: int = 0) -> Path:
    path = result.companions[number].path
    assert path
    return path


def check_works(folder: Path, result: Split, *, program: str = ASKS, answer: str = "42") -> None:
    """Every wheel of *result* works beside those it came with."""
    beside = [one.path for one in result.companions if one.path]
    for number, thin in enumerate(result.wheels):
        assert thin.path
        installed = site_packages(folder / f"site{number}", thin.path, *beside)
        assert loader_complaints(installed) == []
        if program:
            assert program_output(installed, program) == answer


def test_variants_share_and_stay_variants(tmp_path: Path) -> None:
    files = repaired(FILES, LIBRARIES)
    plain = wheel(tmp_path / "in", f"demo-1.0-py3-none-{LINUX}.whl", files)
    levels = [
        stamped(plain, tmp_path / "in", variant=variant(f"x86_64_{level}", f"x86_64 :: level :: {level}"))
        for level in ("v2", "v3")
    ]
    fat = [plain, *levels]
    document = "demo-1.0.dist-info/variant.json"
    before = [contents(path).get(document) for path in fat]
    result = thinned(tmp_path, *fat)
    assert [path.name for path in result.paths[:3]] == [path.name for path in fat]
    assert [contents(path).get(document) for path in result.paths[:3]] == before
    assert not [path for path in contents(libs(result)) if path.endswith("variant.json")]
    (indexed,) = index(tmp_path / "thin")
    assert set(indexed.labels) == {"x86_64_v2", "x86_64_v3"}
    check_works(tmp_path, result)


def test_consumers_that_have_a_runpath_find_all_the_same(tmp_path: Path) -> None:
    files = repaired(FILES, LIBRARIES, runpath=True)
    for path in [path for path in files if path.startswith("demo.libs/libtop")]:
        data = files[path]
        assert isinstance(data, bytes)
        files[path] = patchelfed(data, "--set-rpath", "$ORIGIN")
    result = thinned(tmp_path, *(wheel(tmp_path, name, files) for name in (NAME, OTHER)))
    assert Loading.parse(contents(tmp_path / "thin" / NAME)["demo/_c.so"]).outline.runpath == ()
    check_works(tmp_path, result)


def test_a_consumer_in_a_namespace_package_is_led_out_of_all_its_folders(tmp_path: Path) -> None:
    files = {"space/inner/demo/_c.so": FILES["demo/_c.so"], "space/inner/demo/__init__.py": ""}
    result = thinned(tmp_path, *release(tmp_path, files, LIBRARIES))
    after = contents(tmp_path / "thin" / NAME)["space/inner/demo/_c.so"]
    assert Loading.parse(after).outline.rpath == ("$ORIGIN/../../../demo_libs/lib",)
    asks = "import ctypes; from space.inner.demo import _c; print(ctypes.CDLL(_c.__file__).answer())"
    check_works(tmp_path, result, program=asks)


def test_what_a_program_outside_of_site_packages_needs_stays(tmp_path: Path) -> None:
    tool = program("int main(void) { return 0; }")
    tool = patchelfed(tool, "--add-needed", hashed("libdeep.so.2", DEEP))
    files = {**FILES, "demo-1.0.data/scripts/tool": tool}
    result = thinned(tmp_path, *release(tmp_path, files, LIBRARIES))
    reason = "demo-1.0.data/scripts/tool needs it, from where no RPATH leads to site-packages"
    assert kept(result)[f"demo.libs/{hashed('libdeep.so.2', DEEP)}"] == reason
