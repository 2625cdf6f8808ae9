"""The ELF file without code: what tools read in it, and that the loader goes through it to where it leads."""

import io
import subprocess
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import elf
from tests.factories.arm import arm_object
from tests.factories.extensions import laid_out, library
from tests.factories.hwcaps_wheels import module, program_output, shared
from tests.factories.tools import needs
from vbuild.elf.code import Elf
from vbuild.elf.interface import Interface
from vbuild.elf.read import Loading
from vbuild.elf.records import ElfMachine
from vbuild.elf.surgery.relink import Relink, relinked
from vbuild.elf.write import loader_stub
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile

NAME, RUNPATH = "libvb__c-01234567.so", "$ORIGIN/../demo.libs"
STUB = loader_stub(NAME, RUNPATH)
SCRIPT = "ONE { global: x_level; local: *; };"
FORTY_TWO = "int deep(void) { return 42; }"
names = st.text(st.characters(max_codepoint=127, exclude_characters="\0:"), min_size=1)


def test_it_has_no_code_and_no_symbol() -> None:
    parsed = Elf.parse(STUB)
    assert (parsed.code, parsed.functions, parsed.objects, parsed.imports) == ((), (), (), ())
    interface = Interface.parse(STUB)
    assert not interface.exported | interface.vague | interface.taken


@given(needed=names, runpath=names, soname=st.none() | names)
def test_whatever_it_is_asked_to_say_is_read_back(needed: str, runpath: str, soname: str | None) -> None:
    outline = Loading.parse(loader_stub(needed, runpath, soname=soname)).outline
    assert (outline.needed, outline.runpath, outline.soname) == ((needed,), (runpath,), soname)


def test_readelf_and_pyelftools_have_nothing_to_say() -> None:
    assert elf.complaints("readelf", STUB, "-aW") == set()
    assert "(NEEDED)             Shared library: [libvb__c-01234567.so]" in elf.judged_by("readelf", STUB, "-dW")
    [dynamic] = [one for one in ELFFile(io.BytesIO(STUB)).iter_segments() if isinstance(one, DynamicSegment)]
    assert [tag.entry.d_tag for tag in dynamic.iter_tags()][:2] == ["DT_NEEDED", "DT_RUNPATH"]


@needs("eu-elflint")
@pytest.mark.parametrize("soname", [None, "libx.so"], ids=["module", "library"])
def test_eu_elflint_has_nothing_to_say(soname: str | None) -> None:
    data = loader_stub(NAME, RUNPATH, soname=soname)
    assert elf.complaints("eu-elflint", data) == set()
    assert elf.complaints("eu-elflint", data, "--gnu-ld") == set()


def test_tools_that_edit_libraries_edit_it() -> None:
    for data in (elf.stripped(STUB), elf.patchelfed(STUB, "--set-rpath", "$ORIGIN/elsewhere/and/further/away")):
        assert Loading.parse(data).outline.needed == (NAME,)
    with relinked(EditedFile.whole(STUB), Relink(renamed=((NAME, "libother.so"),), rpath=("$ORIGIN",))) as new:
        assert Loading.parse(bytes(new)).outline.needed == ("libother.so",)


def test_python_imports_the_module_that_it_leads_to(tmp_path: Path) -> None:
    laid_out(tmp_path, {"_c.so": loader_stub(NAME, "$ORIGIN/libs"), f"libs/{NAME}": module("v1")})
    assert program_output(tmp_path, "import _c; print(_c.level(), _c.__file__)") == f"v1 {tmp_path}/_c.so"


def test_ctypes_finds_the_functions_of_the_library_that_it_leads_to(tmp_path: Path) -> None:
    laid_out(tmp_path, {"libx.so": loader_stub("libvb_x.so", "$ORIGIN/libs", soname="libx.so")})
    laid_out(tmp_path, {"libs/libvb_x.so": shared("v1", "libvb_x.so")})
    program = (
        "import ctypes; f = ctypes.CDLL(sys.path[0] + '/libx.so').x_level; f.restype = ctypes.c_char_p; print(f())"
    )
    assert program_output(tmp_path, program) == "b'v1'"


