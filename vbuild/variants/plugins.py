"""Ask the plugins that a release names what this machine supports, if vbuild itself cannot answer.

    providers -> neither static, optional nor built in -> installed -> run apart -> the answer checked -> PluginFeatures
    requires -> uv pip compile -> one wheel of each project, by its SHA-256 -> uv venv, uv pip install --require-hashes
    vbuild -> plugin_warden.py -> python -I plugin_probe.py: the plugin
              ends all     own session, no input, no descriptors of ours, an empty folder as its own and as HOME

Only ``vbuild select --run-plugins`` does this: it runs other people's code. Wheels come from the package indexes that
pip is configured with; no URL that a release states is fetched. Only wheels are installed: nothing runs before the
plugin does.
"""

import base64
import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
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
from vbuild.config.table import Table
from vbuild.errors import RecipeError, VariantError, at
from vbuild.files.json_text import json_object
from vbuild.files.reading import read_text
from vbuild.hardware.machine import Features, Machine
from vbuild.index_client.configuration import Indexes, compile_command, install_command, venv_command
from vbuild.process.python import isolated
from vbuild.recipe.variables import unconfigured
from vbuild.variants.document import Document
from vbuild.variants.metadata import VariantProvider
from vbuild.variants.model import InstalledPackage, PluginFeatures, checked_name, checked_value
from vbuild.variants.providers import is_answered
from vbuild.wheel.name import WheelName

TIMEOUT = 10.0  # seconds

MOST_BYTES = 1 << 20
"""The bytes of the longest answer that is read."""

