"""The layout oci: one container image for each variant of a release, and indexes that list them.

oci/demo-1.0/index.json                     cp311, and each of its images by name: cp311-plain, cp311-x86_64_v3
oci/demo-1.0/blobs/sha256/…                 layers: the base's, those that all variants share, those of one variant
oci/demo-1.0-cp311-x86_64_v3.nfd.yaml       on request, and attached to the image, cp311-x86_64_v3.referrers
oci/demo-1.0-cp311.dra.yaml                 on request, if an image needs a device

For each architecture an index first lists the image that every machine can run: clients that do not know variants take
the first that fits. Then come the images that differ by CPU level, by ``platform.variant``, the highest first. A
platform cannot name an accelerator, so that stands in annotations alone; an image that needs one is listed under its
level only after one that needs none, so that no client takes it for its level.
https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path, PurePosixPath
from shlex import quote

from msgspec import Struct

from vbuild.errors import RepackageError
from vbuild.publishing.installing import moment_of
from vbuild.publishing.model import ConsumerUse, LinkedFile, Output, PublishPlan, Text
from vbuild.publishing.oci.clusters import NFD_ARTIFACT, NFD_SPEC, dra, nfd
from vbuild.publishing.oci.contents import (
    BASELINES,
    PREFIX,
    BaseFolder,
    ImageGroup,
    companions_of,
    files_of,
    groups,
    lacking,
    layered,
    name_of,
    python_for,
)
from vbuild.publishing.oci.model import (
    KEY,
    REFERRERS,
    Artifact,
    Base,
    File,
    ImageFamily,
    Layer,
    OciImage,
    OciPlatform,
    document_key,
    label_key,
)
from vbuild.publishing.oci.writing import Images
from vbuild.publishing.releases import OfferedRelease, OfferedWheel, companion_wheels
from vbuild.variants.document import combine
from vbuild.variants.model import Variant
from vbuild.wheel.name import escaped

_KEY = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*", re.ASCII)
# what the image-spec keeps for itself, and what it lets names consist of (annotations.md)
_RESERVED = "org.opencontainers."
_REF = re.compile(r"[A-Za-z0-9]+((--|[-._:@+])[A-Za-z0-9]+)*", re.ASCII)
_CLAIM = ".dra.yaml"
_TITLE, _VERSION = "org.opencontainers.image.title", "org.opencontainers.image.version"


class Emit(StrEnum):
    """What is also written for clusters: NFD's image compatibility, a claim of Dynamic Resource Allocation."""

    NFD = "nfd"
    DRA = "dra"