def test_a_version_of_a_symbol_is_found_behind_it(tmp_path: Path) -> None:
    data = elf.linked(
        "const char *x_level(void); const char *said(void) { return x_level(); }",
        *elf.rpath("$ORIGIN"),
        libraries=(("libx.so", shared("v1", "libx.so", script=SCRIPT)),),
    )
    laid_out(tmp_path, {"libx.so": loader_stub("libvb_x.so", "$ORIGIN/libs", soname="libx.so"), "user.so": data})
    laid_out(tmp_path, {"libs/libvb_x.so": shared("v3", "libvb_x.so", script=SCRIPT)})
    program = (
        "import ctypes; f = ctypes.CDLL(sys.path[0] + '/user.so', 2).said; f.restype = ctypes.c_char_p; print(f())"
    )
    assert program_output(tmp_path, program) == "b'v3'"


def test_what_it_leads_to_finds_its_own_libraries_by_an_rpath_alone(tmp_path: Path) -> None:
    top = library("libvb_x.so", ("libdeep.so",), source="int deep(void); int top(void) { return deep(); }")
    laid_out(tmp_path, {"libs/libvb_x.so": top, "libs/libdeep.so": library("libdeep.so", source=FORTY_TWO)})
    stubs = {f"{flag}.so": loader_stub("libvb_x.so", "$ORIGIN/libs", is_inherited=flag) for flag in (True, False)}
    laid_out(tmp_path, stubs)
    assert program_output(tmp_path, "import ctypes; print(ctypes.CDLL(sys.path[0] + '/True.so').top())") == "42"
    run = subprocess.run(["ldd", tmp_path / "False.so"], capture_output=True, text=True, check=True)
    assert "libdeep.so => not found" in run.stdout


def test_a_path_in_its_place_is_not_taken_for_a_library_that_is_loaded(tmp_path: Path) -> None:
    laid_out(tmp_path, {"libx.so": loader_stub("$ORIGIN/libs/libx.so", "$ORIGIN/libs")})
    laid_out(tmp_path, {"libs/libx.so": library("libx.so", source=FORTY_TWO)})
    laid_out(tmp_path, {"other/libx.so": library("libx.so", source="int deep(void) { return 7; }")})
    program = "import ctypes; print([ctypes.CDLL(sys.path[0] + p + '/libx.so').deep() for p in ('/other', '')])"
    assert program_output(tmp_path, program) == "[7, 42]"


@needs("aarch64-linux-gnu-gcc", "qemu-aarch64")
def test_aarch64_loads_it_with_pages_of_64_kilobytes(tmp_path: Path) -> None:
    stub = loader_stub("libvb_x.so", "$ORIGIN/libs", machine=ElfMachine.AARCH64, is_inherited=True)
    laid_out(tmp_path, {"libx.so": stub, "libs/libvb_x.so": arm_object(FORTY_TWO, "-Wl,-soname,libvb_x.so")})
    opens = """
    #include <dlfcn.h>
    int main(int count, char **words) {
        void *it = dlopen(words[1], RTLD_NOW);
        return it ? ((int (*)(void))dlsym(it, "deep"))() : 1;
    }
    """
    compiler = ["aarch64-linux-gnu-gcc", "-x", "c", "-", "-o", str(tmp_path / "opens")]
    subprocess.run(compiler, input=opens.encode(), check=True)
    command = ["qemu-aarch64", "-p", "65536", "-L", "/usr/aarch64-linux-gnu", tmp_path / "opens", tmp_path / "libx.so"]
    assert subprocess.run([*map(str, command)], check=False).returncode == 42
    assert elf.complaints("readelf", stub, "-aW") == set()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(("", RUNPATH), ""), ((NAME, "$ORIGIN:/lib"), "$ORIGIN:/lib"), (("a\0b", RUNPATH), "a\0b")],
    ids=["empty", "two folders", "zero"],
)
def test_a_name_that_is_none_is_refused(arguments: tuple[str, str], name: str) -> None:
    with pytest.raises(BinaryError) as caught:
        loader_stub(*arguments)
    assert str(caught.value) == f"name {name!r}: expected one that is not empty, without a zero and without a colon"
