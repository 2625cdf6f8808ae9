"""Fleets, and locks of wheels at their paths, for mirrors."""

import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec.structs import replace
from packaging.utils import canonicalize_name

from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.sources import sha256
from tests.factories.wheels import wheel
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.machine import Machine
from vbuild.mirroring.model import FleetMachine

FAT = "fat-1.0-py3-none-manylinux_2_17_x86_64.whl"
PLAIN = "plain-1.0-py3-none-any.whl"
OWNED = "owned-1.0-py3-none-manylinux_2_17_x86_64.whl"


@cache
def fat_library() -> bytes:
    """A library with 16 KiB of code, which nothing compresses, for each of three GPUs."""
    codes = {arch: cubin(arch) + random.Random(arch).randbytes(1 << 14) for arch in (80, 90, 120)}
    return device_library(fatbin(*(entry(arch=arch, code=code) for arch, code in codes.items())))


def three_wheels(folder: Path) -> Path:
    """A wheel with GPU code, which requires one without, and one whose licence forbids changes, in *folder*."""
    wheel(folder, FAT, {"fat/__init__.py": "x = 1\n", "fat/_C.so": fat_library()}, metadata="Requires-Dist: plain\n")
    wheel(folder, PLAIN, {"plain.py": "x = 2\n"})
    licence = "License-Expression: LicenseRef-NVIDIA-Proprietary\n"
    wheel(folder, OWNED, {"owned/_C.so": fat_library()}, metadata=licence)
    return folder


def fleet(*gpus: str, driver: str | None = "13.0") -> tuple[FleetMachine, ...]:
    """A machine like this one with each of *gpus*; one without a GPU for an empty text."""
    known = Dotted.parse(driver) if driver else None
    found = []
    for text in gpus:
        name = f"sm{text.replace('.', '')}" if text else "cpu"
        nvidia = Nvidia(known, (Dotted.parse(text),)) if text else Nvidia()
        found.append(FleetMachine(name, replace(Machine.here(), nvidia=nvidia)))
    return tuple(found)


def lock_of(target: Path, *files: Path, **changed: object) -> Path:
    """The lock at *target* of wheels or sdists at their paths; *changed* is said of each instead."""
    text = 'lock-version = "1.0"\ncreated-by = "demo"\n'
    for file in files:
        name, version = file.name.removesuffix(".tar.gz").split("-")[:2]
        said = _toml({"path": str(file), "hashes": {"sha256": sha256(file)}} | changed)
        kind = f"wheels = [{said}]" if file.suffix == ".whl" else f"sdist = {said}"
        text += f'[[packages]]\nname = "{canonicalize_name(name)}"\nversion = "{version}"\n{kind}\n'
    target.write_text(text)
    return target


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items() if each is not None) + " }"
    return json.dumps(value)
