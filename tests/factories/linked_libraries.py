"""Libraries that need each other by name, as the linker makes them, and a wheel whose libraries hang together."""

from tests.factories.elf import MODULE, rpath
from tests.factories.extensions import library

NAME = "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
# what a tool that bundles libraries makes of libdeep.so.1
DEEP = "libdeep-1a2b3c4d.so.1"


def linked(source: str, *needs: str, soname: str | None = None, flags: tuple[str, ...] = ()) -> bytes:
    """What gcc makes of *source*: a shared object named *soname* that needs *needs*, and libc."""
    return library(soname, needs, source=source, flags=("-O1", *flags))


def files() -> dict[str, bytes | str]:
    """A module that loads a chain of libraries, others' and the driver's; and one library for nothing.

    demo/_C -> libtop.so -> libdeep-1a2b3c4d.so.1; libtorch.so, libcufft.so.11; libcuda.so.1; libnowhere.so.3
    demo/_D -> libdeep-1a2b3c4d.so.1, only if something loaded it before
    libplugin.so is named in Python, libmore.so in the data of libtop.so; libidle.so nowhere
    """
    here, alongside = "$ORIGIN", "$ORIGIN/../demo.libs"
    opens = 'const char *more = "libmore.so";'
    away = ("libtorch.so", "libcufft.so.11", "libcuda.so.1", "libnowhere.so.3")
    return {
        "demo/__init__.py": "import ctypes\nctypes.CDLL('libplugin.so')\n",
        "demo/_C.cpython-311-x86_64-linux-gnu.so": linked(MODULE, "libtop.so", *away, flags=rpath(alongside)),
        "demo/_D.cpython-311-x86_64-linux-gnu.so": linked(MODULE, DEEP),
        "demo.libs/libtop.so": linked(opens, DEEP, soname="libtop.so", flags=rpath(here)),
        f"demo.libs/{DEEP}": linked("int deep[9000] = {1};", soname=DEEP),
        "demo.libs/libmore.so": linked("int more;", soname="libmore.so"),
        "demo.libs/libplugin.so": linked("int plugin;", soname="libplugin.so"),
        "demo.libs/libidle.so": linked("int idle;", soname="libidle.so"),
    }
