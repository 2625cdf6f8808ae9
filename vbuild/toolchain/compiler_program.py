"""The program behind every compiler wrapper: it makes a compiler's command one for the level being built, runs the
compiler, and notes how it failed.

It runs thousands of times in a build, on a Python without site packages. So it imports only what a call needs (``json``
alone doubles the start-up), and nothing else of vbuild: rules are in marshalled settings beside it.

    python -I -S compiler_program.pyc NAME ARGUMENT...  ->  the program that NAME stands for, with other arguments
"""

# pathlib alone costs more than all the rest
# ruff: noqa: PTH100, PTH103, PTH118, PTH120, PTH123, PTH202, PLC0415, S606

import itertools
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs a fifth of the start-up
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, NoReturn

    Rules = dict[str, tuple[str, ...]]

SETTINGS = "settings.marshal"
# the processes that a build, or below its wrapper nvcc, may start; the same behind ccache
THREADS, SIDE_BY_SIDE = "VBUILD_NVCC_THREADS", "side-by-side"
TOOLKIT = "toolkit"  # a link to it, beside the compiler wrappers
# tells a compiler wrapper that nvcc puts line numbers into GPU code
DEVICE_LINES = "VBUILD_DEVICE_LINES"
RUSTC = "rustc-launcher"  # not rustc: who asks PATH for that one is not cargo
ANSWERS, LINKS = "answers", "links"  # beside the log of calls: what each compiler says of itself, and what it links
TOOLS = ("ar", "ranlib")  # zig's, in the place of binutils'

# words of the line in which compilers and linkers say why; and how many characters are logged
_ERRORS = ("error:", "undefined reference", "cannot find -l", "undefined symbol")
_BEGIN = 400

# why a flag of the project's own stays or goes
NATIVE = "native"  # goes: it is for the processor of the building machine
WHOLE_BUILD = "whole build"  # goes: it steers the whole build, as the level does
LEAK = "leak"  # goes: with it, code above the level ran without a check of the processor
SINGLE_FILE = "single file"  # stays: it is for a file whose code is chosen at run time
ASSEMBLY = "assembly"  # stays
RULE = "rule"  # stays or goes, by the recipe

# chooses the instructions a compiler may use; -mno-... only lowers, and stays
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

# what CMake, Meson and pybind11 compile to ask whether the compiler takes a flag
_FLAG_CHECKS = frozenset(
    {
        *("", "intmain(void){return0;}", "intmain(){return0;}", "intmain(intargc,char**argv){return0;}"),
        *("externinti;inti;", "__host__intmain(){return0;}"),
    }
)
_FLAG_CHECK_SIZE = 200  # bytes

_RUST_FEATURES = tuple(flag.removeprefix("-m") for flag in _CHOOSES if not flag.endswith("="))


class RewrittenCommand:
    """A command's new arguments, and what is different in them; *kept* flags of the project's own exceed the level."""

    __slots__ = ("added", "arguments", "kept", "refused", "removed", "sources", "why")

    def __init__(self, arguments: "Sequence[str]", sources: "Sequence[str]" = ()) -> None:
        self.arguments = list(arguments)
        self.sources = list(sources)
        self.removed: list[str] = []
        self.kept: list[str] = []
        self.why: list[tuple[str, str]] = []
        self.added: list[str] = []
        self.refused: list[str] = []


def rewritten_command(arguments: "Sequence[str]", rules: "Rules") -> RewrittenCommand:
    """The arguments of a C, C++ or Fortran compiler, by *rules* of `vbuild.build.plan.WrapperRules`."""
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
        # zig would compile libc++ for each level, half a minute each: all get the baseline's
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
    return [flag for flag in removed if flag not in _NATIVE and not flag.startswith(_TUNES)]


def _verdict(sources: "Sequence[str]", rules: "Rules", *, assembles: bool) -> "Callable[[str], tuple[bool, str]]":
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


