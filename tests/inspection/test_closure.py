"""Which library loads which, as values and as lines, in a wheel whose libraries the linker made."""

import posixpath
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.elf import MODULE, program, rpath
from tests.factories.linked_libraries import DEEP, NAME, files, linked
from tests.factories.wheels import wheel
from vbuild.binary.linkage import Via
from vbuild.files.wording import WIDTH
from vbuild.inspection.closure import Closure, ClosureRole, LinkedLibrary, Node, Official, repeats
from vbuild.inspection.inspect import inspect
from vbuild.inspection.model import Contents
from vbuild.inspection.text import closure_lines, closure_of, repeat_lines

C, D = (f"demo/_{letter}.cpython-311-x86_64-linux-gnu.so" for letter in "CD")


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return inspect(wheel(tmp_path_factory.mktemp("w"), NAME, files()), closure=True)


def inspected(folder: Path, whole: Mapping[str, bytes | str], name: str = NAME) -> Contents:
    return inspect(wheel(folder, name, whole), closure=True)


def node(contents: Contents, name: str) -> Node:
    (found,) = [node for node in closure_of(contents).nodes if posixpath.basename(node.path) == name]
    return found


def block(contents: Contents, path: str) -> list[str]:
    """The lines about the file at *path*, blanks made one."""
    lines = list(closure_lines(contents, [path]))
    return [" ".join(line.split()) for line in lines[lines.index("") + 1 :]]


def test_each_need_says_how_the_loader_comes_to_it(contents: Contents) -> None:
    ways = {need.name: (need.via, need.provider) for need in node(contents, posixpath.basename(C)).needs}
    assert ways == {
        "libtop.so": (Via.OWN, "demo.libs/libtop.so"),
        "libtorch.so": (Via.OUTSIDE, None),
        "libcufft.so.11": (Via.OUTSIDE, None),
        "libcuda.so.1": (Via.DRIVER, None),
        "libnowhere.so.3": (Via.MISSING, None),
        "libc.so.6": (Via.PLATFORM, None),
    }
    (deep,) = [need for need in node(contents, posixpath.basename(D)).needs if need.provider]
    assert (deep.via, deep.provider) == (Via.NAME, f"demo.libs/{DEEP}")


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ("CDLL('libidle.so')", True),
        ("find('libidle')", True),
        ("load(folder / 'libidle.so.1')", True),
        ("f'libidle{suffix}'", True),
        ("libidle_of('libid')", False),
        ("libidle2.so", False),
        ("mylibidle.so", False),
    ],
)
def test_python_code_names_a_library_by_its_whole_name(tmp_path: Path, text: str, *, is_named: bool) -> None:
    whole: dict[str, bytes | str] = {"demo/libidle.so": linked("int idle;", soname="libidle.so"), "demo/a.py": text}
    assert [found.name for found in closure_of(inspected(tmp_path, whole)).unneeded] == (
        [] if is_named else ["libidle.so"]
    )


def test_modules_programs_and_libraries_are_told_apart(tmp_path: Path) -> None:
    whole: dict[str, bytes | str] = {
        "demo/_C.so": linked(MODULE),
        "demo/libx.so": linked("int x;"),
        "demo-1.0.data/scripts/tool": program("int main(void) { return 0; }"),
    }
    found = closure_of(inspected(tmp_path, whole))
    assert {node.name: node.role for node in found.nodes} == {
        "_C.so": ClosureRole.MODULE,
        "libx.so": ClosureRole.LIBRARY,
        "tool": ClosureRole.PROGRAM,
    }


def test_paths_are_those_in_the_wheel_wherever_they_are_installed(tmp_path: Path) -> None:
    whole = {
        "demo-1.0.data/platlib/_C.so": linked(MODULE, "libx.so", flags=rpath("$ORIGIN/demo")),
        "demo/libx.so": linked("int x;", soname="libx.so"),
    }
    closure = closure_of(inspected(tmp_path, whole))
    assert closure.chains("demo/libx.so") == (("demo-1.0.data/platlib/_C.so", "demo/libx.so"),)


def test_a_copy_of_an_official_library_says_whose_it_was(tmp_path: Path) -> None:
    whole = {
        "demo/_C.so": linked(MODULE, "libcufft-f3921c41.so.11.2.1.3", flags=rpath("$ORIGIN/../demo.libs")),
        "demo.libs/libcufft-f3921c41.so.11.2.1.3": linked("int fft;", soname="libcufft-f3921c41.so.11.2.1.3"),
    }
    contents = inspected(tmp_path, whole)
    found = node(contents, "libcufft-f3921c41.so.11.2.1.3")
    assert found.original
    assert (found.original.name, found.original.digest) == ("libcufft.so.11.2.1.3", "f3921c41")
    assert found.officials == (Official("nvidia-cufft-cu12", 12),)
    assert block(contents, found.path)[1] == "bundled libcufft.so.11.2.1.3, hash f3921c41, a library of"


def test_a_copy_that_kept_its_name_says_whose_it_was_as_well(tmp_path: Path) -> None:
    # and needs nothing of anybody
    copy = linked("int cudart;", soname="libcudart.so.12", flags=("-nostdlib",))
    contents = inspected(tmp_path, {"demo/libcudart.so.12": copy})
    assert block(contents, "*")[1:] == [
        "bundled libcudart.so.12, a library of nvidia-cuda-runtime-cu12 (CUDA 12)",
        "why nothing needs it, and nothing names it",
    ]
    assert list(closure_lines(contents))[1:3] == [
        f"{len(copy) / 1e3:.1f} kB that the loader loads: 1 library; CUDA 12",
        "",
    ]


