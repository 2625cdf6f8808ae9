"""What cannot be joined: one line that says what was found, and in which wheel."""

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.factories import elf
from tests.factories.devices import AARCH64
from tests.factories.hwcaps_wheels import NAME, PYTHON, hwcaps_release, hwcaps_wheel, join, module, package, shared, so
from tests.factories.repaired_wheels import repaired
from tests.factories.variants import variant
from tests.factories.wheels import contents
from vbuild.errors import RepackageError, VbuildError
from vbuild.publishing.hwcaps.plan import joined
from vbuild.publishing.releases import OfferedWheel
from vbuild.variants.stamp import stamped

V3 = NAME.replace(".whl", "-x86_64_v3.whl")
Files = Mapping[str, bytes | str]


def refused(folder: Path, wheels: list[Path]) -> str:
    with pytest.raises(VbuildError) as caught:
        join(folder / "out", wheels)
    assert type(caught.value) is RepackageError
    assert not (folder / "out").exists()
    return re.sub(r"-[0-9a-f]{8}\.so", "-HASH.so", str(caught.value))


def extended(level: str, **more: bytes | str) -> Files:
    return {**package(level), **{path.replace("__", "/", 1): data for path, data in more.items()}}


def libraries(one: bytes, other: bytes, *, name: str = "libx.so") -> tuple[Files, Files]:
    """A module that needs *one* in the plain wheel, and *other* in that of v3."""

    def files(data: bytes) -> Files:
        return repaired({f"demo/{so('_c')}": module("v1", needs=(name,), takes="x_level")}, {name: data})

    return files(one), files(other)


def both(files: Callable[[str], Files]) -> tuple[Files, Files]:
    return files("v1"), files("v3")