_HERE = Path(__file__).parent
_GRACE = 10.0  # seconds that the warden has to end what is left, and to say so
_MEMORY, _FILE, _DESCRIPTORS = 1 << 32, 1 << 24, 256
_MOST = {"answer": MOST_BYTES, "stdout": 200, "stderr": 4000, "processes": 64}
_SHOWN = 200
# where programs and drivers are, which devices count, and what providers let users say in place of the machine
_PASSED = re.compile(
    r"""LD_LIBRARY_PATH | ROCM_PATH | (CUDA|NVIDIA|HIP|ROCR|GPU|ASCEND_RT)_VISIBLE_DEVICES | ZE_AFFINITY_MASK
    | ONEAPI_DEVICE_SELECTOR | [A-Z0-9]+_VARIANT_PROVIDER_[A-Z0-9_]+""",
    re.VERBOSE,
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_FEATURES, _MOST_VALUES, _LONGEST = 256, 1024, 128
# a cache of its own: what a plugin does to its files reaches no other environment
_OWN_CACHE = "--cache-dir=cache"


OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins of releases, each run for at most *timeout* seconds; *on_progress* gets a line for each step.

    Each plugin is asked once: its answer counts for all releases that are looked at.
    """

    timeout: float = TIMEOUT
    indexes: Callable[[], Indexes] = Indexes.configured
    on_progress: OnProgress = lambda _: None
    _answers: dict[tuple[str, VariantProvider], PluginFeatures] = field(default_factory=dict, repr=False)

    def telling(self, on_progress: OnProgress) -> Self:
        """The same plugins with another *on_progress*."""
        return dataclasses.replace(self, on_progress=on_progress)

    def __call__(self, document: Document, machine: Machine) -> tuple[PluginFeatures, ...]:
        """What the plugins that *document* names say, for each namespace in use that only a plugin can answer for.

        `VariantError`, with namespace and requirement, for a plugin that does not answer as it should.
        """
        used = {namespace for variant in document.variants for namespace in variant.namespaces}
        asked = []
        for namespace, provider in document.metadata.providers:
            known = provider.static_properties or provider.optional or machine.features(namespace) is not None
            known = known or namespace in machine.without or is_answered(namespace, provider)
            if namespace in used and not known:
                asked.append((namespace, provider))
        for key in asked:
            if key not in self._answers:
                self._answers[key] = self._asked(*key)
        return tuple(map(self._answers.__getitem__, asked))

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


class PluginInstallation(Struct, frozen=True):
    """The *python* of an environment, and the wheels in it, the plugin's own first."""

    python: Path
    packages: tuple[InstalledPackage, ...]


def installed(requires: Sequence[str], *, folder: Path, indexes: Indexes) -> PluginInstallation:
    """A new environment in *folder* with what a provider *requires*, each wheel pinned by its SHA-256.

    `VariantError`, with the line in which uv says why, if it cannot be made.
    """
    wanted = []
    for text in requires:
        requirement = checked_requirement(text, VariantError)
        if requirement.url:
            raise VariantError(f"requires {text}, a URL; expected a project of the configured package indexes")
        wanted.append(str(requirement))
    listed, lock, pins = folder / "requires.txt", folder / "pylock.toml", folder / "pins.txt"
    options = (_OWN_CACHE, *(("--no-index",) if indexes.no_index else ()))

    listed.write_text("\n".join(wanted), encoding="utf-8")
    resolve = compile_command(sys.executable, [listed], lock, *options, "--format=pylock.toml", builds=False)
    _run(resolve, folder, indexes)
    tags = {str(tag): place for place, tag in enumerate(sys_tags())}
    locked = tomllib.loads(read_text(lock)).get("packages", ())
    packages = tuple(_package(found, tags) for found in locked)
    own = [package for text in wanted for package in packages if package.name == required_project(text)]
    if not own:
        raise VariantError(f"requires {', '.join(requires)}, nothing of which is for this machine")

    lines = (f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n" for package in packages)
    pins.write_text("".join(lines), encoding="utf-8")
    root = folder / "environment"
    python = root / "bin" / "python"
    _run(venv_command(sys.executable, root, _OWN_CACHE), folder, indexes)
    hashed = (*options, "--no-deps", "--require-hashes", "--requirements", str(pins))
    _run(install_command(python, *hashed, builds=False), folder, indexes)
    return PluginInstallation(python, tuple(dict.fromkeys((own[0], *packages))))


def _run(command: Sequence[str], folder: Path, indexes: Indexes) -> None:
    """Run uv in *folder* with the package *indexes*; `VariantError` with what it prints if it fails."""
    ran = subprocess.run(
        command,
        env={**unconfigured(os.environ), **indexes.environment()},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if ran.returncode:
        parts = [" ".join(line.split()) for line in ran.stderr.splitlines() if line.strip()]
        raise VariantError(f"cannot be installed: uv: {' '.join(parts) or f'exit status {ran.returncode}'}")


def _package(found: Mapping[str, Any], tags: Mapping[str, int]) -> InstalledPackage:
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
    return InstalledPackage(
        canonicalize_name(found["name"]), found["version"], file, sha256, Link(wheel["url"]).redacted
    )


def answer_of(endpoint: str, *, python: Path, folder: Path, timeout: float = TIMEOUT) -> bytes:
    """Returns what the plugin at *endpoint* answers: *python*'s environment has it, the empty *folder* is its own.

    `VariantError` if it answers nothing, takes more than *timeout* seconds, prints, or leaves processes behind. This
    limits accidents, and keeps a plugin from changing a result unnoticed. It is not a sandbox: a plugin has the rights
    of the user, and the network. One that kills the warden can leave processes behind, which the error says.
    """
    passed = {name: text for name, text in os.environ.items() if _PASSED.fullmatch(name)}
    variables = {**passed, "PATH": _PATH, "LANG": "C.UTF-8", "HOME": str(folder), "TMPDIR": str(folder)}
    task = {
        "command": isolated("-B", str(_HERE / "plugin_probe.py"), python=python),
        "arguments": [endpoint],
        "folder": str(folder),
        "environment": variables,
        # of each of its processes: bytes of memory and of a file, open files, seconds of CPU
        "limits": {
            "RLIMIT_AS": _MEMORY,
            "RLIMIT_FSIZE": _FILE,
            "RLIMIT_NOFILE": _DESCRIPTORS,
            "RLIMIT_CPU": math.ceil(timeout) + 1,
            "RLIMIT_CORE": 0,
        },
        "most": _MOST,
        "timeout": timeout,
    }
    with subprocess.Popen(
        isolated(str(_HERE / "plugin_warden.py"), json.dumps(task)),
        cwd=os.sep,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as warden:
        try:
            text, _ = warden.communicate(timeout=timeout + _GRACE)
        except BaseException as error:
            # the plugin may have stopped the warden, which ends all that the plugin started
            warden.terminate()
            warden.send_signal(signal.SIGCONT)
            try:
                warden.communicate(timeout=_GRACE)
            except subprocess.TimeoutExpired:
                warden.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise VariantError("stopped the process that watches over it") from error
            raise
    if warden.returncode:
        what = f"the process that watches over it {_ending(warden.returncode)}"
        raise VariantError(f"{what}; what it has started may go on")
    found = json.loads(text)
    if fault := _fault(found, timeout):
        raise VariantError(fault)
    return base64.b64decode(found["answer"])


def _fault(found: Mapping[str, Any], timeout: float) -> str | None:
    """What is wrong with how the plugin ended, in a few words, or None if nothing is."""
    status, printed = found["status"], found["stdout"]
    complaint = next((line.strip() for line in reversed(found["stderr"].splitlines()) if line.strip()), "")
    faults = {
        f"answers more than {MOST_BYTES} bytes": found["overflowing"],
        f"started more than {_MOST['processes']} processes, which were ended": found["crowded"],
        f"took more than {timeout:g} s, and was ended": status is None,
        _ending(status or 0, complaint[:_SHOWN]): status,
        "left processes running behind it, which were ended; expected none": found["left"],
        f"printed {printed[:_SHOWN]!r}; expected nothing on stdout": printed,
        "ended without an answer": not found["answer"],
    }
    return next((what for what, is_so in faults.items() if is_so), None)


def _ending(status: int, output: str = "") -> str:
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"failed with status {status}"
    return f"{how}: {output}" if output else how


def parsed(data: bytes, namespace: str) -> Features:
    """Returns the features of *namespace*, best first, in the answer *data*, which is not trusted.

        {"namespace": null | the namespace,
         "features": [{"name": "gfx_arch", "values": ["gfx1100", ...], "multi_value": true}, ...]}    best first

        name, namespace    a-z, 0-9 and _ (PEP 825), 128 characters
        values             a-z, 0-9, _ and ., 128 characters each, 1 to 1024 of them, none twice
        features           256, none twice; in all 2**20 bytes

    `VariantError` for anything else. The longest list of known plugins has 160 values (``nvidia :: sm_arch``), the
    widest answer some 60 features.
    """
    try:
        return _read(Table(json_object(data, VariantError)), namespace)
    except (RecipeError, VariantError) as error:
        raise VariantError(f"its answer: {error}") from error


def _read(table: Table, namespace: str) -> Features:
    stated = table.optional_text("namespace")
    if stated not in {None, namespace}:
        raise table.refuse("namespace", f"found {stated!r}; expected {namespace!r}, which it was asked for")
    if table.raw("features") is None:
        raise table.refuse("features", "missing; expected an array")
    tables = table.tables("features")
    if len(tables) > _MOST_FEATURES:
        raise table.refuse("features", f"{len(tables)} of them; expected {_MOST_FEATURES} at most")
    features: dict[str, tuple[str, ...]] = {}
    for found in tables:
        name = checked_name(_short(found, "name", found.text("name")), "feature")
        if name in features:
            raise found.refuse("name", f"{name!r} a second time; expected each feature once")
        features[name] = _values(found)
        found.flag("multi_value", default=False)
        found.finish()
    table.finish()
    return tuple(features.items())


def _values(table: Table) -> tuple[str, ...]:
    values = table.texts("values")
    if not 0 < len(values) <= _MOST_VALUES:
        raise table.refuse("values", f"{len(values)} of them; expected 1 to {_MOST_VALUES}, best first")
    seen: set[str] = set()
    for value in values:
        if checked_value(_short(table, "values", value)) in seen:
            raise table.refuse("values", f"{value!r} twice; expected each value once, best first")
        seen.add(value)
    return values


def _short(table: Table, key: str, text: str) -> str:
    if len(text) > _LONGEST:
        raise table.refuse(key, f"{text[:_LONGEST]!r}... of {len(text)} characters; expected {_LONGEST} at most")
    return text