def test_the_lines_of_a_module_group_its_needs_by_where_they_are(contents: Contents) -> None:
    assert block(contents, C) == [
        f"{C} module {files_size(C)}",
        "own path libtop.so",
        "elsewhere torch: libtorch.so; nvidia-cufft-cu12 (CUDA 12): libcufft.so.11",
        "driver libcuda.so.1",
        "missing libnowhere.so.3",
        "platform 1 library",
    ]
    assert block(contents, D)[1:] == [f"if loaded {DEEP}", "platform 1 library"]


def files_size(path: str) -> str:
    return f"{len(files()[path]) / 1e3:.1f} kB"


def test_the_whole_wheel_shows_one_chain_each_and_ends_in_what_is_missing_or_idle(contents: Contents) -> None:
    lines = list(closure_lines(contents))
    assert lines[0] == "demo 1.0 cp311-cp311-manylinux_2_17_x86_64"
    assert lines[1].endswith(" that the loader loads: 2 modules, 5 libraries; CUDA 12")
    assert lines[2:4] == [
        "7 names needed: 2 here, 2 of other packages, 1 of the driver, 1 of the platform,",
        "  1 missing",
    ]
    text = [" ".join(line.split()) for line in lines]
    assert "why opened by name: demo/__init__.py" in text
    assert "why opened by name: demo.libs/libtop.so" in text
    assert "why nothing needs it, and nothing names it" in text
    assert "and 1 chain more" in text
    assert lines[-2] == "missing  libnowhere.so.3"
    assert lines[-1].startswith("idle     1 library, ")
    assert lines[-1].endswith(" that nothing needs or names: libidle.so")


def test_no_line_is_wider_than_the_terminal(contents: Contents) -> None:
    lines = [*closure_lines(contents), *closure_lines(contents, ["*"])]
    assert max(map(len, lines)) <= WIDTH


def test_what_matches_nothing_is_said(contents: Contents) -> None:
    assert list(closure_lines(contents, ["*cuda*", "x"]))[-1] == "no library matches *cuda* or x"


def test_a_wheel_without_libraries_has_no_closure_to_show(tmp_path: Path) -> None:
    empty = inspected(tmp_path, {"demo/__init__.py": ""}, "demo-1.0-py3-none-any.whl")
    assert list(closure_lines(empty)) == ["demo 1.0 py3-none-any", "no file that a loader loads"]


def test_a_closure_that_was_not_asked_for_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inspected without its closure"):
        closure_of(inspect(wheel(tmp_path, NAME, {})))


def test_libraries_that_several_wheels_have_are_counted_once_for_each_more(tmp_path: Path) -> None:
    names = [NAME, NAME.replace("cp311", "cp312")]
    wheels = [inspected(tmp_path, files(), name) for name in names]
    found = repeats((contents.wheel, closure_of(contents)) for contents in wheels)
    assert {repeat.names for repeat in found} == {
        (DEEP,),
        ("libtop.so",),
        ("libmore.so",),
        ("libplugin.so",),
        ("libidle.so",),
    }
    for repeat in found:
        assert repeat.wheels == tuple(names)
        assert repeat.repeated == repeat.packed[0] == node(wheels[0], repeat.names[0]).linked.packed_size
    lines = [" ".join(line.split()) for line in repeat_lines(wheels)]
    assert lines[0] == "in several wheels, byte for byte installed packed wheels repeated"
    assert [line.split()[0] for line in lines[1:6]] == [repeat.names[0] for repeat in found]
    assert lines[-1].startswith("2 wheels, ")
    assert lines[-1].endswith(" of that is repeated; see `vbuild split`")


def test_wheels_that_repeat_nothing_say_so_and_one_alone_says_nothing(tmp_path: Path, contents: Contents) -> None:
    other = inspected(tmp_path, {"demo/libother.so": linked("int other;")}, NAME.replace("cp311", "cp312"))
    (line,) = repeat_lines([contents, other])
    assert line.startswith("2 wheels, ")
    assert line.endswith(": no library is in two of them byte for byte")
    assert list(repeat_lines([contents])) == []


def test_a_library_under_two_names_has_both(tmp_path: Path) -> None:
    same = linked("int same;")
    wheels = [
        inspected(tmp_path / name, {f"demo/{name}.so": same}, NAME.replace("cp311", name))
        for name in ("cp311", "cp312")
    ]
    (repeat,) = repeats((contents.wheel, closure_of(contents)) for contents in wheels)
    assert repeat.names == ("cp311.so", "cp312.so")
    assert any(line.startswith("cp311.so (+1) ") for line in repeat_lines(wheels))


def test_the_order_of_files_does_not_matter(contents: Contents) -> None:
    found = [LinkedLibrary(one.path, one.linked.size, 1, None, one.loading) for one in closure_of(contents).nodes]
    assert Closure.of(found).data() == Closure.of(reversed(found)).data()


def test_names_that_differ_in_a_number_alone_are_shown_together(tmp_path: Path) -> None:
    needs = ("libav.so.9", "libav.so.10", "libother.so", "libz9.so.1")
    contents = inspected(tmp_path, {"demo/_C.so": linked(MODULE, *needs)})
    assert list(closure_lines(contents))[-1] == "missing  libav.so.9 10, libother.so, libz9.so.1"
