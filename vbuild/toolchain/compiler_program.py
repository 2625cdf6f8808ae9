"""The program behind every compiler wrapper: it makes a compiler's command one for the level being built, runs the
compiler, and notes how it failed.

It runs once per compiler call, thousands of times in a build, on a Python without site packages. Hence no import
but what that call needs (``json`` alone doubles the start-up). `vbuild.toolchain.rewriting`, of which the same is true,
and the settings, a mapping that is marshalled, are in files beside it.

    python -I -S compiler_program.pyc NAME ARGUMENT...  ->  the program that NAME stands for, with other arguments
"""

# pathlib alone costs more than all the rest; late imports are what the last paragraph is about
# ruff: noqa: PTH100, PTH103, PTH118, PTH120, PTH123, PLC0415, S606

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    from rewriting import RewrittenCommand, mapped, rewritten, rewritten_rust, text_of  # type: ignore[import-not-found]
else:
    from vbuild.toolchain.rewriting import RewrittenCommand, mapped, rewritten, rewritten_rust, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs a fifth of the start-up
    from collections.abc import Sequence
    from typing import Any, NoReturn

SETTINGS = "settings.marshal"
# how many processes a build may start, and below nvcc's wrapper that nvcc; what tells it so behind ccache
THREADS, SIDE_BY_SIDE = "VBUILD_NVCC_THREADS", "side-by-side"
TOOLKIT = "toolkit"  # a link to it, beside the compiler wrappers
# what tells a compiler wrapper that nvcc, which calls it, puts line numbers into GPU code
DEVICE_LINES = "VBUILD_DEVICE_LINES"
RUSTC = "rustc-launcher"  # not rustc: who asks PATH for that one is not cargo
ANSWERS, LINKS = "answers", "links"  # beside the log of calls: what each compiler says of itself, and what it links
TOOLS = ("ar", "ranlib")  # zig's, in the place of binutils'

# in what compilers and linkers write, the words of the line that says why; and the characters that are logged of it
_ERRORS = ("error:", "undefined reference", "cannot find -l", "undefined symbol")
_BEGIN = 400


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
    """Keep what *result* made, which goes with its machine, so that it can be asked for its functions."""
    import shutil

    compiled = os.path.abspath(_output(result.arguments))
    target = os.path.join(settings["objects"], compiled.removeprefix(settings["source"] + os.sep).lstrip(os.sep))
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(compiled, target)
    except OSError:  # then nobody knows what is in it
        pass


def _log(settings: "dict[str, Any]", entry: "dict[str, Any]") -> None:
    """Add a line to the log by a single append, since compilers run side by side."""
    import json  # only for commands that are changed, or fail

    log = os.open(settings["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, (json.dumps(entry) + "\n").encode())
    os.close(log)


def _ended(command: "list[str]") -> "tuple[int, bytes]":
    """The status of *command*, and what it wrote to standard error, which is passed on.

    What it writes goes to a file until then: a daemon that it starts, such as a cache's, may hold a pipe open
    forever.
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
    """Log a command that failed, with the line of *errors* that says why, and how its source begins.

    Most only ask what the compiler can do, and what they compile is gone afterwards.
    """
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
    """Whether a command of nvcc preprocesses code of one GPU architecture, and not for a cache."""
    is_for_gpu = any(word.startswith("-D__CUDA_ARCH__=") for word in arguments)
    return is_for_gpu and "-E" in arguments and _output(arguments).endswith(".cpp1.ii")


def _map_lines(preprocessed: str, mapping: "Sequence[str]") -> None:
    """Have the file *preprocessed* name its sources as binaries do: nvcc writes those names into GPU code.

    It has no option for that. A relative name it would put behind the folder that it runs in, so all begin with /.
    """
    import re

    names: dict[bytes, bytes] = {}
    with open(preprocessed, "rb") as file:
        text = file.read()
    for path in {*re.findall(rb'^# \d+ "([^"<\\\n]+)"', text, re.MULTILINE)}:
        place = os.fsdecode(path)
        # a link beside the wrappers leads to the toolkit
        if name := mapped(os.path.abspath(place), mapping) or mapped(os.path.realpath(place), mapping):
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
    """Add a line to the list of calls that compile, or that link."""
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
    """Keep in *folder* what the compiler *name*, which *command* starts, says of itself, at its first call.

    Only here it is known: rustup takes another rustc in another folder, and a container is gone afterwards.
    """
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
        result = rewritten_rust(arguments[1:], settings["rules"])
        mapping = settings["rust_mapping"]
    else:
        # ccache, distcc and compilers that are scripts look for the compiler on PATH again
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(entry for entry in path if entry != folder)
        result = rewritten(arguments, settings["rules"])
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
