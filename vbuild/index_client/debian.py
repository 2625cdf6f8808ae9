"""Upstream sources as Debian has them: where the mirrors are, and a download that only its hash identifies.

    VBUILD_DEBIAN_MIRROR, or apt's own sources (one-line and deb822) -> Mirror -> pool/main/g/gmp/gmp_6.3.0.orig.tar.xz

A pool has all versions that any release of the distribution has, so an older machine finds a newer release's source.
Most mirrors are plain HTTP, as apt checks signatures; here the hash shows whether a file is right.
sources.list(5); Debian Policy, 5.6.12
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import httpx2
from msgspec import Struct
from unearth import Link

from vbuild.errors import FetchError, at
from vbuild.files.reading import read_text
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import client_of, save

VARIABLE = "VBUILD_DEBIAN_MIRROR"
_APT = Path("/etc/apt")
_SUFFIXES = ("xz", "gz", "bz2")

# deb [arch=amd64] URL SUITE COMPONENT...
_LINE = re.compile(r"deb(?:-src)?\s+(?:\[[^]]*\]\s+)?(?P<url>\S+)\s+\S+\s*(?P<components>[^#]*)")
_KNOWN = ("http://", "https://", "file:")


class Mirror(Struct, frozen=True):
    """An archive, its *url* without a slash at its end."""

    url: str
    components: tuple[str, ...] = ("main",)

    def places(self, name: str, version: str) -> Iterator[str]:
        """Where the upstream source of the source package *name* may be, in the order to try."""
        letter = name[:4] if name.startswith("lib") else name[:1]
        for component in self.components:
            for suffix in _SUFFIXES:
                yield f"{self.url}/pool/{component}/{letter}/{name}/{name}_{version}.orig.tar.{suffix}"


def mirrors(environment: Mapping[str, str] = os.environ, *, apt: Path = _APT) -> tuple[Mirror, ...]:
    """The mirrors to ask, each once: that of `VARIABLE`, or those in apt's configuration, the folder *apt*."""
    if own_mirror := environment.get(VARIABLE):
        return (Mirror(own_mirror.rstrip("/")),)
    components_by_url: dict[str, dict[str, None]] = {}
    for url, components in _configured(apt):
        if url.startswith(_KNOWN):
            components_by_url.setdefault(url.rstrip("/"), {}).update(dict.fromkeys(components))
    return tuple(Mirror(url, tuple(components)) for url, components in components_by_url.items() if components)


def fetch_debian(
    name: str, version: str, sha256: str, target: Path, *, indexes: Indexes, archives: Iterable[Mirror] | None = None
) -> None:
    """Write the upstream source of *name* with the hash *sha256* to *target*.

    *indexes* have proxy and certificates. `FetchError` if no mirror has it; then nothing is at *target*.
    """
    archives = tuple(mirrors() if archives is None else archives)
    what = f"Debian source {name} {version}"
    if not archives:
        raise FetchError(f"{what}: no mirror, as apt has none here; expected the URL of one in {VARIABLE}")
    other_digests: dict[str, str] = {}
    problems: dict[str, None] = {}
    with client_of(indexes, lambda _response: None) as client, at(what):
        for mirror in archives:
            shown = Link(mirror.url).redacted
            for url in mirror.places(name, version):
                try:
                    digest = save(client, url, target)
                except httpx2.HTTPStatusError as error:
                    if error.response.status_code != httpx2.codes.NOT_FOUND:
                        problems[f"{shown}: {error.response.status_code} {error.response.reason_phrase}"] = None
                    continue
                except httpx2.HTTPError as error:  # one line, without the URL, which may have a password
                    problems[f"{shown}: {(str(error).splitlines() or [type(error).__name__])[0]}"] = None
                    if isinstance(error, httpx2.TransportError):  # its other files would fail, too
                        break
                    continue
                if digest == sha256:
                    return
                other_digests[url.rpartition("/")[2]] = digest
    target.unlink(missing_ok=True)
    if other_digests:
        files = "; ".join(f"{file} with sha256 {digest}" for file, digest in other_digests.items())
        raise FetchError("; ".join((f"{what}: found {files}; the recipe expects sha256 {sha256}", *problems)))
    places = ", ".join(Link(mirror.url).redacted for mirror in archives)
    none = f"{what}: no {name}_{version}.orig.tar.xz, .gz or .bz2 on {places}"
    advice = f"expected an upstream version that is there, without epoch and revision, or another mirror in {VARIABLE}"
    raise FetchError("; ".join((none, *problems, advice)))


def _configured(apt: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    for file in (apt / "sources.list", *sorted(apt.glob("sources.list.d/*"))):
        try:
            text = read_text(file, errors="replace")
        except OSError:
            continue
        # some machines have deb822 in the file of the old name, too
        if file.suffix == ".sources" or re.search(r"^URIs:", text, re.MULTILINE | re.IGNORECASE):
            yield from _deb822(text)
        elif file.suffix == ".list":
            for line in text.splitlines():
                if match := _LINE.match(line.strip()):
                    yield match["url"], tuple(match["components"].split())


def _deb822(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    for paragraph in re.split(r"\n[ \t]*\n", "\n".join(lines)):
        joined = re.sub(r"\n[ \t]+", " ", paragraph.strip())
        pairs = (line.partition(":") for line in joined.splitlines())
        fields = {key.strip().lower(): value.strip() for key, _, value in pairs}
        if fields.get("enabled", "yes").lower() not in {"no", "false", "without", "off", "disable", "0"}:
            for url in fields.get("uris", "").split():
                yield url, tuple(fields.get("components", "").split())
