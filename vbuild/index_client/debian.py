"""Upstream sources as Debian has them: where the mirrors are, and a download that only its hash identifies.

    VBUILD_DEBIAN_MIRROR, or apt's own sources (one-line and deb822) -> Mirror -> pool/main/g/gmp/gmp_6.3.0.orig.tar.xz

A pool has all versions that any release of the distribution has, so an older machine finds a newer release's source.
Most mirrors are plain HTTP, as apt checks signatures; here the hash shows whether a file is right.
sources.list(5); Debian Policy, 5.6.12
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import httpx2
from msgspec import Struct
from unearth import Link
from unearth.fetchers import PyPIClient

from vbuild.errors import FetchError
from vbuild.files.atomic import replacing
from vbuild.files.reading import read_text
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import client_of

VARIABLE = "VBUILD_DEBIAN_MIRROR"
_APT = Path("/etc/apt")
_SUFFIXES = ("xz", "gz", "bz2")

# deb [arch=amd64] URL SUITE COMPONENT...
_LINE = re.compile(r"deb(?:-src)?\s+(?:\[[^]]*\]\s+)?(?P<url>\S+)\s+\S+\s*(?P<components>[^#]*)")
_KNOWN = ("http://", "https://", "file:")


class Mirror(Struct, frozen=True):
    """The URL of an archive, without a slash at its end, and the components in use."""

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
    name: str, version: str, sha256: str, target: Path, *, indexes: Indexes, known: Iterable[Mirror] | None = None
) -> None:
    """Write the upstream source of *name* in *version* with the hash *sha256* to *target*.

    *known* are the mirrors, by default `mirrors()`; *indexes* have proxy and certificates. Raises `FetchError` if no
    mirror has it; then nothing is at *target*.
    """
    known = tuple(mirrors() if known is None else known)
    what = f"Debian source {name} {version}"
    if not known:
        raise FetchError(f"{what}: no mirror, as apt has none here; expected the URL of one in {VARIABLE}")
    other_digests: dict[str, str] = {}
    problems: dict[str, None] = {}
    lost: set[Mirror] = set()
    with client_of(indexes, lambda _response: None) as client:
        for mirror, url in (
            (known_mirror, url) for known_mirror in known for url in known_mirror.places(name, version)
        ):
            if mirror in lost:
                continue
            try:
                digest = _saved(client, url, target, what)
            except httpx2.HTTPError as error:
                if isinstance(error, httpx2.HTTPStatusError):
                    reason = f"{error.response.status_code} {error.response.reason_phrase}"
                else:  # one line, without the URL, which may have a password
                    reason = (str(error).splitlines() or [type(error).__name__])[0]
                problems[f"{Link(mirror.url).redacted}: {reason}"] = None
                if isinstance(error, httpx2.TransportError):  # its other files would fail, too
                    lost.add(mirror)
                continue
            if digest == sha256:
                return
            if digest:
                other_digests[url.rpartition("/")[2]] = digest
    target.unlink(missing_ok=True)
    if other_digests:
        files = "; ".join(f"{file} with sha256 {digest}" for file, digest in other_digests.items())
        raise FetchError("; ".join((f"{what}: found {files}; the recipe expects sha256 {sha256}", *problems)))
    shown = ", ".join(Link(mirror.url).redacted for mirror in known)
    none = f"{what}: no {name}_{version}.orig.tar.xz, .gz or .bz2 on {shown}"
    advice = f"expected an upstream version that is there, without epoch and revision, or another mirror in {VARIABLE}"
    raise FetchError("; ".join((none, *problems, advice)))


def _saved(client: PyPIClient, url: str, target: Path, what: str) -> str | None:
    """Write the file at *url* to *target*; returns its SHA-256, or None if the mirror does not have it.

    Raises `httpx2.HTTPError` if the mirror does not answer, and `FetchError` if *target* cannot be written.
    """
    digest = hashlib.sha256()
    try:
        with client.get_stream(url) as response:
            if response.status_code == httpx2.codes.NOT_FOUND:
                return None
            response.raise_for_status()
            with replacing(target) as part, part.open("xb") as file:
                for chunk in response.iter_raw():  # raw, as the file is compressed and its transfer is not
                    digest.update(chunk)
                    file.write(chunk)
    except OSError as error:
        raise FetchError(f"{what}: {target.parent}: cannot be written: {error.strerror}") from error
    return digest.hexdigest()


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
    """The entries of *text*: paragraphs of fields, whose further lines are indented."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    for paragraph in re.split(r"\n[ \t]*\n", "\n".join(lines)):
        joined = re.sub(r"\n[ \t]+", " ", paragraph.strip())
        pairs = (line.partition(":") for line in joined.splitlines())
        fields = {key.strip().lower(): value.strip() for key, _, value in pairs}
        if fields.get("enabled", "yes").lower() not in {"no", "false", "without", "off", "disable", "0"}:
            for url in fields.get("uris", "").split():
                yield url, tuple(fields.get("components", "").split())
