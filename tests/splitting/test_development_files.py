"""Which files go into a -dev wheel: real ones, made by the tools that write such files, and what only looks like it."""

import subprocess
from pathlib import Path

import pytest

from tests.factories.elf import object_file, shared_object
from vbuild.splitting.output_wheels import DevelopmentKind, kind_of, named_by

CODE = b"int x;\n"
PC = b"prefix=/usr\n\nName: demo\nDescription: A demo\nVersion: 1.0\n"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The start of a static library, by ar."""
    folder = tmp_path_factory.mktemp("archive")
    (folder / "demo.o").write_bytes(object_file("int x;"))
    subprocess.run(["ar", "rcs", "libdemo.a", "demo.o"], check=True, cwd=folder)
    return Path(folder / "libdemo.a").read_bytes()[:1024]


@pytest.mark.parametrize(
    ("path", "head", "kind"),
    [
        ("demo/include/demo.h", CODE, DevelopmentKind.HEADER),
        ("demo/csrc/kernel.CUH", CODE, DevelopmentKind.HEADER),
        ("demo/a.hpp", CODE, DevelopmentKind.HEADER),
        ("demo/include/demo/b.inc", CODE, DevelopmentKind.HEADER),
        ("demo/data/b.inc", CODE, None),
        ("demo-1.0.data/data/include/demo.h", CODE, DevelopmentKind.HEADER),
        ("demo-1.0.data/headers/demo.h", CODE, None),
        ("demo/lib/cmake/demo/demoConfig.cmake", b"include(x)\n", DevelopmentKind.CMAKE),
        ("demo/x.cmake", b"\0\1", None),
        ("demo/lib/pkgconfig/demo.pc", PC, DevelopmentKind.PKG_CONFIG),
        ("demo/scores.pc", b"1 2 3\n", None),
        ("demo/lib/libdemo.la", b"# libdemo.la - a libtool library file\n", DevelopmentKind.STATIC),
        ("demo/lib/libdemo.la", b"lala\n", None),
        ("demo/weights.a", b"weights", None),
        ("demo/lib/libthin.a", b"!<thin>\n/", DevelopmentKind.STATIC),
        ("demo/_C.so", shared_object("int x;")[:1024], None),
        ("demo/api.pxd", b"cdef int x\n", None),
        ("demo/__init__.py", b"", None),
        ("demo/h", b"", None),
    ],
)
def test_files_are_told_by_name_and_first_bytes(path: str, head: bytes, kind: DevelopmentKind | None) -> None:
    assert kind_of(path, head) is kind


def test_static_libraries_go_but_for_what_is_linked_at_run_time(archive: bytes) -> None:
    assert kind_of("demo/lib/libdemo.a", archive) is DevelopmentKind.STATIC
    assert kind_of("demo/lib/libcudadevrt.a", archive) is None


@pytest.mark.parametrize(
    ("source", "stays"),
    [
        ("def get_include():\n    return os.path.join(os.path.dirname(__file__), 'include')\n", True),
        ("HEADER = Path(__file__).parent / 'include/demo'\n", True),
        ("open(f'{folder}/include/x.h')\n", True),
        ("read('demo.h')\n", True),
        ("read(b'demo.h')\n", True),
        ("glob('C:\\\\include')\n", True),
        ('"""Include what demo.h says, of include/demo"""\n', False),
        ("import include\n", False),
        ("name = 'demo'\n", False),
        ("name = 'including'\n", False),
        ("# 'include'\n", False),
        ("print 'include'\n", True),
        (f"x = '{'include/' * 40}'\n", False),
        ("x = '\\d'\n", False),
    ],
    ids=[
        "folder",
        "path",
        "formatted",
        "file",
        "bytes",
        "other slash",
        "prose",
        "module",
        "own",
        "part",
        "comment",
        "old Python",
        "data",
        "odd escape",
    ],
)
def test_headers_that_python_code_names_stay(source: str, *, stays: bool) -> None:
    named = named_by(["", source])
    assert (kind_of("demo/include/demo.h", CODE, named=named) is None) is stays
    assert kind_of("demo/lib/cmake/include/x.cmake", b"", named=named)
