"""What a plugin has: the files that differ, what needs them, and RPATHs that lead to both folders of libraries."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.clients import UV
from tests.factories.elf import program
from tests.factories.level_wheels import INIT, MODULE, level_extension, level_library, level_wheel, needs_level
from tests.factories.tools import needs
from tests.factories.wheels import contents
from vbuild.errors import RepackageError
from vbuild.publishing.extras import Extras
from vbuild.publishing.extras_plugin import Payload, payload, placed
from vbuild.publishing.model import Copied, Relinked
from vbuild.publishing.publish import publish
from vbuild.publishing.releases import OfferedWheel
from vbuild.splitting.bundle import WheelReader

pytestmark = [needs("gcc"), needs_level("v3")]

Files = Mapping[str, bytes | str]
PACKAGE = "levels_x86_64_v3_plugin"
CORE = f"levels/{MODULE}"
LIBS = "$ORIGIN/../levels.libs"
OWN: Files = {"levels/__init__.py": INIT}


def found(folder: Path, mine: Files, theirs: Files) -> Payload:
    """The payload of a v3 wheel with the files *mine* beside a plain one with *theirs*."""
    variant, plain = level_wheel(folder, "v3", {**OWN, **mine}), level_wheel(folder, "v1", {**OWN, **theirs})
    return payload(OfferedWheel.of(variant), OfferedWheel.of(plain), reader=WheelReader(lambda *_: None))


def moved(folder: Path, mine: Files, theirs: Files) -> dict[str, tuple[str, ...] | None]:
    """The files of the plugin, below its folder, with their new RPATHs; None for those that are as they were."""
    result = found(folder, mine, theirs).members(PACKAGE, "levels")
    return {
        one.path.removeprefix(f"{PACKAGE}/"): one.order.rpath if isinstance(one, Relinked) else None for one in result
    }


def refused(folder: Path, mine: Files, theirs: Files) -> str:
    with pytest.raises(RepackageError) as refusal:
        found(folder, {CORE: level_extension("v3"), **mine}, {CORE: level_extension("v1"), **theirs})
    name = level_wheel(folder, "v3", {}).name
    assert str(refusal.value).startswith(f"{name}: ")
    return str(refusal.value).removeprefix(f"{name}: ")


def said(folder: Path, mine: Files, theirs: Files) -> str:
    """What level() says in an environment with base and plugin of these files."""
    level_wheel(folder / "dist", "v1", {**OWN, **theirs})
    level_wheel(folder / "dist", "v3", {**OWN, **mine})
    publish([folder / "dist"], folder / "out", layouts=[Extras()])
    wheels = sorted((folder / "out" / "extras").glob("*.whl"))
    command = [UV, "pip", "install", "--quiet", "--offline", "--no-config", "--target", str(folder / "site")]
    subprocess.run([*command, "--python", sys.executable, "--no-deps", *wheels], check=True, capture_output=True)
    code = f"import sys; sys.path.insert(0, {str(folder / 'site')!r}); import levels; print(levels.level())"
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    return run.stdout.strip() or run.stderr.splitlines()[-1]


def with_library(level: str, name: str | None = None) -> Files:
    """A module that asks a library of its level, beside one that is alike for all levels and that both need."""
    own = name or f"liblevel-{level}{level}1234.so"
    same = "libsame-00000000.so"
    return {
        CORE: level_extension(level, (own, same), rpath_=LIBS),
        f"levels.libs/{own}": level_library(level, own, (same,), rpath_="$ORIGIN"),
        f"levels.libs/{same}": level_library("v1", same),
    }


def test_a_module_that_differs_is_all_there_is_of_it_byte_for_byte(tmp_path: Path) -> None:
    same: Files = {
        "levels/data.txt": "same",
        "levels/_other.py": "",
        "levels.libs/libsame-1.so": level_library("v1", "s"),
    }
    mine, theirs = ({CORE: level_extension(level, rpath_=LIBS), **same} for level in ("v3", "v1"))
    assert moved(tmp_path, mine, theirs) == {MODULE: None}
    [member] = found(tmp_path, mine, theirs).members(PACKAGE, "levels")
    assert isinstance(member, Copied)
    assert contents(member.wheel)[member.member] == mine[CORE]


def test_libraries_that_differ_come_first_and_those_of_the_base_behind(tmp_path: Path) -> None:
    own, base = "$ORIGIN/site-packages/levels.libs", "$ORIGIN/../levels.libs"
    assert moved(tmp_path, with_library("v3"), with_library("v1")) == {
        MODULE: (own, base),
        "site-packages/levels.libs/liblevel-v3v31234.so": ("$ORIGIN", "$ORIGIN/../../../levels.libs"),
    }
    assert said(tmp_path, with_library("v3"), with_library("v1")) == "v3"


def test_what_needs_a_library_that_differs_comes_along_where_the_name_is_the_same(tmp_path: Path) -> None:
    name = "liblevel.so"
    middle = level_library("v1", "libmiddle.so", (name,), rpath_="$ORIGIN")
    files: dict[str, Files] = {
        level: {
            CORE: level_extension("v1", ("libmiddle.so", name), rpath_="$ORIGIN/lib"),
            "levels/lib/libmiddle.so": middle,
            f"levels/lib/{name}": level_library(level, name),
        }
        for level in ("v1", "v3")
    }
    assert moved(tmp_path, files["v3"], files["v1"]) == {
        MODULE: None,
        "lib/liblevel.so": None,
        "lib/libmiddle.so": None,
    }


def test_other_folders_stay_where_they_were_from_there(tmp_path: Path) -> None:
    vendor = "$ORIGIN/../nvidia/cufft/lib"
    files: dict[str, Files] = {
        level: {
            CORE: level_extension(level, rpath_=f"{vendor}:/opt/lib"),
            "other/__init__.py": "",
            f"other/{MODULE}": level_extension(level, rpath_=f"{vendor}:$ORIGIN/../../../../lib"),
        }
        for level in ("v1", "v3")
    }
    assert moved(tmp_path, files["v3"], files["v1"]) == {
        MODULE: None,
        f"site-packages/other/{MODULE}": ("$ORIGIN/../../../nvidia/cufft/lib", "$ORIGIN/../../../../../../lib"),
    }


def test_several_packages_have_a_loader_each(tmp_path: Path) -> None:
    files: dict[str, Files] = {
        level: {
            CORE: level_extension(level),
            "other/__init__.py": "import levels\nfrom other.inner._core import level\n",
            "other/inner/__init__.py": f"here = {level!r}\n",
            "other/inner/same.py": "",
            f"other/inner/{MODULE}": level_extension(level),
        }
        for level in ("v1", "v3")
    }
    assert found(tmp_path, files["v3"], files["v1"]).roots == {"levels", "other"}
    init = "from levels._core import level\nimport other, other.inner.same\nwhole = level()\n"
    init += "def level(): return whole, other.level(), other.inner.here\n"
    whole: dict[str, Files] = {level: {**some, "levels/__init__.py": init} for level, some in files.items()}
    assert said(tmp_path / "run", whole["v3"], whole["v1"]) == "('v3', 'v3', 'v3')"


def test_a_package_that_only_the_variant_has_is_found_too(tmp_path: Path) -> None:
    mine = {
        "levels/gpu/__init__.py": "from levels.gpu.deep import level\n",
        "levels/gpu/deep.py": "def level(): return 9",
    }
    init = "try:\n    from levels.gpu import level\nexcept ImportError:\n    level = str\n"
    assert said(tmp_path, {**mine, "levels/__init__.py": init}, {"levels/__init__.py": init}) == "9"


def test_a_package_whose_init_differs_comes_whole_with_what_that_finds_beside_it(tmp_path: Path) -> None:
    init = "from levels.sub import level\n"
    read = "from importlib.resources import files\nfrom levels.sub.same import there\n"
    read += "def level(): return files(__name__).joinpath('data.txt').read_text(), there, 'LEVEL'\n"
    same = {"levels/sub/same.py": "there = 1", "levels/sub/same.pyi": "", "levels/sub/data.txt": "data"}
    files: dict[str, Files] = {
        level: {**same, "levels/__init__.py": init, "levels/sub/__init__.py": read.replace("LEVEL", level)}
        for level in ("v1", "v3")
    }
    assert moved(tmp_path, files["v3"], files["v1"]) == dict.fromkeys(
        ("sub/__init__.py", "sub/data.txt", "sub/same.py")
    )
    assert said(tmp_path / "run", files["v3"], files["v1"]) == "('data', 1, 'v3')"


def test_a_package_that_only_the_variant_has_may_have_anything(tmp_path: Path) -> None:
    code = "import os.path\ntext = open(os.path.join(os.path.dirname(__file__), 'code.ptx')).read()\n"
    opened = level_library("v3", "libopened.so")
    mine: Files = {
        "levels/gpu/__init__.py": "",
        "levels/gpu/load.py": code,
        "levels/gpu/code.ptx": "ptx",
        "levels/gpu/bin/tool": program("int main(void) { return 0; }"),
        "levels/gpu/lib/libopened.so": opened,
    }
    init = "try:\n    from levels.gpu.load import text\nexcept ImportError:\n    text = ''\n"
    whole: dict[str, Files] = {
        "v3": {**mine, "levels/__init__.py": init + "def level(): return text\n"},
        "v1": {"levels/__init__.py": init + "def level(): return text\n"},
    }
    assert moved(tmp_path, whole["v3"], whole["v1"]) == dict.fromkeys(path.removeprefix("levels/") for path in mine)
    assert said(tmp_path / "run", whole["v3"], whole["v1"]) == "ptx"


def test_packages_in_a_namespace_are_served(tmp_path: Path) -> None:
    init = "from space.levels._core import level\n"
    whole: dict[str, Files] = {
        level: {
            f"space/levels/{MODULE}": level_extension(level),
            "space/levels/__init__.py": init,
            "levels/__init__.py": init,
        }
        for level in ("v1", "v3")
    }
    assert found(tmp_path, whole["v3"], whole["v1"]).roots == {"space/levels"}
    assert said(tmp_path / "run", whole["v3"], whole["v1"]) == "v3"


def test_what_type_checkers_read_is_left_out(tmp_path: Path) -> None:
    mine, theirs = ({CORE: level_extension(level), "levels/_core.pyi": level} for level in ("v3", "v1"))
    assert moved(tmp_path, mine, theirs) == {MODULE: None}


def test_members_of_the_data_folder_are_where_they_are_installed(tmp_path: Path) -> None:
    files = {level: {f"levels-1.0.data/platlib/{CORE}": level_extension(level)} for level in ("v1", "v3")}
    assert moved(tmp_path, files["v3"], files["v1"]) == {MODULE: None}
    assert said(tmp_path / "run", files["v3"], files["v1"]) == "v3"


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        (
            {"levels/data.bin": "new"},
            {"levels/data.bin": "old"},
            (
                "levels/data.bin: differs, and is no Python module: "
                "code that opens it by its path gets the base's; expected the same as in the base"
            ),
        ),
        (
            {"levels/tool": program("int main(void) { return 1; }")},
            {"levels/tool": program("int main(void) { return 0; }")},
            (
                "levels/tool: differs, and is no Python module: "
                "code that opens it by its path gets the base's; expected the same as in the base"
            ),
        ),
        (
            {"levels-1.0.data/scripts/tool": "new"},
            {"levels-1.0.data/scripts/tool": "old"},
            (
                "levels-1.0.data/scripts/tool: differs, and is installed elsewhere than in a package; "
                "expected the same as in the base"
            ),
        ),
        (
            {"levels/libby.so": level_library("v3", "libby.so")},
            {"levels/libby.so": level_library("v1", "libby.so")},
            (
                "levels/libby.so: differs, and nothing in the wheel needs it: "
                "code that opens it by its path gets the base's; expected the same as in the base"
            ),
        ),
        (
            {**with_library("v3", "liblevel.so"), "levels/opens.py": "name = 'liblevel.so'"},
            {**with_library("v1", "liblevel.so"), "levels/opens.py": "name = 'liblevel.so'"},
            (
                "levels.libs/liblevel.so: differs, and is named in levels/opens.py: "
                "code that opens it by its path gets the base's; expected the same as in the base"
            ),
        ),
        (
            {MODULE: level_extension("v3")},
            {MODULE: level_extension("v1")},
            f"{MODULE}: differs, and is in no package of the base's own whose __init__.py could load it",
        ),
        (
            {f"levels/sub/{MODULE}": level_extension("v3")},
            {f"levels/sub/{MODULE}": level_extension("v1")},
            f"levels/sub/{MODULE}: differs, and is in no package of the base's own whose __init__.py could load it",
        ),
        (
            {"levels/__init__.py": "new = 1"},
            {"levels/__init__.py": "old = 1"},
            "levels/__init__.py: differs, and is what loads plugins; expected the same as in the base",
        ),
        (
            {"levels/where.py": "new = __file__"},
            {"levels/where.py": "old = __file__"},
            (
                "levels/where.py: differs, and asks for its __file__: a plugin does not have what is beside it; "
                "expected the same as in the base"
            ),
        ),
        (
            {"levels/sub/__init__.py": "new = 1", "levels/sub/data.bin": "new"},
            {"levels/sub/__init__.py": "old = 1", "levels/sub/data.bin": "old"},
            (
                "levels/sub/data.bin: differs, and is no Python module: "
                "code that opens it by its path gets the base's; expected the same as in the base"
            ),
        ),
        (
            {},
            {"levels/fallback.py": ""},
            "lacks levels/fallback.py, which a plugin cannot take away; expected it as in the base",
        ),
        (
            {"levels-1.0.dist-info/entry_points.txt": "[console_scripts]\n"},
            {},
            "entry_points.txt: differs; expected the same as in the base, which has the commands",
        ),
    ],
    ids=[
        "data",
        "program",
        "script",
        "opened",
        "named",
        "top",
        "namespace",
        "init",
        "file",
        "whole",
        "lacks",
        "entry points",
    ],
)
def test_what_cannot_be_taken_from_a_plugin_is_refused(mine: Files, theirs: Files, why: str, tmp_path: Path) -> None:
    assert refused(tmp_path, mine, theirs) == why


def test_wheels_that_do_not_differ_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RepackageError, match=r"no file differs from levels-1.0-.*whl; leave one of them out"):
        found(tmp_path, {"levels/x.pyi": "a"}, {"levels/x.pyi": "b"})


def test_libraries_that_only_need_each_other_are_no_plugin(tmp_path: Path) -> None:
    one, other = "libone.so", "libother.so"
    mine, theirs = (
        {
            f"levels.libs/{one}": level_library(level, one, (other,), rpath_="$ORIGIN"),
            f"levels.libs/{other}": level_library(level, other, (one,), rpath_="$ORIGIN"),
        }
        for level in ("v3", "v1")
    )
    with pytest.raises(
        RepackageError, match="nothing that can be imported differs; expected a Python module that does"
    ):
        found(tmp_path, mine, theirs)


def test_a_library_that_nothing_needs_any_more_may_be_missing(tmp_path: Path) -> None:
    theirs = {CORE: level_extension("v1"), "levels.libs/libold-1234abcd.so": level_library("v1", "libold-1234abcd.so")}
    assert moved(tmp_path, {CORE: level_extension("v3")}, theirs) == {MODULE: None}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("levels/sub/_c.so", f"{PACKAGE}/sub/_c.so"),
        ("levels.libs/libx.so", f"{PACKAGE}/site-packages/levels.libs/libx.so"),
        ("levels_more/_c.so", f"{PACKAGE}/site-packages/levels_more/_c.so"),
    ],
)
def test_folders_of_the_package_are_as_deep_as_they_were(path: str, place: str) -> None:
    assert placed(path, PACKAGE, "levels") == place
