"""What zig makes of the arguments of gcc and clang: their words for processors and for the linker are not all its own.

    -march=x86-64-v3, armv8.2-a+sve        -> -mcpu=x86_64_v3, generic+v8_2a+sve
    -Wl,a,b and -Xlinker a and -z b        -> -Wl,... one by one, without what zig's linker refuses to hear of
    -mtune=, -flto=auto, -Wp,-D..., -specs -> nothing, or what is meant
    -ffast-math, -Ofast                    -> the same, but with infinities

The compiler wrappers load it beside `vbuild.toolchain.compiler_program`, whose rules for imports it shares.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# linker options that zig refuses, and that extension modules can do without; by their beginnings, and whole; the last
# take a value, maybe in the next word
_NOT_ZIGS = (
    *("-O", "-Bsymbolic-functions", "-plugin", "-fuse-ld", "-Map", "--trace", "--stats", "--icf", "--lto-"),
    *("--threads", "--no-threads", "--warn-", "--package-metadata", "--exclude-libs", "--push-state", "--pop-state"),
    *("--copy-dt-needed-entries", "--no-copy-dt-needed-entries", "--relax", "--no-relax", "--emit-relocs"),
    *("--reduce-memory-overheads", "--no-keep-memory", "--default-symver", "--dynamic-list", "--rpath-link"),
    *("-rpath-link", "--retain-symbols-file", "--unresolved-symbols", "--gc-keep-exported", "-mllvm"),
)
_NOT_ZIGS_EITHER = frozenset({"-t", "-q"})
_NOT_ZIGS_VALUED = frozenset(
    {
        *("-plugin", "-Map", "--exclude-libs", "--dynamic-list", "-rpath-link", "--rpath-link"),
        *("--retain-symbols-file", "-mllvm"),
    }
)
_ZIGS_NAMES = {"-R": "-rpath", "-h": "-soname", "--undefined": "-u"}
_ZIGS_KEYWORDS = (
    *("nodelete", "notext", "defs", "undefs", "origin", "nocopyreloc", "now", "lazy", "relro", "norelro"),
    *("noexecstack", "execstack", "common-page-size=", "max-page-size="),
)
_NOTHING = ("-mtune=", "-specs=", "-fuse-linker-plugin", "-ffinite-math-only")

# code that has infinities although its flags promise none works with gcc, but crashes with clang since 19 (annoy
# 1.17.3, whose search starts from one)
_FAST_MATH = frozenset({"-ffast-math", "-Ofast"})
_HAS_INFINITIES = "-fno-finite-math-only"

# questions about the compiler itself, for the clang inside zig
_QUESTIONS = ("-dump", "-print-", "--print-")
_ZIGS_FEATURES = {"fp16": "fullfp16", "simd": "neon", "fp": "fp_armv8"}


def command_for(command: "Sequence[str]", arguments: "Sequence[str]", *, target: str) -> "Sequence[str]":
    """The zig *command* for *arguments*; for questions about the compiler, that of the clang inside, without glibc."""
    if not any(word.startswith(_QUESTIONS) for word in arguments) and list(arguments) != ["-v"]:
        return command
    return [f"{word.partition('-gnu.')[0]}-gnu" if word == target else word for word in command]


def for_zig(arguments: "Sequence[str]") -> list[str]:
    """*arguments* for gcc or clang as zig takes them."""
    words: list[str] = []
    linker = _linker_words(arguments)
    for word, is_linkers in linker:
        if is_linkers:
            words += _zig_linker_words(word, linker)
        elif word.startswith(("-march=", "-mcpu=")):
            words.append(f"-mcpu={_zig_cpu(word.partition('=')[2])}")
        elif word.startswith("--target=") and word.endswith("-linux-gnu"):
            continue  # the cc crate says it to every clang, in a spelling of triples that zig does not know
        elif word.startswith("-flto=") and word != "-flto=thin":
            words.append("-flto")
        elif word.startswith(("-Wp,-D", "-Wp,-U")):
            words += word.split(",")[1:]
        elif not word.startswith(_NOTHING):
            words += [word, _HAS_INFINITIES] if word in _FAST_MATH else [word]
    return words


def _linker_words(arguments: "Sequence[str]") -> "Iterator[tuple[str, bool]]":
    """*arguments*, and apart what ``-Wl,``, ``-Xlinker`` and ``-z`` hand to the linker; whether it is the latter."""
    words = iter(arguments)
    for word in words:
        if word.startswith("-Wl,"):
            yield from ((item, True) for item in word.split(",")[1:])
        elif word == "-Xlinker":
            yield next(words, ""), True
        elif word == "-z":
            yield word, True
            yield next(words, ""), True
        else:
            yield word, False


def _zig_linker_words(word: str, following: "Iterator[tuple[str, bool]]") -> list[str]:
    """The linker's *word* for zig; none if zig knows no such."""
    if word == "-z":
        value = next(following, ("", True))[0]
        return [f"-Wl,-z,{value}"] if value.startswith(_ZIGS_KEYWORDS) else []
    if word.startswith(_NOT_ZIGS) or word in _NOT_ZIGS_EITHER:
        if word in _NOT_ZIGS_VALUED:
            next(following, None)
        return []
    name, joined, value = word.partition("=")
    if name in _ZIGS_NAMES:
        value = value if joined else next(following, ("", True))[0]
        return [f"-Wl,{_ZIGS_NAMES[name]},{value}"]
    if word.startswith("-R"):
        return [f"-Wl,-rpath,{word.removeprefix('-R')}"]
    # GNU ld lets a version script name symbols that are not there
    return [f"-Wl,{word}", *(["-Wl,--undefined-version"] if name in {"--version-script", "-version-script"} else [])]


def _zig_cpu(value: str) -> str:
    name, *features = value.split("+")
    if name.startswith("armv"):
        name = f"generic+{name.removeprefix('arm').replace('-a', 'a').replace('.', '_')}"
    words = [name.replace("-", "_")]
    for feature in features:
        is_off = feature.startswith("no")
        plain = feature.removeprefix("no")
        words.append(f"{'-' if is_off else '+'}{_ZIGS_FEATURES.get(plain, plain)}")
    return "".join(words)
