"""The arguments of a compiler's command made those for the level being built: what every compiler wrapper decides.

`vbuild.toolchain.compiler_program` runs the outcome, and why this imports next to nothing is said there. No dataclass,
and none of the rest of vbuild: the rules come as a mapping of tuples.
"""

# pathlib alone costs more than all the rest
# ruff: noqa: PTH100, PTH123, PTH202, PLC0415

import itertools
import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs a fifth of the start-up
    from collections.abc import Callable, Iterator, Sequence

    Rules = dict[str, tuple[str, ...]]

# why a flag of the project's own stays or goes
NATIVE = "native"  # goes: it is for the processor of the building machine
WHOLE_BUILD = "whole build"  # goes: it steers the whole build, as the level does
LEAK = "leak"  # goes: with it, code above the level ran without a check of the processor
SINGLE_FILE = "single file"  # stays: it is for a file whose code is chosen at run time
ASSEMBLY = "assembly"  # stays
RULE = "rule"  # stays or goes, by the recipe

# what chooses the instructions a compiler may use; -mno-... only ever lowers, and stays
_CHOOSES = (
    *("-march=", "-mcpu=", "-mtune="),
    *("-mmmx", "-m3dnow", "-msse", "-mssse", "-mavx", "-mamx", "-mapxf", "-mevex512"),
    *("-mfma", "-mf16c", "-mabm", "-mbmi", "-mlzcnt", "-mpopcnt", "-mmovbe", "-mcx16", "-msahf"),
    *("-mxop", "-mtbm", "-mlwp", "-madx", "-mrdrnd", "-mrdseed", "-mrdpid", "-mrtm", "-mhle"),
    *("-maes", "-mvaes", "-mpclmul", "-mvpclmulqdq", "-msha", "-msm3", "-msm4", "-mgfni", "-mkl", "-mwidekl"),
    *("-mxsave", "-mfsgsbase", "-mprfchw", "-mprefetchwt1", "-mprefetchi", "-mclflushopt"),
    *("-mclwb", "-mclzero", "-mcldemote", "-mmovdir", "-menqcmd", "-mwaitpkg", "-mmwaitx"),
    *("-mserialize", "-mtsxldtrk", "-muintr", "-mhreset", "-mptwrite", "-mpconfig"),
    *("-mwbnoinvd", "-mraoint", "-mcmpccxadd", "-musermsr"),
)
_TUNES = "-mtune="
_PROCESSORS = ("-march=", "-mcpu=", _TUNES)
_NATIVE = frozenset({"-march=native", "-mcpu=native", "-mtune=native"})

# options whose value is the next word, which is therefore no input file
_TAKES_VALUE = frozenset(
    {
        *("-o", "-I", "-L", "-D", "-U", "-l", "-u", "-z", "-T", "-h", "-e", "-x", "-A", "-B", "-MF", "-MT", "-MQ"),
        *("-include", "-imacros", "-isystem", "-iquote", "-idirafter", "-iprefix", "-isysroot"),
        *("-iwithprefix", "-iwithprefixbefore", "--param", "-mllvm", "-wrapper"),
        *("-Xlinker", "-Xassembler", "-Xpreprocessor", "-Xclang", "-Xcompiler"),
        *("-target", "-arch", "-framework", "-aux-info", "-dumpbase", "-dumpdir", "-dumpbase-ext"),
    }
)
ASSEMBLY_FILES = (".s", ".S", ".sx")
_SOURCES = (
    *(".c", ".cc", ".cp", ".cpp", ".cxx", ".c++", ".C", ".CPP", ".i", ".ii", ".m", ".mm", ".M", ".cu", ".hip"),
    *(".h", ".hh", ".hpp", ".hxx", ".f", ".for", ".f90", ".f95", ".f03", ".f08", ".F", ".F90", ".F95", ".d"),
)
_NOT_LINKING = frozenset({"-c", "-S", "-E", "-fsyntax-only", "-M", "-MM"})

# what build systems compile to ask whether the compiler takes a flag: CMake, Meson, pybind11
_FLAG_CHECKS = frozenset(
    {
        *("", "intmain(void){return0;}", "intmain(){return0;}", "intmain(intargc,char**argv){return0;}"),
        *("externinti;inti;", "__host__intmain(){return0;}"),
    }
)
_FLAG_CHECK_SIZE = 200  # bytes

_RUST_FEATURES = tuple(flag.removeprefix("-m") for flag in _CHOOSES if not flag.endswith("="))


class RewrittenCommand:
    """A command's new arguments, what is different in them, and the flags because of which it is refused.

    *kept* are flags of the project's own that choose more instructions than the level has.
    """

    __slots__ = ("added", "arguments", "kept", "refused", "removed", "sources", "why")

    def __init__(self, arguments: "Sequence[str]", sources: "Sequence[str]" = ()) -> None:
        self.arguments = list(arguments)
        self.sources = list(sources)
        self.removed: list[str] = []
        self.kept: list[str] = []
        self.why: list[tuple[str, str]] = []
        self.added: list[str] = []
        self.refused: list[str] = []


