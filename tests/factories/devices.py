"""Libraries with a section of blobs that the library finds through pointers, as those with GPU code have, and more.

.dev      blob after blob: u64 entries, u64 number, then so many entries of 1 KiB of random bytes
.devseg   u64 0x1DE1, pointer to a blob: filled by the loader
"""

import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.factories.once import once
from vbuild.binary.code import Pointer
from vbuild.binary.edits import Replacement
from vbuild.elf.image import ElfImage
from vbuild.files.edited import Part

ENTRY, HEADER = 1024, 16
BLOBS, ENTRIES = 12, 24

_SOURCE = r"""
#include <stdint.h>
#include <stdio.h>
struct wrapper { uint64_t magic; const unsigned char *data; };
__attribute__((section(".devseg"), used)) struct wrapper wrappers[] = { WRAPPERS };
uint64_t checksum(void) {
  uint64_t sum = 14695981039346656037u;
  for (unsigned i = 0; i < sizeof wrappers / sizeof *wrappers; i++) {
    const unsigned char *data = ((volatile struct wrapper *)wrappers)[i].data;
    uint64_t size = 16 + 1024 * *(const uint64_t *)data;
    for (uint64_t at = 0; at < size; at++) sum = (sum ^ data[at]) * 1099511628211u;
  }
  return sum;
}
static int begun;
__attribute__((constructor)) static void begin(void) { begun = 7; }
__attribute__((destructor)) static void end(void) { puts("end"); }
int initialised(void) { return begun; }
static __thread int local = 5;
int *thread_local_number(void) { return &local; }
static char zeros[70000];
char *zeroed(int at) { return zeros + at; }
"""
_IFUNC = r"""
static int fast(void) { return 3; }
static int (*choose(void))(void) { return fast; }
int chosen(void) __attribute__((ifunc("choose")));
"""
_EXCEPTION = r"""
#include <stdexcept>
struct Guard { int &seen; ~Guard() { seen++; } };
extern "C" int raised(int *seen) {
  Guard guard{*seen};
  try { throw std::runtime_error("inside"); } catch (const std::exception &) { ++*seen; }
  throw std::runtime_error("outside");
}
"""
_DRIVER = r"""
#include <dlfcn.h>
#include <cstdint>
#include <cstdio>
#include <exception>
int main(int, char **argv) {
  void *library = dlopen(argv[1], RTLD_NOW);
  if (!library) { puts(dlerror()); return 1; }
  printf("%llx\n", (unsigned long long)((uint64_t (*)())dlsym(library, "checksum"))());
  printf("%d", ((int (*)())dlsym(library, "initialised"))());
  printf("%d", *((int *(*)())dlsym(library, "thread_local_number"))());
  printf("%d", *((char *(*)(int))dlsym(library, "zeroed"))(65536));
  if (auto *chosen = (int (*)())dlsym(library, "chosen")) printf("%d", chosen());
  if (auto *raised = (int (*)(int *))dlsym(library, "raised")) {
    int seen = 0;
    try { raised(&seen); } catch (const std::exception &error) { printf("%s%d", error.what(), seen); }
  }
  puts("");
  fflush(stdout);
  dlclose(library);
  return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler, and how what it makes is run and edited here."""

    prefix: str = ""
    run: tuple[str, ...] = ()

    @property
    def is_there(self) -> bool:
        programs = [f"{self.prefix}gcc", f"{self.prefix}g++", *self.run[:1]]
        return all(shutil.which(program) for program in programs)


