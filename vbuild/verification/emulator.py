"""An emulator that stops code above a CPU level, as a processor of that level does.

    qemu-x86_64 -cpu qemu64,+ssse3,...,-avx,...    has every feature of the level, and none above
    qemu-aarch64 -cpu cortex-a76                   the processor with every feature of the version, and the fewest above

What it runs and stops is measured, by a program with an instruction of each feature. It logs what a process maps, and
where a signal ended it:

    openat(-100,"/.../demo/_c.so",O_RDONLY|O_CLOEXEC) = 4
    mmap(0x000000400286f000,8192,PROT_EXEC|PROT_READ,MAP_PRIVATE|MAP_FIXED,4,0x1000) = 0x000000400286f000
    --- SIGILL {si_signo=SIGILL, si_code=2, si_addr=0x000000400286f139} ---

https://www.qemu.org/docs/master/user/main.html
"""

import os
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

from vbuild.dispatch import arm
from vbuild.dispatch.isa import features_by_code, regions_of
from vbuild.elf.code import Elf
from vbuild.elf.iced import Decoder, Formatter, FormatterSyntax, is_installed
from vbuild.elf.image import ElfImage
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError
from vbuild.hardware.cpu import X86_64_EXTRAS, X86_64_FEATURES, X86_64_LEVELS, Cpu
from vbuild.verification.installed_wheel import mapped

_SECONDS = 60.0
_LONGEST = 15  # bytes of an instruction
# seen by dispatch by model numbers: an early Opteron, Nehalem, Haswell, Skylake
_MODELS = {"v1": "", "v2": "6,model=26", "v3": "6,model=60", "v4": "6,model=85"}
# qemu's Arm processors, with those of newer versions; features cannot be chosen one by one
_ARM_MODELS = (
    *("cortex-a53", "cortex-a76", "neoverse-n1", "a64fx", "neoverse-v1", "neoverse-n2"),
    *("max,sve=off,sme=off", "max,sve=off", "max,sme=off", "max"),
)
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
# the same, as numbers; x0 is the stack pointer, and x1 and x2 are 0
_ARM_TABLE = """
    CRC32 1ac14021 LOR 88df7c01 LSE b8210002 RDM 6e828420 FCMA 6e82e420 JSCVT 1e7e0001 LRCPC b8bfc001 PAUTH 9ac33041
    DIT d503405f DOTPROD 4e829420 FLAGM d500401f LRCPC2 99400001 FLAGM2 d500405f FRINTTS 1e284000 SB d50330ff
    BF16 6e42fc20 I8MM 4e829c20 WFXT d5031001 XS d503323f HBC 54000030 MOPS 19c20420 CSSC dac02021 FHM 4e22ec20
    FP16 1ee22820 SVE 0420e3e1 SVE2 04068120 SVE2P1 4400c800 AES 4e284820 PMULL 0ee2e020 SHA1 5e280820 SHA256 5e282820
    SHA512 cec08020 SHA3 ce020c20 SM3 ce62c020 SM4 cec08420 SME 04bf5821 MTE 9adf1041 RNG d53b2401 F32MM 64a2e420
"""
_ARM_INSTRUCTIONS = {match[1]: int(match[2], 16) for match in re.finditer(r"(\w+) (\w+)", _ARM_TABLE)}
# of features that are in no table here
_ABOVE_ALL = ("avx", "amx")
_FLAGS = re.compile(r"^(flags\s*:)(.*)$", re.MULTILINE)
# an older processor takes the first for bsr; qemu has the second with RDRAND
_NEVER_REFUSED = frozenset({"LZCNT", "RDSEED"})
# loader and libraries of the other machine: qemu's own place, Debian's, cross compilers'
_PREFIXES = ("/usr/gnemul/qemu-{}", "/etc/qemu-binfmt/{}", "/usr/{}-linux-gnu", "/")
_LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
# system calls of x86-64 Linux: write, fork, exit, wait4
_WRITE, _FORK, _EXIT, _WAIT = 1, 57, 60, 61
_BASE, _HEAD = 0x400000, 64 + 56
_OPENED = re.compile(r'\bopen(?:at)?\([^"\n]*"(?P<path>[^"\n]+)".*\) = (?P<file>\d+)$')
_MAPPED = re.compile(
    r"\bmmap\([^,]+,(?P<size>\d+),[^,]+,[^,]+,(?P<file>\d+),(?P<offset>0x[0-9a-f]+|\d+)\) = (?P<start>0x[0-9a-f]+)$"
)
_STOPPED = re.compile(r"--- SIGILL \{.*si_addr\s*=\s*(?P<address>0x[0-9a-f]+)")


