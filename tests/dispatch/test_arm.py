"""aarch64: what instructions need, compared with LLVM's disassembler, and code chosen at run time, against qemu."""

import random
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.factories.arm import arm_library, arm_object, arm_programs, bare
from tests.factories.tools import needs
from vbuild.binary.code import CodeSection
from vbuild.dispatch import arm
from vbuild.dispatch.judge import Baseline, Dispatch, Reason, scan
from vbuild.elf.code import Elf
from vbuild.hardware.cpu import Cpu

_LLVM = "llvm-mc-19"
# LLVM's names of the features
_WORDS = [
    "AES",
    "aes",
    "PMULL",
    "aes",
    "SHA1",
    "sha2",
    "SHA256",
    "sha2",
    "SHA512",
    "sha3",
    "SHA3",
    "sha3",
    "SM3",
    "sm4",
    "SM4",
    "sm4",
    "CRC32",
    "crc",
    "FP16",
    "fullfp16",
    "FHM",
    "fp16fml",
    "JSCVT",
    "jsconv",
    "FCMA",
    "complxnum",
    "LRCPC",
    "rcpc",
    "LRCPC2",
    "rcpc-immo",
    "LRCPC3",
    "rcpc3",
    "FLAGM2",
    "altnzcv",
    "FRINTTS",
    "fptoint",
    "RNG",
    "rand",
    "SVE_BITPERM",
    "sve2-bitperm",
    "SVE_AES",
    "sve2-aes",
    "SVE_PMULL128",
    "sve2-aes",
    "SVE_SHA3",
    "sve2-sha3",
    "SVE_SM4",
    "sve2-sm4",
]
_NAMES = dict(zip(_WORDS[::2], _WORDS[1::2], strict=True))
# of these the table has what is next to earlier instructions only, which is no proof of the rest
_PARTLY = {"FP8", "FAMINMAX"}
_SCALABLE = {"SVE", "SVE2", "SVE2P1", "SME", "LSE128"}
_SYSTEM = 0xD5


def llvm(feature: str) -> str:
    return _NAMES.get(feature, feature.lower())


EVERY = {llvm(feature) for feature in arm.FEATURES - _PARTLY}


def refused(words: list[int], names: Iterable[str], without: str = "") -> set[int]:
    """The numbers of those *words* that are not an instruction of a processor with the features *names*."""
    lines = (" ".join(f"{byte:#04x}" for byte in word.to_bytes(4, "little")) for word in words)
    features = ["+v8a", *(f"+{name}" for name in sorted(names)), *([f"-{without}"] if without else [])]
    options = ("--disassemble", "-triple=aarch64", f"-mattr={','.join(features)}")
    printed = subprocess.run((_LLVM, *options), input="\n".join(lines), capture_output=True, text=True, check=False)
    return {int(line) - 1 for line in re.findall(r"<stdin>:(\d+):\d+: warning: invalid", printed.stderr)}


def disagreements(words: list[int]) -> dict[str, list[str]]:
    """The words that LLVM takes with fewer features than the table says, or only with more; by what is wrong."""
    found = defaultdict(list)
    groups: dict[frozenset[str], list[int]] = defaultdict(list)
    # system registers have no features to LLVM; udf, which does nothing else than fail, counts as no instruction here
    judged = [word for word in words if word >> 24 != _SYSTEM and word >> 16]
    none, every = refused(judged, ()), refused(judged, EVERY)
    for number, word in enumerate(judged):
        needed = arm.needed_by(word)
        if number not in none and needed:
            found[f"the first Armv8-A has it, but {needed}"].append(f"{word:08x}")
        elif number in none and number not in every:
            groups[needed].append(word)
    for needed, group in groups.items():
        names = {llvm(feature) for feature in needed}
        if more := refused(group, names):
            text = f"needs more than {set(needed)}"
            found[text] += [f"{group[number]:08x}" for number in more if needed.isdisjoint(_SCALABLE)]
        for name in names:
            # some of streaming code is in SVE2.1, too
            if name == "sme":
                continue
            less = {other for other in EVERY if not _has_too(other, name, needed)}
            fewer = set(range(len(group))) - refused(group, less, name)
            found[f"{set(needed)} without {name}"] += [f"{group[number]:08x}" for number in fewer]
    return {text: places for text, places in found.items() if places}


