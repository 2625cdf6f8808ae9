"""Libraries loaded by a process of their own, and the GPU code that their wrappers lead to in its memory.

The process is a program that knows of fatbins and bundles what the vendor's runtime knows; its output is read here
without vbuild's own parser. Libraries of CUDA and ROCm that are not on this machine are stood in for: the loader finds
every symbol and version, and what is called gives 0. With AMD's, start-up code registers its wrappers with the program.
"""

import re
import struct
import subprocess
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from hashlib import md5, sha256
from itertools import chain
from pathlib import Path

import zstandard
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from tests.factories.devices import X86_64, Toolchain
from tests.factories.once import once
from vbuild.elf.image import ElfImage

_WRAPPER, _CONTAINER, _ENTRY = struct.Struct("<IIQ"), struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
_HIP, _ROW = 0x48495046, struct.Struct("<QQQ")
_WRAPPER_SIZE, _POINTER = 24, 8
_WALKER = r"""
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct wrapper { uint32_t magic, version; const uint64_t *data; const void *more; };
static const struct wrapper *registered[1 << 16];
static int calls;
void *__hipRegisterFatBinary(const struct wrapper *wrapper) { registered[calls++] = wrapper; return (void *)wrapper; }
static uint64_t bundled(const char *start) {
  uint64_t size = 32, count, row[3];
  if (!memcmp(start, "CCOB", 4)) return start[4] == 3 ? *(uint64_t *)(start + 8) : *(uint32_t *)(start + 8);
  if (memcmp(start, "__CLANG_OFFLOAD_BUNDLE__", 24)) abort();
  const char *place = start + size;
  for (count = *(uint64_t *)(start + 24); count; count--, place += 24 + row[2]) {
    memcpy(row, place, 24);
    if (row[0] + row[1] > size) size = row[0] + row[1];
  }
  return size < place - start ? place - start : size;
}
int main(int count, char **argv) {
  struct link_map *map = dlopen(argv[1], RTLD_NOW);
  if (!map) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  const struct wrapper *wrapper = (const void *)(map->l_addr + strtoul(argv[2], NULL, 0));
  for (int call = 0; call < calls; call++) {
    uint64_t place = registered[call] - wrapper;
    if (place >= atoi(argv[3]) || registered[call] != wrapper + place) abort();
  }
  for (count = atoi(argv[3]); count > 0; count--, wrapper++) {
    uint64_t size = wrapper->magic == 0x48495046 ? bundled((const char *)wrapper->data) : 16 + wrapper->data[1];
    fwrite(wrapper, 1, 8, stdout);
    fwrite(&size, 1, 8, stdout);
    fwrite(wrapper->data, 1, size, stdout);
  }
  fflush(stdout);
  _Exit(0);
}
"""


_REST = "rest.so"


def in_memory(library: Path, *, toolchain: Toolchain = X86_64) -> dict[int, tuple[str, ...]]:
    """The SHA-256 of every entry that the wrappers of *library* lead to in a process that has it loaded, RTLD_NOW.

    By the address, before the library is placed, of the pointer in the wrapper; for AMD each is behind the target and
    a space. AssertionError where it does not load, or where a magic, version or size is not as it should be.
    """
    image = ElfImage.parse(library.read_bytes())
    section = image.section(".nvFatBinSegment") or image.section(".hipFatBinSegment")
    assert section
    start, count = section.addresses.start, len(section.addresses) // _WRAPPER_SIZE
    with tempfile.TemporaryDirectory() as folder:
        walker = Path(folder) / "walker"
        walker.write_bytes(_walker(toolchain.prefix))
        walker.chmod(0o755)
        command = [*toolchain.run, str(walker), str(library), hex(start), str(count)]
        environment = {}
        if not toolchain.run:
            _stand_ins(library, Path(folder))
            environment = {"LD_LIBRARY_PATH": folder, "LD_PRELOAD": str(Path(folder) / _REST)}
        run = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=300)
    assert not run.returncode, run.stderr.decode()
    found, place = {}, 0
    for number in range(count):
        digests, place = _read(memoryview(run.stdout), place)
        found[start + number * _WRAPPER_SIZE + _POINTER] = digests
    assert place == len(run.stdout)
    return found