X86_64 = Toolchain()
AARCH64 = Toolchain("aarch64-linux-gnu-", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"))
AARCH64_LARGE_PAGES = Toolchain(AARCH64.prefix, ("qemu-aarch64", "-p", "65536", "-L", "/usr/aarch64-linux-gnu"))


@dataclass(frozen=True, slots=True)
class Blob:
    """One blob of a library: where it is in the file, and the pointers to it."""

    span: range
    pointers: tuple[Pointer, ...]

    def entry(self, number: int) -> range:
        start = self.span.start + HEADER + ENTRY * number
        return range(start, start + ENTRY)

    def keeping(self, image: ElfImage, *numbers: int) -> Replacement:
        """The order to keep only the entries of these *numbers*."""
        return Replacement(self.span, tuple(self._parts(image, numbers)), self.pointers)

    def _parts(self, image: ElfImage, numbers: Sequence[int]) -> list[Part]:
        head = len(numbers).to_bytes(8, "little") + bytes(image.data[self.span.start + 8 : self.span.start + HEADER])
        return [head, *(self.entry(number) for number in numbers)]


def blobs(image: ElfImage) -> tuple[Blob, ...]:
    """Every blob of the library *image* in the order of the file."""
    section = image.section(".dev")
    assert section is not None
    pointers = image.pointers([section.addresses])
    starts = sorted({pointer.target for pointer in pointers})
    found = []
    for address in starts:
        start = image.offset(address)
        assert start is not None
        entries = int.from_bytes(image.data[start : start + 8], "little")
        leading = tuple(pointer for pointer in pointers if pointer.target == address)
        found.append(Blob(range(start, start + HEADER + ENTRY * entries), leading))
    return tuple(found)


def shortened(
    image: ElfImage, *, kept: Callable[[int], Sequence[int]] = lambda number: (number % ENTRIES, 20)
) -> list[Replacement]:
    """The order to keep those entries of each blob that *kept* gives for its number."""
    return [blob.keeping(image, *kept(number)) for number, blob in enumerate(blobs(image))]


def checksum(image: ElfImage, replacements: Sequence[Replacement]) -> int:
    """What the library's ``checksum`` has to return after *replacements*: of its blobs in the order of the wrappers."""
    total = 14695981039346656037
    ordered = sorted((min(pointer.place for pointer in each.pointers), each) for each in replacements)
    for _, each in ordered:
        for part in each.parts:
            for byte in bytes(image.view(part)) if isinstance(part, range) else part:
                total = (total ^ byte) * 1099511628211 & 0xFFFF_FFFF_FFFF_FFFF
    return total


@once
def library(
    *flags: str,
    toolchain: Toolchain = X86_64,
    align: int = 8,
    functions: int = 200,
    features: bool = True,
    gap: bytes = b"",
    count: int = BLOBS,
    writable: bool = False,
    exports: bool = True,
) -> bytes:
    """A library with *count* blobs, each *align*-ed, and *gap* after the third; *functions* more are exported.

    With *features*: an ifunc and C++ exceptions. Blobs that are *writable* lie before the zeros; without *exports* no
    symbol is for others.
    """
    rng = random.Random(3)
    names = ", ".join(f"{{0x1DE1, blob{number}}}" for number in range(count))
    declared = "".join(f"extern const unsigned char blob{number}[];\n" for number in range(count))
    source = declared.replace("extern", '__attribute__((visibility("hidden"))) extern') + _SOURCE.replace(
        "WRAPPERS", names
    )
    source += "".join(f"int exported_{number}(int a) {{ return a + {number}; }}\n" for number in range(functions))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [f'.section .dev, "{"aw" if writable else "a"}", %progbits']
        for number in range(count):
            content = ENTRIES.to_bytes(8, "little") + number.to_bytes(8, "little") + rng.randbytes(ENTRY * ENTRIES)
            (folder / f"{number}.bin").write_bytes(content)
            label = f"blob{number}"
            lines += [f".balign {align}", f".hidden {label}", f".globl {label}", f'{label}: .incbin "{number}.bin"']
            lines += [f".type {label}, %object", f".size {label}, . - {label}"]
            if number == 2 and gap:
                lines.append(".byte " + ", ".join(map(str, gap)))
        (folder / "dev.s").write_text("\n".join([*lines, '.section .note.GNU-stack,"",%progbits', ""]))
        (folder / "code.o").write_bytes(_object(f"{toolchain.prefix}gcc", "c", source + (_IFUNC if features else "")))
        if features:
            debug = [flag for flag in flags if flag == "-g"]
            (folder / "raise.o").write_bytes(_object(f"{toolchain.prefix}g++", "c++", _EXCEPTION, *debug))
        if not exports:
            (folder / "script").write_text("{ local: *; };")
            flags = (*flags, "-Wl,--version-script=script")
        linker, objects = ("g++", ["dev.s", "raise.o"]) if features else ("gcc", ["dev.s"])
        command = [f"{toolchain.prefix}{linker}", "-shared", *flags, "-o", "lib.so", "code.o", *objects]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return (folder / "lib.so").read_bytes()


@once
def _object(compiler: str, language: str, source: str, *flags: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "code.o"
        command: list[str | Path] = [compiler, "-O1", "-fPIC", *flags, "-c", "-o", output, "-x", language, "-"]
        subprocess.run(command, input=source.encode(), check=True, capture_output=True)
        return output.read_bytes()


@once
def _driver(prefix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "driver"
        command: list[str | Path] = [f"{prefix}g++", "-O1", "-o", output, "-x", "c++", "-", "-ldl"]
        subprocess.run(command, input=_DRIVER.encode(), check=True, capture_output=True)
        return output.read_bytes()


def program_lines(data: bytes, *, toolchain: Toolchain = X86_64) -> list[str]:
    """Returns what a program prints that loads the library *data*, resolves everything, and calls all that is in it."""
    with tempfile.TemporaryDirectory() as folder:
        driver, path = Path(folder) / "driver", Path(folder) / "lib.so"
        driver.write_bytes(_driver(toolchain.prefix))
        driver.chmod(0o755)
        path.write_bytes(data)
        command: list[str | Path] = [*toolchain.run, driver, path]
        run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        return (run.stdout + run.stderr).splitlines()