class Oci(Struct, frozen=True):
    """The layout of container images, on a *base* or on nothing.

    *base* is an OCI image layout on disk, ``DIR`` or ``DIR:name``. Properties stand under *key* in annotations of the
    index and in labels of the images, labels alongside it.
    """

    base: Path | None = None
    key: str = KEY
    emits: tuple[Emit, ...] = ()
    name: str = "oci"

    def planned(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """An image layout for each release of *offers*; companions go into the images of what needs them.

        `RepackageError` if a base is broken or lacks an architecture, an index would have no plain image, or none is
        left.
        """
        if "." not in self.key or not _KEY.fullmatch(self.key):
            raise RepackageError(f"annotation key {self.key!r}; expected a name with dots, as in {KEY}")
        if self.key.startswith(_RESERVED):
            raise RepackageError(
                f"annotation key {self.key!r}: {_RESERVED}* is the OCI's; expected your own, as in {KEY}"
            )
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
    """What becomes of one release."""

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
        self._variants: dict[str, Variant] = {}
        self._notes: list[str] = []
        self._lacking: dict[str, None] = {}
        self._families = self._made()
        self._texts = tuple(text for family in self._families for text in self._emitted(family))

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
        yield from self._texts

    def uses(self) -> Iterator[ConsumerUse]:
        family = self._families[0]
        here, name = quote(f"{self._name}:{family.ref}"), self._offer.project
        tag = re.sub(r"[^\w.-]", "-", f"{self._offer.version}-{family.ref}")
        yield ConsumerUse(f"The image of {self._offer} that is best for this machine:", f"vbuild select oci:{here}")
        yield ConsumerUse("What there is, with platforms and annotations:", f"skopeo inspect --raw oci:{here}")
        yield ConsumerUse(
            "Into a registry, all images at once:", f'skopeo copy --all oci:{here} "docker://$REGISTRY/{name}:{tag}"'
        )
        one = family.images[0].ref
        yield ConsumerUse("One image, for podman here:", f"podman pull oci:{quote(f'{self._name}:{one}')}")
        if ruled := [image.ref for image in family.images if image.artifacts]:
            yield ConsumerUse(
                "The rules for nodes beside them, where NFD looks for what refers to an image:",
                # under the tags of their digests: registries that know ``subject`` need none, others are asked for
                # them (distribution-spec, referrers tag schema)
                f"for image in {' '.join(ruled)}; do\n"
                f'  digest=$(skopeo inspect --raw "oci:{self._name}:$image" | sha256sum | cut -c1-64)\n'
                f'  skopeo copy --all "oci:{self._name}:$image{REFERRERS}" "docker://$REGISTRY/{name}:sha256-$digest"\n'
                "done",
            )
        for claim in (text.target.name for text in self._texts if text.target.name.endswith(_CLAIM)):
            yield ConsumerUse(
                f"The claim that pods make of a device; {claim} says which image is for which:",
                f"kubectl apply -f {quote(claim)}",
            )

    def notes(self) -> Iterator[str]:
        """What a publisher should know, the names of all images first."""
        called = (
            f"{family.ref} ({', '.join(image.ref.removeprefix(f'{family.ref}-') for image in family.images)})"
            for family in self._families
        )
        one = f"oci:{self._name}:{self._families[0].images[0].ref}"
        yield f"{self._name} has {', '.join(called)}; {one} is one image."
        if self._base is None:
            yield f"Without --base images hold no Python: copy their /{PREFIX} into one that does."
        if self._lacking:
            yield f"{self._offer} requires {', '.join(self._lacking)}: only the base can bring that."
        yield from self._notes

    def _made(self) -> tuple[ImageFamily, ...]:
        machines = tuple(
            machine
            for machine, cpu in BASELINES.items()
            if self._base is None or OciPlatform.of(cpu).architecture in self._base.architectures
        )
        found, passed = groups(self._offer, machines or tuple(BASELINES))
        for wheel in passed:
            self._notes.append(f"{wheel.path.name} is not for Linux on x86_64 or aarch64, and is in no image")
        gathered: dict[str, list[OciImage]] = {}
        for group in found:
            several = len({other.machine for other in found if other.ref == group.ref}) > 1
            if images := self._images(group, several=several):
                gathered.setdefault(group.ref, []).extend(images)
        if not gathered:
            raise RepackageError(f"{self._offer}: no wheel that an image can be made of: {'; '.join(self._notes)}")
        refs = [*gathered, *(image.ref for images in gathered.values() for image in images)]
        if twice := sorted({ref for ref in refs if refs.count(ref) > 1}):
            raise RepackageError(
                f"{self._offer}: two images would be called {twice[0]}; give the variant another label"
            )
        if strange := [ref for ref in refs if not _REF.fullmatch(ref)]:
            raise RepackageError(
                f"{self._offer}: {strange[0]!r} is no name of an image; expected letters and digits with one of "
                f"._- between them: give the variant another label"
            )
        return tuple(ImageFamily(ref, tuple(images), self._said(found, ref)) for ref, images in gathered.items())

    def _images(self, group: ImageGroup, *, several: bool) -> list[OciImage]:
        """The images of *group*, their layers taken up; none where the base has another Python."""
        version = self._based(group, group.wheels[0])[1]
        lots = [(wheel, python_for(wheel, version)) for wheel in group.wheels]
        whole = [(wheel, python) for wheel, python in lots if python]
        if len(whole) < len(lots):
            self._notes.append(f"{group.ref} is left out: the base has Python {version}")
            return []
        files: dict[str, tuple[File, ...]] = {}
        for wheel, python in whole:
            companions = companions_of(wheel, self._companions, group.machine)
            self._lacking |= dict.fromkeys(lacking(wheel, companions, python, group.machine))
            files[name_of(wheel)] = files_of((wheel, *companions), python)
        layers = layered(files, release=str(self._offer))
        ends = f"-{OciPlatform.of(BASELINES[group.machine]).architecture}" if several else ""
        images = []
        for wheel, python in whole:
            places = [self._layers.setdefault(layer, len(self._layers)) for layer in layers[name_of(wheel)]]
            annotations: tuple[tuple[str, str], ...] = ()
            if wheel.label is not None:
                properties = "\n".join(sorted(map(str, wheel.properties)))
                annotations = (self._layout.key, properties), (label_key(self._layout.key), wheel.label)
            artifacts: tuple[Artifact, ...] = ()
            if Emit.NFD in self._layout.emits and wheel.variant:
                text, notes = nfd(wheel.variant)
                self._notes += notes
                artifacts = (Artifact(NFD_ARTIFACT, NFD_SPEC, text.encode()),) if text else ()
            image = OciImage(
                ref=f"{group.ref}-{name_of(wheel)}{ends}",
                listed=group.listed(wheel),
                platform=OciPlatform.of(group.cpu(wheel)),
                layers=tuple(places),
                annotations=annotations,
                search=f"/{PREFIX}/{python.environment.site_packages}",
                base=self._based(group, wheel)[0],
                artifacts=artifacts,
            )
            images.append(image)
            if wheel.variant:
                self._variants[image.ref] = wheel.variant
        return images

    def _based(self, group: ImageGroup, wheel: OfferedWheel) -> tuple[Base | None, str | None]:
        if self._base is None:
            return None, None
        base, version = self._base.for_cpu(group.cpu(wheel))
        return self._below.setdefault(base.digest, base), version

    def _said(self, found: Sequence[ImageGroup], ref: str) -> tuple[tuple[str, str], ...]:
        """The release's variants.json as an annotation: what is needed to rank the images of *ref*."""
        wheels = [wheel for group in found if group.ref == ref for wheel in group.wheels]
        documents = [(wheel.path.name, wheel.document) for wheel in wheels if wheel.document]
        if not documents:
            return ()
        document = json.dumps(json.loads(combine(documents).pack()), separators=(",", ":"))
        return ((document_key(self._layout.key), document),)

    def _emitted(self, family: ImageFamily) -> Iterator[Text]:
        for image in family.images:
            for artifact in image.artifacts:
                yield Text(PurePosixPath(f"{self._name}-{image.ref}.nfd.yaml"), artifact.data)
        if Emit.DRA in self._layout.emits:
            variants = [(image.ref, self._variants[image.ref]) for image in family.images if image.annotations]
            text, notes = dra(f"{self._name}-{family.ref}", variants)
            self._notes += notes
            if text:
                yield Text(PurePosixPath(f"{self._name}-{family.ref}{_CLAIM}"), text.encode())
