"""Upstream sources as Debian has them: where the mirrors are, and one file from there, known by its hash alone.

    VBUILD_DEBIAN_MIRROR, or apt's own sources (one-line and deb822) -> Mirror -> pool/main/g/gmp/gmp_6.3.0.orig.tar.xz

A pool has all versions that any release of the distribution has, so a newer release's source is at hand on an older
machine. Most mirrors are plain HTTP, as apt checks signatures; here it is the hash that says whether a file is right.
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
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.places import client_of

VARIABLE = "VBUILD_DEBIAN_MIRROR"
_APT = Path("/etc/apt")
_SUFFIXES = ("xz", "gz", "bz2")

# deb [arch=amd64] URL SUITE COMPONENT...
_LINE = re.compile(r"deb(?:-src)?\s+(?:\[[^]]*\]\s+)?(?P<url>\S+)\s+\S+\s*(?P<components>[^#]*)")
_KNOWN = ("http://", "https://", "file:")


class Mirror(Struct, frozen=True):
    """The address of an archive, without a slash at its end, and the components of it that are in use."""

    url: str
    components: tuple[str, ...] = ("main",)

    def places(self, name: str, version: str) -> Iterator[str]:
        """Where the upstream source of the source package *name* may be, in the order to look."""
        letter = name[:4] if name.startswith("lib") else name[:1]
        for component in self.components:
            for suffix in _SUFFIXES:
                yield f"{self.url}/pool/{component}/{letter}/{name}/{name}_{version}.orig.tar.{suffix}"


def mirrors(environment: Mapping[str, str] = os.environ, *, apt: Path = _APT) -> tuple[Mirror, ...]:
    """The mirrors to ask, each once: that of `VARIABLE`, or those that apt is configured with in the folder *apt*."""
    if given := environment.get(VARIABLE):
        return (Mirror(given.rstrip("/")),)
    found: dict[str, dict[str, None]] = {}
    for url, components in _configured(apt):
        if url.startswith(_KNOWN):
            found.setdefault(url.rstrip("/"), {}).update(dict.fromkeys(components))
    return tuple(Mirror(url, tuple(components)) for url, components in found.items() if components)


def fetch_debian(
    name: str, version: str, sha256: str, target: Path, *, indexes: Indexes, known: Iterable[Mirror] | None = None
) -> None:
    """Write the upstream source of *name* in *version* to *target*, where its hash is *sha256*.

    *known* are the mirrors, `mirrors()` where None; *indexes* say how to reach anything. `FetchError` where no mirror
    has it; nothing is at *target* then.
    """
    known = tuple(mirrors() if known is None else known)
    what = f"Debian source {name} {version}"
    if not known:
        raise FetchError(f"{what}: no mirror, as apt has none here; expected the URL of one in {VARIABLE}")
    found: dict[str, str] = {}
    problems: dict[str, None] = {}
    lost: set[Mirror] = set()
    with client_of(indexes, lambda _response: None) as client:
        for mirror, url in ((one, url) for one in known for url in one.places(name, version)):
            if mirror in lost:
                continue
            try:
                digest = _saved(client, url, target, what)
            except httpx2.HTTPError as error:
                problems[f"{Link(mirror.url).redacted}: {_said(error)}"] = None
                if isinstance(error, httpx2.TransportError):  # so it would be for its other files
                    lost.add(mirror)
                continue
            if digest == sha256:
                return
            if digest:
                found[url.rpartition("/")[2]] = digest
    target.unlink(missing_ok=True)
    if found:
        said = "; ".join(f"{file} with sha256 {digest}" for file, digest in found.items())
        raise FetchError("; ".join((f"{what}: found {said}; the recipe expects sha256 {sha256}", *problems)))
    asked = ", ".join(Link(mirror.url).redacted for mirror in known)
    none = f"{what}: no {name}_{version}.orig.tar.xz, .gz or .bz2 on {asked}"
    advice = f"expected an upstream version that is there, without epoch and revision, or another mirror in {VARIABLE}"
    raise FetchError("; ".join((none, *problems, advice)))


def _saved(client: PyPIClient, url: str, target: Path, what: str) -> str | None:
    """The SHA-256 of the file behind *url*, now at *target*; None where there is none.

    `httpx2.HTTPError` where the mirror does not give it, and `FetchError` where *target* cannot be written.
    """
    digest = hashlib.sha256()
    try:
        with client.get_stream(url) as response:
            if response.status_code == httpx2.codes.NOT_FOUND:
                return None
            response.raise_for_status()
            with replacing(target) as part, part.open("xb") as file:
                for chunk in response.iter_raw():  # as they come: the file is compressed, and its transfer is not
                    digest.update(chunk)
                    file.write(chunk)
    except OSError as error:
        raise FetchError(f"{what}: {target.parent}: cannot be written: {error.strerror}") from error
    return digest.hexdigest()


def _said(error: httpx2.HTTPError) -> str:
    """*error* in a few words, without the URL, which may have a password."""
    if isinstance(error, httpx2.HTTPStatusError):
        return f"{error.response.status_code} {error.response.reason_phrase}"
    return (str(error).splitlines() or [type(error).__name__])[0]


def _configured(apt: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The address and the components of every entry that is in use; what cannot be read has none."""
    for file in (apt / "sources.list", *sorted(apt.glob("sources.list.d/*"))):
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
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
    """The entries of *text* in paragraphs of fields, a field's further lines being indented."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    for paragraph in re.split(r"\n[ \t]*\n", "\n".join(lines)):
        joined = re.sub(r"\n[ \t]+", " ", paragraph.strip())
        pairs = (line.partition(":") for line in joined.splitlines())
        fields = {key.strip().lower(): value.strip() for key, _, value in pairs}
        if fields.get("enabled", "yes").lower() not in {"no", "false", "without", "off", "disable", "0"}:
            for url in fields.get("uris", "").split():
                yield url, tuple(fields.get("components", "").split())