def _read(data: memoryview, place: int) -> tuple[tuple[str, ...], int]:
    """The entries of the wrapper at *place* of what the walker wrote, and where the next one is."""
    magic, version, size = _WRAPPER.unpack_from(data, place)
    place += _WRAPPER.size
    end = place + size
    if magic == _HIP:
        assert version == 1
        return tuple(_bundled(bytes(data[place:end]))), end
    assert magic == 0x466243B1
    assert version in {1, 2}
    magic, version, header, size = _CONTAINER.unpack_from(data, place)
    assert (magic, version, header, place + header + size) == (0xBA55ED50, 1, _CONTAINER.size, end)
    place += header
    digests = []
    while place < end:
        kind, version, header, size = _ENTRY.unpack_from(data, place)
        assert kind in {1, 2, 8}
        assert (version, header % 8, size % 8) == (0x0101, 0, 0)
        digests.append(sha256(data[place : place + header + size]).hexdigest())
        place += header + size
    assert place == end
    return tuple(digests), end


def _bundled(data: bytes) -> Iterator[str]:
    """The target of each code object in a bundle, with its SHA-256; clang's own reader takes the same."""
    if data.startswith(b"CCOB"):
        header = {2: 24, 3: 32}[data[4]]
        plain = zstandard.ZstdDecompressor().decompress(data[header:]) if data[6] else zlib.decompress(data[header:])
        assert data[header - 8 : header] == md5(plain, usedforsecurity=False).digest()[:8]
        data = plain
    assert data.startswith(b"__CLANG_OFFLOAD_BUNDLE__")
    place = 32
    for _ in range(int.from_bytes(data[24:32], "little")):
        start, size, length = _ROW.unpack_from(data, place)
        place += _ROW.size + length
        target = data[place - length : place].decode()
        assert start + size <= len(data)
        if size:
            assert (start % 4096, data[start : start + 4]) == (0, b"\x7fELF")
            yield f"{target} {sha256(data[start : start + size]).hexdigest()}"


@once
def _walker(prefix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "walker"
        command: list[str | Path] = [f"{prefix}gcc", "-O2", "-o", output, "-rdynamic", "-x", "c", "-", "-ldl"]
        subprocess.run(command, input=_WALKER.encode(), check=True, capture_output=True)
        return output.read_bytes()


def _stand_ins(library: Path, folder: Path) -> None:
    """Write into *folder* a library for each that *library* needs, or what it needs, and the loader does not find.

    One more, `_REST`, has what no library is named for: an extension takes it from the program, which is Python.
    """
    told = subprocess.run(["ldd", "-r", library], capture_output=True, text=True, check=False).stdout
    missing = re.findall(r"(\S+) => not found", told)
    wanted: dict[str, set[str]] = defaultdict(set)
    for symbol, version in re.findall(r"undefined symbol: (\w+)(?:, version (\S+))?\s+\(", told):
        wanted[version].add(symbol)
    owners = dict(chain.from_iterable(map(_versions, (library, *re.findall(r"=> (/\S+)", told)))) if missing else ())
    for name in missing:
        _stand_in(folder / name, {version: wanted[version] for version, owner in owners.items() if owner == name})
    _stand_in(folder / _REST, {"": wanted[""]})


def _versions(library: str | Path) -> Iterator[tuple[str, str]]:
    """Each version of symbols that *library* needs, and which library is to have it."""
    with Path(library).open("rb") as file:
        section = ELFFile(file).get_section_by_name(".gnu.version_r")
        if isinstance(section, GNUVerNeedSection):
            for need, auxiliaries in section.iter_versions():
                yield from ((str(found.name), str(need.name)) for found in auxiliaries)


def _stand_in(path: Path, versions: Mapping[str, Collection[str]]) -> None:
    """A library at *path* that has these symbols under these versions."""
    names = [name for symbols in versions.values() for name in symbols]
    source = "".join(f"{name}: .globl {name}\n.type {name}, @function\n" for name in names)
    each = {version: " ".join(f"{symbol};" for symbol in symbols) for version, symbols in versions.items() if version}
    script = "".join(f"{version} {{ {symbols} }};\n" for version, symbols in each.items())
    written = path.with_suffix(".map")
    written.write_text(script)
    command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{path.name}", "-o", str(path), "-x", "assembler", "-"]
    command += [f"-Wl,--version-script={written}"] if script else []
    code = f'.text\n{source} xor %eax, %eax\n ret\n.section .note.GNU-stack,"",@progbits\n'
    subprocess.run(command, input=code.encode(), check=True, capture_output=True)
