"""The image that others are built on, out of an OCI image layout on disk: ``DIR`` or ``DIR:name``.

    index.json -> the image for the architecture, of the highest level that the new image's CPUs have -> config, layers

All of it is checked before anything is written: a broken base would break every image.
"""

import json
import re
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from vbuild.errors import LayoutError, at
from vbuild.hardware.cpu import Cpu
from vbuild.layout.oci.model import GZIP_TYPE, LAYER_TYPE, ZSTD_TYPE, Base, Descriptor, Platform
from vbuild.layout.oci.reading import ImageFolder, placed

_LAYERS = (LAYER_TYPE, GZIP_TYPE, ZSTD_TYPE)
_PYTHON = re.compile(r"PYTHON_VERSION=(?P<version>\d+\.\d+[\w.]*)")


@dataclass(frozen=True, slots=True)
class BaseFolder:
    """The images of one name in an image layout, each for a platform."""

    place: str
    folder: ImageFolder
    images: tuple[Descriptor, ...]

    @classmethod
    def of(cls, place: Path) -> Self:
        """The base at *place*, a folder or a folder with a name behind a colon; `LayoutError` where there is none."""
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

        `LayoutError` where there is none for its machine, or a blob of it is missing or damaged.
        """
        found = [(mine.rank, image) for image in self.images if (mine := _cpu(image)) and cpu.runs(mine)]
        if not found:
            there = ", ".join(str(image.platform) for image in self.images) or "no image"
            raise LayoutError(f"base: {self.place}: has {there}; expected an image for {Platform.of(cpu)}")
        with at("base"):
            return self._base(max(found, key=itemgetter(0))[1])

    def blob(self, descriptor: Descriptor) -> Path:
        return self.folder.blob(descriptor)

    def _base(self, image: Descriptor) -> tuple[Base, str | None]:
        manifest = self.folder.manifest(image)
        config = self.folder.config(manifest.config)
        for layer in manifest.layers:
            if layer.media_type not in _LAYERS:
                what = f"{layer.media_type}; expected a layer of the OCI's: copy it as one"
                raise LayoutError(f"{self.place}: {layer.digest}: {what}")
            self.folder.check(layer)
        layers, digests = len(manifest.layers), len(config["rootfs"]["diff_ids"])
        if layers != digests:
            raise LayoutError(
                f"{self.place}: {layers} layers and {digests} diff_ids; expected as many: the base is damaged"
            )
        return Base(image.digest, json.dumps(config).encode(), manifest.layers), _python(config)


def _cpu(image: Descriptor) -> Cpu | None:
    return image.platform.cpu if image.platform and image.platform.os == "linux" else None


def _python(config: dict[str, Any]) -> str | None:
    """The version of Python that the official images say they have."""
    lines = (config.get("config") or {}).get("Env") or ()
    return next((match["version"] for line in lines if (match := _PYTHON.fullmatch(line))), None)
