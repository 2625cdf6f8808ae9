"""The toolkits that the package index has, as pins.json lists them; `.ci/pin-toolkits` writes that file.

13.0    -> Release 13.0.3 -> extra cublas -> nvidia-cublas, nvidia-cuda-nvrtc
                          -> component nvidia-cublas 13.1.1.3 -> a wheel for each machine
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from vbuild.hardware.driver import Dotted
from vbuild.toolkit.model import Pin

MACHINES = ("aarch64", "x86_64")


@dataclass(frozen=True, slots=True)
class Release:
    """One CUDA Toolkit: the extras of the package cuda-toolkit, and the wheels of their components by machine."""

    version: Dotted
    name: str
    extras: Mapping[str, tuple[str, ...]]
    components: Mapping[str, Mapping[str, Pin]]

    def pin(self, project: str, machine: str) -> Pin | None:
        """The wheel of *project* for *machine*, as ``uname -m`` has it; None where there is none."""
        return self.components.get(project, {}).get(machine)

    def projects(self, name: str) -> tuple[str, ...]:
        """The components behind *name*, an extra or a component itself; none for anything else."""
        return self.extras.get(name) or ((name,) if name in self.components else ())


@functools.cache
def releases() -> Mapping[Dotted, Release]:
    """The toolkits by version, the oldest first."""
    data = json.loads(files("vbuild.toolkit").joinpath("pins.json").read_text(encoding="utf-8"))
    found = (_release(Dotted.parse(version), entry) for version, entry in data["toolkits"].items())
    return {release.version: release for release in sorted(found, key=lambda release: release.version)}


def _release(version: Dotted, entry: Mapping[str, Any]) -> Release:
    return Release(
        version=version,
        name=entry["release"],
        extras={extra: tuple(projects) for extra, projects in entry["extras"].items()},
        components={project: _wheels(project, component) for project, component in entry["components"].items()},
    )


def _wheels(project: str, component: Mapping[str, Any]) -> Mapping[str, Pin]:
    return {
        machine: Pin(project, component["version"], *component[machine]) for machine in MACHINES if machine in component
    }