ONE = "ONE { global: x_level; local: *; };"
BUILDS: dict[str, tuple[Callable[[], tuple[Files, Files]], str]] = {
    "a symbol fewer": (
        lambda: libraries(shared("v1", "libx.so", more="int also;"), shared("v3", "libx.so")),
        (
            f"{V3}: demo.libs/libx-HASH.so: exports no also, which the baseline's does; expected the same symbols at "
            "all levels"
        ),
    ),
    "a version of a symbol fewer": (
        lambda: libraries(shared("v1", "libx.so", script=ONE), shared("v3", "libx.so")),
        (
            f"{V3}: demo.libs/libx-HASH.so: exports no x_level@ONE, which the baseline's does; expected the same "
            "symbols at all levels"
        ),
    ),
    "another SONAME": (
        lambda: (
            {**package("v1"), "demo/libx.so": shared("v1", "libx.so.1")},
            {**package("v3"), "demo/libx.so": shared("v3", "libx.so.2")},
        ),
        f"{V3}: demo/libx.so: SONAME libx.so.2, and libx.so.1 in the baseline's; expected one for all levels",
    ),
    "another module": (
        lambda: (package("v1"), {**package("v3"), f"demo/{so('_c')}": module("v3", "_d")}),
        (
            f"{V3}: demo/{so('_c')}: one of this and the baseline's is the Python module _c, _d; expected the same "
            "modules at all levels"
        ),
    ),
    "code above the level": (
        lambda: (package("v1"), {**package("v3"), f"demo/{so('_c')}": module("v3", march="v4")}),
        f"{V3}: demo/{so('_c')}: needs AVX512F (v4), above the claimed x86-64-v3: 1 function: sum ... ",
    ),
    "another text": (
        lambda: (package("v1"), {**package("v3"), "demo/__init__.py": "level = 'v3'\n"}),
        (
            f"{V3}: demo/__init__.py: the wheels for x86-64 and x86-64-v3 differ in it, and no processor's level "
            "chooses such a file"
        ),
    ),
    "a text more": (
        lambda: (package("v1"), extended("v3", demo__more="text")),
        f"{V3}: demo/more: only the wheel for x86-64-v3 has it",
    ),
    "a text fewer": (
        lambda: (extended("v1", demo__more="text"), package("v3")),
        f"{V3}: demo/more: the wheel for x86-64-v3 lacks it",
    ),
    "a module more": (
        lambda: (package("v1"), {**package("v3"), f"demo/{so('_d')}": module("v3", "_d")}),
        f"{V3}: demo/{so('_d')}: only the wheel for x86-64-v3 has it",
    ),
    "a module fewer": (
        lambda: ({**package("v1"), f"demo/{so('_d')}": module("v1", "_d")}, package("v3")),
        f"{V3}: demo/{so('_d')}: only the wheel for the baseline has it",
    ),
    "a program": (
        lambda: (
            {**package("v1"), "demo/tool": elf.program("int main(void) { return 1; }")},
            {**package("v3"), "demo/tool": elf.program("int main(void) { return 3; }")},
        ),
        (
            f"{V3}: demo/tool: a program, or no shared library: differs between levels, and the loader chooses "
            "libraries only"
        ),
    ),
    "a program among the scripts": (
        lambda: (
            {**package("v1"), "demo-1.0.data/scripts/tool": elf.program("int main(void) { return 1; }")},
            {**package("v3"), "demo-1.0.data/scripts/tool": elf.program("int main(void) { return 3; }")},
        ),
        f"{V3}: demo-1.0.data/scripts/tool: differs, and is installed where the loader does not look for libraries",
    ),
    "a library opened by a pattern": (
        lambda: both(
            lambda level: {
                "demo/__init__.py": "import ctypes, glob\nfor path in glob.glob('../demo.libs/libvb*.so*'):\n  0\n",
                f"demo/{so('_c')}": module(level),
            }
        ),
        (
            f"{NAME}: demo/{so('_c')}: demo/__init__.py opens what libvb*.so* finds, by its path: no copy for a level "
            "would be chosen"
        ),
    ),
    "copies for levels": (
        lambda: both(lambda level: {**package(level), "demo/glibc-hwcaps/x86-64-v3/libx.so": shared(level)}),
        f"{NAME}: demo/glibc-hwcaps/x86-64-v3/libx.so: copies for levels are in it already; expected a wheel of one",
    ),
    "a library of a level above its processors": (
        lambda: (
            package("v1"),
            repaired(
                {**package("v3"), f"demo/{so('_c')}": module("v3", needs=("liby.so",), takes="y_level")},
                {"liby.so": shared("v3", "liby.so", function="y_level")},
            ),
        ),
        (
            f"{V3}: demo/{so('_c')}: needs demo.libs/liby-HASH.so: only the wheel for x86-64-v3 has it, and needs AVX "
            "(v3), above the claimed x86-64: 1 function: sum ... "
        ),
    ),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("what", BUILDS)
def test_builds_that_cannot_be_joined_are_refused_in_one_line(tmp_path: Path, what: str) -> None:
    builds, message = BUILDS[what]
    one, other = builds()
    found = refused(tmp_path, hwcaps_release(tmp_path, {"v1": one, "v3": other}))
    assert re.sub(r"(: sum) .*", r"\1 ... ", found) == message


def test_metadata_that_requires_something_else_is_refused(tmp_path: Path) -> None:
    wheels = [
        hwcaps_wheel(tmp_path, package("v1")),
        hwcaps_wheel(tmp_path, package("v3"), "v3", metadata="Requires-Dist: other\n"),
    ]
    assert refused(tmp_path, wheels) == (
        f"{V3}: demo-1.0.dist-info/METADATA: Requires-Dist: other: in one of the wheels for x86-64 and x86-64-v3 only"
    )


def test_metadata_that_requires_the_same_is_the_plain_wheels(tmp_path: Path) -> None:
    more = ["Dynamic: license-file\n", "Dynamic: author\nKeywords: fast\n"]
    wheels = [
        hwcaps_wheel(tmp_path, package(level), level, metadata=text)
        for level, text in zip(("v1", "v3"), more, strict=True)
    ]
    assert b"\nDynamic: license-file\n" in contents(join(tmp_path / "out", wheels))["demo-1.0.dist-info/METADATA"]


def test_a_symbol_that_a_consumer_takes_from_another_level_is_refused(tmp_path: Path) -> None:
    """v4 has a library that gives less than v3's, of which a module that v4 shares with v3 takes all."""

    def files(level: str, *, library: str, more: str, takes: str) -> Files:
        of = module(level, needs=("libx.so",), takes=takes)
        return repaired({f"demo/{so('_c')}": of}, {"libx.so": shared(library, "libx.so", more=more)})

    more = 'const char *fast(void) { return "fast"; }'
    builds = {
        "v1": files("v1", library="v1", more="", takes="x_level"),
        "v3": files("v3", library="v3", more=more, takes="fast"),
        "v4": files("v3", library="v4", more="", takes="fast"),
    }
    v4 = NAME.replace(".whl", "-x86_64_v4.whl")
    assert refused(tmp_path, hwcaps_release(tmp_path, builds)) == (
        f"{v4}: demo.libs/libx-HASH.so: at v4 demo/{so('_c')} takes fast from it, which it does not give"
    )


def other(folder: Path, name: str) -> Path:
    return hwcaps_wheel(folder / name.partition(".whl")[0], package("v3"), name=name)


def levelled(path: Path) -> Path:
    return stamped(path, path.parent / "stamped", variant=variant("x86_64_v3", "x86_64 :: level :: v3"))


def plain(folder: Path) -> Path:
    return hwcaps_wheel(folder, package("v1"))


WHEELS: dict[str, tuple[Callable[[Path], list[Path]], str]] = {
    "another version": (
        lambda folder: [plain(folder), levelled(other(folder, NAME.replace("1.0", "1.1")))],
        f"{V3.replace('1.0', '1.1')}: found demo 1.1; expected demo 1.0, as {NAME} is",
    ),
    "another Python": (
        lambda folder: [plain(folder), levelled(other(folder, NAME.replace(f"-{PYTHON}-{PYTHON}", "-cp39-abi3")))],
        (
            f"{V3.replace(f'-{PYTHON}-{PYTHON}', '-cp39-abi3')}: for cp39-abi3-manylinux_2_34_x86_64; expected "
            f"{PYTHON}-{PYTHON}-manylinux_2_34_x86_64, as {NAME} is"
        ),
    ),
    "no plain wheel": (
        lambda folder: hwcaps_release(folder, {"v3": package("v3"), "v4": package("v4")}),
        f"{V3}: found x86-64-v3, x86-64-v4 and no plain wheel of this tag; expected one",
    ),
    "a level twice": (
        lambda folder: [plain(folder), *([hwcaps_wheel(folder, package("v3"), "v3")] * 2)],
        f"{V3} and {V3}: two wheels of one level; expected one",
    ),
    "no wheel": (lambda _: [], "no wheel to join; expected a plain one, and others for x86-64 levels"),
    "a variant of more than the level": (
        lambda folder: [
            plain(folder),
            stamped(
                plain(folder),
                folder / "gpu",
                variant=variant("v3_cu", "x86_64 :: level :: v3", "nvidia :: cuda_version_lower_bound :: 12.6"),
            ),
        ],
        (
            f"{NAME.replace('.whl', '-v3_cu.whl')}: a variant of nvidia :: cuda_version_lower_bound :: 12.6, x86_64 :: "
            "level :: v3; expected x86-64 levels, and nothing else"
        ),
    ),
    "aarch64": (
        lambda folder: [
            hwcaps_wheel(folder, {}, name=NAME.replace("x86_64", "aarch64")),
            stamped(
                hwcaps_wheel(folder / "plain", {}, name=NAME.replace("x86_64", "aarch64")),
                folder,
                variant=variant("aarch64_9a", "aarch64 :: version :: 9.0a"),
            ),
        ],
        (
            f"{NAME.replace('x86_64', 'aarch64').replace('.whl', '-aarch64_9a.whl')}: a variant of aarch64 :: version "
            ":: 9.0a; expected x86-64 levels, and nothing else"
        ),
    ),
    "macOS": (
        lambda folder: [
            hwcaps_wheel(folder / level, {}, level, name=NAME.replace("manylinux_2_34", "macosx_11_0"))
            for level in ("v1", "v3")
        ],
        (
            f"{NAME.replace('manylinux_2_34', 'macosx_11_0')}: for macosx_11_0_x86_64; expected Linux on x86_64, where "
            "glibc knows CPU levels"
        ),
    ),
    "musl": (
        lambda folder: [
            hwcaps_wheel(folder / level, {}, level, name=NAME.replace("manylinux_2_34", "musllinux_1_2"))
            for level in ("v1", "v3")
        ],
        (
            f"{NAME.replace('manylinux_2_34', 'musllinux_1_2')}: for musllinux_1_2_x86_64; expected glibc: musl knows "
            "no CPU levels"
        ),
    ),
}


@pytest.mark.parametrize("what", WHEELS)
def test_wheels_that_do_not_belong_together_are_refused_in_one_line(tmp_path: Path, what: str) -> None:
    wheels, message = WHEELS[what]
    assert refused(tmp_path, wheels(tmp_path)) == message


RECORDS = {
    "flags in a Python string": ("demo/config.py", "args = '-O2'\n", "args = '-O2, -march=x86-64-v3'\n"),
    "a path in a Python string": ("demo/config.py", "at = '/tmp/a/bin/cc'\n", "at = '/tmp/b/bin/cc'\n"),
    "a comment": ("demo/config.py", "x = 1  # v1\n", "x = 1  # v3\n"),
    "flags in a text": ("demo/build.json", '{"args": []}', '{"args": ["-march=x86-64-v3"]}'),
    "bytecode": ("demo/__pycache__/__init__.cpython-311.pyc", "one", "other"),
    "a bill of materials": ("demo-1.0.dist-info/sboms/a.json", "one", "other"),
}


@pytest.mark.parametrize("what", RECORDS)
def test_of_a_record_of_the_build_the_plain_wheels_is_taken(tmp_path: Path, what: str) -> None:
    path, one, two = RECORDS[what]
    wheels = hwcaps_release(tmp_path, {"v1": {**package("v1"), path: one}, "v3": {**package("v3"), path: two}})
    assert contents(join(tmp_path / "out", wheels))[path] == one.encode()


@pytest.mark.parametrize(
    ("one", "two"),
    [("x = 1\n", "x = 2\n"), ("x = 'one'\n", "x = 'two'\n"), ("x = -a\n", "x = -b\n"), ("(", ")")],
    ids=["number", "string", "expression", "no Python"],
)
def test_python_code_that_differs_otherwise_is_refused(tmp_path: Path, one: str, two: str) -> None:
    wheels = hwcaps_release(
        tmp_path, {"v1": {**package("v1"), "demo/more.py": one}, "v3": {**package("v3"), "demo/more.py": two}}
    )
    assert ": demo/more.py: the wheels for x86-64 and x86-64-v3 differ in it" in refused(tmp_path, wheels)


def test_two_libraries_of_one_name_that_only_levels_have_are_refused(tmp_path: Path) -> None:
    def files(level: str) -> Files:
        return {
            f"demo/{so('_c')}": module(level, needs=("liby.so",), takes="y_level", runpath="$ORIGIN"),
            "demo/liby.so": shared("v1", "liby.so", function="y_level", more=f"int only_{level};"),
        }

    builds = {"v1": {f"demo/{so('_c')}": module("v1")}, "v3": files("v3"), "v4": files("v4")}
    v4 = NAME.replace(".whl", "-x86_64_v4.whl")
    assert refused(tmp_path, hwcaps_release(tmp_path, builds)) == (
        f"{v4}: demo/liby.so: another library than that of {V3}, and the plain wheel has none"
    )


def test_a_damaged_library_is_refused(tmp_path: Path) -> None:
    damaged = shared("v3")[:5000]
    wheels = hwcaps_release(
        tmp_path,
        {"v1": {**package("v1"), "demo/libx.so": shared("v1")}, "v3": {**package("v3"), "demo/libx.so": damaged}},
    )
    assert refused(tmp_path, wheels).startswith(f"{V3}: demo/libx.so: ")


@pytest.mark.skipif(not AARCH64.is_there, reason="no compiler for aarch64 on this machine")
def test_code_for_another_machine_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "x.so"
    found = []
    for value in (1, 2):
        command: list[str | Path] = [f"{AARCH64.prefix}gcc", "-shared", "-nostdlib", "-o", output, "-x", "c", "-"]
        subprocess.run(command, input=f"int x = {value};".encode(), check=True, capture_output=True)
        found.append(output.read_bytes())
    one, other = found
    wheels = hwcaps_release(
        tmp_path, {"v1": {**package("v1"), "demo/x.so": one}, "v3": {**package("v3"), "demo/x.so": other}}
    )
    assert refused(tmp_path, wheels) == f"{V3}: demo/x.so: code for aarch64: glibc knows levels of x86-64 only"


def test_what_is_allowed_by_name_may_be_above_the_level(tmp_path: Path) -> None:
    wheels = hwcaps_release(
        tmp_path, {"v1": package("v1"), "v3": {**package("v3"), f"demo/{so('_c')}": module("v3", march="v4")}}
    )
    offered = [OfferedWheel.of(path) for path in wheels]
    assert joined(offered, allow=["^sum$"]).members
    with pytest.raises(RepackageError) as caught:
        joined(offered, allow=["("])
    assert str(caught.value) == (
        "allow: '(' is not a regular expression: missing ), unterminated subpattern at position 0"
    )
