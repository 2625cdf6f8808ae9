"""The program behind the wrapper of nvcc: make a command one for the GPUs and the CPU being built for, and run nvcc.

    NVCC_PREPEND_FLAGS, the command's words, NVCC_APPEND_FLAGS
      -> list of codes      by `vbuild.toolchain.nvcc_commands`; it is in the log
      -> host flags         those that choose instructions out, by `vbuild.toolchain.compiler_program`; ours in
      -> host compiler      the compiler wrapper of its name
      -> names              the source's path from the build's folder on; that of the object, for files in between
      -> line numbers       of GPU code, made by the preprocessor: its wrapper is told to map the paths
      -> debug information  (-G) of GPU code has the folder that nvcc runs in: by a name that is the same everywhere
      -> files in between   of what is linked at once, kept by names without the number of a process

Else nvcc makes names of a file's whole path, and of the number of its own process: no two builds would have the same
bytes.

The level's flags are in the command although the host compiler's wrapper adds them: a compiler cache tells commands
apart by their words, and a project may name a host compiler that has no wrapper. If fewer processes run than the build
may start, nvcc compiles for several architectures side by side; a compiler cache does not see `--threads`.

    python -I -S -c "…main()" FOLDER ARGUMENT...   with the settings in FOLDER
"""

import json
import marshal
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NoReturn

from vbuild.hardware.gpu import GpuCodeKind
from vbuild.recipe.compiling import Archs, FileRule
from vbuild.toolchain import compiler_program
from vbuild.toolchain.nvcc_commands import (
    LINKS,
    LIST,
    Call,
    Codegen,
    Command,
    CudaRules,
    NvccOutput,
    Option,
    contradiction,
    listed,
    logged,
    matches,
    spelled,
)

