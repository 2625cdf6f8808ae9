"""Ask the plugins that a release names what this machine supports, where vbuild itself cannot say.

    providers -> neither static, optional nor built in -> installed -> run apart -> the answer checked -> Said

Only who asks for it gets here (``vbuild select --run-plugins``): it runs other people's code.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from vbuild.errors import at
from vbuild.fetching.indexes import Indexes
from vbuild.hardware.machine import Machine
from vbuild.plugins.answer import parsed
from vbuild.plugins.confinement import TIMEOUT, answer_of
from vbuild.plugins.installation import installed
from vbuild.variant.document import Document
from vbuild.variant.metadata import Provider
from vbuild.variant.providers import is_answered
from vbuild.variant.saying import Said

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins of releases, each run for at most *timeout* seconds; *told* hears what is being done.

    What one has said counts for all releases that are looked at: it cannot say one thing and then another.
    """

    timeout: float = TIMEOUT
    indexes: Callable[[], Indexes] = Indexes.configured
    told: Told = lambda _: None
    _heard: dict[tuple[str, Provider], Said] = field(default_factory=dict, repr=False)

    def telling(self, told: Told) -> Self:
        """The same plugins; *told* hears what is being done."""
        return replace(self, told=told)

    def __call__(self, document: Document, machine: Machine) -> tuple[Said, ...]:
        """What the plugins that *document* names say, for each namespace in use that nobody else answers for.

        `PluginError`, with namespace and requirement, for a plugin that does not answer as it should.
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

    def _asked(self, namespace: str, provider: Provider) -> Said:
        with (
            at(f"plugin of {namespace}: {', '.join(provider.requires)}"),
            TemporaryDirectory(prefix="vbuild-plugin-", ignore_cleanup_errors=True) as place,
        ):
            folder = Path(place).resolve()
            self.told(f"installing the plugin of {namespace}")
            made = installed(provider.requires, folder=folder, indexes=self.indexes())
            plugin = made.packages[0]
            with at(f"{plugin} (sha256 {plugin.sha256})"):
                self.told(f"asking {plugin}, the plugin of {namespace}")
                (folder / "empty").mkdir()
                data = answer_of(provider.endpoint, python=made.python, folder=folder / "empty", timeout=self.timeout)
                features = parsed(data, namespace)
        return Said(namespace, provider.endpoint, made.packages, features)


def _is_open(namespace: str, provider: Provider, machine: Machine) -> bool:
    """Whether only a plugin can say what *machine* supports of *namespace*."""
    known = provider.static_properties or provider.optional or machine.features(namespace) is not None
    return not known and not is_answered(namespace, provider)
