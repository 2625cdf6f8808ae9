"""The program behind the wrapper of nvcc: make a command one for the GPUs and the CPU being built for, and run nvcc.

    NVCC_PREPEND_FLAGS, the command's words, NVCC_APPEND_FLAGS
      -> the command        as `vbuild.toolchain.nvcc_rewriting` has it; its list of codes is in the log
      -> line numbers       of GPU code, made by the preprocessor: its wrapper is told to map the paths
      -> debug information  (-G) of GPU code has the folder that nvcc runs in: by a name that is the same everywhere
      -> files in between   of what is linked at once, kept by names without the number of a process

nvcc compiles for one architecture after the other. Where fewer processes run than the build may start, they are
compiled side by side: `--threads` is not among the words that a compiler cache sees, as the object is the same.

    python -I -S -c "…main()" FOLDER ARGUMENT...   with the settings in FOLDER
"""

import json
import marshal
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from vbuild.toolchain import compiler_program
from vbuild.toolchain.nvcc_commands import LINKS, Command, contradiction, logged
from vbuild.toolchain.nvcc_options import Call, CudaRules, NvccOutput
from vbuild.toolchain.nvcc_rewriting import (
    DEBUG,
    LINEINFO,
    HostCompiler,
    RewrittenNvcc,
    absolute,
    rewritten,
    tells_apart,
)

GUARD = "VBUILD_NVCC"
_PREFIX = "CCACHE_PREFIX"
_BEFORE, _BEHIND, _HOST = "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"
_HERE = "/proc/self/cwd"  # the folder of any process: compilers take it from PWD if it is the same folder


def main() -> NoReturn:
    """Run nvcc as the settings in the folder of the compiler wrappers say, which is the first argument."""
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
    result = rewritten(call, rules, host, log=logged(log), ccbin=environment.get(_HOST, ""))
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
    """The words that let nvcc use what is left of the processes of the build, if *command* is for several GPUs.

    Each is the lock of a file in *folder*, which nvcc and all that it starts keep as long as they run. For a compiler
    cache in *program* they are variables of *environment* instead.
    """
    asked = environment.get(compiler_program.THREADS, "")
    most = min(int(asked) if asked.isdigit() else 0, len(command.ours))
    if most <= 1 or not command.sources or command.output is not NvccOutput.OBJECT:
        return ()
    from fcntl import LOCK_EX, LOCK_NB, flock  # noqa: PLC0415 - which Windows lacks

    taken = 0
    for number in range(int(asked)):
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

    An image that nvlink makes names the folders of libraries, which nvcc finds beside itself by the path that it is
    called by: for links, which no cache keeps, that leads over *folder*, and is the same everywhere.
    """
    if call.output not in LINKS or os.path.commonpath([source, os.getcwd()]) != source:  # noqa: PTH109 - as above
        return program
    nvcc = Path(program[-1])
    return (os.path.relpath(Path(folder, compiler_program.TOOLKIT, nvcc.parent.name, nvcc.name)),)


def _kept_in(call: Call, folder: Path) -> tuple[str, ...]:
    """The words that take the process number out of the names of files in between, if *call* also links.

    The name of one is in the symbol table. They are kept in *folder*, by names of their own for each process.
    """
    is_link = call.output is NvccOutput.LIBRARY and bool(call.sources) and tells_apart(call.sources)
    if not is_link or call.has("-keep", "-keep-dir", "-save-temps", "-objtemp", "-dryrun"):
        return ()
    place = folder / f"kept-{os.getpid()}"
    place.mkdir(exist_ok=True)
    return ("-keep", f"-keep-dir={place}")


def _record(result: RewrittenNvcc, settings: Mapping[str, Any], *, is_question: bool) -> None:
    """One line more for the command, and one where it lost a flag; single appends, since nvccs run side by side."""
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