def rewritten_rustc(arguments: "Sequence[str]", rules: "Rules") -> RewrittenCommand:
    """The arguments of rustc; unchanged for build scripts and macros."""
    result = RewrittenCommand((), [word for word in arguments if word.endswith(".rs")][:1])
    if not any(word.startswith("--target") for word in arguments):
        result.arguments = list(arguments)
        return result
    words = iter(arguments)
    for word in words:
        option, joined, value = _codegen(word, words)
        remaining, removed = _codegen_kept(value, rules)
        result.removed += removed
        if not option:
            result.arguments.append(word)
        elif remaining:
            result.arguments += [f"{option}{remaining}"] if joined else [option, remaining]
    _add(result, rules["rust"], first=False)
    result.added = []  # there is no other way for ours to arrive, so none was missed
    if not result.sources:  # cargo asking rustc what the flags stand for
        result.removed = []
    return result


def _codegen(word: str, words: "Iterator[str]") -> tuple[str, bool, str]:
    """A ``-C`` option, whether its value is in the same word, the value; empty for others."""
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
    remaining = ",".join(feature for feature in features if feature not in removed)
    return f"{name}={remaining}" if remaining else "", [f"{name}={','.join(removed)}"] if removed else []


def chooses_instructions(flag: str) -> bool:
    return flag.startswith(_CHOOSES)


def _add(result: RewrittenCommand, flags: "Sequence[str]", *, first: bool) -> None:
    """Put our flags where they win: last; but before those that a source keeps, which add to ours."""
    options, ours = list(_options(result.arguments)), [[flag] for flag in flags]
    result.added = [flag for flag in flags if [flag] not in options]
    # an option whose value is missing would take ours for it
    if first or (options and len(options[-1]) == 1 and _takes_value(options[-1][0])):
        result.arguments = [*flags, *(word for taken in options if taken not in ours for word in taken)]
    elif options[-len(ours) :] != ours:
        result.arguments += flags


def _options(arguments: "Sequence[str]") -> "Iterator[list[str]]":
    words = iter(arguments)
    for word in words:
        yield [word, *itertools.islice(words, int(_takes_value(word)))]


def _takes_value(word: str) -> bool:
    return word in _TAKES_VALUE or word.startswith("-Xarch_")


def _sources(arguments: "Sequence[str]") -> tuple[list[str], bool]:
    """The files a command compiles, and whether all of them are assembly.

    Assembly keeps its flags: on Arm they say what the assembler accepts.
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
    """*arguments* with the words of each response file in its place."""
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
    """The words of a response file, by gcc's rules."""
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
    """Whether compiling *source* only asks whether the compiler takes the flags."""
    try:
        if os.path.getsize(source) > _FLAG_CHECK_SIZE:
            return False
        return "".join(text_of(source).split()) in _FLAG_CHECKS
    except OSError:
        return False


def mapped(path: str, mapping: "Sequence[str]") -> "str | None":
    """The absolute *path* as binaries have it by *mapping*, if they have another."""
    for flag in mapping:
        folder, _, name = flag.partition("=")[2].rpartition("=")
        if path.startswith(f"{folder}{os.sep}"):
            return f"{name}{path.removeprefix(folder)}"
    return None


