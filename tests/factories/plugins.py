"""Provider plugins in real wheels, releases that name them, and vbuild as a user asks it about both."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.factories.variants import document, tiny_wheel, variant, variant_wheel
from tests.factories.wheels import wheel
from vbuild.variants.index import index
from vbuild.variants.metadata import VariantProvider
from vbuild.variants.providers import metadata_for

# a plugin of the providers draft, with *body* as what its one function does
_PLUGIN = """
import os, sys
from dataclasses import dataclass

@dataclass(frozen=True)
class Config:
    name: object
    values: object
    multi_value: object = False

class Plugin:
{attributes}
    @classmethod
    def get_supported_configs(cls):
{body}
"""
HONEST = 'return [Config("arch", ["k2", "k1"], True), Config("board", ["b.1"])]'


def plugin(folder: Path, body: str = HONEST, *, attributes: str = "    pass", metadata: str = "") -> Path:
    """The wheel of ``toaster-provider 1.5`` in *folder*, whose plugin does *body*."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    source = _PLUGIN.format(attributes=attributes, body=lines)
    return wheel(
        folder,
        "toaster_provider-1.5-py3-none-any.whl",
        {"toaster_provider/__init__.py": "", "toaster_provider/plugin.py": source},
        metadata=metadata,
    )


def toaster(*requires: str, optional: bool = False) -> VariantProvider:
    """The provider of the namespace ``toaster`` as a release names it."""
    found = requires or ("toaster-provider>=1",)
    return VariantProvider(requires=found, plugin_api="toaster_provider.plugin:Plugin", optional=optional)


def release(folder: Path, provider: VariantProvider | None = None) -> Path:
    """A release of demo in *folder*: wheels for two toasters, and the plain one, indexed."""
    tiny_wheel(folder, "demo-1.0-py3-none-any.whl")
    metadata = metadata_for(["toaster"], {"toaster": provider or toaster()})
    for label, value in (("k1", "k1"), ("k9", "k9")):
        found = document(variant(label, f"toaster :: arch :: {value}"), metadata=metadata)
        variant_wheel(folder, f"demo-1.0-py3-none-any-{label}.whl", found)
    index(folder)
    return folder


@dataclass(frozen=True, slots=True)
class PluginWorkdir:
    """A release of demo, the folder of packages that pip is configured with, and a home folder of its own."""

    dist: Path
    packages: Path
    home: Path

    @classmethod
    def at(cls, folder: Path, provider: VariantProvider | None = None) -> "PluginWorkdir":
        for name in ("packages", "home"):
            (folder / name).mkdir()
        return cls(release(folder / "dist", provider), folder / "packages", folder / "home")

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a user whose only packages are those of the workdir."""
        unset = ("PIP_", "UV_")
        ours = {name: text for name, text in os.environ.items() if not name.startswith(unset)}
        pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.packages)}
        return {**ours, **pip, "HOME": str(self.home)}

    def vbuild(
        self, *arguments: object, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """What ``vbuild ARGUMENTS`` says."""
        command = [sys.executable, "-m", "vbuild", *map(str, arguments)]
        environment = {**self.environment, **(variables or {})}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    def select(self, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """What ``vbuild select demo --run-plugins ARGUMENTS`` says."""
        return self.vbuild("select", "demo", "-f", self.dist, "--run-plugins", *arguments, variables=variables)
