"""What a provider's plugin said that this machine supports, and which plugin it was."""

from dataclasses import dataclass
from typing import Any

from vbuild.hardware.machine import Features


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel that was installed: its project and version, its file, the file's SHA-256, and where it came from."""

    name: str
    version: str
    file: str
    sha256: str
    url: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def data(self) -> dict[str, str]:
        return {
            "name": self.name,
            "version": self.version,
            "wheel": self.file,
            "sha256": self.sha256,
            "url": self.url,
        }


@dataclass(frozen=True, slots=True)
class Said:
    """The *features* of *namespace* that the machine supports, best first, after the plugin at *endpoint*.

    The plugin's own package is the first of *packages*, what it needs comes behind it.
    """

    namespace: str
    endpoint: str
    packages: tuple[Package, ...]
    features: Features

    def __str__(self) -> str:
        said = "; ".join(f"{name} {' > '.join(values)}" for name, values in self.features) or "nothing"
        return f"{self.namespace}: {self.packages[0]} says that this machine supports {said}"

    def data(self) -> dict[str, Any]:
        """It as JSON has it."""
        return {
            "namespace": self.namespace,
            "plugin": self.endpoint,
            "packages": [package.data() for package in self.packages],
            "features": [{"name": name, "values": list(values)} for name, values in self.features],
        }

    def lines(self) -> tuple[str, ...]:
        """It for people: what was said, then every wheel that was installed for it."""
        wheels = (f"     {package.file} from {package.url}, sha256 {package.sha256}" for package in self.packages)
        return (f"plugin of {self}", *wheels)
