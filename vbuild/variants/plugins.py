"""Ask the plugins that a release names what this machine supports, if vbuild itself cannot answer.

    providers -> neither static, optional nor built in -> installed -> run apart -> the answer checked -> PluginFeatures
    requires -> uv pip compile -> one wheel of each project, by its SHA-256 -> uv venv, uv pip install --require-hashes

Only ``vbuild select --run-plugins`` does this: it runs other people's code. Wheels come from the package indexes that
pip is configured with; no URL that a release states is fetched. Only wheels are installed: nothing runs before the
plugin does.
"""

import dataclasses
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name
from unearth import Link

from vbuild.config.requirements import checked_requirement, required_project
from vbuild.errors import VariantError, at
from vbuild.hardware.machine import Machine
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.uv import compile_command, install_command, venv_command
from vbuild.recipe.variables import unconfigured
from vbuild.variants.document import Document
from vbuild.variants.metadata import VariantProvider
from vbuild.variants.model import PackageVariants, PluginFeatures
from vbuild.variants.plugin_answer import parsed
from vbuild.variants.plugin_sandbox import TIMEOUT, answer_of
from vbuild.variants.providers import is_answered
from vbuild.wheel.name import WheelName

# a cache of its own: what a plugin does to its files reaches no other environment
_OWN_CACHE = "--cache-dir=cache"


class PluginInstallation(Struct, frozen=True):
    """The *python* of an environment, and the wheels in it, the plugin's own first."""

    python: Path
    packages: tuple[PackageVariants, ...]


def installed(requires: Sequence[str], *, folder: Path, indexes: Indexes) -> PluginInstallation:
    """A new environment in *folder* with what a provider *requires*, each wheel pinned by its SHA-256.

    `VariantError`, with the line in which uv says why, if it cannot be made.
    """
    client = _Client(folder, indexes)
    wanted = [_wanted(text) for text in requires]
    packages = tuple(client.resolved(wanted))
    own = [package for text in wanted for package in packages if package.name == required_project(text)]
    if not own:
        raise VariantError(f"requires {', '.join(requires)}, nothing of which is for this machine")
    python = client.made(packages)
    return PluginInstallation(python, tuple(dict.fromkeys((own[0], *packages))))


def _wanted(text: str) -> str:
    """The requirement *text* as uv reads it; `VariantError` for one with a place of its own."""
    requirement = checked_requirement(text, VariantError)
    if requirement.url:
        raise VariantError(f"requires {text}, a URL; expected a project of the configured package indexes")
    return str(requirement)


