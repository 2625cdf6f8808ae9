"""The layout redirect: a tiny sdist whose backend installs finished wheels, each pinned by its hash, from any URL.

    redirect/demo-1.0.tar.gz                the sdist: PKG-INFO, wheels.json and the backend; it goes to an index
    redirect/demo-1.0-…-win_amd64.whl       wheels that the backend does not know; they go there, too
    redirect/demo_libs-1.0-….whl            companions of a split, as they are
    redirect/wheels/demo-1.0-…-v3.whl       the other wheels under their own names: to be served
    redirect/requirements.txt               the sdist, and what lies next to it, pinned by hash: and so the wheels

It is for wheels that are too large for an index. Every installer builds sdists (PEP 517), so every installer gets the
wheel. By default tags alone choose it: the caches of pip and uv do not know machines.

Wheels whose versions say what they were built against (``matrix.requires``) can share an sdist that goes by what is
installed. Installers take no wheel of another version than its sdist's, so these wheels get that:

    demo-1.0+torch2.14-….whl  ->  wheels/torch2.14/demo-1.0-….whl
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from shlex import quote as quoted
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from vbuild.errors import RepackageError, at
from vbuild.files.hashing import Digests
from vbuild.publishing.model import (
    ConsumerUse,
    LinkedFile,
    NewWheel,
    PublishPlan,
    Text,
    folder_url,
    renamed,
)
from vbuild.publishing.redirect.sdist import (
    HAZARD,
    STALE,
    RedirectSource,
    built_against,
    check_choice,
    is_handed_over,
    packed,
)
from vbuild.publishing.releases import OfferedRelease, OfferedWheel, labels_of
from vbuild.wheel.archive import SharedWheels

WHEELS = "wheels"
PINS = "requirements.txt"
_LOST = "a variant for a system that the backend does not know, and no index takes variants by upload"


class Redirect(Struct, frozen=True):
    """Sdists that hand over the wheels served at *url*/wheels, or at a mirror: *mirrors* are folders of the wheels.

    *url* is where the layout's folder will be served; mirrors are asked first. With *by_hardware* CPU and GPU choose
    among the variants, with *by_installed* what is installed among wheels that were built against several versions of
    it, at the risk of caches that know neither.
    """

    url: str | None = None
    mirrors: tuple[str, ...] = ()
    by_hardware: bool = False
    by_installed: bool = False
    name: str = "redirect"

    def planned(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """An sdist for each release, and its wheels; `RepackageError` without a URL, or if tags cannot choose."""
        if self.url is None:
            raise RepackageError("no URL: the sdist has to say where the wheels are; give --url URL")
        url = folder_url(self.url)
        urls = (*map(folder_url, self.mirrors), f"{url}/{WHEELS}")
        releases = [offer for offer in offers if not offer.is_companion]
        if not releases:
            raise RepackageError("only companions of a split; expected wheels of the release that they are of, too")
        lost = {wheel for offer in releases for wheel in offer.variants if not is_handed_over(wheel)}
        offers = [replace(offer, wheels=tuple(each for each in offer.wheels if each not in lost)) for offer in offers]
        if empty := [str(offer) for offer in offers if not offer.wheels]:
            raise RepackageError(
                f"{empty[0]}: nothing but variants that the sdist does not know; expected a plain wheel"
            )
        merged = _merged(offers) if self.by_installed else {}
        gone = {offer for parts in merged.values() for _, offer in parts}
        offers = sorted({*merged, *offers} - gone, key=lambda offer: (offer.project, Version(offer.version)))
        releases = [offer for offer in offers if not offer.is_companion]
        sdists: dict[str, Text | MergedSdist] = {}
        for offer in releases:
            with at(offer):
                sdists[str(offer)] = self._sdist(offer, urls, merged.get(offer, ()))
        pins = RedirectPins(tuple(_pin(offer, sdists.get(str(offer))) for offer in _newest(offers)))
        wheels = (output for offer in offers for output in _wheels(offer, merged.get(offer, ())))
        late = [one for one in sdists.values() if isinstance(one, MergedSdist)]
        outputs = (*(one for one in sdists.values() if isinstance(one, Text)), *wheels, *late, pins)
        newest = _newest(releases)
        uses = _uses(newest, [sdists[str(offer)] for offer in newest], url)
        gone_too = (f"{name} is in none of it: {_LOST}" for name in sorted(wheel.path.name for wheel in lost))
        return PublishPlan(self.name, outputs, tuple(uses), (*self._notes(releases), *gone_too))

    def _sdist(self, offer: OfferedRelease, urls: tuple[str, ...], parts: "tuple[_Part, ...]") -> "Text | MergedSdist":
        """The sdist of *offer*; of one that is merged out of *parts*, what writes it once its wheels are there."""
        known = replace(offer, wheels=tuple(filter(is_handed_over, offer.wheels)))
        source = RedirectSource(known, urls, self.by_hardware, tuple(value for value, _ in parts))
        check_choice(source)
        target = PurePosixPath(f"{source.release}.tar.gz")
        if not parts:
            return Text(target, packed(source))
        files = (output.target for output in _wheels(offer, parts) if isinstance(output, NewWheel))
        return MergedSdist(target, tuple(files), replace(source, offer=replace(offer, wheels=())))

    def _notes(self, releases: Sequence[OfferedRelease]) -> Iterator[str]:
        if any(not is_handed_over(wheel) for offer in releases for wheel in offer.wheels):
            yield (
                "Upload the sdist, and the wheels beside it: the backend knows CPython 3.9 or newer on 64-bit Linux, "
                "and installers elsewhere take a wheel before an sdist."
            )
        else:
            yield (
                "Upload the sdist. It is for CPython 3.9 or newer on 64-bit Linux; other systems get wheels for any "
                "platform only."
            )
        yield f"Serve the folder {WHEELS} unchanged: other bytes are refused."
        yield (
            "The backend sees the environment only, neither options nor configuration files of pip and uv: --no-index "
            "and --offline do not keep it from asking the URL. Name whole paths in PIP_FIND_LINKS, UV_FIND_LINKS or "
            "VBUILD_FIND_LINKS, where it looks first, certificates in PIP_CERT, REQUESTS_CA_BUNDLE or SSL_CERT_FILE, "
            "and proxies in http_proxy and https_proxy."
        )
        yield "--only-binary :all: (pip) and --no-build (uv) leave sdists out, and so this one."
        yield "PKG-INFO has a short text in place of the project's description."
        if self.by_installed:
            yield STALE
        if self.by_hardware:
            yield HAZARD
        elif unseen := [str(offer) for offer in releases if offer.variants]:
            names = ", ".join(unseen)
            yield f"{names}: tags alone choose, so variants are taken only where VBUILD_SELECT names a label."


def _uses(
    releases: Sequence[OfferedRelease], sdists: "Sequence[Text | MergedSdist]", url: str
) -> Iterator[ConsumerUse]:
    names = " ".join(offer.project for offer in releases)
    # whatever the folder is called; the backend, which runs elsewhere, needs a whole path
    links = "--no-index --find-links ."
    local = f'VBUILD_FIND_LINKS="$PWD/{WHEELS}" '
    mirror = f"VBUILD_MIRROR={quoted(f'{url}/{WHEELS}')} "
    yield ConsumerUse(
        f"The sdist from this folder, the wheel from {url}; what else is required must be here, too:",
        _both(f"{links} {names}"),
    )
    yield ConsumerUse(
        "All from this folder, without network:",
        f"{local}pip install {links} {names}\n{local}uv pip install --offline {links} {names}",
    )
    if labels := labels_of(releases):
        having = " ".join(offer.project for offer in releases if labels[0] in offer.labels)
        yield ConsumerUse(
            f"A variant of {', '.join(labels)}; caches do not know which one was asked for:",
            _both(f"--no-cache-dir {links} {having}", f"VBUILD_SELECT={labels[0]} {local}"),
        )
    for sdist in (one for one in sdists if isinstance(one, MergedSdist)):
        project, value = sdist.source.offer.project, sdist.source.values[-1]
        asked = _both(f"--no-cache-dir {links} {project}", f"VBUILD_SELECT=+{value} {local}")
        yield ConsumerUse(f"The build of {project} against {value}, whatever is installed:", asked)
    yield ConsumerUse(
        "Pinned by hash: that of the sdist, which holds those of the wheels:",
        _both(f"--require-hashes {links} -r {PINS}"),
    )
    # with the name: uv takes the hash for a part of a file:// URL that stands alone
    pinned = (
        f"{offer.project} @ {url}/{quote(str(sdist.target))}{_fragment(sdist)}"
        for offer, sdist in zip(releases, sdists, strict=True)
    )
    yield ConsumerUse("From where this folder is served:", _both(" ".join(map(quoted, pinned))))
    if having := " ".join(offer.project for offer in releases if any(map(is_handed_over, offer.plain))):
        # a variant would lie there under the name of the plain wheel, for every machine
        command = "VBUILD_SELECT=plain pip wheel --no-cache-dir" if labels else "pip wheel"
        yield ConsumerUse(
            "The wheels themselves, for a mirror; pip download saves the sdist alone:",
            f"{command} --no-deps --wheel-dir mirror {links} {having}",
        )
    yield ConsumerUse("From a mirror; a login may stand in the URL:", _both(f"{links} {names}", mirror))


def _both(words: str, variables: str = "") -> str:
    """The commands by which pip and uv install, with *variables* set."""
    return f"{variables}pip install {words}\n{variables}uv pip install {words}"


def _newest(offers: Sequence[OfferedRelease]) -> tuple[OfferedRelease, ...]:
    """The highest version of each project: *offers* are in their order."""
    return tuple({offer.project: offer for offer in offers}.values())


def _fragment(sdist: "Text | MergedSdist") -> str:
    """The hash of *sdist*, as it stands in a URL; empty for one that is not made yet."""
    return f"#sha256={hashlib.sha256(sdist.data).hexdigest()}" if isinstance(sdist, Text) else ""


def _pin(offer: OfferedRelease, sdist: "Text | MergedSdist | None") -> tuple[str, tuple[PurePosixPath, ...]]:
    """What requirements.txt pins for *offer*, and the files in the layout's folder that may be taken for it."""
    files = [sdist.target] if sdist else []
    files += [PurePosixPath(wheel.path.name) for wheel in offer.wheels if not _is_served(wheel)]
    return f"{offer.project}=={offer.version}", tuple(files)