def _has_too(other: str, name: str, needed: frozenset[str]) -> bool:
    """Whether LLVM takes instructions of *name*, with those *needed*, where a processor has *other*."""
    scalable = {"sve", "sve2", "f32mm", "f64mm"}
    is_scalable = any(feature.startswith("SVE") for feature in needed) or name in {"bf16", "i8mm"}
    same = other == name or (is_scalable and other.startswith("sme"))
    return same or (name in scalable and other.startswith(name)) or (name == "sve" and other in scalable)


def sample(seed: int, each: int) -> list[int]:
    """Words that fit each row of the table, words that miss one by a bit, and any."""
    draw = random.Random(seed)
    rows = [row for group in arm.GROUPS for row in group]
    found = []
    for row in rows * each:
        word = draw.getrandbits(32) & ~row.mask | row.value
        found += [word, word ^ 1 << draw.randrange(32), draw.getrandbits(32)]
    return found


@needs(_LLVM)
@pytest.mark.parametrize("each", [8, pytest.param(60, marks=pytest.mark.nightly)])
def test_llvm_wants_the_same_features_for_words_near_each_row_of_the_table(each: int) -> None:
    assert disagreements(sample(each, each)) == {}


def test_a_search_finds_what_looking_at_each_word_finds() -> None:
    words = sample(5, 40)
    data = b"".join(word.to_bytes(4, "little") for word in words)
    told = [(0x1000 + 4 * number, word) for number, word in enumerate(words) if arm.needed_by(word)]
    assert list(arm.telling_words(CodeSection("", 0x1000, data))) == told
    assert len(told) > len(words) // 4


pytestmark = [needs("aarch64-linux-gnu-gcc")]


def verdicts(data: bytes, version: str = "armv8-a") -> dict[str, Reason | None]:
    elf = Elf.parse(data)
    return {
        str(one.isa.region): one.reason
        for one in Dispatch({"demo.so": (elf, scan(elf))}).judged("demo.so", Cpu.parse(version).rank)
    }


ATOMIC = "int add(int *p) { return __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST); }"


@pytest.mark.parametrize("finish", [bytes, bare])
def test_outline_atomics_are_accepted_even_without_names(finish: Callable[[bytes], bytes]) -> None:
    assert set(verdicts(finish(arm_object(ATOMIC, "-moutline-atomics"))).values()) == {Reason.TESTED}


def test_atomics_in_line_are_for_the_version_that_has_them() -> None:
    data = arm_object(ATOMIC, "-march=armv8.1-a")
    assert verdicts(data) == {"add": None}
    assert verdicts(data, "armv8.1-a") == {}


@pytest.mark.parametrize(
    ("version", "flags", "above"),
    [
        ("armv8.2-a", "-march=armv9-a", True),
        ("armv8.9-a", "-march=armv9-a", True),
        ("armv9-a", "-march=armv9-a", False),
    ],
)
def test_a_version_has_what_those_it_includes_have(version: str, flags: str, above: bool) -> None:  # noqa: FBT001
    source = "void scale(short *a, int n) { for (int i = 0; i < n; i++) a[i] = (a[i] * 3) >> 1; }"
    isa = scan(Elf.parse(arm_object(source, flags, "-O3")))
    found = {feature for region in isa.regions for feature in region.above(Cpu.parse(version).rank)}
    assert found <= {"SVE", "SVE2"}
    assert bool(found) == above


@pytest.mark.parametrize("finish", [pytest.param(bytes, marks=pytest.mark.nightly), bare])
def test_a_verdict_needs_no_disassembler_of_x86_64(tmp_path: Path, finish: Callable[[bytes], bytes]) -> None:
    _, sources = zip(*arm_programs(), strict=True)
    library = tmp_path / "libdemo.so"
    library.write_bytes(finish(arm_object(arm_library(sources), "-Wl,-soname,libdemo.so")))
    program = "import sys; sys.modules['iced_x86'] = None\nfrom tests.dispatch.test_arm import verdicts\n"
    program += "print(verdicts(open(sys.argv[1], 'rb').read()))"
    command: list[str | Path] = [sys.executable, "-c", program, library]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == f"{verdicts(library.read_bytes())}\n"
    assert len(printed) > len(sources)