class _Client(Struct, frozen=True):
    """uv, working in *folder* with the packages of *indexes*."""

    folder: Path
    indexes: Indexes

    def resolved(self, requirements: Sequence[str]) -> Iterator[PackageVariants]:
        """The wheels for this machine of all that the *requirements* need."""
        listed, lock = self.folder / "requires.txt", self.folder / "pylock.toml"
        listed.write_text("\n".join(requirements), encoding="utf-8")
        options = (*self._places(), "--only-binary=:all:", "--format=pylock.toml")
        self._run(compile_command(sys.executable, listed, lock, *options))
        tags = {str(tag): place for place, tag in enumerate(sys_tags())}
        for found in tomllib.loads(lock.read_text(encoding="utf-8")).get("packages", ()):
            yield _package(found, tags)

    def made(self, packages: Iterable[PackageVariants]) -> Path:
        """The Python of a new environment of exactly these *packages*."""
        root, pins = self.folder / "environment", self.folder / "pins.txt"
        lines = (f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n" for package in packages)
        pins.write_text("".join(lines), encoding="utf-8")
        self._run(venv_command(sys.executable, root, _OWN_CACHE))
        python = root / "bin" / "python"
        options = (*self._places(), "--only-binary=:all:", "--no-deps", "--require-hashes")
        self._run(install_command(python, *options, "--requirements", str(pins)))
        return python

    def _places(self) -> tuple[str, ...]:
        return (_OWN_CACHE, *(("--no-index",) if self.indexes.no_index else ()))

    def _run(self, command: Sequence[str]) -> None:
        ran = subprocess.run(
            command,
            env={**unconfigured(os.environ), **self.indexes.environment()},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if ran.returncode:
            parts = [" ".join(line.split()) for line in ran.stderr.splitlines() if line.strip()]
            raise VariantError(f"cannot be installed: uv: {' '.join(parts) or f'exit status {ran.returncode}'}")


def _package(found: Mapping[str, Any], tags: Mapping[str, int]) -> PackageVariants:
    """The wheel that this machine takes first of those that uv's lock lists for a project."""
    what = f"{found['name']} {found['version']}"
    ranked: list[tuple[int, str, Mapping[str, Any]]] = []
    for wheel in found.get("wheels", ()):
        file = unquote(urlsplit(wheel["url"]).path.rpartition("/")[2])
        fitting = [tags[tag] for tag in map(str, WheelName.parse(file).tags) if tag in tags]
        ranked += [(min(fitting), file, wheel)] if fitting else []
    if not ranked:
        raise VariantError(f"{what}: no wheel for this machine on the package index")
    _, file, wheel = min(ranked, key=lambda one: one[:2])
    sha256 = wheel.get("hashes", {}).get("sha256")
    if not sha256:
        raise VariantError(
            f"{what}: the package index states no SHA-256 for {file}; expected one that does, as nothing else pins it"
        )
    return PackageVariants(
        canonicalize_name(found["name"]), found["version"], file, sha256, Link(wheel["url"]).redacted
    )


OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins of releases, each run for at most *timeout* seconds; *on_progress* hears what is being done.

    What one has said counts for all releases that are looked at: it cannot say one thing and then another.
    """

    timeout: float = TIMEOUT
    indexes: Callable[[], Indexes] = Indexes.configured
    on_progress: OnProgress = lambda _: None
    _heard: dict[tuple[str, VariantProvider], PluginFeatures] = field(default_factory=dict, repr=False)

    def telling(self, on_progress: OnProgress) -> Self:
        """The same plugins; *on_progress* hears what is being done."""
        return dataclasses.replace(self, on_progress=on_progress)

    def __call__(self, document: Document, machine: Machine) -> tuple[PluginFeatures, ...]:
        """What the plugins that *document* names say, for each namespace in use that nobody else answers for.

        `VariantError`, with namespace and requirement, for a plugin that does not answer as it should.
        """
        used = {namespace for variant in document.variants for namespace in variant.namespaces}
        asked = [
            (namespace, provider)
            for namespace, provider in document.metadata.providers
            if namespace in used and _is_open(namespace, provider, machine)
        ]
        for key in asked:
            if key not in self._heard:
                self._heard[key] = self._asked(*key)
        return tuple(map(self._heard.__getitem__, asked))

    def _asked(self, namespace: str, provider: VariantProvider) -> PluginFeatures:
        with (
            at(f"plugin of {namespace}: {', '.join(provider.requires)}"),
            TemporaryDirectory(prefix="vbuild-plugin-", ignore_cleanup_errors=True) as place,
        ):
            folder = Path(place).resolve()
            self.on_progress(f"installing the plugin of {namespace}")
            made = installed(provider.requires, folder=folder, indexes=self.indexes())
            plugin = made.packages[0]
            with at(f"{plugin} (sha256 {plugin.sha256})"):
                self.on_progress(f"asking {plugin}, the plugin of {namespace}")
                (folder / "empty").mkdir()
                data = answer_of(provider.endpoint, python=made.python, folder=folder / "empty", timeout=self.timeout)
                features = parsed(data, namespace)
        return PluginFeatures(namespace, provider.endpoint, made.packages, features)


def _is_open(namespace: str, provider: VariantProvider, machine: Machine) -> bool:
    """Whether only a plugin can say what *machine* supports of *namespace*."""
    known = provider.static_properties or provider.optional or machine.features(namespace) is not None
    return not known and not is_answered(namespace, provider)
