"""aarch64 for qemu-user: a Python from Debian's packages of this machine's mirror, and programs that choose code."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.factories.once import once

_PACKAGES = ("libpython{0}-minimal", "libpython{0}-stdlib", "python{0}-minimal")
_LIBRARIES = ("libc6", "libgcc-s1", "libstdc++6", "libexpat1", "libssl3", "zlib1g")

_CONFIGURATION = """
Dir::State "{0}";
Dir::State::lists "{0}/lists";
Dir::State::status "{0}/status";
Dir::Cache "{0}/cache";
APT::Architecture "arm64";
APT::Architectures "arm64";
APT::Sandbox::User "root";
"""


def arm_python(folder: Path) -> tuple[str, ...] | None:
    """The command of an aarch64 CPython of this Python's version, laid out in *folder*; or None if there is none."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for name in ("lists/partial", "cache/archives/partial", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "apt.conf").write_text(_CONFIGURATION.format(folder), encoding="utf-8")
    apt = ["apt-get", "-qq", "-c", str(folder / "apt.conf")]
    names = [name.format(version) for name in _PACKAGES] + list(_LIBRARIES)
    for command in ([*apt, "update"], [*apt, "download", *names]):
        if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
            return None
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
    python = ("qemu-aarch64", "-L", str(folder / "root"), str(folder / "root" / "usr" / "bin" / f"python{version}"))
    printed = subprocess.run([*python, "-VV"], capture_output=True, text=True, check=False)
    return python if re.match(rf"Python {re.escape(version)}\.", printed.stdout) else None


@once
def arm_object(source: str, *flags: str) -> bytes:
    """The shared object that Debian's cross compiler makes of *source*, for Armv8-A unless *flags* say otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "demo.so"
        options = ("-shared", "-fPIC", "-O2", "-fno-ipa-icf", "-march=armv8-a", *flags)
        command: list[str | Path] = ["aarch64-linux-gnu-gcc", *options, "-o", output, "-x", "c", "-"]
        subprocess.run(command, input=source.encode(), check=True, capture_output=True)
        return output.read_bytes()


@once
def bare(data: bytes) -> bytes:
    """*data* without the symbols that the loader does not need."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.so"
        path.write_bytes(data)
        subprocess.run(["aarch64-linux-gnu-strip", "--strip-all", path], check=True)
        return path.read_bytes()