def test_the_code_of_a_baseline_without_names_is_known_again() -> None:
    source = f"static __attribute__((noinline)) {ATOMIC} int more(int *p) {{ return add(p) + 1; }}"
    texts = (f"int before(int x) {{ return x * 3 + 7; }} {source}", source.replace("p, 1", "p, 2"))
    moved, other = (Elf.parse(bare(arm_object(text, "-march=armv8.1-a"))) for text in texts)
    (region,) = scan(Elf.parse(bare(arm_object(source, "-march=armv8.1-a")))).regions
    assert not region.region.function or not region.region.function.names
    assert Baseline(moved).has(region, region.features)
    assert not Baseline(other).has(region, region.features)


def test_a_call_near_an_imported_variable_is_one_of_no_function() -> None:
    source = f"""#include <sys/auxv.h>
    extern char **environ; __attribute__((noinline)) static {ATOMIC}
    int ask(int n) {{ int (*call)(int) = (int (*)(int))((char *)&environ + 16);
                      return getauxval(16) >> 8 & 1 ? add(&n) : call(n); }}"""
    assert set(verdicts(arm_object(source, "-march=armv8.1-a")).values()) == {Reason.TESTED}


# what each lacks: all but Armv8-A; dot products and SVE; SVE and products of mixed signs; those only
_PROCESSORS = ("cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1", "a64fx")
_MOST_ALARMS = 0.02
_MAIN = """
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
{declarations}
static int (*const programs[])(int) = {{ {names} }};
int main(void) {{
    for (int number = 0; number < sizeof programs / sizeof *programs; number++) {{
        int status;
        if (!fork()) _exit(programs[number](1) == -1);
        wait(&status);
        if (status) printf("%d %d\\n", number, WTERMSIG(status));
    }}
}}
"""


def built(folder: Path, sources: list[str]) -> tuple[Path, Path]:
    """A library of these programs, and what runs one by its number."""
    library, program = folder / "libdemo.so", folder / "main"
    library.write_bytes(arm_object(arm_library(sources), "-Wl,-soname,libdemo.so"))
    names = [f"run{number}" for number in range(len(sources))]
    declarations = "\n".join(f"int {name}(int);" for name in names)
    text = _MAIN.format(declarations=declarations, names=", ".join(names))
    command: list[str | Path] = [
        "aarch64-linux-gnu-gcc",
        "-x",
        "c",
        "-",
        "-x",
        "none",
        library,
        "-o",
        program,
        "-Wl,-rpath,$ORIGIN",
    ]
    subprocess.run(command, input=text.encode(), check=True)
    return library, program


def failing(program: Path, processor: str) -> set[int]:
    """The numbers of the programs that *processor* ends by SIGILL; no program ends otherwise."""
    command: list[str | Path] = ["qemu-aarch64", "-cpu", processor, "-L", "/usr/aarch64-linux-gnu", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ends = [line.split() for line in printed.splitlines()]
    assert {int(end) for _, end in ends} <= {signal.SIGILL}
    return {int(number) for number, _ in ends}


@needs("qemu-aarch64")
@pytest.mark.parametrize("finish", [bytes, bare])
def test_the_proof_suspects_what_fails_on_some_processor(tmp_path: Path, finish: Callable[[bytes], bytes]) -> None:
    names, sources = zip(*arm_programs(), strict=True)
    library, program = built(tmp_path, list(sources))
    ends = set().union(*(failing(program, processor) for processor in _PROCESSORS))
    assert failing(program, "max") == set()
    functions = Elf.parse(library.read_bytes()).functions
    elf = Elf.parse(finish(library.read_bytes()))
    suspected = set()
    for one in Dispatch({"demo.so": (elf, scan(elf))}).judged("demo.so", 0):
        address = one.isa.region.address
        name = next(symbol.names[0] for symbol in functions if symbol.address <= address < symbol.end)
        if one.reason is None:
            suspected.add(int(re.sub(r"\D", "", name.partition(".")[0])))
    assert [names[number] for number in sorted(ends - suspected)] == []
    # a program whose table gcc addresses from that of another
    assert len(suspected - ends) <= _MOST_ALARMS * len(names), [names[number] for number in sorted(suspected - ends)]