def text_of(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _record(settings: "dict[str, Any]", name: str, result: RewrittenCommand) -> None:
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
    import shutil

    compiled = os.path.abspath(_output(result.arguments))
    target = os.path.join(settings["objects"], compiled.removeprefix(settings["source"] + os.sep).lstrip(os.sep))
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(compiled, target)
    except OSError:  # then nobody knows what is in it
        pass


def _log(settings: "dict[str, Any]", entry: "dict[str, Any]") -> None:
    """Add a line by a single append, since compilers run side by side."""
    import json  # only for commands that are changed, or fail

    log = os.open(settings["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, (json.dumps(entry) + "\n").encode())
    os.close(log)


def _ended(command: "list[str]") -> "tuple[int, bytes]":
    """The status of *command*, and what it wrote to standard error, which is passed on.

    That goes to a file first: a daemon that it starts may hold a pipe open forever.
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
    """Log why a command failed, and how its source begins, which may be gone afterwards."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line for word in _ERRORS)]
    try:
        text = text_of(result.sources[0])[:_BEGIN] if result.sources else ""
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
    for index, word in enumerate(arguments):
        if word.startswith("-o"):
            return word[2:] or "".join(arguments[index + 1 : index + 2])
    return ""


def _complete(settings: "dict[str, Any]", result: RewrittenCommand) -> None:
    if DEVICE_LINES in os.environ and _is_device_pass(result.arguments):
        _map_lines(_output(result.arguments), settings["nvcc"]["mapping"])
    if result.kept and settings.get("objects"):
        _keep_object(settings, result)


def _is_device_pass(arguments: "Sequence[str]") -> bool:
    is_for_gpu = any(word.startswith("-D__CUDA_ARCH__=") for word in arguments)
    return is_for_gpu and "-E" in arguments and _output(arguments).endswith(".cpp1.ii")


def _map_lines(preprocessed: str, mapping: "Sequence[str]") -> None:
    """Have *preprocessed* name its sources as binaries do: nvcc writes those names into GPU code.

    It puts a relative name behind the folder that it runs in, so all begin with /.
    """
    import re

    names: dict[bytes, bytes] = {}
    with open(preprocessed, "rb") as file:
        text = file.read()
    for path in {*re.findall(rb'^# \d+ "([^"<\\\n]+)"', text, re.MULTILINE)}:
        source = os.fsdecode(path)
        # a link beside the wrappers leads to the toolkit
        if name := mapped(os.path.abspath(source), mapping) or mapped(os.path.realpath(source), mapping):
            names[path] = os.fsencode(f"/{name}")
    with open(preprocessed, "wb") as file:
        file.write(
            re.sub(
                rb'^(# \d+ ")([^"<\\\n]+)(?=")',
                lambda line: line[1] + names.get(line[2], line[2]),
                text,
                flags=re.MULTILINE,
            )
        )


def _count(
    settings: "dict[str, Any]", name: str, command: "list[str]", arguments: "Sequence[str]", result: RewrittenCommand
) -> None:
    log, files = settings["calls"], result.sources
    if name == RUSTC and result.arguments == arguments[1:]:
        return
    if not files:
        log, files = os.path.join(os.path.dirname(log), LINKS), [_output(result.arguments)]
    if not files[0]:
        return
    line = "\t".join([name, *map(os.path.abspath, files)])
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{line}\n".encode(errors="surrogateescape"))
    os.close(file)
    if not result.refused:
        _keep_answer(os.path.join(os.path.dirname(log), ANSWERS), name, command, is_zig=bool(settings["rules"]["zig"]))


def _keep_answer(folder: str, name: str, command: "list[str]", *, is_zig: bool) -> None:
    """Keep in *folder* what the compiler *name* says of itself, at its first call."""
    answer = os.path.join(folder, name)
    if os.access(answer, os.F_OK):
        return
    question = [*command, "-E", "-dM", "-x", "c", os.devnull]
    if name == RUSTC or is_zig:
        question = [*command, "-vV"] if name == RUSTC else [command[0], "version"]
    os.makedirs(folder, exist_ok=True)
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [(os.POSIX_SPAWN_OPEN, 1, answer, write, 0o644), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    os.waitpid(os.posix_spawnp(question[0], question, os.environ, file_actions=actions), 0)


def main(folder: str, name: str, arguments: list[str]) -> "NoReturn":
    """Become the program called *name*, with *arguments* by the settings in *folder*."""
    import marshal  # not needed where vbuild only asks what would be rewritten

    with open(os.path.join(folder, SETTINGS), "rb") as file:
        settings = marshal.load(file)  # noqa: S302 - vbuild wrote it there itself
    command = settings["programs"][name]
    os.environ.update(settings["variables"])
    if DEVICE_LINES in os.environ:
        os.environ.pop("PWD", None)  # nvcc's name for this folder is for GPU code
    if name in TOOLS:
        os.execvp(command[0], [*command, *arguments])
    if name == RUSTC:  # cargo's wrapper protocol: the first argument is the rustc to run
        command = [*command, *arguments[:1]]
        result = rewritten_rustc(arguments[1:], settings["rules"])
        mapping = settings["rust_mapping"]
    else:
        # ccache, distcc and compilers that are scripts look for the compiler on PATH again
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(entry for entry in path if entry != folder)
        result = rewritten_command(arguments, settings["rules"])
        mapping = settings["mapping"]
    _count(settings, name, command, arguments, result)
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
    else:
        _complete(settings, result)
    raise SystemExit(status)


if __name__ == "__main__":
    main(os.path.dirname(sys.argv[0]), sys.argv[1], sys.argv[2:])
