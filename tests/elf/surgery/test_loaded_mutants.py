"""Damaged libraries that are cut, loaded by the real loader before and after: none that loads, or is refused, crashes.

Some hundred mutants by default, with ``-m nightly`` as many as MUTANTS says. The seed is printed with what fails.
"""

import os
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.elf.surgery.test_damage import LIBRARIES, NEW, ORDERS
from tests.factories import elf
from tests.factories.once import once
from vbuild.binary.edits import Strip
from vbuild.elf.image import ElfImage
from vbuild.elf.surgery.cutting import cut
from vbuild.errors import BinaryError

SEED = int(os.environ.get("MUTANT_SEED", "24"))
MANY = int(os.environ.get("MUTANTS", "6000"))
# the headers of segments, which say most, as often as all others
_TABLES = (".dynamic", ".gnu.hash", ".dynsym", ".symtab", ".rela.dyn", ".relr.dyn", ".dynstr", ".gnu.version_r")
# the loader's answer to each file that it is given: in a process of its own, for it may end that
_LOADER = r"""
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
  char path[4096];
  while (fgets(path, sizeof path, stdin)) {
    path[strcspn(path, "\n")] = 0;
    pid_t child = fork();
    if (!child) {
      alarm(10);
      dup2(open("/dev/null", O_WRONLY), 1);
      void *library = dlopen(path, RTLD_NOW);
      if (!library) _exit(1);
      void (*checksum)(void) = (void (*)(void))dlsym(library, "checksum");
      if (!checksum) _exit(2);
      checksum();
      _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    puts(WIFSIGNALED(status) ? "crashes" : WEXITSTATUS(status) ? "is refused" : "loads");
    fflush(stdout);
  }
}
"""


@once
def _loader() -> bytes:
    return elf.program(_LOADER, "-ldl")


class Loader:
    """The real loader, asked again and again."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self._path, self._process = folder / "lib.so", process

    def answer(self, data: bytes) -> str:
        """What it does with the library *data*."""
        assert self._process.stdin
        assert self._process.stdout
        self._path.write_bytes(data)
        print(self._path, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().strip()
        self._path.unlink()  # else the next one would be written into what may still be mapped
        return answer


@contextmanager
def loader() -> Iterator[Loader]:
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "loader"
        program.write_bytes(_loader())
        program.chmod(0o755)
        with subprocess.Popen(
            [program], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            yield Loader(Path(name), process)
            assert process.stdin
            process.stdin.close()


def spans(data: bytes) -> list[range]:
    """The file offsets of what the loader reads."""
    image = ElfImage.parse(data)
    table = range(image.header.e_phoff, image.header.e_phoff + 56 * image.header.e_phnum)
    return [range(64), *[table] * 4, *(each.span for each in image.sections if each.name in _TABLES)]


def mutants(count: int) -> Iterator[tuple[str, bytes]]:
    rng = random.Random(SEED)
    places = {name: spans(data) for name, data in LIBRARIES.items()}
    for _ in range(count):
        name = rng.choice(sorted(LIBRARIES))
        data = bytearray(LIBRARIES[name])
        for _ in range(rng.randint(1, 2)):
            at, new = rng.choice(rng.choice(places[name])), rng.choice(NEW)
            at = at // 8 * 8 if rng.random() < 1 / 2 else at
            data[at : at + len(new)] = new
        yield name, bytes(data)


def check(count: int) -> Counter[tuple[str, str]]:
    """Hold that no mutant is worse off for being cut; gives what the loader did before and after."""
    found = Counter[tuple[str, str]]()
    with loader() as real:
        for number, (name, data) in enumerate(mutants(count)):
            try:
                edited = cut(ElfImage.parse(data), ORDERS[name], strip=Strip.UNNEEDED).edited
            except BinaryError:
                continue
            if edited.is_unchanged:
                continue
            before, after = real.answer(data), real.answer(bytes(edited))
            found[before, after] += 1
            assert before in {after, "crashes"}, f"{name}, mutant {number} of MUTANT_SEED={SEED}: {before}, {after}"
    return found


def test_a_damaged_library_that_is_cut_loads_if_it_did() -> None:
    found = check(300)
    assert found["loads", "loads"] > 100, found


@pytest.mark.nightly
def test_of_thousands_of_damaged_libraries_none_loads_worse_after_a_cut() -> None:
    found = check(MANY)
    print(dict(found))
    assert found["loads", "loads"] > MANY / 3, found
