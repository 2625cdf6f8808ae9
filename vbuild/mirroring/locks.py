"""What machines install from a site: a lock (PEP 751) and constraints for each, with the hashes that the site has.

Locks name files by paths relative to them, or by the URLs at which the site is served.
"""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from vbuild.config.toml_text import toml
from vbuild.mirroring.model import MirroredFile, SiteMachine

_HEAD = 'lock-version = "1.0"\ncreated-by = "vbuild"\nrequires-python = {python}\n'


def lock_of(machine: SiteMachine, files: Mapping[str, MirroredFile], *, url: str | None) -> str:
    """The text of the lock of *machine*; *files* are those of the site by their paths, which is served at *url*."""
    packages = (_package(files[path], url) for path in machine.files)
    return _HEAD.format(python=toml(f">={machine.python}")) + "".join(packages)


def constraints_of(machine: SiteMachine, files: Mapping[str, MirroredFile]) -> str:
    """The versions that *machine* installs, as constraints for pip and uv."""
    return "".join(f"{files[path].original.project}=={files[path].version}\n" for path in machine.files)


def _package(file: MirroredFile, url: str | None) -> str:
    original = file.original
    place = f"url = {toml(_below(url, file.path))}" if url else f"path = {toml(file.path)}"
    uploaded = f"upload-time = {original.uploaded}, " if original.uploaded else ""
    found = f"{{ {place}, {uploaded}size = {file.size}, hashes = {toml({'sha256': file.sha256})} }}"
    entry = f"wheels = [{found}]" if original.is_wheel else f"sdist = {found}"
    name = f"name = {toml(original.project)}\nversion = {toml(file.version)}"
    return f"\n[[packages]]\n{name}\n{entry}\n"


def _below(url: str, path: str) -> str:
    return f"{url.rstrip('/')}/{quote(path)}"


def install_lines(site: str, machine: SiteMachine, *, index: str, url: str | None) -> tuple[str, ...]:
    """The commands that install on *machine* from its *index* of the *site*, a folder, or where it is served, *url*."""
    place = url.rstrip("/") if url else site
    base = place if url else Path(site).absolute().as_uri()
    simple = "/".join(filter(None, (base, index, "simple/")))
    return (
        f"uv pip sync {place}/{machine.lock}",
        f"pip install -r {place}/{machine.lock}",
        f"pip install --index-url {simple} -c {place}/{machine.constraints} NAME",
    )