LINEINFO, DEBUG = "-lineinfo", "-G"
_TOKEN = re.compile(r"""(?:"[^"]*"|'[^']*'|\\.|[^,\s"'\\])+""")
_SPLITS = re.compile(r"""[\s,"']""")
_COMPRESSION = frozenset({"-compress-mode", "-no-compress"})
_COMPRESS_ALL = frozenset({"-compress-all", "--compress-all"})  # fatbinary's own name for the mode "size"
_HAS_FATBIN = frozenset({NvccOutput.OBJECT, NvccOutput.LIBRARY, NvccOutput.DEVICE_LINK, NvccOutput.FATBIN})
# compiler caches must not find an object with the lines of another folder; ccache passes over a macro that is a word of
# its own
_MAPPED = "-Xcompiler=-DVBUILD_MAPPED_LINES"


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """How host code is compiled: *rules*, the real paths of compilers, and what maps folders."""

    rules: dict[str, tuple[str, ...]]
    compilers: Mapping[str, str]
    mapping: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Our flags in two words each, which ccache looks into. It would split some at a blank."""
        flags = (*self.rules["compile"], *(flag for flag in self.mapping if not _SPLITS.search(flag)))
        return tuple(word for flag in flags for word in ("-Xcompiler", flag))


@dataclass(frozen=True, slots=True)
class RewrittenNvcc:
    """A command's new *words*, the line for the log, and the host flags that were changed.

    With *keeps*, host code keeps the project's own flags, so its compiler has no wrapper.
    """

    words: tuple[str, ...]
    command: Command | None = None
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    keeps: bool = False


def rewritten_nvcc(
    words: Sequence[str], rules: CudaRules, host: HostCompiler, *, log: Iterable[Command] = (), ccbin: str = ""
) -> RewrittenNvcc:
    """The command *words*, rewritten; the commands in *log* made the objects that it may link."""
    call = Call.parse(words)
    if not call.inputs:
        return RewrittenNvcc(tuple(words))
    paths = [absolute(source) for source in call.sources]
    rule = rules.rule(paths)
    theirs, ours = _lists(call, rules, rule, log)
    is_new = set(theirs) != set(ours)
    keeps = bool(paths) and all(any(matches(path, glob) for glob in host.rules["keep"]) for path in paths)
    tokens = _host_flags(call)
    # files for GPUs rarely have host code for some CPUs: its flags stay by a rule only
    judged = compiler_program.rewritten_command([*tokens, *call.sources], {**host.rules, "flags": ("strip",)})
    compiler = _host_compiler((*call.values("-ccbin"), ccbin or rules.host)[0], host, is_wrapper=not keeps)
    gone = {*(LIST if is_new else ()), *(("-dlto",) if is_new and call.defers else ())}
    gone |= {
        *(_COMPRESSION if any(flag != LINEINFO for flag in rules.append) else ()),
        *(("-ccbin",) if compiler else ()),
    }
    appended = tuple(_appended(call, rules))
    remaining = [
        word for option in call.options for word in _remaining_words(option, frozenset(gone), frozenset(judged.removed))
    ]
    if _MAPPED in appended:
        remaining = [_relative(word, host.mapping) if word in call.sources else word for word in remaining]
    flags = host.words if paths else ()
    behind = [*(spelled(ours) if is_new else ()), *compiler, *appended, *_named(call, paths, rules, host)]
    return RewrittenNvcc(
        words=(*flags, *remaining, *behind) if keeps else (*remaining, *behind, *flags),
        command=Command(
            call.sources,
            call.output,
            call.files,
            str(rule.archs if rule else rules.mode),
            rule is not None,
            tuple(map(str, theirs)) or tuple(value for _, value in call.list_options),
            tuple(map(str, ours)),
        ),
        removed=tuple(judged.removed),
        added=tuple(flag for flag in host.rules["compile"] if paths and flag not in tokens),
        refused=tuple(judged.refused),
        keeps=keeps,
    )


def _lists(
    call: Call, rules: CudaRules, rule: FileRule | None, log: Iterable[Command]
) -> tuple[tuple[Codegen, ...], tuple[Codegen, ...]]:
    """The list of *call*, and the one it is to have: its own if nvcc refuses that, or takes no other."""
    own = listed(call.list_options, defers=call.defers)
    links = call.output in LINKS
    if own is None or call.output is NvccOutput.OTHER or (links and call.defers):
        return own or (), own or ()
    treatment = rule.archs if rule else rules.mode
    is_single = call.output in {NvccOutput.CUBIN, NvccOutput.PTX}
    if is_single and own and treatment is Archs.INTERSECT:
        return own, own
    ours = () if call.sources or own or treatment is Archs.KEEP else _object_codes(call, log)
    ours = ours or rules.decided(own, rule, defers=call.defers)
    if is_single and [codegen.offer.code for codegen in ours] != [GpuCodeKind.MACHINE]:
        return own, own
    return own, ours


def _object_codes(call: Call, log: Iterable[Command]) -> tuple[Codegen, ...]:
    """What a link without a list is for: the machine code of its objects, or what is to become that."""
    inputs = {absolute(file) for file in call.inputs}
    codes = (code for command in log if not inputs.isdisjoint(command.files) for code in command.ours)
    machine = (code.replace("lto_", "sm_") for code in codes if not code.startswith("compute_"))
    return tuple(map(Codegen.of, dict.fromkeys(machine)))


def _host_flags(call: Call) -> list[str]:
    words = [_bare(token) for value in call.values("-Xcompiler") for token in _TOKEN.findall(value)]
    if call.forwards:
        words += [option.words[0] for option in call.flat if option.words[0].startswith("-m") and option.name != "-m"]
    return words


def _bare(token: str) -> str:
    return token.strip("\"'")


def _remaining_words(option: Option, gone: frozenset[str], removed: frozenset[str]) -> tuple[str, ...]:
    """What stays of *option* without those that are *gone*, and without *removed* flags of the host compiler."""
    if option.inside:
        inside = tuple(word for inner in option.inside for word in _remaining_words(inner, gone, removed))
        return option.words if inside == tuple(word for inner in option.inside for word in inner.words) else inside
    if option.name in gone or option.words[0] in removed:
        return ()
    if option.name == "-Xcompiler":
        return _without(option, removed)
    if option.name == "-Xfatbin" and gone >= _COMPRESSION:
        return _without(option, _COMPRESS_ALL)
    return option.words


def _without(option: Option, removed: frozenset[str]) -> tuple[str, ...]:
    tokens = _TOKEN.findall(option.value)
    remaining = [token for token in tokens if _bare(token) not in removed]
    if len(remaining) == len(tokens):
        return option.words
    return (f"{option.name}={','.join(remaining)}",) if remaining else ()


def _host_compiler(command_line: str, host: HostCompiler, *, is_wrapper: bool) -> tuple[str, ...]:
    """The options for the host compiler *command_line*: its wrapper or the program itself."""
    if not command_line:
        return ()
    words = [command_line] if Path(command_line).exists() else command_line.split()
    position = next((position for position, word in enumerate(words) if Path(word).name in host.compilers), 0)
    compiler, name = words[position], Path(words[position]).name
    if Path(compiler).is_dir():
        compiler, name = f"{compiler}/gcc", "gcc"  # nvcc's rule for a folder
    known = host.compilers.get(name)
    if known and ("/" not in compiler or os.path.realpath(compiler) == os.path.realpath(known)):
        compiler = name if is_wrapper else known  # no path of this build, by which a cache would miss
    return (f"-ccbin={compiler}", *(f"-Xcompiler={word}" for word in words[position + 1 :]))


def _appended(call: Call, rules: CudaRules) -> Iterator[str]:
    is_mapped = bool(call.sources) and call.output is not NvccOutput.TEXT and call.has(LINEINFO, DEBUG)
    for flag in rules.append:
        if flag != LINEINFO:
            if call.output in _HAS_FATBIN:
                yield flag
        # -G has all that -lineinfo has, and nvcc warns of both
        elif call.sources and call.output is not NvccOutput.TEXT and not call.has(DEBUG):
            is_mapped = True
            yield flag
    if is_mapped:
        yield _MAPPED


def _named(call: Call, paths: Sequence[str], rules: CudaRules, host: HostCompiler) -> Iterator[str]:
    """What names files in between after the project's own files, if *call* compiles one, of *paths*."""
    if not paths or not tells_apart(paths) or not all(path.endswith(".cu") for path in paths):
        return
    name = compiler_program.mapped(paths[0], host.mapping)
    if name is None or _SPLITS.search(name):
        return
    yield f"-Xcudafe=--orig_src_path_name={name}"
    if call.has("-c", "-dc", "-dw") and not call.has("-keep", "-save-temps", "-objtemp"):
        yield "-objtemp"
    # not of the source, which may be compiled several times, to be linked together
    source = compiler_program.mapped(call.files[0], host.mapping) if call.files else None
    if rules.seeds and source and not call.has("-frandom-seed") and not _SPLITS.search(source):
        yield f"-frandom-seed={source}"


