"""An emulator that stops code above a CPU level, as a processor of that level does.

    qemu-x86_64 -cpu qemu64,+ssse3,...,-avx,...    has every feature of the level, and none above

What it runs and stops is measured, by a program with an instruction of each feature. It logs what a process maps, and
where a signal ended it:

    openat(-100,"/.../demo/_c.so",O_RDONLY|O_CLOEXEC) = 4
    mmap(0x000000400286f000,8192,PROT_EXEC|PROT_READ,MAP_PRIVATE|MAP_FIXED,4,0x1000) = 0x000000400286f000
    --- SIGILL {si_signo=SIGILL, si_code=2, si_addr=0x000000400286f139} ---

https://www.qemu.org/docs/master/user/main.html
"""

import re
import shutil
import struct
import subprocess
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from msgspec import Struct

from vbuild.dispatch.isa import features_by_code, regions_of
from vbuild.elf.code import Elf
from vbuild.elf.iced import Decoder, Formatter, FormatterSyntax, is_installed
from vbuild.elf.image import ElfImage
from vbuild.elf.read import mapped
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError
from vbuild.hardware.cpu import X86_64_EXTRAS, X86_64_FEATURES, X86_64_LEVELS, Cpu

_SECONDS = 60.0
_LONGEST = 15  # bytes of an instruction
# seen by dispatch by model numbers: an early Opteron, Nehalem, Haswell, Skylake
_MODELS = {"v1": "", "v2": "6,model=26", "v3": "6,model=60", "v4": "6,model=85"}
# an instruction that needs the feature, and that a processor without it refuses
_INSTRUCTIONS = {
    "CMPXCHG16B": "480fc70c24",
    "LAHF-SAHF": "9f",
    "POPCNT": "f30fb8c0",
    "SSE3": "f20f12c0",
    "SSSE3": "660f381cc0",
    "SSE4.1": "660f3820c0",
    "SSE4.2": "660f3837c0",
    "AVX": "c5f858c0",
    "AVX2": "c5fdfcc0",
    "BMI1": "c4e278f2c0",
    "BMI2": "c4e27bf5c0",
    "F16C": "c4e27913c0",
    "FMA": "c4e27998c0",
    "LZCNT": "f30fbdc0",
    "MOVBE": "0f38f00424",
    "OSXSAVE": "31c90f01d0",
    "AVX512F": "62f17c4858c0",
    "AVX512BW": "62f17d48fcc0",
    "AVX512CD": "62f27d4844c0",
    "AVX512DQ": "62f17c4854c0",
    "AVX512VL": "62f17c0858c0",
    "AES": "660f38dcc0",
    "PCLMULQDQ": "660f3a44c000",
    "RDRAND": "0fc7f0",
    "RDSEED": "0fc7f8",
    "FSGSBASE": "f3480faec0",
    "SHA": "0f38c8c0",
    "GFNI": "660f38cfc0",
    "CLFLUSHOPT": "660fae3c24",
    "CLWB": "660fae3424",
    "MOVDIRI": "0f38f90424",
    "RDPID": "f30fc7f8",
    "ADX": "660f38f6c0",
    "VAES": "c4e27ddcc0",
    "VPCLMULQDQ": "c4e37d44c000",
    "AVX_VNNI": "c4e27d50c0",
}
NO_EMULATOR = "qemu-x86_64 is not installed; Debian and Ubuntu have it in qemu-user"
# of features that are in no table here
_ABOVE_ALL = ("avx", "amx")
_FLAGS = re.compile(r"^(flags\s*:)(.*)$", re.MULTILINE)
# an older processor takes the first for bsr; qemu has the second with RDRAND
_NEVER_REFUSED = frozenset({"LZCNT", "RDSEED"})
# system calls of x86-64 Linux: write, fork, exit, wait4
_WRITE, _FORK, _EXIT, _WAIT = 1, 57, 60, 61
_BASE, _HEAD = 0x400000, 64 + 56
_OPENED = re.compile(r'\bopen(?:at)?\([^"\n]*"(?P<path>[^"\n]+)".*\) = (?P<file>\d+)$')
_MAPPED = re.compile(
    r"\bmmap\([^,]+,(?P<size>\d+),[^,]+,[^,]+,(?P<file>\d+),(?P<offset>0x[0-9a-f]+|\d+)\) = (?P<start>0x[0-9a-f]+)$"
)
_STOPPED = re.compile(r"--- SIGILL \{.*si_addr\s*=\s*(?P<address>0x[0-9a-f]+)")


