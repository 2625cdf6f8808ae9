"""A wheel that is out, and another of a higher level that was built elsewhere: what fits is joined."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.extensions import library
from tests.factories.hwcaps_wheels import (
    NAME,
    flags,
    hwcaps_wheel,
    levels_here,
    listed,
    module,
    package,
    program_output,
    shared,
    so,
    unpacked,
)
from tests.factories.repaired_wheels import repaired
from tests.factories.variants import variant
from tests.factories.wheels import dist_info_of, everything, hashed, record_of, wheel
from vbuild.elf.linkage import level_of
from vbuild.errors import RepackageError, WheelError
from vbuild.hardware.cpu import Cpu
from vbuild.publishing.hwcaps.plan import Hwcaps
from vbuild.publishing.model import LinkedFile, NewWheel, PublishPlan
from vbuild.publishing.publish import publish, written
from vbuild.publishing.releases import releases_at
from vbuild.variants.stamp import stamped

V3 = Cpu("x86_64", "v3")
NEWER = NAME.replace("2_34", "2_38")
here = pytest.mark.skipif("v3" not in levels_here(), reason="a processor of level v3, and glibc 2.33, are needed")
Files = Mapping[str, bytes | str]


def bundled(level: str, *, more: str = "", module_level: str = "v1", name: str = "libx.so.1.2") -> Files:
    of = module(module_level, needs=(name,), takes="x_level")
    library = {name: shared(level, name, more=more)}
    return repaired({"demo/__init__.py": "from demo._c import level\n", f"demo/{so('_c')}": of}, library)


def planned(folder: Path, published: Files, other: Files, *, name: str = NAME, of: str = NAME) -> PublishPlan:
    """The plan for the wheel called *of*, and another called *name* that is added."""
    plain = hwcaps_wheel(folder / "published", published, name=of)
    more = hwcaps_wheel(folder / "other", other, name=name)
    return Hwcaps(added=((V3, more),)).plan(releases_at([plain]))


def wheels(plan: PublishPlan) -> list[NewWheel]:
    return [output for output in plan.outputs if isinstance(output, NewWheel)]


def made(plan: PublishPlan, folder: Path) -> Path:
    written(plan, folder)
    return folder / wheels(plan)[0].target


def notes(plan: PublishPlan) -> list[str]:
    """What the plan says of these wheels; hashes left out."""
    return [re.sub(r"-[0-9a-f]{8}\.", "-HASH.", note) for note in plan.notes[:-2]]


@here
def test_a_library_of_another_hash_is_that_of_the_wheel(tmp_path: Path) -> None:
    wheel = made(planned(tmp_path, bundled("v1"), bundled("v3")), tmp_path / "out")
    names = [path.rpartition("/")[2] for path in listed(wheel) if "libx" in path]
    assert len(names) == 2
    assert len(set(names)) == 1
    site = unpacked(wheel, tmp_path / "site")
    assert (program_output(site, level="v3"), program_output(site, level="v2")) == ("v3", "v1")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (("x86_64 :: level :: v4",), "a variant of x86-64-v4; expected x86-64-v3, as which it is added"),
        (
            ("nvidia :: cuda_version_lower_bound :: 12.6", "x86_64 :: level :: v3"),
            (
                "a variant of nvidia :: cuda_version_lower_bound :: 12.6, x86_64 :: level :: v3; expected x86-64 "
                "levels, and nothing else"
            ),
        ),
    ],
    ids=["another level", "more than a level"],
)
def test_a_variant_of_something_else_is_refused(tmp_path: Path, properties: tuple[str, ...], message: str) -> None:
    plain = hwcaps_wheel(tmp_path, bundled("v1"))
    other = stamped(hwcaps_wheel(tmp_path / "other", bundled("v3")), tmp_path, variant=variant("other", *properties))
    with pytest.raises(RepackageError) as caught:
        Hwcaps(added=((V3, other),)).plan(releases_at([plain]))
    assert str(caught.value) == f"{other.name}: {message}"


def test_what_does_not_fit_is_left_and_said(tmp_path: Path) -> None:
    other = {
        **bundled("v3"),
        f"demo/{so('_d')}": module("v3", "_d"),
        f"demo/{so('_e')}": module("v3", "_e", march="v4"),
        "demo/__init__.py": "level = lambda: 'v3'\n",
    }
    published = {**bundled("v1"), f"demo/{so('_e')}": module("v1", "_e")}
    plan = planned(tmp_path, published, other)
    [wheel] = wheels(plan)
    assert [path.rpartition("/")[2][:4] for path in (m.path for m in wheel.members) if level_of(path)] == ["libx"]
    said_of = [note for note in notes(plan) if note.startswith("not taken")]
    assert [re.sub(r"AVX.*", "AVX...", note).removeprefix(f"not taken from {NAME} for v3: ") for note in said_of] == [
        (
            "demo/__init__.py: the wheels for x86-64 and x86-64-v3 differ in it, and no processor's level chooses "
            "such a file"
        ),
        f"demo/{so('_d')}: only the wheel for x86-64-v3 has it",
        f"demo/{so('_e')}: needs AVX...",
    ]


def test_names_of_c_that_a_module_has_may_not_be_missing(tmp_path: Path) -> None:
    published = {f"demo/{so('_c')}": module("v1", more="int there;")}
    with pytest.raises(RepackageError) as caught:
        planned(tmp_path, published, {f"demo/{so('_c')}": module("v3")})
    assert str(caught.value) == (
        f"{NAME} for v3: nothing of it can be joined: demo/{so('_c')}: exports no there, which the baseline's does; "
        "expected the same symbols at all levels"
    )


def test_names_of_cpp_that_another_module_takes_may_not_be_missing(tmp_path: Path) -> None:
    more = "extern int _ZN4demo5thereE; int taken(void) { return _ZN4demo5thereE; }"
    needing = module("v1", "_d", needs=(so("_c"),), runpath="$ORIGIN", more=more)
    both = {f"demo/{so('_d')}": needing}
    published = {f"demo/{so('_c')}": module("v1", more="int _ZN4demo5thereE;"), **both}
    with pytest.raises(RepackageError, match="exports no _ZN4demo5thereE"):
        planned(tmp_path, published, {f"demo/{so('_c')}": module("v3"), **both})


@pytest.mark.parametrize("stated", ["sha256=a", "sha256=é"], ids=["length", "letter"])
def test_a_hash_that_is_none_is_refused(tmp_path: Path, stated: str) -> None:
    for level in ("v1", "v3"):
        whole = everything(NAME, package(level))
        record = record_of(whole, dist_info_of(NAME)).replace(hashed(whole["demo/__init__.py"]), stated)
        wheel(tmp_path / level, NAME, whole, record=record)
    layout, published = Hwcaps(added=((V3, tmp_path / "v3" / NAME),)), releases_at([tmp_path / "v1" / NAME])
    with pytest.raises(WheelError) as caught:
        layout.plan(published)
    assert str(caught.value) == f"{NAME}: demo/__init__.py: does not match its hash in RECORD"


def test_symbols_that_only_the_level_has_are_said(tmp_path: Path) -> None:
    plan = planned(tmp_path, bundled("v1"), bundled("v3", more="int fast;"))
    assert notes(plan)[-1] == (
        f"{NAME} for v3: demo.libs/libx-HASH.so.1.2: exports fast, which the baseline's does not: for what "
        "was built beside it, on processors of x86-64-v3 only"
    )


def test_a_module_that_takes_more_than_the_library_gives_is_left(tmp_path: Path) -> None:
    """The library above the level cannot be taken, and the module that was built beside it goes with it."""
    more = 'const char *fast(void) { return "fast"; }'

    def files(level: str, library: bytes, takes: str) -> Files:
        of = {f"demo/{so('_c')}": module(level, needs=("libx.so",), takes=takes)}
        return repaired({"demo/__init__.py": "", **of}, {"libx.so": library})

    other = files("v3", shared("v3", "libx.so", more=more, march="v4"), "fast")
    published = files("v1", shared("v1", "libx.so"), "x_level")
    with pytest.raises(RepackageError) as caught:
        planned(tmp_path, published, other)
    assert re.sub(r"-[0-9a-f]{8}\.", "-HASH.", str(caught.value)) == (
        f"{NAME} for v3: nothing of it can be joined: demo/{so('_c')}: demo.libs/libx-HASH.so: at v3 demo/{so('_c')} "
        "takes fast from it, which it does not give (and 1 more)"
    )


@here
def test_a_library_that_was_never_repaired_is_led_to_those_of_the_wheel(tmp_path: Path) -> None:
    """What libx needs has a hash in the published wheel, and is the system's in the other one."""

    def library(level: str, soname: str) -> bytes:
        return shared(level, soname, needs=("liby.so.1",))

    of = module("v1", needs=("libx.so.1",), takes="x_level")
    first: dict[str, bytes | str] = {"demo/__init__.py": "from demo._c import level\n", f"demo/{so('_c')}": of}
    libraries = {"libx.so.1": library("v1", "libx.so.1"), "liby.so.1": shared("v1", "liby.so.1", function="y_level")}
    other = {**repaired(first, {"libx.so.1": library("v3", "libx.so.1")})}
    wheel = made(planned(tmp_path, repaired(first, libraries), other), tmp_path / "out")
    site = unpacked(wheel, tmp_path / "site")
    assert (program_output(site, level="v3"), program_output(site, level="v1")) == ("v3", "v1")


