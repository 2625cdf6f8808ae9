"""The words of an nvcc command: which are options, which are their values, which are files, and what comes out.

    nvcc -c -gencode arch=compute_90,code=sm_90 -o a.o a.cu -optf more.txt
         ^flag ^option with its value           ^       ^file ^options in a file, which may hold any of these

Option names are nvcc's short ones, whatever the command has. Values stand behind ``=`` or in the next word.
https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/#nvcc-command-options
"""

import itertools
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

LIST = frozenset({"-gencode", "-arch", "-code"})

# the long names of the options that vbuild looks at
_SHORT = {
    "--generate-code": "-gencode",
    "--gpu-architecture": "-arch",
    "--gpu-code": "-code",
    "--options-file": "-optf",
    "--output-file": "-o",
    "--output-directory": "-odir",
    "--compiler-bindir": "-ccbin",
    "--compiler-options": "-Xcompiler",
    "--fatbin-options": "-Xfatbin",
    "--compress-mode": "-compress-mode",
    "--no-compress": "-no-compress",
    "--device-debug": "-G",
    "--dlink-time-opt": "-dlto",
    "--lto": "-dlto",
    "-lto": "-dlto",
    "--dryrun": "-dryrun",
    "--x": "-x",
    "--forward-unknown-to-host-compiler": "-forward-unknown-to-host-compiler",
    "--forward-unknown-opts": "-forward-unknown-opts",
    **{f"--{name}": f"-{name}" for name in ("cuda", "cubin", "fatbin", "ptx", "optix-ir", "ltoir", "lib", "shared")},
    **{f"--{name}": f"-{name}" for name in ("tilebc", "tilecubin", "tilefatbin")},
    "--preprocess": "-E",
    "--generate-dependencies": "-M",
    "--generate-nonsystem-dependencies": "-MM",
    "--compile": "-c",
    "--device-c": "-dc",
    "--device-w": "-dw",
    "--device-link": "-dlink",
    "--frandom-seed": "-frandom-seed",
    "--keep": "-keep",
    "--save-temps": "-save-temps",
    "--objdir-as-tempdir": "-objtemp",
}

# all options whose value may be the next word, from nvcc 13.5 --help
_TAKE_VALUE = frozenset(
    {
        *("-o", "-l", "-D", "-U", "-I", "-L", "-O", "-x", "-m", "-t", "-e", "-MF", "-MT", "-include", "-isystem"),
        *("-odir", "-ccbin", "-arbin", "-cudart", "-cudadevrt", "-ldir", "-target-dir", "-opt-info", "-Ofc", "-dopt"),
        *("-std", "-stdlib", "-rdc", "-arch", "-code", "-gencode", "-maxrregcount", "-ftz", "-prec-div", "-prec-sqrt"),
        *("-fmad", "-default-stream", "-Werror", "-diag-error", "-diag-suppress", "-diag-warn", "-hls", "-brief-diag"),
        *("-jtd", "-device-stack-protector", "-compress-mode", "-frandom-seed", "-fdevice-sanitize", "-optf"),
        *("-ftemplate-backtrace-limit", "-ftemplate-depth", "-fmax-errors", "-split-compile", "-apply-controls"),
        *("-split-compile-extended", "-fdevice-time-trace", "-fdevice-time-trace-granularity", "-keep-dir", "-time"),
        *("-run-args", "-idp", "-ddp", "-dp", "-static-global-template-stub", "-qpp-config", "-tile-preview"),
        "-device-entity-has-hidden-visibility",
        *("--library", "--define-macro", "--undefine-macro", "--include-path", "--library-path", "--optimize"),
        *("--machine", "--threads", "--entries", "--dependency-output", "--dependency-target-name", "--pre-include"),
        *("--system-include", "--archiver-binary", "--libdevice-directory", "--target-directory", "--std", "--stdlib"),
        *("--optimization-info", "--Ofast-compile", "--dopt", "--cudart", "--cudadevrt", "--relocatable-device-code"),
        *("--maxrregcount", "--ftz", "--prec-div", "--prec-sqrt", "--fmad", "--default-stream", "--Werror"),
        *("--diag-error", "--diag-suppress", "--diag-warn", "--host-linker-script", "--brief-diagnostics"),
        *("--jump-table-density", "--device-stack-protector", "--frandom-seed", "--fdevice-sanitize"),
        *("--ftemplate-backtrace-limit", "--ftemplate-depth", "--fmax-errors", "--split-compile", "--apply-controls"),
        *("--split-compile-extended", "--fdevice-time-trace", "--fdevice-time-trace-granularity", "--keep-dir"),
        *("--time", "--run-args", "--input-drive-prefix", "--dependency-drive-prefix", "--drive-prefix"),
        *("--static-global-template-stub", "--device-entity-has-hidden-visibility", "--qpp-config", "--tile-preview"),
    }
)