class Emulator(Struct, frozen=True):
    """qemu's emulator of x86-64 for programs."""

    path: Path
    version: str

    @classmethod
    def on_path(cls) -> Self | None:
        path = shutil.which("qemu-x86_64")
        return cls(Path(path), _version(path)) if path else None

    @classmethod
    def of(cls, cpu: Cpu) -> Self | str:
        """The emulator that judges code for *cpu*, or why there is none."""
        if cpu.machine != "x86_64":
            return f"code for {cpu.machine} is not emulated"
        emulator = cls.on_path()
        return (emulator.why_not(cpu) or emulator) if emulator else NO_EMULATOR

    def __str__(self) -> str:
        return f"qemu-x86_64 {self.version}"

    def command(self, cpu: Cpu) -> tuple[str, ...]:
        """The command before a program that sees the features of *cpu* and no others."""
        return self.on(processor(cpu))

    def on(self, processor: str) -> tuple[str, ...]:
        return (str(self.path), "-cpu", processor)

    def features(self, processor: str) -> frozenset[str] | None:
        """The features that its *processor* has for sure; None if it knows none of that name."""
        return _features(self, processor)

    def why_not(self, cpu: Cpu) -> str | None:
        """Why it cannot judge code for *cpu*, or None."""
        return _why_not(self, cpu)


class StoppedAt(Struct, frozen=True):
    """Where SIGILL ended a process: at *instruction*, which needs *features*, in *function* of *file*.

    Without a file, the code was made at run time, or its address is not known. A trap needs no features.
    """

    file: Path | None
    instruction: str = ""
    features: tuple[str, ...] = ()
    function: str = ""

    def described(self, packages: Path) -> str:
        if self.file is None:
            return "an instruction outside any file"
        name = self.file.relative_to(packages) if self.file.is_relative_to(packages) else self.file
        needs = f" ({', '.join(self.features)})" if self.features else ""
        return f"{self.instruction}{needs} in {self.function} of {name}"


@cache
def _version(path: str) -> str:
    try:
        ran = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return "of unknown version"
    match = re.search(r"version (\S+)", ran.stdout)
    return match[1] if match else "of unknown version"


def processor(cpu: Cpu) -> str:
    """What ``-cpu`` takes for a processor with the features of *cpu* and no others."""
    words = ["qemu64", "-svm"]
    if model := _MODELS[cpu.level]:
        words += ["vendor=GenuineIntel", f"family={model}"]
    for number, name in enumerate(X86_64_LEVELS[1:], 1):
        words += [f"{'+' if number <= cpu.rank else '-'}{feature.cpuinfo}" for feature in X86_64_FEATURES[name]]
    return ",".join([*words, *(f"+{extra}" for extra in cpu.extras)])


def cpuinfo(features: Collection[str], here: str) -> str:
    """/proc/cpuinfo of a processor with *features*, made of what it says *here*."""
    tables = (*X86_64_FEATURES.values(), *X86_64_EXTRAS.values())
    known = {feature.cpuinfo: feature.name for table in tables for feature in table}
    visible = {feature.name for feature in X86_64_FEATURES["v1"]}.union(features)
    wanted = sorted(flag for flag, name in known.items() if name in visible)

    def seen(match: re.Match[str]) -> str:
        flags = [name for name in match[2].split() if name not in known and not name.startswith(_ABOVE_ALL)]
        return f"{match[1]} {' '.join([*flags, *wanted])}"

    return _FLAGS.sub(seen, here)


def is_above(feature: str, cpu: Cpu) -> bool:
    return feature not in cpu.features | {extra.name for extra in cpu.extra_features}


def _newer(cpu: Cpu) -> str:
    """No qemu so far has all of v4, or single features."""
    return "; expected qemu 7.2 or newer" if cpu.rank < X86_64_LEVELS.index("v4") and not cpu.extras else ""


@cache
def _why_not(emulator: Emulator, cpu: Cpu) -> str | None:
    runs = _run_by(emulator.command(cpu))
    if runs is None:
        return f"{emulator} knows no processor with the features of {cpu}{_newer(cpu)}"
    wanted = [feature.name for level in X86_64_LEVELS[1 : cpu.rank + 1] for feature in X86_64_FEATURES[level]]
    wanted += [feature.name for feature in cpu.extra_features]
    if lacks := [name for name in wanted if name not in runs]:
        return f"{emulator} cannot judge {cpu}: it does not run {', '.join(lacks)}{_newer(cpu)}"
    passing = [name for name in runs if is_above(name, cpu) and name not in _NEVER_REFUSED]
    return f"{emulator} cannot judge {cpu}: it also runs {', '.join(passing)}" if passing else None


@cache
def _features(emulator: Emulator, processor: str) -> frozenset[str] | None:
    runs = _run_by(emulator.on(processor))
    return None if runs is None else frozenset(runs) - _NEVER_REFUSED