def tells_apart(paths: Sequence[str]) -> bool:
    """Whether nvcc's files in between, called after *paths* without their folders, have different names."""
    return len({PurePath(path).stem for path in paths}) == len(paths)


def _relative(source: str, mapping: Sequence[str]) -> str:
    """The path of *source* from this folder on, if *mapping* has both in one."""
    here, there = (compiler_program.mapped(os.path.join(path, ""), mapping) for path in (os.getcwd(), absolute(source)))  # noqa: PTH109, PTH118 - as above
    is_one_folder = bool(here and there) and str(here).partition("/")[0] == str(there).partition("/")[0]
    return os.path.relpath(source) if os.path.isabs(source) and is_one_folder else source  # noqa: PTH117 - the same


def absolute(file: str) -> str:
    return os.path.abspath(file)  # noqa: PTH100 - no symlink is resolved


GUARD = "VBUILD_NVCC"
_PREFIX = "CCACHE_PREFIX"
_BEFORE, _BEHIND, _HOST = "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"
_HERE = "/proc/self/cwd"  # the folder of any process: compilers take it from PWD if it is the same folder


def main() -> NoReturn:
    folder, words = sys.argv[1], sys.argv[2:]
    settings = marshal.loads(Path(folder, compiler_program.SETTINGS).read_bytes())  # noqa: S302 - vbuild wrote it there itself
    program = settings["nvcc"]["command"]
    if GUARD in os.environ:
        raise SystemExit(
            f"nvcc: error: {program[-1]}, which vbuild's compiler wrapper runs, starts the compiler wrapper "
            f"again (PATH leads there); "
            f"expected the nvcc of a CUDA toolkit"
        )
    environment = {**os.environ, **settings["variables"], GUARD: folder}
    call = [*shlex.split(environment.get(_BEFORE, "")), *words, *shlex.split(environment.get(_BEHIND, ""))]
    log = Path(settings["nvcc"]["log"])
    host = HostCompiler(settings["rules"], settings["nvcc"]["compilers"], settings["nvcc"]["mapping"])
    rules = CudaRules.of_data(settings["nvcc"]["rules"])
    result = rewritten_nvcc(call, rules, host, log=logged(log), ccbin=environment.get(_HOST, ""))
    _record(result, settings, is_question="-dryrun" in words or "--dryrun" in words)
    if result.refused:
        raise SystemExit(f"nvcc: error: unrecognized command-line option '{result.refused[0]}' (kept out by vbuild)")
    if result.command and (why := contradiction(result.command, rules.archs)):
        why = why.replace(settings["source"] + os.sep, "")
        _append(settings["log"], {"program": "nvcc", "arguments": words, "error": why})
        raise SystemExit(f"nvcc: error: {why} (stopped by vbuild)")
    more: tuple[str, ...] = ()
    if result.command:
        for name in (_BEFORE, _BEHIND, _HOST):  # they are in the command now
            environment.pop(name, None)
        ran = Call.parse(result.words)
        if not ran.has("-t", "--threads"):
            more = side_by_side(result.command, Path(folder), environment, program)
        if ran.has(LINEINFO, DEBUG):
            environment[compiler_program.DEVICE_LINES] = "1"
        if ran.has(DEBUG) and Path(_HERE).is_dir():
            environment["PWD"] = _HERE
        more = (*more, *_kept_in(ran, Path(folder)))
        program = _started(program, ran, folder, settings["source"])
    path = [entry for entry in environment.get("PATH", os.defpath).split(os.pathsep) if entry != folder]
    environment["PATH"] = os.pathsep.join(path if result.keeps else [folder, *path])
    try:
        os.execvpe(program[0], [*program, *(result.words if result.command else words), *more], environment)  # noqa: S606
    except OSError as error:
        raise SystemExit(f"nvcc: error: {program[0]} cannot be run: {error.strerror}") from error