class Emulator(Struct, frozen=True):
    """qemu's emulator of *machine* for programs; *prefix* has the loader and libraries."""

    path: Path
    version: str
    machine: str = "x86_64"
    prefix: Path | None = None

    @classmethod
    def on_path(cls, machine: str = "x86_64") -> Self | None:
        path = shutil.which(f"qemu-{machine}")
        return cls(Path(path), _version(path), machine, _prefix(machine)) if path else None

    def __str__(self) -> str:
        return f"qemu-{self.machine} {self.version}"

    def command(self, cpu: Cpu) -> tuple[str, ...]:
        """The command before a program that sees the features of *cpu* and those of `passing`."""
        name = processor(cpu) if cpu.machine == "x86_64" else _arm_model(self, cpu)[0]
        return self.on(name)

    def on(self, processor: str) -> tuple[str, ...]:
        return (*self.widest[:-1], processor)

    def features(self, processor: str) -> frozenset[str] | None:
        """The features that its x86-64 *processor* has for sure; None if it knows none of that name."""
        return _features(self, processor)

    @property
    def widest(self) -> tuple[str, ...]:
        return (str(self.path), *(("-L", str(self.prefix)) if self.prefix else ()), "-cpu", "max")

    def why_not(self, cpu: Cpu) -> str | None:
        """Why it cannot judge code for *cpu*, or None."""
        return _why_not(self, cpu)

    def passing(self, cpu: Cpu) -> frozenset[str]:
        """The features that its processor for *cpu* has beyond *cpu*: code that needs one does not stop."""
        return frozenset(_arm_model(self, cpu)[2]) if self.machine != "x86_64" else frozenset()


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


def _prefix(machine: str) -> Path | None:
    if os.uname().machine == machine:
        return None
    folders = [os.environ["QEMU_LD_PREFIX"]] if os.environ.get("QEMU_LD_PREFIX") else []
    folders += [folder.format(machine) for folder in _PREFIXES]
    return next((Path(folder) for folder in folders if Path(folder, _LOADERS[machine]).exists()), None)


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
    if cpu.machine == "aarch64":
        _, lacking, _ = _arm_model(emulator, cpu)
        return f"{emulator} cannot judge {cpu}: it does not run {', '.join(lacking)}" if lacking else None
    runs = _run_by(emulator.command(cpu), _program(), _INSTRUCTIONS)
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
    runs = _run_by(emulator.on(processor), _program(), _INSTRUCTIONS)
    return None if runs is None else frozenset(runs) - _NEVER_REFUSED


@cache
def _arm_runs(emulator: Emulator) -> tuple[tuple[str, tuple[str, ...]], ...]:
    before, program = emulator.widest[:-1], _arm_program()
    models = ((name, _run_by((*before, name), program, _ARM_INSTRUCTIONS)) for name in _ARM_MODELS)
    return tuple((name, runs) for name, runs in models if runs is not None)


