"""zig from the package index: a C and C++ compiler with the headers and start-up code of every glibc it can build for.

    the ziglang wheel of this machine, pinned -> components/ziglang-<version>-<sha256>/ziglang/zig in the shared store

Zig compiles libc++, libunwind and glibc's stubs when a target first needs them, half a minute for C++, and keeps the
results in its global cache, which its processes share under locks of their own.
https://github.com/ziglang/zig-pypi
"""

import platform
import sys
from pathlib import Path

from platformdirs import user_cache_path

from vbuild.errors import FetchError, ToolkitError
from vbuild.fetching.indexes import Indexes
from vbuild.toolkit.model import Pin
from vbuild.toolkit.store import Store, Told, silently

VERSION = "0.17.1"
CLANG = (22, 1)  # the clang that is in it

_PINS = {
    "x86_64": Pin(
        "ziglang",
        VERSION,
        f"ziglang-{VERSION}-py3-none-manylinux_2_12_x86_64.manylinux2010_x86_64.musllinux_1_1_x86_64.whl",
        "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
    ),
    "aarch64": Pin(
        "ziglang",
        VERSION,
        f"ziglang-{VERSION}-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
        "b7c5f02fccd40f89b999ee16a1f5ddced56e6182370f8affe494bcf8a28cf07e",
    ),
}

_PROGRAM = Path("ziglang", "zig")
_OTHER_WAY = "with build.host = 'system' the system's compiler is used"


def provided_zig(
    *,
    store: Path | None = None,
    indexes: Indexes | None = None,
    machine: str | None = None,
    told: Told = silently,
) -> Path:
    """The zig executable for *machine*, this one where None; fetched and unpacked unless *store* has it.

    *indexes* are asked for only then. `ToolkitError`, which names the other way, where it is not to be had.
    """
    pin = _pin(machine or platform.machine())
    try:
        folder = Store.at(store).component(pin, places=lambda: indexes or Indexes.configured(), told=told)
    except (FetchError, ToolkitError) as error:
        raise ToolkitError(f"{error}; {_OTHER_WAY}") from error
    return folder / _PROGRAM


def foreseen_zig(*, store: Path | None = None, machine: str | None = None) -> Path:
    """The path that `provided_zig` would give, without fetching anything: there need be nothing yet."""
    return Store.at(store).component_folder(_pin(machine or platform.machine())) / _PROGRAM


def _pin(machine: str) -> Pin:
    if sys.platform != "linux" or machine not in _PINS:
        expected = ", ".join(_PINS)
        raise ToolkitError(f"no zig for {sys.platform} on {machine}; expected Linux on {expected}; {_OTHER_WAY}")
    return _PINS[machine]


def zig_cache(store: Path | None = None) -> Path:
    """The folder where zig keeps what it compiles of libc++ and the like, beside *store*."""
    return (store or user_cache_path("vbuild") / "toolkits").absolute().with_name("zig")
