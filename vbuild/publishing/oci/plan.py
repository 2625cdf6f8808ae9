"""The layout oci: one container image for each variant of a release, and indexes that list them.

    oci/demo-1.0/index.json                     cp311, and each of its images by name: cp311-plain, cp311-x86_64_v3
    oci/demo-1.0/blobs/sha256/…                 layers: the base's, those that all variants share, those of one variant

For each architecture an index first lists the image that every machine can run: clients that do not know variants take
the first that fits. Then come those that differ by CPU level, by ``platform.variant``, the highest first. A platform
cannot name an accelerator, so annotations do; an image that needs one is listed under its level only after one that
needs none, so that no client takes it for its level. musllinux has indexes of its own: no platform names a C library.

    demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl      cp311             linux/amd64
    demo-1.0-cp311-…_x86_64-x86_64_v3.whl               cp311             linux/amd64/v3
    demo-1.0-cp312-…                                    another index
    demo-1.0-cp311-…whl, demo_libs-0.3-…whl             usr/local/lib/python3.11/site-packages/…, usr/local/bin/…

A wheel for one minor version of CPython goes to that version's site-packages, as in Python's official images. One for
several (abi3, py3) goes there as well if the base names its Python, else to lib/python3. Images set PYTHONPATH, so that
a Python elsewhere in the base finds them, too. Of the base, ``DIR`` or ``DIR:name``, the image for the architecture is
taken that has the highest level that the new image's CPUs have, and checked before anything is written.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Self

from msgspec import Struct

from vbuild.config.requirements import admits, applies, checked_requirement
from vbuild.errors import RepackageError, WheelError, at
from vbuild.hardware.cpu import Cpu, extra_of
from vbuild.publishing.installing import InstallEnvironment, installed, moment_of
from vbuild.publishing.model import ConsumerUse, LinkedFile, Output, PublishPlan
from vbuild.publishing.oci.model import (
    DOCUMENT,
    LABEL,
    LAYER_TYPES,
    PROPERTIES,
    WHITEOUT,
    Base,
    Descriptor,
    File,
    ImageFamily,
    ImageFolder,
    Images,
    Layer,
    MemberFile,
    NewFile,
    OciImage,
    OciPlatform,
    folder_and_name,
)
from vbuild.publishing.releases import OfferedRelease, OfferedWheel, companion_wheels, required_companions
from vbuild.variants.document import combine
from vbuild.wheel.name import escaped

_LINUX = re.compile(r"(?P<libc>manylinux|musllinux|linux)\w*_(?P<machine>x86_64|aarch64)(\.\w+)*|any", re.ASCII)
BASELINES = {"x86_64": Cpu("x86_64", "v1"), "aarch64": Cpu("aarch64", "8a")}


class ImageGroup(Struct, frozen=True):
    """The wheels of a release for one Python and one machine, in the order that an index lists their images."""

    ref: str
    machine: str
    wheels: tuple[OfferedWheel, ...]

    def cpu(self, wheel: OfferedWheel) -> Cpu:
        return _lowest_cpu(wheel, self.machine)

    def listed(self, wheel: OfferedWheel) -> OciPlatform:
        """The platform under which an index may list *wheel*."""
        cpu = self.cpu(wheel)
        is_listed = any(self.cpu(other) == cpu for other in self.wheels if _is_cpu_alone(other))
        return OciPlatform.of(cpu if is_listed else BASELINES[self.machine])


def groups(offer: OfferedRelease, machines: Sequence[str]) -> tuple[tuple[ImageGroup, ...], tuple[OfferedWheel, ...]]:
    """The groups of *offer*, by Python, then machine, and the wheels in none.

    Wheels for any machine are of those *machines*, or of those that the others of their Python are for.
    """
    wheels_of_ref: dict[str, list[OfferedWheel]] = {}
    for wheel in offer.wheels:
        if is_for_linux(wheel):
            python, abi, platform = wheel.tag
            # cp311, cp313t, cp311-abi3, py3, cp311-musl
            parts = [python] if abi in {python, "none"} else [abi] if abi == f"{python}t" else [python, abi]
            ref = "-".join([*parts, "musl"] if platform.startswith("musllinux") else parts)
            wheels_of_ref.setdefault(ref, []).append(wheel)
    passed = tuple(wheel for wheel in offer.wheels if not is_for_linux(wheel))
    anywhere = [wheel for wheel in offer.wheels if wheel.machine is None and wheel not in passed]
    is_mixed = any(wheel.machine for wheels in wheels_of_ref.values() for wheel in wheels)
    image_groups = []
    for ref, wheels in sorted(wheels_of_ref.items()):
        machines_of_ref = [machine for machine in BASELINES if machine in {wheel.machine for wheel in wheels}]
        if not machines_of_ref and is_mixed:
            continue  # it stands in for a plain wheel in the others' groups
        for machine in machines_of_ref or machines:
            fitting = [wheel for wheel in wheels if wheel.machine in {machine, None}]
            with at(f"{offer}: {ref}, {machine}"):
                image_groups.append(_group(ref, machine, fitting, anywhere))
    return tuple(image_groups), passed


def is_for_linux(wheel: OfferedWheel) -> bool:
    return bool(_LINUX.fullmatch(wheel.name.platform))


def _group(ref: str, machine: str, wheels: Sequence[OfferedWheel], anywhere: Sequence[OfferedWheel]) -> ImageGroup:
    # of plain wheels for the machine and for any, those for the machine
    has_own = any(wheel.label is None and wheel.machine for wheel in wheels)
    members = [wheel for wheel in wheels if wheel.machine or wheel.label is not None or not has_own]
    if not any(_is_plain(wheel, machine) for wheel in members):
        members += [wheel for wheel in anywhere if wheel.label is None and "py3" in wheel.name.python.split(".")][:1]
    names = [name_of(wheel) for wheel in members]
    if twin := next((name for name in names if names.count(name) > 1), None):
        files = ", ".join(wheel.path.name for wheel in members if name_of(wheel) == twin)
        raise RepackageError(f"{files}: an image each, and nothing to tell them apart by; give one of them")
    if not any(_is_plain(wheel, machine) for wheel in members):
        raise RepackageError(
            f"has {', '.join(names)}, and no plain wheel: clients that ask for no variant would find no image; "
            f"give the plain wheel"
        )

    def order(wheel: OfferedWheel) -> tuple[int, int, str]:
        if wheel.label is None:
            return 0, 0, ""
        if _is_plain(wheel, machine):
            return 1, 0, wheel.label
        return (2 if _is_cpu_alone(wheel) else 3), -_lowest_cpu(wheel, machine).rank, wheel.label

    return ImageGroup(ref, machine, tuple(sorted(members, key=order)))


def _is_plain(wheel: OfferedWheel, machine: str) -> bool:
    return _is_cpu_alone(wheel) and _lowest_cpu(wheel, machine).is_baseline


def _is_cpu_alone(wheel: OfferedWheel) -> bool:
    """Whether a platform can say all that it needs."""
    return all(Cpu.of_property(str(prop)) for prop in wheel.properties)


def _lowest_cpu(wheel: OfferedWheel, machine: str) -> Cpu:
    with at(wheel.path.name):
        cpus = [cpu for prop in wheel.properties if (cpu := Cpu.of_property(str(prop)))]
        if extra := next((str(prop) for prop in wheel.properties if extra_of(str(prop))), None):
            fault = f"needs {extra}, and clients choose images by level alone: expected wheels without it"
            raise RepackageError(fault)
        if strange := next((cpu for cpu in cpus if cpu.machine != machine), None):
            raise RepackageError(f"needs {strange.variant_property}, and is for {machine}")
    return min(cpus, key=lambda cpu: cpu.rank, default=BASELINES[machine])


def name_of(wheel: OfferedWheel) -> str:
    return wheel.label or "plain"


PREFIX = "usr/local"
_CPYTHON = re.compile(r"cp3(?P<minor>\d+)")
_EXECUTABLE, _PLAIN = 0o755, 0o644
# the minor version of Python 3 whose requirements count for a wheel of any Python
_ANY_MINOR = 11


class Python(Struct, frozen=True):
    minor: int | None = None
    is_threaded: bool = False

    @property
    def environment(self) -> InstallEnvironment:
        """Below the prefix, for a Python that lies wherever the base has it."""
        folder = "python3" if self.minor is None else f"python3.{self.minor}{'t' if self.is_threaded else ''}"
        return InstallEnvironment("vbuild", f"/usr/bin/env {folder}", folder)


def python_for(wheel: OfferedWheel, base: str | None) -> Python | None:
    """The Python that *wheel* is installed for, on a base with Python *base*, or None if it does not fit."""
    match = _CPYTHON.fullmatch(wheel.name.python)
    minor = int(match["minor"]) if match else None
    is_abi3 = wheel.name.abi.startswith("abi3") or minor is None
    threaded = wheel.name.abi.endswith("t") and not is_abi3
    base_version = re.match(r"3\.(\d+)", base or "")
    if base_version is None:
        return Python(None if is_abi3 else minor, threaded)
    base_minor = int(base_version[1])
    if wheel.name.python.startswith("pp") or (base_minor < (minor or 0) if is_abi3 else base_minor != minor):
        return None
    return Python(base_minor, threaded)


def companions_of(wheel: OfferedWheel, companions: Sequence[OfferedWheel], machine: str) -> tuple[OfferedWheel, ...]:
    """Those of *companions* that *wheel* requires in an image, directly or not."""
    fitting = [
        companion
        for companion in companions
        if is_for_linux(companion) and companion.machine in {machine, None} and companion.label in {None, wheel.label}
    ]
    labelled = {companion.name.release for companion in fitting if companion.label}
    return required_companions(
        (wheel,), [companion for companion in fitting if companion.label or companion.name.release not in labelled]
    )


def unmet(wheel: OfferedWheel, companions: Sequence[OfferedWheel], python: Python, machine: str) -> Iterator[str]:
    """The requirements of *wheel* that apply in an image and that none of *companions* meets, without extras."""
    minor = _ANY_MINOR if python.minor is None else python.minor
    for line in wheel.metadata.requires_dist:
        with at(wheel.path.name):
            with at("Requires-Dist"):
                requirement = checked_requirement(line, WheelError)
            if any(admits(requirement, companion.name.project, companion.name.version) for companion in companions):
                continue
            if applies(requirement, minor, machine=machine):
                yield str(requirement)


def files_of(wheels: Sequence[OfferedWheel], python: Python) -> tuple[File, ...]:
    owners: dict[str, tuple[File, OfferedWheel]] = {}
    for wheel in wheels:
        for file in _files(wheel, python):
            first, owner = owners.setdefault(file.path, (file, wheel))
            if (first.digest, first.mode) != (file.digest, file.mode):
                names = f"{owner.path.name} and {wheel.path.name}"
                raise RepackageError(f"{file.path}: {names} have different files there; expected one of them")
    return tuple(file for _, (file, _) in sorted(owners.items()))


def _files(wheel: OfferedWheel, python: Python) -> Iterator[File]:
    with wheel.opened() as opened, at(wheel.path.name):
        for file in installed(opened, python.environment):
            if any(part.startswith(WHITEOUT) for part in file.path.split("/")):
                fault = f"deletes a file in an image; expected no name with {WHITEOUT} in front"
                raise RepackageError(f"{file.path}: {fault}")
            path, mode = f"{PREFIX}/{file.path}", _EXECUTABLE if file.is_executable else _PLAIN
            if isinstance(file.content, bytes):
                yield NewFile(path, mode, file.content)
            else:
                digest = opened.row(file.content).hash or ""
                yield MemberFile(path, mode, file.size, digest, wheel.path, file.content.path)


def layered(images: Mapping[str, Sequence[File]], *, release: str) -> dict[str, tuple[Layer, ...]]:
    """For each of *images* a layer of what all have in common, then one of its own."""
    keyed = {name: {(file.path, file.mode, file.digest): file for file in files} for name, files in images.items()}
    common = set.intersection(*map(set, keyed.values())) if len(keyed) > 1 else set()
    shared = tuple(file for key, file in next(iter(keyed.values())).items() if key in common)
    below = (Layer(shared, f"{release}: what all variants have in common"),) if shared else ()
    return {
        name: (*below, Layer(tuple(file for key, file in files.items() if key not in common), f"{release}: {name}"))
        for name, files in keyed.items()
    }


_PYTHON = re.compile(r"PYTHON_VERSION=(?P<version>\d+\.\d+[\w.]*)")


class BaseFolder(Struct, frozen=True):
    place: str
    folder: ImageFolder
    images: tuple[Descriptor, ...]

    @classmethod
    def of(cls, place: Path) -> Self:
        path, ref = folder_and_name(place)
        with at("base"):
            folder = ImageFolder.of(path)
            images, _ = folder.images(folder.named(ref))
        return cls(str(place), folder, images)

    @property
    def architectures(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(image.platform.architecture for image in self.images if image.platform))

    def for_cpu(self, cpu: Cpu) -> tuple[Base, str | None]:
        """The best image for *cpu*, checked, and the version of Python that it says it has."""
        linux = ((image, image.platform) for image in self.images if image.platform and image.platform.os == "linux")
        fitting = [(level.rank, image) for image, platform in linux if (level := platform.cpu) and cpu.runs(level)]
        if not fitting:
            platforms = ", ".join(str(image.platform) for image in self.images) or "no image"
            raise RepackageError(f"base: {self.place}: has {platforms}; expected an image for {OciPlatform.of(cpu)}")
        _, image = max(fitting, key=itemgetter(0))
        with at("base"):
            manifest = self.folder.manifest(image)
            config = self.folder.config(manifest.config)
            for layer in manifest.layers:
                if layer.media_type not in LAYER_TYPES:
                    fault = f"{layer.media_type}; expected a layer of the OCI's: copy it as one"
                    raise RepackageError(f"{self.place}: {layer.digest}: {fault}")
                self.folder.check(layer)
            layers, digests = len(manifest.layers), len(config["rootfs"]["diff_ids"])
            if layers != digests:
                fault = f"{layers} layers and {digests} diff_ids; expected the same number: the base is damaged"
                raise RepackageError(f"{self.place}: {fault}")
        # the official images say which Python they have
        lines = (config.get("config") or {}).get("Env") or ()
        python = next((match["version"] for line in lines if (match := _PYTHON.fullmatch(line))), None)
        return Base(image.digest, json.dumps(config).encode(), manifest.layers), python


# what names may consist of (image-spec, annotations.md)
_REF = re.compile(r"[A-Za-z0-9]+((--|[-._:@+])[A-Za-z0-9]+)*", re.ASCII)
_TITLE, _VERSION = "org.opencontainers.image.title", "org.opencontainers.image.version"


class Oci(Struct, frozen=True):
    """The layout; *base* is an OCI image layout on disk, ``DIR`` or ``DIR:name``."""

    base: Path | None = None
    name: str = "oci"

    def plan(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """An image layout for each release of *offers*; companions go into the images of what needs them."""
        base = BaseFolder.of(self.base) if self.base else None
        companions = companion_wheels(offers)
        releases = [_Release(self, offer, companions, base) for offer in offers if not offer.is_companion]
        if not releases:
            raise RepackageError("no wheel of a release; expected one that images can be made of")
        outputs = [output for release in releases for output in release.outputs()]
        uses = [use for release in releases for use in release.uses()]
        notes = [note for release in releases for note in release.notes()]
        return PublishPlan(self.name, tuple(dict.fromkeys(outputs)), tuple(uses), tuple(dict.fromkeys(notes)))


class _Release:
    def __init__(
        self, layout: Oci, offer: OfferedRelease, companions: Sequence[OfferedWheel], base: BaseFolder | None
    ) -> None:
        self._layout = layout
        self._offer = offer
        self._companions = companions
        self._base = base
        self._name = f"{escaped(offer.project)}-{offer.version}"
        self._layers: dict[Layer, int] = {}
        self._below: dict[str, Base] = {}
        self._notes: list[str] = []
        self._unmet: dict[str, None] = {}
        self._families = self._image_families()

    def outputs(self) -> Iterator[Output]:
        # links first: what an image brings and its base has already is not written over them
        if self._base:
            for layer in dict.fromkeys(layer for base in self._below.values() for layer in base.layers):
                blob = self._base.folder.blob(layer)
                yield LinkedFile(PurePosixPath(self._name) / "blobs" / "sha256" / blob.name, blob)
        with ExitStack() as stack:
            moment = moment_of([stack.enter_context(wheel.opened()) for wheel in self._offer.wheels])
        yield Images(
            PurePosixPath(self._name) / "index.json",
            tuple(self._layers),
            self._families,
            ((_TITLE, self._offer.project), (_VERSION, self._offer.version)),
            moment,
        )

    def uses(self) -> Iterator[ConsumerUse]:
        family = self._families[0]
        index, image = (quote(f"{self._name}:{ref}") for ref in (family.ref, family.images[0].ref))
        tag = re.sub(r"[^\w.-]", "-", f"{self._offer.version}-{family.ref}")
        yield ConsumerUse(f"The image of {self._offer} that is best for this machine:", f"vbuild select oci:{index}")
        yield ConsumerUse("What there is, with platforms and annotations:", f"skopeo inspect --raw oci:{index}")
        yield ConsumerUse(
            "Into a registry, all images at once:",
            f'skopeo copy --all oci:{index} "docker://$REGISTRY/{self._offer.project}:{tag}"',
        )
        yield ConsumerUse("One image, for podman here:", f"podman pull oci:{image}")

    def notes(self) -> Iterator[str]:
        families = (
            f"{family.ref} ({', '.join(image.ref.removeprefix(f'{family.ref}-') for image in family.images)})"
            for family in self._families
        )
        example = f"oci:{self._name}:{self._families[0].images[0].ref}"
        yield f"{self._name} has {', '.join(families)}; {example} is one image."
        if self._base is None:
            yield f"Without --base images hold no Python: copy their /{PREFIX} into one that does."
        if self._unmet:
            yield f"{self._offer} requires {', '.join(self._unmet)}: only the base image can have that."
        yield from self._notes

    def _image_families(self) -> tuple[ImageFamily, ...]:
        machines = tuple(
            machine
            for machine, cpu in BASELINES.items()
            if self._base is None or OciPlatform.of(cpu).architecture in self._base.architectures
        )
        image_groups, passed = groups(self._offer, machines or tuple(BASELINES))
        for wheel in passed:
            self._notes.append(f"{wheel.path.name} is not for Linux on x86_64 or aarch64, and is in no image")
        images_of_ref: dict[str, list[OciImage]] = {}
        for group in image_groups:
            is_for_several = len({other.machine for other in image_groups if other.ref == group.ref}) > 1
            if images := self._images(group, is_for_several_machines=is_for_several):
                images_of_ref.setdefault(group.ref, []).extend(images)
        if not images_of_ref:
            raise RepackageError(f"{self._offer}: no wheel that an image can be made of: {'; '.join(self._notes)}")
        refs = [*images_of_ref, *(image.ref for images in images_of_ref.values() for image in images)]
        if twice := sorted({ref for ref in refs if refs.count(ref) > 1}):
            raise RepackageError(
                f"{self._offer}: two images would be called {twice[0]}; give the variant another label"
            )
        if strange := [ref for ref in refs if not _REF.fullmatch(ref)]:
            raise RepackageError(
                f"{self._offer}: {strange[0]!r} is not a name of an image; expected letters and digits with one of "
                f"._- between them: give the variant another label"
            )
        return tuple(
            ImageFamily(ref, tuple(images), self._document_annotation(image_groups, ref))
            for ref, images in images_of_ref.items()
        )

    def _images(self, group: ImageGroup, *, is_for_several_machines: bool) -> list[OciImage]:
        """The images of *group*, whose layers it adds to the release's; none if the base has another Python."""
        version = self._based(group, group.wheels[0])[1]
        pythons = [(wheel, python) for wheel in group.wheels if (python := python_for(wheel, version))]
        if len(pythons) < len(group.wheels):
            self._notes.append(f"{group.ref} is left out: the base has Python {version}")
            return []
        files: dict[str, tuple[File, ...]] = {}
        for wheel, python in pythons:
            companions = companions_of(wheel, self._companions, group.machine)
            self._unmet |= dict.fromkeys(unmet(wheel, companions, python, group.machine))
            files[name_of(wheel)] = files_of((wheel, *companions), python)
        layers = layered(files, release=str(self._offer))
        ending = f"-{OciPlatform.of(BASELINES[group.machine]).architecture}" if is_for_several_machines else ""
        images = []
        for wheel, python in pythons:
            numbers = [self._layers.setdefault(layer, len(self._layers)) for layer in layers[name_of(wheel)]]
            annotations: tuple[tuple[str, str], ...] = ()
            if wheel.label is not None:
                properties = "\n".join(sorted(map(str, wheel.properties)))
                annotations = (PROPERTIES, properties), (LABEL, wheel.label)
            image = OciImage(
                ref=f"{group.ref}-{name_of(wheel)}{ending}",
                listed=group.listed(wheel),
                platform=OciPlatform.of(group.cpu(wheel)),
                layers=tuple(numbers),
                annotations=annotations,
                search=f"/{PREFIX}/{python.environment.site_packages}",
                base=self._based(group, wheel)[0],
            )
            images.append(image)
        return images

    def _based(self, group: ImageGroup, wheel: OfferedWheel) -> tuple[Base | None, str | None]:
        if self._base is None:
            return None, None
        base, version = self._base.for_cpu(group.cpu(wheel))
        return self._below.setdefault(base.digest, base), version

    def _document_annotation(self, image_groups: Sequence[ImageGroup], ref: str) -> tuple[tuple[str, str], ...]:
        """The release's variants.json as an annotation, with which the images of *ref* are ranked."""
        wheels = [wheel for group in image_groups if group.ref == ref for wheel in group.wheels]
        documents = [(wheel.path.name, wheel.document) for wheel in wheels if wheel.document]
        if not documents:
            return ()
        document = json.dumps(json.loads(combine(documents).pack()), separators=(",", ":"))
        return ((DOCUMENT, document),)