@cache
def _arm_model(emulator: Emulator, cpu: Cpu) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The processor most like *cpu*, the features that it lacks, and those beyond *cpu*."""
    wanted = tuple(sorted(cpu.features))
    models = []
    for name, runs in _arm_runs(emulator):
        lacking = tuple(feature for feature in wanted if feature not in runs)
        models.append((name, lacking, tuple(feature for feature in runs if is_above(feature, cpu))))
    return min(models, key=lambda model: (len(model[1]), len(model[2])), default=("max", wanted or ("anything",), ()))


def _run_by(command: Iterable[str], code: bytes, instructions: Collection[str]) -> tuple[str, ...] | None:
    with TemporaryDirectory(prefix="vbuild-emulator-") as folder:
        program = Path(folder, "probe")
        program.write_bytes(code)
        program.chmod(0o755)
        # every SIGILL would leave a core file
        line = ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh", *command, str(program)]
        try:
            ran = subprocess.run(line, capture_output=True, check=False, timeout=_SECONDS, cwd=folder)
        except (OSError, subprocess.SubprocessError):
            return None
    if ran.returncode or len(ran.stdout) != 8 * len(instructions):
        return None
    ends = (status for (status,) in struct.iter_unpack("<i4x", ran.stdout))
    return tuple(name for name, status in zip(instructions, ends, strict=True) if status == 0)


def _arm_program() -> bytes:

    def call(number: int, *arguments: int) -> list[int]:
        # mov xN, argument; mov x8, number; svc 0
        return [*(move(*argument) for argument in enumerate(arguments)), move(8, number), 0xD4000001]

    def move(register: int, number: int) -> int:
        return 0xD2800000 | number << 5 | register

    words = [0xD11003FF]  # sub sp, sp, 1024
    for number, instruction in enumerate(_ARM_INSTRUCTIONS.values()):
        # mov x0, sp; mov x1, 0; mov x2, 0
        child = [0x910003E0, move(1, 0), move(2, 0), instruction, *call(93, 0)]
        # clone like fork; cbnz x0, behind the child
        words += [*call(220, 17, 0, 0, 0, 0), 0xB5000000 | (len(child) + 1) << 5, *child]
        # add x1, sp, 8 * number; mov x2, 0; mov x3, 0; wait4
        words += [0x910003E1 | 8 * number << 10, move(2, 0), move(3, 0), *call(260)]
    # mov x0, 1; mov x1, sp; mov x2, size; write; exit
    words += [move(0, 1), 0x910003E1, move(2, 8 * len(_ARM_INSTRUCTIONS)), *call(64), *call(93, 0)]
    return _executable(struct.pack(f"<{len(words)}I", *words), 183)


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
    return _executable(b"".join(code), 62)


def _executable(body: bytes, machine: int) -> bytes:
    size = _HEAD + len(body)
    # ET_EXEC with one PT_LOAD, which is readable and executable
    header = struct.pack("<4s3B9x2HI3QI6H", MAGIC, 2, 1, 1, 2, machine, 1, _BASE + _HEAD, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    return header + struct.pack("<2I6Q", 1, 5, 0, _BASE, _BASE, size, size, 4096) + body


def stopped_at(logs: Iterable[Path]) -> StoppedAt | None:
    """Where SIGILL ended a process, by the emulator's *logs*, one for each process; or None."""
    return next(filter(None, map(_stopped_at, sorted(logs))), None)


def _stopped_at(log: Path) -> StoppedAt | None:
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
    text, features = _instruction(code, elf.machine, address)
    regions = (region for region in regions_of(elf) if 0 <= address - region.address < len(region.data))
    region = next(regions, None)
    function = str(region.function) if region and region.function else "code without a name"
    return StoppedAt(file, f"{text} at {address:#x}", features, function)


def _instruction(code: bytes, machine: str, address: int) -> tuple[str, tuple[str, ...]]:
    if machine == "aarch64":
        word = int.from_bytes(code[:4], "little")
        return arm.text_of(word), tuple(sorted(arm.needed_by(word) - {arm.INVALID}))
    if not is_installed:
        return f"an instruction that starts with {code[:4].hex(' ')}", ()
    instruction = next(iter(Decoder(64, code, ip=address)))
    features = tuple(sorted(features_by_code().get(instruction.code, ())))
    return Formatter(FormatterSyntax.INTEL).format(instruction), features
