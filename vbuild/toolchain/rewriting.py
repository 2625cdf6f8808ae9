"""The program behind every compiler wrapper: make a compiler's command one for the level being built, run the
compiler, and note how it failed.

It runs once per compiler call, thousands of times in a build, on a Python without site packages. Hence no import
but what that call needs (``json`` alone doubles the start-up), no dataclass, and none of the rest of vbuild: its
rules come as a mapping of tuples, marshalled into a file beside the program.

    python -I -S rewriting.pyc NAME ARGUMENT...  ->  the program that NAME stands for, with other arguments
"""

# pathlib alone costs more than all the rest; late imports are what the last paragraph is about
# ruff: noqa: PTH100, PTH103, PTH112, PTH118, PTH120, PTH123, PTH202, PLC0415, S606

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs a fifth of the start-up
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, NoReturn

    Rules = dict[str, tuple[str, ...]]

SETTINGS = "settings.marshal"
RUSTC = "rustc-launcher"  # not rustc: who asks PATH for that one is not cargo
TOOLS = ("ar", "ranlib")  # zig's, in the place of binutils'

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
_ASSEMBLY = (".s", ".S", ".sx")
_SOURCES = (
    *(".c", ".cc", ".cp", ".cpp", ".cxx", ".c++", ".C", ".CPP", ".i", ".ii", ".m", ".mm", ".M", ".cu", ".hip"),
    *(".h", ".hh", ".hpp", ".hxx", ".f", ".for", ".f90", ".f95", ".f03", ".f08", ".F", ".F90", ".F95", ".d"),
)
# options that may have a path in the same word, and none, for words that are a path
_BEFORE_PATHS = ("", "-I", "-o", "-isystem", "-iquote", "-idirafter", "-include")
_NOT_LINKING = frozenset({"-c", "-S", "-E", "-fsyntax-only", "-M", "-MM"})

# what build systems compile to ask whether the compiler takes a flag: CMake, Meson, pybind11
_FLAG_CHECKS = frozenset(
    {
        *("", "intmain(void){return0;}", "intmain(){return0;}", "intmain(intargc,char**argv){return0;}"),
        *("externinti;inti;", "__host__intmain(){return0;}"),
    }
)
_FLAG_CHECK_SIZE = 200  # bytes

# in what compilers and linkers write, the words of the line that says why; and the characters that are logged of it
_ERRORS = ("error:", "undefined reference", "cannot find -l", "undefined symbol")
_BEGIN = 400

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
    words = iter(arguments)
    for word in words:
        taken = [word]
        if word in _TAKES_VALUE or word.startswith("-Xarch_"):
            taken += [value for value in [next(words, None)] if value is not None]
        flag = taken[-1] if word.startswith("-Xarch_") else word
        if word in rules["dropped"]:
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
    """What says of a flag in a command for *sources* whether it stays, and why, as one of the constants above."""

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
    """The arguments of rustc; unchanged where it compiles for the building machine: build scripts, macros."""
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
    """What stays of a codegen option, and what is removed."""
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
    result.added = [flag for flag in flags if flag not in result.arguments]
    if first:
        result.arguments = [*flags, *(word for word in result.arguments if word not in flags)]
    elif tuple(result.arguments[-len(flags) :]) != tuple(flags):
        result.arguments += flags


def _sources(arguments: "Sequence[str]") -> tuple[list[str], bool]:
    """The files a command compiles, and whether all of them are assembly.

    An assembler's instructions are its author's choice, whatever the flags; these only steer the preprocessor, and
    on Arm what the assembler accepts. So assembly keeps its flags; `vbuild verify` sees what came of it.
    """
    sources: list[str] = []
    language = ""
    words = iter(arguments)
    for word in words:
        if word in _TAKES_VALUE:
            value = next(words, "")
            language = value if word == "-x" else language
        elif word == "-" or (not word.startswith("-") and (language or word.endswith((*_SOURCES, *_ASSEMBLY)))):
            sources.append(word)
        elif word.startswith("-x") and len(word) > len("-x"):
            language = word.removeprefix("-x")
        if language == "none":
            language = ""
    if language:
        return sources, language.startswith("assembler")
    return sources, bool(sources) and all(source.endswith(_ASSEMBLY) for source in sources)