def rewritten(arguments: "Sequence[str]", rules: "Rules") -> RewrittenCommand:
    """The arguments of a C, C++ or Fortran compiler, by the *rules* of `vbuild.build.plan.Rewriting`."""
    arguments = _expanded(arguments)
    sources, assembles = _sources(arguments)
    result = RewrittenCommand((), sources)
    verdict = _verdict(sources, rules, assembles=assembles)
    for taken in _options(arguments):
        flag = taken[-1] if taken[0].startswith("-Xarch_") else taken[0]
        if taken[0] in rules["dropped"]:
            continue
        if not flag.startswith(_CHOOSES) or flag in (*rules["implied"], *rules["compile"]):
            result.arguments += taken
            continue
        keeps, why = verdict(flag)
        result.why.append((flag, why))
        if keeps:
            result.arguments += taken
            result.kept.append(flag)
        else:
            result.removed.append(flag)
    if rules["zig"] and not sources:
        # zig would compile libc++ again for the level, half a minute each: all of them get the baseline's
        result.arguments = [word for word in result.arguments if not word.startswith(_CHOOSES)]
    elif sources or result.removed:
        keeps, why = verdict("")
        _add(result, rules["compile"], first=bool(result.kept) or (keeps and why != SINGLE_FILE))
    if "-shared" in arguments and not _NOT_LINKING.intersection(arguments):
        result.arguments += rules["link"]
    if (result.kept or result.removed) and len(sources) == 1 and _is_flag_check(sources[0]):
        result.kept = []  # in no library
        result.refused = _telling(result.removed) if not rules["keep"] else []
    return result


def _telling(removed: "Sequence[str]") -> list[str]:
    """Those of the flags *removed* without which a file of the project's would fail, or do less."""
    return [flag for flag in removed if flag not in _NATIVE and not flag.startswith(_TUNES)]


def _verdict(sources: "Sequence[str]", rules: "Rules", *, assembles: bool) -> "Callable[[str], tuple[bool, str]]":
    """Whether a flag in a command for *sources* stays, and why, as one of the constants above."""

    def any_of(globs: "Sequence[str]") -> bool:
        return any(_matches(source, globs) for source in sources)

    if assembles and sources:
        others = (True, ASSEMBLY)
    elif sources and all(_matches(source, rules["keep"]) for source in sources):
        others = (True, RULE)
    elif any_of(rules["strip"]):
        others = (False, RULE)
    elif any_of(rules["leaking"]):
        others = (False, LEAK)
    elif not sources or rules["flags"] == ("strip",):  # a link: what it says of instructions is for all files
        others = (False, WHOLE_BUILD if not sources else RULE)
    else:
        others = (True, SINGLE_FILE if rules["flags"] == ("auto",) else RULE)

    def of(flag: str) -> tuple[bool, str]:
        if flag in _NATIVE:
            return False, NATIVE
        # zig calls processors by other names
        if others[1] == SINGLE_FILE and (flag in rules["steering"] or (rules["zig"] and flag.startswith(_PROCESSORS))):
            return False, WHOLE_BUILD
        return others

    return of


def rewritten_rust(arguments: "Sequence[str]", rules: "Rules") -> RewrittenCommand:
    """The arguments of rustc; unchanged for the building machine: build scripts, macros."""
    result = RewrittenCommand((), [word for word in arguments if word.endswith(".rs")][:1])
    if not any(word.startswith("--target") for word in arguments):
        result.arguments = list(arguments)
        return result
    words = iter(arguments)
    for word in words:
        option, joined, value = _codegen(word, words)
        kept, removed = _codegen_kept(value, rules)
        result.removed += removed
        if not option:
            result.arguments.append(word)
        elif kept:
            result.arguments += [f"{option}{kept}"] if joined else [option, kept]
    _add(result, rules["rust"], first=False)
    result.added = []  # there is no other way for ours to arrive, so none was missed
    if not result.sources:  # cargo asking rustc what the flags stand for
        result.removed = []
    return result


def _codegen(word: str, words: "Iterator[str]") -> tuple[str, bool, str]:
    """A ``-C`` option taken apart: itself, whether its value is in the same word, the value; empty for others."""
    if word in {"-C", "--codegen"}:
        return word, False, next(words, "")
    for option in ("--codegen=", "-C"):
        if word.startswith(option):
            return option, True, word.removeprefix(option)
    return "", False, ""