# the instruction of a feature, and AT_HWCAP's number and bit for it
FEATURES = {
    "LSE": ("ldadd w1, w2, [sp]", 16, 8),
    "DOTPROD": ("sdot v0.4s, v1.16b, v2.16b", 16, 20),
    "SVE": ("cntb x1", 16, 22),
    "I8MM": ("usdot v0.4s, v1.16b, v2.16b", 26, 13),
}
_HEADER = """
#include <sys/auxv.h>
#define NOINLINE __attribute__((noinline, noclone))
typedef struct { unsigned long size, hwcap, hwcap2; } ifunc_arguments;
"""
# N is the number of the program, KEY and BIT ask for its feature, and OTHER for ASIMD, which every processor has
_FAST = """
NOINLINE static int fastN(int x)
{ __asm__ volatile(".arch armv8.6-a+sve\\n INSTRUCTION" ::: "x1", "x2", "v0"); return x; }
NOINLINE static int slowN(int x) { __asm__ volatile(""); return x + 1; }
"""
SHAPES = {
    "guarded": "int runN(int x) { return getauxval(KEY) >> BIT & 1 ? fastN(x) : slowN(x); }",
    "unguarded": "int runN(int x) { return fastN(x); }",
    "asks for something else": "int runN(int x) { return getauxval(16) & 2 ? fastN(x) : slowN(x); }",
    "on the other branch": "int runN(int x) { return getauxval(KEY) >> BIT & 1 ? slowN(x) : fastN(x); }",
    "asks elsewhere": """int hasN(void) { return getauxval(KEY) >> BIT & 1; }
        int runN(int x) { return fastN(x); }""",
    "kept in a flag": """static int flagN;
        __attribute__((constructor)) static void askN(void) { flagN = getauxval(KEY) >> BIT & 1; }
        int runN(int x) { return flagN ? fastN(x) : slowN(x); }""",
    "asked once": """static int stateN;
        int runN(int x) { if (!stateN) stateN = getauxval(KEY) >> BIT & 1 ? 2 : 1;
                          return stateN == 2 ? fastN(x) : slowN(x); }""",
    "the wrong state": """static int stateN;
        int runN(int x) { if (!stateN) stateN = getauxval(KEY) >> BIT & 1 ? 2 : 1;
                          return stateN >= 1 ? fastN(x) : slowN(x); }""",
    "kept as bits": """static unsigned bitsN;
        __attribute__((constructor)) static void askN(void)
        { unsigned long caps = getauxval(KEY); if (caps & 1ul << BIT) bitsN |= 4; if (caps & 2) bitsN |= 1; }
        int runN(int x) { return bitsN & 4 ? fastN(x) : slowN(x); }""",
    "another of the bits": """static unsigned bitsN;
        __attribute__((constructor)) static void askN(void)
        { unsigned long caps = getauxval(KEY); if (caps & 1ul << BIT) bitsN |= 4; bitsN |= 1; }
        int runN(int x) { return bitsN & 1 ? fastN(x) : slowN(x); }""",
    "a pointer": """static int (*workN)(int) = slowN;
        __attribute__((constructor)) static void askN(void) { if (getauxval(KEY) & 1ul << BIT) workN = fastN; }
        int runN(int x) { return workN(x); }""",
    "a pointer from the start": """static int (*volatile workN)(int) = fastN;
        __attribute__((constructor)) static void askN(void) { if (getauxval(16) & 2) workN = fastN; }
        int runN(int x) { return workN(x); }""",
    "an answer": """NOINLINE static int hasN(void) { return (getauxval(KEY) & 1ul << BIT) != 0; }
        int runN(int x) { return hasN() ? fastN(x) : slowN(x); }""",
    "the caller's caller": """NOINLINE static int innerN(int x) { return fastN(x) + 1; }
        int runN(int x) { if (getauxval(KEY) & 1ul << BIT) return innerN(x) * 2; return slowN(x); }""",
    "two conditions": """int runN(int x)
        { unsigned long caps = getauxval(KEY); return caps & 1ul << BIT && x > 0 ? fastN(x) : slowN(x); }""",
    "either condition": """int runN(int x)
        { unsigned long caps = getauxval(KEY); return caps & 1ul << BIT || x > 0 ? fastN(x) : slowN(x); }""",
    "a resolver": """static int (*chooseN(unsigned long caps, const ifunc_arguments *more))(int)
        { return (KEY == 16 ? caps : more->hwcap2) & 1ul << BIT ? fastN : slowN; }
        static int workN(int x) __attribute__((ifunc("chooseN")));
        int runN(int x) { return workN(x); }""",
    "a resolver that does not ask": """static int (*chooseN(unsigned long caps))(int) { return fastN; }
        static int workN(int x) __attribute__((ifunc("chooseN")));
        int runN(int x) { return workN(x); }""",
    "a table": """static int (*const tableN[])(int) = { slowN, fastN };
        int runN(int x) { return tableN[getauxval(KEY) >> BIT & 1](x); }""",
    "a table without a question": """static int (*const tableN[])(int) = { slowN, fastN };
        int runN(int x) { return tableN[x & 1](x); }""",
    "an identity register": """int runN(int x) { unsigned long isar, pfr;
        if (!(getauxval(16) >> 11 & 1)) return slowN(x);
        __asm__("mrs %0, ID_AA64PFR0_EL1" : "=r"(pfr)); __asm__("mrs %0, ID_AA64ISAR0_EL1" : "=r"(isar));
        return IDENTITY ? fastN(x) : slowN(x); }""",
}
_IDENTITY = {"LSE": "isar >> 20 & 15", "DOTPROD": "isar >> 44 & 15", "SVE": "pfr >> 32 & 15"}


def arm_programs() -> tuple[tuple[str, str], ...]:
    """Programs that choose code, rightly and wrongly: what each is, and its source, with its number for N."""
    found: list[tuple[str, str]] = []
    for feature, (instruction, key, bit) in FEATURES.items():
        for name, shape in SHAPES.items():
            if "IDENTITY" in shape and feature not in _IDENTITY:
                continue
            source = (_FAST + shape).replace("INSTRUCTION", instruction).replace("IDENTITY", _IDENTITY.get(feature, ""))
            source = source.replace("KEY", str(key)).replace("BIT", str(bit))
            found.append((f"{feature}: {name}", re.sub(r"(?<=[a-zST])N(?=\W)", str(len(found)), source)))
    return tuple(found)


def arm_library(programs: Iterable[str]) -> str:
    return _HEADER + "\n".join(programs)
