"""Stubs of the driver's libraries, linked with by real linkers."""

import subprocess
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.factories.tools import needs
from vbuild.elf.records import ElfMachine
from vbuild.toolchain.toolkit_cache import add_stubs, stub_of

CUDA = """
#define __CUDA_API_PTSZ(api) api ## _ptsz
#define cuMemAlloc cuMemAlloc_v2
#define cuMemcpyAsync __CUDA_API_PTSZ(cuMemcpyAsync)
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
"""
CALLER = "int cuInit(unsigned); int cuMemAlloc_v2(void **, unsigned long); int main() { return cuInit(0); }"


def _root(tmp_path: Path, **headers: str) -> Path:
    (tmp_path / "root/lib").mkdir(parents=True)
    (tmp_path / "root/include").mkdir()
    for name, text in headers.items():
        (tmp_path / f"root/include/{name}.h").write_text(text)
    return tmp_path / "root"


def _symbols(path: Path) -> set[str]:
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(section, SymbolTableSection)
        return {symbol.name for symbol in section.iter_symbols() if symbol.name}


def test_a_stub_has_the_functions_of_the_header_and_those_they_stand_for(tmp_path: Path) -> None:
    root = _root(tmp_path, cuda=CUDA, nvml="nvmlReturn_t DECLDIR nvmlInit_v2(void);")
    add_stubs(root, "x86_64")
    assert _symbols(root / "lib/stubs/libcuda.so") == {
        "cuInit",
        "cuMemAlloc",
        "cuMemAlloc_v2",
        "cuMemcpyAsync",
        "cuMemcpyAsync_ptsz",
    }
    assert "nvmlInit_v2" in _symbols(root / "lib/stubs/libnvidia-ml.so")


def test_without_a_header_or_for_an_unknown_machine_there_is_none(tmp_path: Path) -> None:
    add_stubs(_root(tmp_path), "x86_64")
    (tmp_path / "root/include/cuda.h").write_text(CUDA)
    add_stubs(tmp_path / "root", "riscv64")
    assert list((tmp_path / "root/lib").iterdir()) == []


def test_a_stub_that_a_component_has_is_kept(tmp_path: Path) -> None:
    root = _root(tmp_path, cuda=CUDA)
    (root / "lib/stubs").mkdir()
    (root / "lib/stubs/libcuda.so").write_text("real")
    add_stubs(root, "x86_64")
    assert (root / "lib/stubs/libcuda.so").read_text() == "real"


@pytest.mark.parametrize(("machine", "name"), [(ElfMachine.X86_64, "EM_X86_64"), (ElfMachine.AARCH64, "EM_AARCH64")])
def test_a_stub_is_for_its_machine(tmp_path: Path, machine: ElfMachine, name: str) -> None:
    (tmp_path / "libcuda.so").write_bytes(stub_of("libcuda.so.1", ["cuInit"], machine=machine))
    with (tmp_path / "libcuda.so").open("rb") as file:
        assert ELFFile(file)["e_machine"] == name


LINKERS = [
    pytest.param("bfd", marks=needs("gcc", "ld.bfd")),
    pytest.param("gold", marks=needs("gcc", "ld.gold")),
    pytest.param("lld", marks=needs("gcc", "ld.lld")),
]


@pytest.mark.parametrize("linker", LINKERS)
def test_linkers_take_a_stub_for_the_driver(tmp_path: Path, linker: str) -> None:
    root = _root(tmp_path, cuda=CUDA)
    add_stubs(root, "x86_64")
    (tmp_path / "caller.c").write_text(CALLER)
    command = ["gcc", f"-fuse-ld={linker}", "caller.c", "-L", root / "lib/stubs", "-lcuda", "-o", "caller"]
    subprocess.run(list(map(str, command)), cwd=tmp_path, check=True)
    with (tmp_path / "caller").open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        assert "libcuda.so.1" in [getattr(tag, "needed", "") for tag in section.iter_tags()]