def _run_by(command: Iterable[str]) -> tuple[str, ...] | None:
    with TemporaryDirectory(prefix="vbuild-emulator-") as folder:
        program = Path(folder, "probe")
        program.write_bytes(_program())
        program.chmod(0o755)
        # every SIGILL would leave a core file
        line = ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh", *command, str(program)]
        try:
            ran = subprocess.run(line, capture_output=True, check=False, timeout=_SECONDS, cwd=folder)
        except (OSError, subprocess.SubprocessError):
            return None
    if ran.returncode or len(ran.stdout) != 8 * len(_INSTRUCTIONS):
        return None
    ends = (status for (status,) in struct.iter_unpack("<i4x", ran.stdout))
    return tuple(name for name, status in zip(_INSTRUCTIONS, ends, strict=True) if status == 0)


def _program() -> bytes:
    """A program that runs each instruction in a process, and writes how these ended, 8 bytes each."""
    # sub rsp, 1024; and rsp, -64
    code = [bytes.fromhex("4881ec000400004883e4c0")]
    for number, instruction in enumerate(_INSTRUCTIONS.values()):
        # mov eax, exit; xor edi, edi; syscall
        child = bytes.fromhex(instruction) + struct.pack("<BI", 0xB8, _EXIT) + bytes.fromhex("31ff0f05")
        # mov eax, fork; syscall; test eax, eax; jnz behind the child
        code += [struct.pack("<BI", 0xB8, _FORK), bytes.fromhex("0f0585c075"), bytes([len(child)]), child]
        # mov edi, eax; lea rsi, [rsp + 8 * number]; xor edx, edx; xor r10d, r10d; mov eax, wait4; syscall
        code += [bytes.fromhex("89c7488db424"), struct.pack("<i", 8 * number), bytes.fromhex("31d24531d2")]
        code += [struct.pack("<BI", 0xB8, _WAIT), bytes.fromhex("0f05")]
    # mov eax, write; mov edi, 1; mov rsi, rsp; mov edx, size; syscall; mov eax, exit; xor edi, edi; syscall
    code += [struct.pack("<BIBI", 0xB8, _WRITE, 0xBF, 1), bytes.fromhex("4889e6")]
    code += [struct.pack("<BI", 0xBA, 8 * len(_INSTRUCTIONS)), bytes.fromhex("0f05")]
    code += [struct.pack("<BI", 0xB8, _EXIT), bytes.fromhex("31ff0f05")]
    body = b"".join(code)
    size = _HEAD + len(body)
    # ET_EXEC with one PT_LOAD, which is readable and executable
    header = struct.pack("<4s3B9x2HI3QI6H", MAGIC, 2, 1, 1, 2, 62, 1, _BASE + _HEAD, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    return header + struct.pack("<2I6Q", 1, 5, 0, _BASE, _BASE, size, size, 4096) + body


def stopped_at(log: Path) -> StoppedAt | None:
    """Where SIGILL ended a process, by the emulator's *log* of it; or None."""
    opened: dict[str, str] = {}
    maps: list[tuple[range, str, int]] = []
    stop: StoppedAt | None = None
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.rstrip("\n")
            if match := _OPENED.search(text):
                opened[match["file"]] = match["path"]
            elif (match := _MAPPED.search(text)) and match["file"] in opened:
                start = int(match["start"], 16)
                offset = int(match["offset"], 0)
                maps.append((range(start, start + int(match["size"])), opened[match["file"]], offset))
            elif match := _STOPPED.search(text):
                # a handler may come first: the last one ended it
                address = int(match["address"], 16)
                places = (
                    (path, address - part.start + offset) for part, path, offset in reversed(maps) if address in part
                )
                path, offset = next(places, ("", 0))
                stop = _stop_in(Path(path), offset) if path else StoppedAt(None)
    return stop


def _stop_in(file: Path, offset: int) -> StoppedAt:
    try:
        with mapped(file) as data:
            image, elf = ElfImage.read(data), Elf.parse(data)
            code = bytes(data[offset : offset + _LONGEST])
            # only after all that may be damaged is read
            loads = (load.p_vaddr + offset - load.p_offset for load in image.loads if offset in load.span)
            address = next(loads, offset)
    except (BinaryError, OSError):
        return StoppedAt(file, f"the instruction at {offset:#x}", function="code that cannot be read")
    text, features = _instruction(code, address)
    regions = (region for region in regions_of(elf) if 0 <= address - region.address < len(region.data))
    region = next(regions, None)
    function = str(region.function) if region and region.function else "code without a name"
    return StoppedAt(file, f"{text} at {address:#x}", features, function)


def _instruction(code: bytes, address: int) -> tuple[str, tuple[str, ...]]:
    if not is_installed:
        return f"an instruction that starts with {code[:4].hex(' ')}", ()
    instruction = next(iter(Decoder(64, code, ip=address)))
    features = tuple(sorted(features_by_code().get(instruction.code, ())))
    return Formatter(FormatterSyntax.INTEL).format(instruction), features
