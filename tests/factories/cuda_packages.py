"""Official CUDA 12 packages: a library that needs another package's, and toolkits that pin both."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.factories.elf import rpath
from tests.factories.extensions import MODULE, library
from tests.factories.official_wheels import FFT, official_wheel
from tests.factories.ranges import Serving, serving, simple_index
from tests.factories.wheels import wheel

LINKER = "nvidia-nvjitlink-cu12"
VERSION, NEWER, LINKERS = "11.2.1.3", "11.3.0.4", "12.4.127"

# large enough to contain more than its tables, and different in every version
_SOURCE = "const char table[200000] = {{1, 2}}; int numbers[4000] = {{{0}}}; int {1}(void) {{ return numbers[0]; }}"
_SCRIPT = "CUFFT_11 { global: fft; local: *; };"
_CALLS = "int fft(void); int answer(void) { return fft(); }"


@cache
def libcufft(number: int = 7) -> bytes:
    """libcufft.so.11 with a versioned symbol, which needs libnvJitLink.so.12 as the official one does."""
    flags = (*rpath("$ORIGIN:$ORIGIN/../../nvjitlink/lib"), "-lm")
    source = _SOURCE.format(number, "fft")
    return library("libcufft.so.11", ("libnvJitLink.so.12",), source=source, script=_SCRIPT, flags=flags)


@cache
def library_named(soname: str, number: int = 1) -> bytes:
    """Any other library."""
    return library(soname, source=_SOURCE.format(number, "any"), flags=rpath("$ORIGIN"))


def libnvjitlink() -> bytes:
    return library_named("libnvJitLink.so.12", 12)


def calling_libcufft(*more: str, rpath_: str = "", runpath: str = "") -> bytes:
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


def package_wheel(
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
    return official_wheel(folder, project, version, files, requires=requires)


def cuda_toolkit(folder: Path, version: str, pins: Mapping[str, str]) -> Path:
    """The release *version* of cuda-toolkit; *pins* is a requirement by extra."""
    extras = "".join(f"Provides-Extra: {extra}\n" for extra in pins)
    lines = (f"Requires-Dist: {line}; sys_platform == 'linux' and extra == '{extra}'\n" for extra, line in pins.items())
    return wheel(folder, f"cuda_toolkit-{version}-py2.py3-none-any.whl", metadata=extras + "".join(lines))


def all_packages(folder: Path) -> list[Path]:
    """Two releases of libcufft, the linker that both need, and the toolkits of CUDA 12 that have them."""
    pins = {"nvjitlink": f"{LINKER}=={LINKERS}.*"}
    return [
        package_wheel(folder, FFT, VERSION, {"libcufft.so.11": libcufft()}, place="cufft", requires=[LINKER]),
        package_wheel(folder, LINKER, LINKERS, {"libnvJitLink.so.12": libnvjitlink()}, place="nvjitlink"),
        package_wheel(folder, FFT, NEWER, {"libcufft.so.11": libcufft(8)}, place="cufft", requires=[LINKER]),
        cuda_toolkit(folder, "12.4.1", {"cufft": f"{FFT}=={VERSION}.*", **pins}),
        cuda_toolkit(folder, "12.6.3", {"cufft": f"{FFT}=={NEWER}.*", **pins}),
    ]


@contextmanager
def serving_packages(folder: Path, *wheels: Path, mood: str = "sound") -> Iterator[Serving]:
    """An index of *wheels* that sends parts of files, in that *mood*."""
    with serving(simple_index(folder / "index", *wheels), mood) as server:
        yield server