def test_copies_that_need_a_newer_system_bring_its_tag_and_the_old_wheel_stays(tmp_path: Path) -> None:
    old = NAME.replace("2_34", "2_17")
    # glibc 2.29 has a new exp
    plan = planned(tmp_path, with_exp("v1", "sqrt"), with_exp("v3", "exp"), name=NEWER, of=old)
    assert [str(output.target) for output in plan.outputs if isinstance(output, LinkedFile | NewWheel)] == [old, NEWER]
    assert notes(plan)[-1] == f"{NEWER}: needs a newer system than {old}, which is for the others: publish both"


def test_copies_that_need_more_than_their_own_tag_promises_are_refused(tmp_path: Path) -> None:
    old = NAME.replace("2_34", "2_17")
    with pytest.raises(RepackageError) as caught:
        planned(tmp_path, with_exp("v1", "sqrt"), with_exp("v3", "exp"), name=old, of=old)
    assert re.sub(r"-[0-9a-f]{8}\.", "-HASH.", str(caught.value)) == (
        f"{old} for v3: demo.libs/libx-HASH.so: needs GLIBC_2.29 of libm.so.6, which manylinux_2_17_x86_64 does not "
        "promise; expected a wheel with a tag that does: repair it"
    )


def with_exp(level: str, function: str) -> Files:
    """A module and a library that takes *function* from libm."""
    source = f"double {function}(double); double more(double x) {{ return {function}(x); }}"
    library_ = library("libx.so", source=source, flags=(*flags(level), "-Wl,--no-as-needed", "-lm"))
    return repaired({f"demo/{so('_c')}": module("v1", needs=("libx.so",))}, {"libx.so": library_})


