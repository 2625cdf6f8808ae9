"""Which wheels become images of one index, which files an image contains, and what it is built on.

    demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl      cp311, x86_64     the image that every machine can run
    demo-1.0-cp311-…_x86_64-x86_64_v3.whl               cp311, x86_64     linux/amd64/v3
    demo-1.0-cp311-…_aarch64.whl                        cp311, aarch64    linux/arm64
    demo-1.0-cp312-…                                    cp312             another index

musllinux has indexes of its own: no platform names the C library of an image.

    demo-1.0-cp311-…whl, demo_libs-0.3-…whl     usr/local/lib/python3.11/site-packages/…, usr/local/bin/…
    files of several images                     one layer of what all share, one for each

A wheel for one minor version of CPython goes to that version's site-packages, as in the official images of Python. One
for several (abi3, py3) goes there as well if the base names its Python, else to lib/python3. Images set PYTHONPATH, so
that a Python elsewhere in the base finds them, too.

The base is an image in an OCI image layout on disk, ``DIR`` or ``DIR:name``: the one for the architecture, of the
highest level that the new image's CPUs have. All of it is checked before anything is written.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Self

from msgspec import Struct

from vbuild.config.requirements import admits, applies, checked_requirement
from vbuild.errors import RepackageError, WheelError, at
from vbuild.hardware.cpu import Cpu, extra_of
from vbuild.publishing.installing import InstallEnvironment, installed
from vbuild.publishing.oci.model import (
    GZIP_TYPE,
    LAYER_TYPE,
    ZSTD_TYPE,
    Base,
    Descriptor,
    File,
    ImageFolder,
    Layer,
    MemberFile,
    NewFile,
    OciPlatform,
    placed,
)
from vbuild.publishing.releases import OfferedRelease, OfferedWheel, required_companions

_LINUX = re.compile(r"(?P<libc>manylinux|musllinux|linux)\w*_(?P<machine>x86_64|aarch64)(\.\w+)*|any", re.ASCII)
BASELINES = {"x86_64": Cpu("x86_64", "v1"), "aarch64": Cpu("aarch64", "8a")}


class ImageGroup(Struct, frozen=True):
    """The wheels of a release for one Python and one machine, in the order that an index lists their images."""

    ref: str
    machine: str
    wheels: tuple[OfferedWheel, ...]

    def cpu(self, wheel: OfferedWheel) -> Cpu:
        """The lowest processors that *wheel* runs on, as its properties say."""
        return _lowest_cpu(wheel, self.machine)

    def listed(self, wheel: OfferedWheel) -> OciPlatform:
        """The platform under which an index may list *wheel*, for no client to take it that cannot run it."""
        cpu = self.cpu(wheel)
        others = {self.cpu(other) for other in self.wheels if _is_cpu_alone(other)}
        return OciPlatform.of(cpu if _is_cpu_alone(wheel) or cpu in others else BASELINES[self.machine])


def groups(offer: OfferedRelease, machines: Sequence[str]) -> tuple[tuple[ImageGroup, ...], tuple[OfferedWheel, ...]]:
    """The groups of *offer*, by Python, then machine, and the wheels in none: not for Linux, or unknown machines.

    Wheels for any machine are of those *machines*, or of those that the others of their Python are for.
    `RepackageError` for two wheels of one label, or where every image of a group needs more than a baseline.
    """
    found: dict[str, list[OfferedWheel]] = {}
    for wheel in offer.wheels:
        if is_for_linux(wheel):
            python, abi, platform = wheel.tag
            # cp311, cp313t, cp311-abi3, py3, cp311-musl
            parts = [python] if abi in {python, "none"} else [abi] if abi == f"{python}t" else [python, abi]
            ref = "-".join([*parts, "musl"] if platform.startswith("musllinux") else parts)
            found.setdefault(ref, []).append(wheel)
    passed = tuple(wheel for wheel in offer.wheels if not is_for_linux(wheel))
    anywhere = [wheel for wheel in offer.wheels if wheel.machine is None and wheel not in passed]
    is_mixed = any(wheel.machine for wheels in found.values() for wheel in wheels)
    made = []
    for ref, wheels in sorted(found.items()):
        there = [machine for machine in BASELINES if machine in {wheel.machine for wheel in wheels}]
        if not there and is_mixed:
            continue  # it stands in for a plain wheel in the others' groups
        for machine in there or machines:
            mine = [wheel for wheel in wheels if wheel.machine in {machine, None}]
            with at(f"{offer}: {ref}, {machine}"):
                made.append(_group(ref, machine, mine, anywhere))
    return tuple(made), passed


def is_for_linux(wheel: OfferedWheel) -> bool:
    """Whether an image can hold *wheel*, by its platform tag."""
    return bool(_LINUX.fullmatch(wheel.name.platform))


def _group(ref: str, machine: str, wheels: Sequence[OfferedWheel], anywhere: Sequence[OfferedWheel]) -> ImageGroup:
    # of plain wheels for the machine and for any, those for the machine
    has_own = any(wheel.label is None and wheel.machine for wheel in wheels)
    kept = [wheel for wheel in wheels if wheel.machine or wheel.label is not None or not has_own]
    if not any(_is_plain(wheel, machine) for wheel in kept):
        kept += [wheel for wheel in anywhere if wheel.label is None and "py3" in wheel.name.python.split(".")][:1]
    labels = [name_of(wheel) for wheel in kept]
    for wheel in kept:
        if labels.count(name_of(wheel)) > 1:
            twins = ", ".join(other.path.name for other in kept if name_of(other) == name_of(wheel))
            raise RepackageError(f"{twins}: an image each, and nothing to tell them apart by; give one of them")
    if not any(_is_plain(wheel, machine) for wheel in kept):
        raise RepackageError(
            f"has {', '.join(labels)}, and no plain wheel: clients that ask for no variant would find no image; "
            f"give the plain wheel"
        )
    return ImageGroup(ref, machine, tuple(sorted(kept, key=lambda wheel: _order(wheel, machine))))


def _order(wheel: OfferedWheel, machine: str) -> tuple[int, int, str]:
    """Plain first, for clients that take the first that fits; accelerators last, the others by level from the top."""
    if wheel.label is None:
        return 0, 0, ""
    if _is_plain(wheel, machine):
        return 1, 0, wheel.label
    return (2 if _is_cpu_alone(wheel) else 3), -_lowest_cpu(wheel, machine).rank, wheel.label


def _is_plain(wheel: OfferedWheel, machine: str) -> bool:
    """Whether every machine can run it."""
    return _is_cpu_alone(wheel) and _lowest_cpu(wheel, machine).is_baseline


def _is_cpu_alone(wheel: OfferedWheel) -> bool:
    """Whether a platform can say all that it needs."""
    return all(Cpu.of_property(str(one)) for one in wheel.properties)


def _lowest_cpu(wheel: OfferedWheel, machine: str) -> Cpu:
    with at(wheel.path.name):
        named = [cpu for one in wheel.properties if (cpu := Cpu.of_property(str(one)))]
    if extras := [str(one) for one in wheel.properties if extra_of(str(one))]:
        what = f"needs {extras[0]}, and clients choose images by level alone: expected wheels without it"
        raise RepackageError(f"{wheel.path.name}: {what}")
    if strange := [cpu for cpu in named if cpu.machine != machine]:
        raise RepackageError(f"{wheel.path.name}: needs {strange[0].variant_property}, and is for {machine}")
    return min(named, key=lambda cpu: cpu.rank, default=BASELINES[machine])


def name_of(wheel: OfferedWheel) -> str:
    """What the image of *wheel* is called in its family."""
    return wheel.label or "plain"


PREFIX = "usr/local"
_CPYTHON = re.compile(r"cp3(?P<minor>\d+)")
# names that mean in a layer that a file below is gone (image-spec, layer.md)
_WHITEOUT = ".wh."
_EXECUTABLE, _PLAIN = 0o755, 0o644
# the minor version of Python 3 whose requirements count for a wheel of any Python
_ANY_MINOR = 11


class Python(Struct, frozen=True):
    """The Python of an image: its minor version, or None if any will do, and whether it is free-threaded."""

    minor: int | None = None
    is_threaded: bool = False

    @property
    def environment(self) -> InstallEnvironment:
        """What wheels are installed into below the prefix, by a Python that lies wherever the base has it."""
        folder = "python3" if self.minor is None else f"python3.{self.minor}{'t' if self.is_threaded else ''}"
        return InstallEnvironment("vbuild", f"/usr/bin/env {folder}", folder)


def python_for(wheel: OfferedWheel, base: str | None) -> Python | None:
    """The Python that *wheel* is installed for, on a base that says it has the version *base*, or None if not there."""
    match = _CPYTHON.fullmatch(wheel.name.python)
    minor = int(match["minor"]) if match else None
    is_abi3 = wheel.name.abi.startswith("abi3") or minor is None
    threaded = wheel.name.abi.endswith("t") and not is_abi3
    there = re.match(r"3\.(\d+)", base or "")
    if there is None:
        return Python(None if is_abi3 else minor, threaded)
    known = int(there[1])
    if wheel.name.python.startswith("pp") or (known < (minor or 0) if is_abi3 else known != minor):
        return None
    return Python(known, threaded)


def companions_of(wheel: OfferedWheel, companions: Sequence[OfferedWheel], machine: str) -> tuple[OfferedWheel, ...]:
    """Those of *companions* that have to be in an image with *wheel*: what it requires there, and what they do."""
    here = [
        one
        for one in companions
        if is_for_linux(one) and one.machine in {machine, None} and one.label in {None, wheel.label}
    ]
    labelled = {one.name.release for one in here if one.label}
    return required_companions((wheel,), [one for one in here if one.label or one.name.release not in labelled])


def lacking(wheel: OfferedWheel, companions: Sequence[OfferedWheel], python: Python, machine: str) -> Iterator[str]:
    """The requirements of *wheel* that hold in an image and that none of *companions* meets, those of extras left out.

    `WheelError` for a line that is not a requirement.
    """
    minor = _ANY_MINOR if python.minor is None else python.minor
    for line in wheel.metadata.requires_dist:
        with at(wheel.path.name):
            with at("Requires-Dist"):
                requirement = checked_requirement(line, WheelError)
            is_met = any(admits(requirement, one.name.project, one.name.version) for one in companions)
            if not is_met and applies(requirement, minor, machine=machine):
                yield str(requirement)


def files_of(wheels: Sequence[OfferedWheel], python: Python) -> tuple[File, ...]:
    """The files of *wheels* in one image; `RepackageError` if two of them have different ones at one place."""
    found: dict[str, tuple[File, OfferedWheel]] = {}
    for wheel in wheels:
        for file in _files(wheel, python):
            known, whose = found.setdefault(file.path, (file, wheel))
            if (known.digest, known.mode) != (file.digest, file.mode):
                one, other = whose.path.name, wheel.path.name
                raise RepackageError(f"{file.path}: {one} and {other} have different files there; expected one of them")
    return tuple(file for _, (file, _) in sorted(found.items()))


def _files(wheel: OfferedWheel, python: Python) -> Iterator[File]:
    with wheel.opened() as opened, at(wheel.path.name):
        for file in installed(opened, python.environment):
            if any(part.startswith(_WHITEOUT) for part in file.path.split("/")):
                raise RepackageError(
                    f"{file.path}: deletes a file in an image; expected no name with {_WHITEOUT} in front"
                )
            path, mode = f"{PREFIX}/{file.path}", _EXECUTABLE if file.is_executable else _PLAIN
            if isinstance(file.content, bytes):
                yield NewFile(path, mode, file.content)
            else:
                digest = opened.row(file.content).hash or ""
                yield MemberFile(path, mode, file.size, digest, wheel.path, file.content.path)


def layered(images: Mapping[str, Sequence[File]], *, release: str) -> dict[str, tuple[Layer, ...]]:
    """The layers of each of *images*, files by name: first one of what all have in common, then one of its own."""
    keyed = {name: {(file.path, file.mode, file.digest): file for file in files} for name, files in images.items()}
    common = set.intersection(*map(set, keyed.values())) if len(keyed) > 1 else set()
    shared = tuple(file for key, file in next(iter(keyed.values())).items() if key in common)
    below = (Layer(shared, f"{release}: what all variants have in common"),) if shared else ()
    return {
        name: (*below, Layer(tuple(file for key, file in files.items() if key not in common), f"{release}: {name}"))
        for name, files in keyed.items()
    }


_LAYERS = (LAYER_TYPE, GZIP_TYPE, ZSTD_TYPE)
_PYTHON = re.compile(r"PYTHON_VERSION=(?P<version>\d+\.\d+[\w.]*)")


class BaseFolder(Struct, frozen=True):
    """The images of one name in an image layout, each for a platform."""

    place: str
    folder: ImageFolder
    images: tuple[Descriptor, ...]

    @classmethod
    def of(cls, place: Path) -> Self:
        """The base at *place*, a folder or a folder with a name behind a colon; `RepackageError` if there is none."""
        path, ref = placed(place)
        with at("base"):
            folder = ImageFolder.of(path)
            images, _ = folder.images(folder.named(ref))
        return cls(str(place), folder, images)

    @property
    def architectures(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(image.platform.architecture for image in self.images if image.platform))

    def for_cpu(self, cpu: Cpu) -> tuple[Base, str | None]:
        """The image that is best for *cpu*, checked, and the version of Python that it says it has.

        `RepackageError` if there is none for its machine, or a blob of it is missing or damaged.
        """
        linux = ((image, image.platform) for image in self.images if image.platform and image.platform.os == "linux")
        found = [(mine.rank, image) for image, platform in linux if (mine := platform.cpu) and cpu.runs(mine)]
        if not found:
            there = ", ".join(str(image.platform) for image in self.images) or "no image"
            raise RepackageError(f"base: {self.place}: has {there}; expected an image for {OciPlatform.of(cpu)}")
        _, image = max(found, key=itemgetter(0))
        with at("base"):
            manifest = self.folder.manifest(image)
            config = self.folder.config(manifest.config)
            for layer in manifest.layers:
                if layer.media_type not in _LAYERS:
                    what = f"{layer.media_type}; expected a layer of the OCI's: copy it as one"
                    raise RepackageError(f"{self.place}: {layer.digest}: {what}")
                self.folder.check(layer)
        layers, digests = len(manifest.layers), len(config["rootfs"]["diff_ids"])
        if layers != digests:
            what = f"{layers} layers and {digests} diff_ids; expected the same number: the base is damaged"
            raise RepackageError(f"base: {self.place}: {what}")
        # the official images say which Python they have
        lines = (config.get("config") or {}).get("Env") or ()
        python = next((match["version"] for line in lines if (match := _PYTHON.fullmatch(line))), None)
        return Base(image.digest, json.dumps(config).encode(), manifest.layers), python