def _expanded(arguments: "Sequence[str]") -> "Sequence[str]":
    """*arguments* with the words of each response file in its place: what is in it must be seen, and may change."""
    if not any(word.startswith("@") for word in arguments):
        return arguments
    words: list[str] = []
    for word in arguments:
        try:
            inside = _words(_text(word[1:])) if word.startswith("@") else None
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
        return "".join(_text(source).split()) in _FLAG_CHECKS
    except OSError:
        return False


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _optimised(settings: "dict[str, Any]", arguments: "list[str]", sources: "Sequence[str]") -> list[str]:
    """*arguments* of a command for *sources*, or for linking, with what is for all code, and the profile of theirs.

    gcc knows a function by the path of its file, as the command has it, so paths must not depend on the folder of the
    build; and looks for the profile of an object beside it. clang has one profile for all.
    """
    rules, profile = settings["rules"], settings.get("profile", {})
    if not (sources or "-o" in arguments) or any(source.endswith(_ASSEMBLY) for source in sources):
        return arguments
    arguments = [*(_relative(arguments, profile["base"]) if profile and sources else arguments), *rules["everywhere"]]
    if not (rules["trained"] and len(sources) == 1 and "-c" in arguments):
        return arguments
    if not os.path.isdir(profile["folder"]):
        return [*arguments, f"-fprofile-use={os.path.relpath(profile['folder'])}", *rules["trained"]]
    made = os.path.realpath(_output(arguments) or sources[0].rpartition(os.sep)[2])
    place = f"{made.rpartition('.')[0]}.gcda"
    kept = profile["folder"] + place.removeprefix(os.path.realpath(settings["source"]))
    try:
        with open(kept, "rb") as source, open(place, "wb") as target:
            target.write(source.read())
    except OSError:  # what training did not run is compiled without
        return arguments
    # no cache may take an object of another profile for this one
    os.environ["CCACHE_EXTRAFILES"] = os.pathsep.join(filter(None, [os.environ.get("CCACHE_EXTRAFILES"), place]))
    return [*arguments, *rules["trained"]]


def _relative(arguments: "Sequence[str]", base: str) -> list[str]:
    """*arguments* with each path below the folder *base* as seen from the folder of the command."""
    found: list[str] = []
    for word in arguments:
        start = next((option for option in _BEFORE_PATHS if word.startswith(option + base + os.sep)), None)
        if start is None or (found and found[-1] in {"-MT", "-MQ"}):  # names of targets are not to change
            found.append(word)
        else:
            found.append(start + os.path.relpath(word[len(start) :]))
    return found


def _record(settings: "dict[str, Any]", name: str, result: RewrittenCommand) -> None:
    """Log what is different in a command."""
    root = settings["source"] + os.sep
    entry = {
        "program": name,
        "sources": [os.path.abspath(source).removeprefix(root) for source in result.sources],
        "removed": result.removed,
        "added": result.added,
        "refused": result.refused,
        "kept": result.kept,
        "why": result.why,
        "object": os.path.abspath(_output(result.arguments)).removeprefix(root) if result.kept else "",
    }
    _log(settings, entry)


def _keep_object(settings: "dict[str, Any]", result: RewrittenCommand) -> None:
    """Copy what *result* made, which goes with its machine, to where it can be asked for its functions."""
    import shutil

    made = os.path.abspath(_output(result.arguments))
    place = os.path.join(settings["objects"], made.removeprefix(settings["source"] + os.sep).lstrip(os.sep))
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        shutil.copyfile(made, place)
    except OSError:  # then nobody knows what is in it
        pass


def _log(settings: "dict[str, Any]", entry: "dict[str, Any]") -> None:
    """One line more in the log; a single append, since compilers run side by side."""
    import json  # only for commands that are changed, or fail

    log = os.open(settings["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, (json.dumps(entry) + "\n").encode())
    os.close(log)


def _ended(command: "list[str]") -> "tuple[int, bytes]":
    """The status with which *command* ends, and what it wrote to standard error, which is passed on.

    What it writes goes to a file until then: a daemon that it starts, such as a cache's, may hold a pipe open forever.
    """
    errors = os.memfd_create("errors")
    process = os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, errors, 2)])
    try:
        status = os.waitpid(process, 0)[1]
    except KeyboardInterrupt:  # which the command got, too
        os._exit(130)
    written = os.pread(errors, os.fstat(errors).st_size, 0)
    left = written
    while left:
        left = left[os.write(2, left) :]
    return (os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)), written


