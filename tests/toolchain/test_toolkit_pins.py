"""toolkit_pins.json: complete for both machines, and what the package index says."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import Wanted
from vbuild.index_client.packages import download, files_of
from vbuild.toolchain.toolkit import CORE, MACHINES, ToolkitRelease, releases
from vbuild.wheel.archive import peek
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.name import WheelName

RELEASES = sorted(releases().values(), key=lambda release: release.version)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_every_component_is_a_wheel_of_its_version_with_a_hash(release: ToolkitRelease) -> None:
    assert str(release.version) == ".".join(release.name.split(".")[:2])
    for project, wheels in release.components.items():
        for machine, pin in wheels.items():
            name = WheelName.parse(pin.file)
            assert (name.project, name.version) == (project, pin.version)
            assert pin.file.endswith(f"_{machine}.whl")
            assert re.fullmatch(r"[0-9a-f]{64}", pin.sha256)
    for machine in MACHINES:
        assert all(release.pin(project, machine) for name in CORE for project in release.projects(name))


@pytest.mark.nightly
@pytest.mark.network
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_the_pins_are_what_the_index_states(release: ToolkitRelease, tmp_path: Path) -> None:
    indexes = Indexes.configured()
    stated = {listed.file: listed for project in release.components for listed in files_of(project, indexes=indexes)}
    pins = [pin for wheels in release.components.values() for pin in wheels.values()]
    assert [pin for pin in pins if stated[pin.file].sha256 != pin.sha256] == []
    assert [pin for pin in pins if stated[pin.file].is_yanked] == []

    meta = next(
        listed
        for listed in files_of("cuda-toolkit", indexes=indexes)
        if listed.version == Version(release.name) and listed.sha256
    )
    path = tmp_path / meta.file
    download(Wanted("cuda-toolkit", meta.version, meta.sha256 or "", meta.file), path, indexes=indexes)
    metadata = Metadata.parse((peek(path, "METADATA") or b"").decode())
    wanted = set()
    for requirement in map(Requirement, metadata.requires_dist):
        for machine in MACHINES:
            environment = {"sys_platform": "linux", "platform_machine": machine, "extra": "all"}
            # for some machines the metadata of 13.0 and 13.1 name a component that was never made
            if requirement.marker and requirement.marker.evaluate(environment):
                wanted.add(requirement.name)
                pin = release.pin(requirement.name, machine)
                assert pin or requirement.name == "nvidia-cuda-opencl"
                assert not pin or pin.version in requirement.specifier
    assert wanted == set(release.components)