def side_by_side(
    command: Command, folder: Path, environment: dict[str, str], program: Sequence[str]
) -> tuple[str, ...]:
    """The words that let nvcc use the build's free processes, if *command* is for several GPUs.

    Each is the lock of a file in *folder*, kept as long as nvcc and its children run. For a compiler cache they are
    variables of *environment* instead.
    """
    threads = environment.get(compiler_program.THREADS, "")
    most = min(int(threads) if threads.isdigit() else 0, len(command.ours))
    if most <= 1 or not command.sources or command.output is not NvccOutput.OBJECT:
        return ()
    from fcntl import LOCK_EX, LOCK_NB, flock  # noqa: PLC0415 - which Windows lacks

    taken = 0
    for number in range(int(threads)):
        slot = os.open(folder / f"process-{number}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with suppress(OSError):
            flock(slot, LOCK_EX | LOCK_NB)
            os.set_inheritable(slot, True)  # noqa: FBT003 - Python's own
            taken += 1
        if taken == most:
            break
    if taken <= 1:
        return ()
    if len(program) == 1:
        return ("--threads", str(taken))
    if not environment.get(_PREFIX):
        beside = str(folder / compiler_program.SIDE_BY_SIDE)
        environment |= {compiler_program.THREADS: str(taken), _PREFIX: beside}
    return ()


def _started(program: Sequence[str], call: Call, folder: str, source: str) -> Sequence[str]:
    """How *program*, which may begin with a compiler cache, is started for *call* in the tree *source*.

    An image that nvlink makes names the folders of libraries, by the path that nvcc is called by: for links, that
    leads over *folder*, and is the same everywhere.
    """
    if call.output not in LINKS or os.path.commonpath([source, os.getcwd()]) != source:  # noqa: PTH109 - as above
        return program
    nvcc = Path(program[-1])
    return (os.path.relpath(Path(folder, compiler_program.TOOLKIT, nvcc.parent.name, nvcc.name)),)


def _kept_in(call: Call, folder: Path) -> tuple[str, ...]:
    """What keeps the process number out of names of files in between if *call* links: symbol tables have them."""
    is_link = call.output is NvccOutput.LIBRARY and bool(call.sources) and tells_apart(call.sources)
    if not is_link or call.has("-keep", "-keep-dir", "-save-temps", "-objtemp", "-dryrun"):
        return ()
    subfolder = folder / f"kept-{os.getpid()}"
    subfolder.mkdir(exist_ok=True)
    return ("-keep", f"-keep-dir={subfolder}")


def _record(result: RewrittenNvcc, settings: Mapping[str, Any], *, is_question: bool) -> None:
    if result.command is None or is_question or not (result.command.sources or result.command.files):
        return
    root = settings["source"] + os.sep
    sources = [absolute(source).removeprefix(root) for source in result.command.sources]
    _append(settings["nvcc"]["log"], {**result.command.data(), "sources": sources})
    if result.removed:
        changes = {"removed": result.removed, "added": result.added, "refused": result.refused}
        _append(settings["log"], {"program": "nvcc", "sources": sources, **changes})


def _append(log: str, entry: Mapping[str, Any]) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, (json.dumps(entry) + "\n").encode())
    os.close(file)