def _note_failure(settings: "dict[str, Any]", name: str, result: RewrittenCommand, errors: str) -> None:
    """Log a command that failed, with the line of *errors* that says why, and how what it compiled begins.

    Most only ask what the compiler can do, and what they compile is gone afterwards.
    """
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line for word in _ERRORS)]
    try:
        text = _text(result.sources[0])[:_BEGIN] if result.sources else ""
    except OSError:
        text = ""
    entry = {
        "program": name,
        "arguments": [word[:_BEGIN] for word in result.arguments],
        "removed": result.removed,
        "error": (telling or lines[-1:] or ["no message"])[0][:_BEGIN],
        "text": text,
    }
    _log(settings, entry)


def _output(arguments: "Sequence[str]") -> str:
    """The file that a command of one source makes."""
    for index, word in enumerate(arguments):
        if word.startswith("-o"):
            return word[2:] or "".join(arguments[index + 1 : index + 2])
    return ""


def _count(log: str, name: str, sources: "Sequence[str]") -> None:
    """One line more in the list of calls: who compiles by another way is not in it."""
    line = "\t".join([name, *map(os.path.abspath, sources)])
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{line}\n".encode(errors="surrogateescape"))
    os.close(file)


def main(folder: str, name: str, arguments: list[str]) -> "NoReturn":
    """Become the program called *name*, with *arguments* by the settings in *folder*."""
    import marshal  # not needed where vbuild only asks what would be rewritten

    with open(os.path.join(folder, SETTINGS), "rb") as file:
        settings = marshal.load(file)  # noqa: S302 - vbuild wrote it there itself
    command = settings["programs"][name]
    os.environ.update(settings["variables"])
    if name in TOOLS:
        os.execvp(command[0], [*command, *arguments])
    if name == RUSTC:  # cargo's wrapper protocol: the first argument is the rustc to run
        command = [*command, *arguments[:1]]
        result = rewritten_rust(arguments[1:], settings["rules"])
        mapping = settings["rust_mapping"]
    else:
        # ccache, distcc and compilers that are scripts look for the compiler on PATH again
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(entry for entry in path if entry != folder)
        result = rewritten(arguments, settings["rules"])
        result.arguments = _optimised(settings, result.arguments, result.sources)
        mapping = settings["mapping"]
    if result.sources and (name != RUSTC or result.arguments != arguments[1:]):
        _count(settings["calls"], name, result.sources)
    if result.removed or result.kept:
        _record(settings, name, result)
    if result.refused:
        error = f"{name}: error: unrecognized command-line option '{result.refused[0]}' (kept out by vbuild)"
        _note_failure(settings, name, result, error)
        raise SystemExit(error)
    if settings["rules"]["zig"] and name != RUSTC:
        sys.path.insert(0, folder)
        zig_options = __import__("zig_options")  # compiled beside this program
        command = zig_options.command_for(command, result.arguments, target=settings["rules"]["zig"][0])
        result.arguments = zig_options.for_zig(result.arguments)
    # with link-time optimisation, it is the link that compiles
    compiles = result.sources or any(word.startswith("-flto") for word in result.arguments)
    words = [*command, *result.arguments, *(mapping if compiles else ())]
    # cargo reads what rustc writes while it runs; C libraries before 2.27 have no files in memory
    if name == RUSTC or not (result.sources or "-o" in arguments) or not hasattr(os, "memfd_create"):
        os.execvp(command[0], words)
    status, errors = _ended(words)
    if status:
        _note_failure(settings, name, result, errors.decode(errors="replace"))
    elif result.kept and settings.get("objects"):
        _keep_object(settings, result)
    raise SystemExit(status)


if __name__ == "__main__":
    main(os.path.dirname(sys.argv[0]), sys.argv[1], sys.argv[2:])