def _is_served(wheel: OfferedWheel) -> bool:
    """Whether *wheel* is fetched by the backend, and no file for the index."""
    return is_handed_over(wheel) and not wheel.is_companion


_Part = tuple[str, OfferedRelease]


def _merged(offers: Sequence[OfferedRelease]) -> dict[OfferedRelease, tuple[_Part, ...]]:
    """The releases that several of *offers* become, each with these: what each was built against, newest first.

    `RepackageError` if there are none, or if another release has that version already.
    """
    found: dict[tuple[str, str], list[_Part]] = {}
    for offer in offers:
        value, version = built_against(offer)
        if value and not offer.is_companion:
            found.setdefault((offer.project, version), []).append((value, offer))
    if not found:
        raise RepackageError(
            f"{offers[-1]}: its version does not say what it was built against and requires; expected wheels of "
            "matrix.requires, as 1.0+torch2.15 that requires torch==2.15.*"
        )
    merged = {}
    for (project, version), parts in found.items():
        wheels = tuple(wheel for _, offer in parts for wheel in offer.wheels)
        offer = OfferedRelease(project, version, wheels)
        if rival := next((one for one in offers if str(one) == str(offer)), None):
            names = " and ".join(str(one) for _, one in parts)
            raise RepackageError(f"{rival}: {names} would have this version, too; publish them apart")
        merged[offer] = tuple(sorted(parts, key=lambda part: _numbers(part[0]), reverse=True))
    return merged


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _wheels(offer: OfferedRelease, parts: Sequence[_Part]) -> Iterator[LinkedFile | NewWheel]:
    """The wheels of *offer* in the layout's folder; if it is merged out of *parts*, in a folder for each of them."""
    if not parts:
        for wheel in offer.wheels:
            yield LinkedFile(PurePosixPath(WHEELS if _is_served(wheel) else "", wheel.path.name), wheel.path)
    for value, part in parts:
        for wheel in part.wheels:
            if _is_served(wheel):
                yield renamed(wheel, replace(wheel.name, version=offer.version), folder=f"{WHEELS}/{value}")
            else:
                yield LinkedFile(PurePosixPath(wheel.path.name), wheel.path)