_DEVICE_SOURCES = (".cu", ".gpu", ".ptx", ".cubin", ".fatbin")
_SOURCES = (*_DEVICE_SOURCES, ".c", ".cc", ".cpp", ".cxx", ".c++", ".C", ".i", ".ii")


class NvccOutput(StrEnum):
    """What a command makes."""

    OBJECT = "object"
    LIBRARY = "library"
    DEVICE_LINK = "device-link"
    FATBIN = "fatbin"
    CUBIN = "cubin"
    PTX = "ptx"
    TEXT = "text"
    OTHER = "other"


_STAGES = {
    **dict.fromkeys(("-c", "-dc", "-dw", "-lib", "-cuda"), NvccOutput.OBJECT),
    **dict.fromkeys(("-fatbin", "-tilefatbin"), NvccOutput.FATBIN),
    **dict.fromkeys(("-cubin", "-tilecubin"), NvccOutput.CUBIN),
    **dict.fromkeys(("-E", "-M", "-MM"), NvccOutput.TEXT),
    **dict.fromkeys(("-optix-ir", "-ltoir", "-tilebc"), NvccOutput.OTHER),
    "-dlink": NvccOutput.DEVICE_LINK,
    "-ptx": NvccOutput.PTX,
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option, or, with an empty *name*, one file; *words* are how the command has it."""

    name: str
    value: str
    words: tuple[str, ...]
    inside: tuple["Option", ...] = ()

    def __iter__(self) -> Iterator["Option"]:
        """Itself, or the options in the file that it names."""
        for option in self.inside:
            yield from option
        if not self.inside:
            yield self


@dataclass(frozen=True, slots=True)
class Call:
    """A command of nvcc."""

    options: tuple[Option, ...]
    flat: tuple[Option, ...] = field(repr=False)

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        options = tuple(_parsed(words))
        return cls(options, tuple(one for option in options for one in option))

    def values(self, name: str) -> tuple[str, ...]:
        """The values of every option *name*."""
        return tuple(option.value for option in self.flat if option.name == name)

    def has(self, *names: str) -> bool:
        return any(option.name in names for option in self.flat)

    @property
    def list_options(self) -> tuple[tuple[str, str], ...]:
        return tuple((option.name, option.value) for option in self.flat if option.name in LIST)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.values("")

    @property
    def sources(self) -> tuple[str, ...]:
        """The files that are compiled, not only linked."""
        return self.inputs if self.has("-x") else tuple(file for file in self.inputs if file.endswith(_SOURCES))

    @property
    def output(self) -> NvccOutput:
        """What it makes, a library or program where no option says otherwise."""
        stages = (_STAGES[option.name] for option in self.flat if option.name in _STAGES)
        return next(stages, NvccOutput.LIBRARY)

    @property
    def files(self) -> tuple[str, ...]:
        """The absolute paths of what it makes, as far as they are known."""
        given = self.values("-o")
        folder = Path((*self.values("-odir"), "")[0])
        if given or self.output is not NvccOutput.OBJECT:
            return tuple(os.path.abspath(file) for file in given[-1:])  # noqa: PTH100 - no symlink is resolved
        return tuple(os.path.abspath(folder / f"{Path(source).stem}.o") for source in self.sources)  # noqa: PTH100

    @property
    def defers(self) -> bool:
        """Whether ``-dlto`` leaves the machine code of what is compiled to the device linker."""
        return bool(self.sources) and self.has("-dlto")

    @property
    def forwards(self) -> bool:
        """Whether options that nvcc does not know go to the host compiler."""
        return self.has("-forward-unknown-to-host-compiler", "-forward-unknown-opts")


def _parsed(words: Iterable[str], files: tuple[str, ...] = ()) -> Iterator[Option]:
    """The options of *words*, which come from the innermost of *files*."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            yield Option("", word, (word,))
            continue
        long, joined, value = word.partition("=")
        taken = [word]
        name = _SHORT.get(long, long)
        if not joined and _takes_value(name):
            taken += itertools.islice(rest, 1)
            value = "".join(taken[1:])
        inside = tuple(_inside(value, files)) if name == "-optf" else ()
        yield Option(name, value, tuple(taken), inside)


def _takes_value(name: str) -> bool:
    return name in _TAKE_VALUE or name.startswith("-X") or (name.startswith("--") and name.endswith("-options"))


def _inside(value: str, files: tuple[str, ...]) -> Iterator[Option]:
    """The options in the files that *value* lists; none of a file that nvcc will not be able to read either."""
    for file in value.split(","):
        try:
            words = shlex.split(Path(file).read_text(encoding="utf-8", errors="surrogateescape"))
        except (OSError, ValueError):
            continue
        if file not in files:
            yield from _parsed(words, (*files, file))
