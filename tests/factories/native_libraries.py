"""Small native libraries, one per build system: each is ``libdepth``, which tells the CPU level it was built for."""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.factories.projects import tree
from tests.factories.recipes import recipe
from vbuild.build.environment import Environments
from vbuild.build.native import NativeBuilder, NativeCache, NativeSettings
from vbuild.build.prefixes import Prefix
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine
from vbuild.index_client.configuration import Indexes
from vbuild.release.cache import BuildCache
from vbuild.toolchain.toolkit_provision import FETCHED

DEPTH = r"""
#include "depth.h"
#if defined(__AVX512F__)
#define LEVEL "v4"
#elif defined(__AVX2__)
#define LEVEL "v3"
#elif defined(__SSE4_2__)
#define LEVEL "v2"
#else
#define LEVEL "v1"
#endif
const char *depth_built(void) { return "depth is built for " LEVEL " in " __FILE__; }
int depth(void) { return LEVEL[1] - '0'; }
"""
HEADER = """
#ifdef __cplusplus
extern "C"
#endif
int depth(void);
const char *depth_built(void);
"""
SOURCES = {"depth.c": DEPTH, "depth.h": HEADER}

_PC = "prefix={prefix}\nName: depth\nDescription: depth\nVersion: 1.0\nLibs: -L${{prefix}}/lib -ldepth\n"
_PC += "Cflags: -I${{prefix}}/include\n"

SCRIPT = (
    "cc -march=native $CFLAGS -fPIC -c -o depth.o depth.c",
    "cc -shared -Wl,-soname,libdepth.so.1 -Wl,-rpath,$PREFIX/lib $LDFLAGS -o libdepth.so.1 depth.o",
    "mkdir -p $DESTDIR$PREFIX/lib/pkgconfig $DESTDIR$PREFIX/include",
    "cp libdepth.so.1 $DESTDIR$PREFIX/lib",
    "ln -s $PREFIX/lib/libdepth.so.1 $DESTDIR$PREFIX/lib/libdepth.so",
    "cp depth.h $DESTDIR$PREFIX/include",
    f"printf '{_PC.format(prefix='%s')}' $PREFIX > $DESTDIR$PREFIX/lib/pkgconfig/depth.pc".replace("\n", "\\n"),
)


def autotools_library(folder: Path) -> Path:
    """A project of autoconf, automake and libtool, without its configure, as a checkout is."""
    configure = """
AC_INIT([depth], [1.0])
AM_INIT_AUTOMAKE([foreign])
LT_INIT([disable-static])
AC_PROG_CC
AC_ARG_ENABLE([fast], [], [AC_DEFINE([FAST], [1], [fast])])
CFLAGS="$CFLAGS -march=native"
AC_CONFIG_FILES([Makefile depth.pc])
AC_OUTPUT
"""
    make = """
lib_LTLIBRARIES = libdepth.la
libdepth_la_SOURCES = depth.c
libdepth_la_LDFLAGS = -version-info 1
include_HEADERS = depth.h
pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA = depth.pc
"""
    pc = _PC.format(prefix="@prefix@")
    return tree(folder, {**SOURCES, "configure.ac": configure, "Makefile.am": make, "depth.pc.in": pc})


def cmake_library(folder: Path) -> Path:
    """A CMake project, which would set RPATHs, and asks for this machine's own processor."""
    cmake = """
cmake_minimum_required(VERSION 3.15)
project(depth C)
set(CMAKE_INSTALL_RPATH "${CMAKE_INSTALL_PREFIX}/lib")
add_compile_options(-march=native)
add_library(depth depth.c)
set_target_properties(depth PROPERTIES SOVERSION 1)
target_include_directories(depth INTERFACE $<INSTALL_INTERFACE:include>)
install(TARGETS depth EXPORT depth DESTINATION lib)
install(FILES depth.h DESTINATION include)
install(EXPORT depth DESTINATION lib/cmake/depth FILE depth-config.cmake)
configure_file(depth.pc.in depth.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/depth.pc DESTINATION lib/pkgconfig)
"""
    pc = _PC.format(prefix="@CMAKE_INSTALL_PREFIX@")
    return tree(folder, {**SOURCES, "CMakeLists.txt": cmake, "depth.pc.in": pc})


def meson_library(folder: Path) -> Path:
    """A Meson project with a pkg-config file of Meson's own making."""
    meson = """
project('depth', 'c', version: '1.0')
depth = library('depth', 'depth.c', c_args: ['-march=native'], soversion: '1', install: true)
install_headers('depth.h')
import('pkgconfig').generate(depth, description: 'depth')
"""
    return tree(folder, {**SOURCES, "meson.build": meson})


def script_library(folder: Path) -> Path:
    """Sources for `SCRIPT`."""
    return tree(folder, SOURCES)


def step(folder: Path, build: str, text: str = "", *, name: str = "depth") -> str:
    """The step *name* of the source *folder*, built by *build*; a script is `SCRIPT`, unless *text* has another."""
    if build == "script" and "script =" not in text:
        lines = ",\n".join(f"'''{line}'''" for line in SCRIPT)
        text = f"script = [\n{lines}\n]\n{text}"
    return f'[[native]]\nname = "{name}"\nsource = {{ path = "{folder}" }}\nbuild = "{build}"\n{text}\n'


@dataclass(frozen=True, slots=True)
class Works:
    """A place to build native dependencies in, with a cache of its own; *messages* are those of its builds."""

    folder: Path
    root: Path
    messages: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, folder: Path, *, root: Path | None = None) -> "Works":
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder, root or folder / "shelf")

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def native_builder(self, text: str, *, since: float = 0.0) -> NativeBuilder:
        """A builder, as of a new run, for the steps in *text* and what else a recipe has."""
        found = recipe(self.folder, f'[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n{text}')
        stage = self.folder / "stage"
        settings = NativeSettings(
            found.natives,
            host=found.build.host,
            cache=NativeCache(self.root, since),
            stage=stage,
            logs=self.logs,
            exclude=self.folder / "dist",
            environments=Environments(stage / "environments", Indexes.configured().environment, logs=self.logs),
            machine=Machine.here().cpu,
            supply=FETCHED,
            looked=BuildCache(self.folder / "builds"),
        )
        return NativeBuilder(settings)

    def built(self, text: str, *levels: str, since: float = 0.0) -> tuple[Prefix, ...]:
        """The prefixes of the last step in *text*, built for each of *levels* by one run."""
        native_builder = self.native_builder(text, since=since)
        steps = [native_builder.steps(Cpu.parse(level)) for level in levels]
        for each in steps:
            native_builder.build([one.prefix for one in each], on_progress=self.messages.append)
        return tuple(each[-1].prefix for each in steps)


def level_of(prefix: Prefix) -> str:
    """The level that the library in *prefix* says it was built for, and where."""
    (found,) = re.findall(rb"depth is built for (v\d in [^\0]*)", library(prefix).read_bytes())
    return str(found.decode())


def library(prefix: Prefix) -> Path:
    return (prefix.folder / "lib/libdepth.so").resolve(strict=True)


def dynamic(path: Path) -> str:
    """What readelf says of the dynamic section of *path*."""
    return subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