NOT_ADDED = {
    "another Python": NAME.replace(NAME.split("-")[2], "cp39", 1),
    "another version": NAME.replace("1.0", "1.1"),
    "another machine": NAME.replace("x86_64", "aarch64"),
}


@pytest.mark.parametrize("what", NOT_ADDED)
def test_a_wheel_that_belongs_to_none_is_refused(tmp_path: Path, what: str) -> None:
    name = NOT_ADDED[what]
    with pytest.raises(RepackageError) as caught:
        planned(tmp_path, package("v1"), package("v3"), name=name)
    tag = NAME.removesuffix(".whl").split("-", 2)[2]
    assert str(caught.value) == f"{name}: no plain wheel of its release, Python and ABI to add it to; found: {tag}"


def test_a_level_that_has_no_folder_is_refused(tmp_path: Path) -> None:
    wheel = hwcaps_wheel(tmp_path, package("v1"))
    for cpu in (Cpu("x86_64", "v1"), Cpu("aarch64", "9.0a")):
        with pytest.raises(RepackageError) as caught:
            Hwcaps(added=((cpu, wheel),)).plan(releases_at([wheel]))
        expected = "no level that glibc has a folder for; expected x86-64-v2, -v3 or -v4"
        assert str(caught.value) == f"{cpu}: {expected}"


def test_nothing_to_join_is_refused_and_nothing_written(tmp_path: Path) -> None:
    wheel = hwcaps_wheel(tmp_path, package("v1"))
    with pytest.raises(RepackageError) as caught:
        publish([wheel], tmp_path / "site", layouts=[Hwcaps()])
    assert str(caught.value) == ("hwcaps: found no wheel of an x86-64 level above the baseline; expected some to join")
    assert not (tmp_path / "site").exists()


def test_a_library_that_takes_what_those_of_the_wheel_do_not_give_is_left(tmp_path: Path) -> None:
    of = {f"demo/{so('_c')}": module("v1", needs=("libx.so.1",), takes="x_level")}
    takes = "int later(void); int used(void) { return later(); }"
    y = {"liby.so.1": shared("v1", "liby.so.1", function="y_level")}
    published = repaired(of, {"libx.so.1": shared("v1", "libx.so.1", needs=("liby.so.1",)), **y})
    other = repaired(of, {"libx.so.1": shared("v3", "libx.so.1", needs=("liby.so.1",), more=takes)})
    with pytest.raises(RepackageError) as caught:
        planned(tmp_path, published, other)
    assert str(caught.value).endswith(": takes later, which nothing in the wheel gives")


def test_a_dependency_wheel_of_a_split_comes_along(tmp_path: Path) -> None:
    about = "Wheel-Version: 1.0\nGenerator: vbuild split\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_34_x86_64\n"
    libs = wheel(
        tmp_path,
        "demo_libs-1.0-py3-none-manylinux_2_34_x86_64.whl",
        {"demo_libs-1.0.dist-info/WHEEL": about, "demo_libs/libx.so": shared("v1")},
    )
    wheels_ = [hwcaps_wheel(tmp_path, package("v1")), hwcaps_wheel(tmp_path, package("v3"), "v3"), libs]
    plan = Hwcaps().plan(releases_at(wheels_))
    assert [output.target.name for output in plan.outputs][:2] == [NAME, libs.name]
