"""The platform tags of wheels: which of them PyPI takes, and which mean the same machine.

    any, win32, win_amd64, win_arm64                                     as they are
    manylinux1_, manylinux2010_, manylinux2014_, manylinux_X_Y_          glibc (PEP 513, 571, 599, 600)
    musllinux_X_Y_                                                       musl (PEP 656)
    macosx_10_Y_, macosx_X_0_ from X = 11 on                             two ways to count versions
    ios_X_Y_ARCH_DEVICE, android_X_ARCH, pyemscripten_X_Y_wasm32         PEP 730, 738, 783
    linux_armv6l, linux_armv7l                                           no other linux_: it says nothing of libc

https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/ and warehouse/utils/wheel.py of
https://github.com/pypi/warehouse, which also knows which versions of macOS there are.
"""

import re

_AS_THEY_ARE = frozenset({"any", "win32", "win_amd64", "win_arm64", "win_ia64", "linux_armv6l", "linux_armv7l"})
_JOINT = "x86_64|i686|aarch64|armv7l|ppc64le|s390x|riscv64"
_MAC = "ppc|ppc64|i386|x86_64|arm64|intel|fat|fat3|fat64|universal|universal2"
_TAKEN = re.compile(
    rf"""
    manylinux(1|2010)_(x86_64|i686)
    | manylinux2014_(x86_64|i686|aarch64|armv7l|ppc64|ppc64le|s390x)
    | manylinux_\d+_\d+_({_JOINT}|ppc64) | musllinux_\d+_\d+_({_JOINT})
    | macosx_10_\d+_({_MAC}) | macosx_(1[1-5]|26)_0_({_MAC})
    | ios_\d+_\d+_(arm64|x86_64)_(iphoneos|iphonesimulator)
    | android_\d+_(armeabi_v7a|arm64_v8a|x86|x86_64)
    | pyemscripten_\d+_\d+_wasm32
    """,
    re.VERBOSE | re.ASCII,
)
_SYSTEMS = "manylinux|musllinux|macosx|ios|android|pyemscripten"
_VERSIONED = re.compile(rf"(?P<system>{_SYSTEMS})\d*(_\d+)*_(?P<machine>.+)", re.ASCII)
_BARE_LINUX = "linux_"
_UNIVERSAL = "macosx_universal2"
_OF_UNIVERSAL = frozenset({"macosx_x86_64", "macosx_arm64"})


def is_taken(platform: str) -> bool:
    """Whether PyPI takes wheels with this platform tag, one of those that dots join."""
    return platform in _AS_THEY_ARE or _TAKEN.fullmatch(platform) is not None


def is_bare_linux(platform: str) -> bool:
    """Whether the tag is of the Linux machine that the wheel was built on, whatever its libc."""
    return platform.startswith(_BARE_LINUX) and platform not in _AS_THEY_ARE


def machine(platform: str) -> str:
    """The platform tag without the version of its system: what all wheels for that kind of machine share."""
    match = _VERSIONED.fullmatch(platform)
    return f"{match['system']}_{match['machine']}" if match else platform


def serves(offered: str, wanted: str) -> bool:
    """Whether a wheel for the machine *offered* is one for *wanted* too; both as `machine` has them."""
    return offered in {"any", wanted} or (offered == _UNIVERSAL and wanted in _OF_UNIVERSAL)