class MergedSdist(Struct, frozen=True):
    """The sdist at *target* of *source*, whose wheels are those at *files*, written before it."""

    target: PurePosixPath
    files: tuple[PurePosixPath, ...]
    source: RedirectSource

    def write(self, folder: Path, *, digests: Digests, wheels: SharedWheels) -> None:  # noqa: ARG002 - as all have it
        """Write it into *folder*."""
        offered = tuple(OfferedWheel.of(folder / file) for file in self.files)
        offer = replace(self.source.offer, wheels=offered)
        (folder / self.target).write_bytes(packed(replace(self.source, offer=offer)))


class RedirectPins(Struct, frozen=True):
    """requirements.txt: each requirement of *pinned*, with the hashes of the files that may be taken for it."""

    pinned: tuple[tuple[str, tuple[PurePosixPath, ...]], ...]

    @property
    def target(self) -> PurePosixPath:
        """Its place in the layout's folder."""
        return PurePosixPath(PINS)

    @property
    def files(self) -> tuple[PurePosixPath, ...]:
        """The files whose hashes it has."""
        return tuple(file for _, files in self.pinned for file in files)

    def write(self, folder: Path, *, digests: Digests, wheels: SharedWheels) -> None:  # noqa: ARG002 - as all have it
        """Write it into *folder*."""
        lines = (
            " ".join((wanted, *(f"--hash=sha256:{digests.of(folder / file)}" for file in files)))
            for wanted, files in self.pinned
        )
        (folder / PINS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
