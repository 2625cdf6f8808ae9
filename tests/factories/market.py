"""Official packages of CUDA 12 as split meets them: a library that needs another's, and toolkits that pin both."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.factories.elf import rpath
from tests.factories.extensions import MODULE, library
from tests.factories.officials import FFT, published
from tests.factories.ranges import Serving, serving, simple_index
from tests.factories.wheels import wheel

LINKER = "nvidia-nvjitlink-cu12"
VERSION, NEWER, LINKERS = "11.2.1.3", "11.3.0.4", "12.4.127"

# large enough to have something beside its tables, and other in every version
_SOURCE = "const char table[200000] = {{1, 2}}; int numbers[4000] = {{{0}}}; int {1}(void) {{ return numbers[0]; }}"
_SCRIPT = "CUFFT_11 { global: fft; local: *; };"
_CALLS = "int fft(void); int answer(void) { return fft(); }"


@cache
def fft(number: int = 7) -> bytes:
    """libcufft.so.11 with a versioned symbol, which needs libnvJitLink.so.12 as the official one does."""
    flags = (*rpath("$ORIGIN:$ORIGIN/../../nvjitlink/lib"), "-lm")
    source = _SOURCE.format(number, "fft")
    return library("libcufft.so.11", ("libnvJitLink.so.12",), source=source, script=_SCRIPT, flags=flags)


@cache
def named(soname: str, number: int = 1) -> bytes:
    """Any other library."""
    return library(soname, source=_SOURCE.format(number, "any"), flags=rpath("$ORIGIN"))


def linker() -> bytes:
    return named("libnvJitLink.so.12", 12)


def calls_fft(*more: str, rpath_: str = "", runpath: str = "") -> bytes:
    """An extension module ``_c`` that calls libcufft.so.11, with its version, and needs *more* libraries."""
    return library(
        None,
        ("libcufft.so.11", *more),
        source=MODULE + _CALLS,
        stubs="int fft(void) { return 0; }",
        stub_script=_SCRIPT,
        rpath_=rpath_,
        runpath=runpath,
    )


def official(
    folder: Path,
    project: str,
    version: str,
    libraries: Mapping[str, bytes],
    *,
    place: str,
    requires: Sequence[str] = (),
) -> Path:
    """The wheel of *project* with *libraries* in nvidia/*place*/lib."""
    files: dict[str, bytes | str] = {f"nvidia/{place}/lib/{soname}": data for soname, data in libraries.items()}
    return published(folder, project, version, files, requires=requires)


def toolkit(folder: Path, version: str, pins: Mapping[str, str]) -> Path:
    """The release *version* of cuda-toolkit; *pins* is a requirement by extra."""
    extras = "".join(f"Provides-Extra: {extra}\n" for extra in pins)
    lines = (f"Requires-Dist: {line}; sys_platform == 'linux' and extra == '{extra}'\n" for extra, line in pins.items())
    return wheel(folder, f"cuda_toolkit-{version}-py2.py3-none-any.whl", metadata=extras + "".join(lines))


def everything(folder: Path) -> list[Path]:
    """Two releases of libcufft, the linker that both need, and the toolkits of CUDA 12 that have them."""
    pins = {"nvjitlink": f"{LINKER}=={LINKERS}.*"}
    return [
        official(folder, FFT, VERSION, {"libcufft.so.11": fft()}, place="cufft", requires=[LINKER]),
        official(folder, LINKER, LINKERS, {"libnvJitLink.so.12": linker()}, place="nvjitlink"),
        official(folder, FFT, NEWER, {"libcufft.so.11": fft(8)}, place="cufft", requires=[LINKER]),
        toolkit(folder, "12.4.1", {"cufft": f"{FFT}=={VERSION}.*", **pins}),
        toolkit(folder, "12.6.3", {"cufft": f"{FFT}=={NEWER}.*", **pins}),
    ]


@contextmanager
def offered(folder: Path, *wheels: Path, mood: str = "sound") -> Iterator[Serving]:
    """An index of *wheels* that sends parts of files, in that *mood*."""
    with serving(simple_index(folder / "index", *wheels), mood) as server:
        yield server