def _codegen_kept(value: str, rules: "Rules") -> tuple[str, list[str]]:
    name, _, text = value.partition("=")
    if name == "target-cpu":
        return ("", []) if value in rules["rust"] else ("", [value])
    if name != "target-feature":
        return value, []
    features = text.split(",")
    removed = [
        feature
        for feature in features
        if feature.startswith("+")
        and feature.removeprefix("+").startswith(_RUST_FEATURES)
        and f"-m{feature.removeprefix('+')}" not in rules["implied"]
    ]
    kept = ",".join(feature for feature in features if feature not in removed)
    return f"{name}={kept}" if kept else "", [f"{name}={','.join(removed)}"] if removed else []


def chooses_instructions(flag: str) -> bool:
    """Whether *flag* of a compiler chooses the instructions that it may use."""
    return flag.startswith(_CHOOSES)


def _add(result: RewrittenCommand, flags: "Sequence[str]", *, first: bool) -> None:
    """Put our flags where they win: last; before those of a source that keeps its own, which add to ours."""
    options, ours = list(_options(result.arguments)), [[flag] for flag in flags]
    result.added = [flag for flag in flags if [flag] not in options]
    # an option whose value is missing would take ours for it
    if first or (options and len(options[-1]) == 1 and _takes_value(options[-1][0])):
        result.arguments = [*flags, *(word for taken in options if taken not in ours for word in taken)]
    elif options[-len(ours) :] != ours:
        result.arguments += flags


def _options(arguments: "Sequence[str]") -> "Iterator[list[str]]":
    """Each option of a C, C++ or Fortran compiler with its value, and each other word: one word, or two."""
    words = iter(arguments)
    for word in words:
        yield [word, *itertools.islice(words, int(_takes_value(word)))]


def _takes_value(word: str) -> bool:
    return word in _TAKES_VALUE or word.startswith("-Xarch_")


def _sources(arguments: "Sequence[str]") -> tuple[list[str], bool]:
    """The files a command compiles, and whether all of them are assembly.

    An assembler's instructions are its author's choice, whatever the flags; these only steer the preprocessor, and
    on Arm what the assembler accepts. So assembly keeps its flags; `vbuild verify` sees what came of it.
    """
    sources: list[str] = []
    language = ""
    for word, *value in _options(arguments):
        if value:
            language = value[0] if word == "-x" else language
        elif word == "-" or (not word.startswith("-") and (language or word.endswith((*_SOURCES, *ASSEMBLY_FILES)))):
            sources.append(word)
        elif word.startswith("-x") and len(word) > len("-x"):
            language = word.removeprefix("-x")
        if language == "none":
            language = ""
    if language:
        return sources, language.startswith("assembler")
    return sources, bool(sources) and all(source.endswith(ASSEMBLY_FILES) for source in sources)


def _expanded(arguments: "Sequence[str]") -> "Sequence[str]":
    """*arguments* with the words of each response file in its place: what is in it must be seen, and may change."""
    if not any(word.startswith("@") for word in arguments):
        return arguments
    words: list[str] = []
    for word in arguments:
        try:
            inside = _words(text_of(word[1:])) if word.startswith("@") else None
        except OSError:  # gcc takes the word as it is, too
            inside = None
        words += [word] if inside is None else _expanded(inside)
    return words


def _words(text: str) -> list[str]:
    """The words of a response file, by gcc's rules: blanks part them, quotes join, a backslash takes the next as is."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    characters = iter(text)
    for character in characters:
        if character == "\\":
            word = (word or "") + next(characters, "")
        elif quote:
            word, quote = (word, "") if character == quote else ((word or "") + character, quote)
        elif character in "'\"":
            word, quote = word or "", character
        elif not character.isspace():
            word = (word or "") + character
        elif word is not None:
            words.append(word)
            word = None
    return words if word is None else [*words, word]


def _matches(source: str, globs: "Sequence[str]") -> bool:
    """Whether a glob matches *source* from any of its folders on: ``simd/*.c`` fits ``../src/simd/sum.c``."""
    if not globs:
        return False
    from fnmatch import fnmatchcase  # as expensive as all the rest, and rarely needed

    path = os.path.abspath(source)
    return any(fnmatchcase(path, f"*/{glob}") for glob in globs)


def _is_flag_check(source: str) -> bool:
    """Whether *source* is so empty that compiling it only asks whether the compiler takes the flags."""
    try:
        if os.path.getsize(source) > _FLAG_CHECK_SIZE:
            return False
        return "".join(text_of(source).split()) in _FLAG_CHECKS
    except OSError:
        return False


def mapped(path: str, mapping: "Sequence[str]") -> "str | None":
    """The absolute *path* as binaries have it by the flags of *mapping*, or None if they have it as it is."""
    for flag in mapping:
        folder, _, name = flag.partition("=")[2].rpartition("=")
        if path.startswith(f"{folder}{os.sep}"):
            return f"{name}{path.removeprefix(folder)}"
    return None


def text_of(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
