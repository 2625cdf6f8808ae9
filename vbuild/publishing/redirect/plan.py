"""The layout redirect: a tiny sdist whose backend installs finished wheels, each pinned by its hash, from any URL.

    redirect/demo-1.0.tar.gz                the sdist: PKG-INFO, wheels.json and the backend; it goes to an index
    redirect/demo-1.0-…-win_amd64.whl       wheels that the backend does not know; they go there, too
    redirect/demo_libs-1.0-….whl            companions of a split, as they are
    redirect/wheels/demo-1.0-…-v3.whl       the other wheels under their own names: to be served
    redirect/requirements.txt               the sdist, and what lies next to it, pinned by hash: and so the wheels

Every installer builds sdists (PEP 517), so every installer gets the wheel, however large. By default tags alone choose
it: the caches of pip and uv do not know machines.

Wheels whose versions say what they were built against (``matrix.requires``) can share an sdist that goes by what is
installed. Installers take no wheel of another version than its sdist's, so these wheels get that:

    demo-1.0+torch2.14-….whl  ->  wheels/torch2.14/demo-1.0-….whl

The check of a folder:

    wheels.json         = the wheels in the folder wheels: each exists, as described; no more
    PKG-INFO            = METADATA of each wheel, with the fields that wheels.json has for it (PEP 643)
    requirements.txt    = sha256 of the sdists and wheels next to it
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from shlex import quote as quoted
from typing import Any, Self
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from vbuild.errors import RepackageError, VbuildError, WheelError, at
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import read_text
from vbuild.publishing.lint.index import layout_problem
from vbuild.publishing.lint.metadata import metadata_view
from vbuild.publishing.model import (
    ConsumerUse,
    LinkedFile,
    NewWheel,
    PublishPlan,
    PublishRule,
    Text,
    folder_url,
    renamed,
)
from vbuild.publishing.redirect.sdist import (
    HAZARD,
    PKG_INFO,
    STALE,
    TABLE,
    RedirectSource,
    built_against,
    check_choice,
    is_handed_over,
    left_out,
    packed,
    release_order,
    row_of,
)
from vbuild.publishing.releases import OfferedRelease, OfferedWheel, labels_of
from vbuild.recipe.matrix import local_label, releases_of
from vbuild.variants.document import Document
from vbuild.variants.model import Variant, VariantMetadata
from vbuild.verification.model import Finding
from vbuild.wheel.archive import SharedWheels, files_in
from vbuild.wheel.name import WheelName
from vbuild.wheel.sdist import reading

WHEELS = "wheels"
PINS = "requirements.txt"
_LOST = "a variant for a system that the backend does not know, and no index takes variants by upload"


class Redirect(Struct, frozen=True):
    """Sdists that hand over the wheels in the layout's folder, which will be served at *url*.

    With *by_hardware* CPU and GPU choose among the variants, with *by_installed* what is installed among wheels that
    were built against several versions of it: caches know neither.
    """

    url: str | None = None
    by_hardware: bool = False
    by_installed: bool = False
    name: str = "redirect"

    def plan(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        if self.url is None:
            raise RepackageError("no URL: the sdist has to say where the wheels are; give --url URL")
        url = folder_url(self.url)
        releases = [offer for offer in offers if not offer.is_companion]
        if not releases:
            raise RepackageError("only companions of a split; expected wheels of the release that they are of, too")
        lost = {wheel for offer in releases for wheel in offer.variants if not is_handed_over(wheel)}
        offers = [
            replace(offer, wheels=tuple(wheel for wheel in offer.wheels if wheel not in lost)) for offer in offers
        ]
        if empty := [str(offer) for offer in offers if not offer.wheels]:
            raise RepackageError(
                f"{empty[0]}: nothing but variants that the sdist does not know; expected a plain wheel"
            )
        if self.by_installed:
            offers = [part for offer in offers for part in _by_dependency(offer)]
        merged = _merged(offers) if self.by_installed else {}
        gone = {offer for parts in merged.values() for _, offer in parts}
        offers = sorted({*merged, *offers} - gone, key=lambda offer: (offer.project, Version(offer.version)))
        releases = [offer for offer in offers if not offer.is_companion]
        sdists: dict[OfferedRelease, Text | MergedSdist] = {}
        for offer in releases:
            with at(offer):
                sdists[offer] = self._sdist(offer, f"{url}/{WHEELS}", merged.get(offer, ()))
        pins = RedirectPins(tuple(_pin(offer, sdists.get(offer)) for offer in _newest(offers)))
        wheels = (output for offer in offers for output in _wheels(offer, merged.get(offer, ())))
        late = [sdist for sdist in sdists.values() if isinstance(sdist, MergedSdist)]
        outputs = (*(sdist for sdist in sdists.values() if isinstance(sdist, Text)), *wheels, *late, pins)
        uses = _uses({offer: sdists[offer] for offer in _newest(releases)}, url)
        gone_too = (f"{name} is in no sdist: {_LOST}" for name in sorted(wheel.path.name for wheel in lost))
        return PublishPlan(self.name, outputs, tuple(uses), (*self._notes(releases), *gone_too))

    def _sdist(self, offer: OfferedRelease, url: str, parts: "tuple[_Part, ...]") -> "Text | MergedSdist":
        handed_over = replace(offer, wheels=tuple(filter(is_handed_over, offer.wheels)))
        source = RedirectSource(handed_over, url, self.by_hardware, tuple(value for value, _ in parts))
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


def _uses(sdists: "Mapping[OfferedRelease, Text | MergedSdist]", url: str) -> Iterator[ConsumerUse]:
    names = " ".join(offer.project for offer in sdists)
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
    if labels := labels_of(sdists):
        having = " ".join(offer.project for offer in sdists if labels[0] in offer.labels)
        yield ConsumerUse(
            f"A variant of {', '.join(labels)}; caches do not know which one was asked for:",
            _both(f"--no-cache-dir {links} {having}", f"VBUILD_SELECT={labels[0]} {local}"),
        )
    for offer, sdist in sdists.items():
        if isinstance(sdist, MergedSdist):
            value = sdist.source.values[-1]
            commands = _both(f"--no-cache-dir {links} {offer.project}", f"VBUILD_SELECT=+{value} {local}")
            yield ConsumerUse(f"The build of {offer.project} against {value}, whatever is installed:", commands)
    yield ConsumerUse(
        "Pinned by hash: that of the sdist, which holds those of the wheels:",
        _both(f"--require-hashes {links} -r {PINS}"),
    )
    # with the name: uv takes the hash for a part of a file:// URL that stands alone
    pinned = (
        f"{offer.project} @ {url}/{quote(str(sdist.target))}{_fragment(sdist)}" for offer, sdist in sdists.items()
    )
    yield ConsumerUse("From where this folder is served:", _both(" ".join(map(quoted, pinned))))
    if having := " ".join(offer.project for offer in sdists if any(map(is_handed_over, offer.plain))):
        # a variant would lie there under the name of the plain wheel, for every machine
        command = "VBUILD_SELECT=plain pip wheel --no-cache-dir" if labels else "pip wheel"
        yield ConsumerUse(
            "The wheels themselves, for a mirror; pip download saves the sdist alone:",
            f"{command} --no-deps --wheel-dir mirror {links} {having}",
        )
    yield ConsumerUse("From a mirror; a login may stand in the URL:", _both(f"{links} {names}", mirror))


def _both(words: str, variables: str = "") -> str:
    return f"{variables}pip install {words}\n{variables}uv pip install {words}"


def _newest(offers: Sequence[OfferedRelease]) -> tuple[OfferedRelease, ...]:
    return tuple({offer.project: offer for offer in offers}.values())


def _fragment(sdist: "Text | MergedSdist") -> str:
    return f"#sha256={hashlib.sha256(sdist.data).hexdigest()}" if isinstance(sdist, Text) else ""


def _pin(offer: OfferedRelease, sdist: "Text | MergedSdist | None") -> tuple[str, tuple[PurePosixPath, ...]]:
    """The requirement that requirements.txt pins for *offer*, and the files that may be taken for it."""
    files = [sdist.target] if sdist else []
    files += [PurePosixPath(wheel.path.name) for wheel in offer.wheels if not _is_served(wheel)]
    return f"{offer.project}=={offer.version}", tuple(files)


def _is_served(wheel: OfferedWheel) -> bool:
    return is_handed_over(wheel) and not wheel.is_companion


_Part = tuple[str, OfferedRelease]


def _merged(offers: Sequence[OfferedRelease]) -> dict[OfferedRelease, tuple[_Part, ...]]:
    """The releases that several of *offers* become, each with these and what they were built against, newest first."""
    parts_of: dict[tuple[str, str], list[_Part]] = {}
    for offer in offers:
        value, version = built_against(offer)
        if value and not offer.is_companion:
            parts_of.setdefault((offer.project, version), []).append((value, offer))
    if not parts_of:
        raise RepackageError(
            f"{offers[-1]}: its version does not say what it was built against and requires; expected wheels of "
            "matrix.requires, as 1.0+torch2.15 that requires torch==2.15.*"
        )
    merged = {}
    for (project, version), parts in parts_of.items():
        wheels = tuple(wheel for _, offer in parts for wheel in offer.wheels)
        offer = OfferedRelease(project, version, wheels)
        if rival := next((other for other in offers if str(other) == str(offer)), None):
            names = " and ".join(str(part) for _, part in parts)
            raise RepackageError(f"{rival}: {names} would have this version, too; publish them apart")
        merged[offer] = tuple(sorted(parts, key=lambda part: _numbers(part[0]), reverse=True))
    return merged


def _by_dependency(offer: OfferedRelease) -> Iterator[OfferedRelease]:
    """*offer*, or a release for each dependency that its variants are for (PEP 850), as ``matrix.requires`` names them.

    The plain wheels are then copies of variants. `RepackageError` if one is not.
    """
    by_label: dict[str, list[OfferedWheel]] = {}
    for wheel in offer.variants:
        if dependencies := _dependencies(wheel):
            newest = ((project, releases_of(value)[-1]) for project, value in dependencies)
            by_label.setdefault(local_label(newest), []).append(wheel)
    if not by_label:
        yield offer
        return
    grouped = [wheel for wheels in by_label.values() for wheel in wheels]
    tags = {wheel.tag for wheel in grouped}
    for wheel in offer.wheels:
        if wheel not in grouped and not (wheel.label is None and wheel.tag in tags):
            raise RepackageError(
                f"{wheel.path.name}: is for no release of a dependency, and others are; publish it apart"
            )
    for label, wheels in by_label.items():
        relabelled = tuple(map(_without_dependencies, wheels))
        yield OfferedRelease(offer.project, f"{offer.version}+{label}", relabelled)


def _dependencies(wheel: OfferedWheel) -> tuple[tuple[str, str], ...]:
    """The projects that the variant *wheel* was built against, with the releases that it is for, oldest first."""
    if not (wheel.document and wheel.variant):
        return ()
    metadata = wheel.document.metadata
    features = (feature for feature in wheel.variant.features if metadata.is_abi(feature.namespace))
    return tuple((feature.name, "_".join(sorted(feature.values, key=Version))) for feature in features)


def _without_dependencies(wheel: OfferedWheel) -> OfferedWheel:
    """*wheel* with a label and a variant.json that say nothing of what it was built against."""
    if not (wheel.document and wheel.label):
        return wheel
    metadata = wheel.document.metadata
    namespaces = [namespace for namespace in metadata.namespaces if not metadata.is_abi(namespace)]
    properties = [prop for prop in wheel.properties if prop.namespace in namespaces]
    if not properties:
        return replace(wheel, name=wheel.name.plain(), document=None)
    variant = Variant.hashed(properties)
    prefix = f"{local_label(_dependencies(wheel))}_"
    if wheel.label.startswith(prefix) and wheel.label != prefix:
        variant = replace(variant, label=wheel.label.removeprefix(prefix))
    providers = {namespace: provider for namespace, provider in metadata.providers if namespace in namespaces}
    document = Document.of(variant, VariantMetadata.of(namespaces, providers))
    return replace(wheel, name=replace(wheel.name, variant=variant.label), document=document)


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _wheels(offer: OfferedRelease, parts: Sequence[_Part]) -> Iterator[LinkedFile | NewWheel]:
    if not parts:
        for wheel in offer.wheels:
            yield LinkedFile(PurePosixPath(WHEELS if _is_served(wheel) else "", wheel.path.name), wheel.path)
    for value, part in parts:
        for wheel in part.wheels:
            if _is_served(wheel):
                is_new = wheel.label != WheelName.parse(wheel.path.name).variant
                document = wheel.document.pack() if wheel.document and is_new else None
                name = replace(wheel.name, version=offer.version)
                yield renamed(wheel, name, folder=f"{WHEELS}/{value}", document=document)
            else:
                yield LinkedFile(PurePosixPath(wheel.path.name), wheel.path)


class MergedSdist(Struct, frozen=True):
    target: PurePosixPath
    files: tuple[PurePosixPath, ...]
    source: RedirectSource

    def write(self, folder: Path, *, wheels: SharedWheels) -> None:
        offered = tuple(replace(OfferedWheel.of(folder / file), shared=wheels) for file in self.files)
        offer = replace(self.source.offer, wheels=offered)
        (folder / self.target).write_bytes(packed(replace(self.source, offer=offer)))


class RedirectPins(Struct, frozen=True):
    """requirements.txt, with the hashes of files."""

    pinned: tuple[tuple[str, tuple[PurePosixPath, ...]], ...]

    @property
    def target(self) -> PurePosixPath:
        return PurePosixPath(PINS)

    @property
    def files(self) -> tuple[PurePosixPath, ...]:
        return tuple(file for _, files in self.pinned for file in files)

    def write(self, folder: Path, *, wheels: SharedWheels) -> None:
        lines = (
            " ".join((wanted, *(f"--hash=sha256:{wheels.digests.of(folder / file)}" for file in files)))
            for wanted, files in self.pinned
        )
        (folder / PINS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


_problem = partial(layout_problem, "redirect")
# bytes, as many as are read of a file in the sdist
_LIMIT = 1 << 26
_HASH = re.compile("sha256:([0-9a-f]*)")
# a wheel, perhaps in the folder of what it was built against
_WAY = re.compile(r"([a-z0-9][a-z0-9.]*/)?(?P<name>[^/]*)")


class _Sdist(Struct, frozen=True):
    """The parts of an sdist; *values* are what its wheels were built against."""

    path: Path
    pkg_info: bytes
    rows: dict[str, dict[str, Any]]
    order: list[Any] | None
    values: list[str] | None

    def file(self, wheel: OfferedWheel) -> str:
        return wheel.path.name if self.values is None else f"{wheel.path.parent.name}/{wheel.path.name}"

    @classmethod
    def read(cls, path: Path) -> Self:
        top = path.name.removesuffix(".tar.gz")
        table_path, pkg_info = f"{top}/{TABLE}", f"{top}/{PKG_INFO}"
        try:
            files = {}
            with reading(path) as archive:
                for entry in archive:
                    if entry.name in {table_path, pkg_info} and (stream := archive.extractfile(entry)):
                        files[entry.name] = stream.read(_LIMIT)
            table = json.loads(files.get(table_path, b"{}"))
        except WheelError as error:
            raise RepackageError(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise RepackageError(f"cannot be read: {error}") from error
        try:
            rows = {}
            for row in table["wheels"]:
                way = _WAY.fullmatch(row["file"])
                WheelName.parse(way["name"] if way else row["file"])
                rows[row["file"]] = {"size": row["size"], "sha256": row["sha256"], **row}
            return cls(path, files[pkg_info], rows, table.get("order"), table.get("values"))
        except (KeyError, TypeError, AttributeError, WheelError) as error:
            raise RepackageError(f"has no {PKG_INFO} and {TABLE} as a redirecting sdist has them") from error


def problems(folder: Path) -> Iterator[Finding]:
    paths = files_in(folder, ".tar.gz")
    if not paths:
        yield _problem(PublishRule.SDIST, folder.name, "has no sdist")
    pinned_files: set[str] = set()
    for path in paths:
        try:
            sdist = _Sdist.read(path)
            project, version = parse_sdist_filename(path.name)
        except (RepackageError, InvalidSdistFilename) as error:
            yield _problem(PublishRule.ARCHIVE, path.name, str(error))
            continue
        pinned_files |= sdist.rows.keys()
        wheels: list[OfferedWheel] = []
        for file, row in sdist.rows.items():
            yield from _row_problems(folder / WHEELS / file, row, wheels, has_value=sdist.values is not None)
        release = OfferedRelease(canonicalize_name(project), str(version), tuple(wheels))
        yield from _statements(sdist, release)
        yield from _ranking(sdist, release)
    pins = folder / PINS
    pinned = _HASH.findall(read_text(pins, errors="replace")) if pins.is_file() else []
    digests = {sha256_of(path) for path in folder.glob("*.*") if path.is_file()} if pinned else set()
    for pinned_sha256 in (pinned_sha256 for pinned_sha256 in pinned if pinned_sha256 not in digests):
        yield _problem(PublishRule.PINS, pins.name, f"pins sha256 {pinned_sha256}, which no file here has")
    for path in sorted((folder / WHEELS).rglob("*")):
        if path.is_file() and path.relative_to(folder / WHEELS).as_posix() not in pinned_files:
            yield _problem(PublishRule.PINS, path.name, f"is in no {TABLE}, so it is never installed")


def _row_problems(path: Path, row: dict[str, Any], wheels: list[OfferedWheel], *, has_value: bool) -> Iterator[Finding]:
    """Adds the wheel at *path* to *wheels* if it can be read."""
    try:
        size, sha256 = path.stat().st_size, sha256_of(path)
    except OSError as error:
        yield _problem(PublishRule.PINS, path.name, f"is pinned, and cannot be read: {error.strerror}")
        return
    if (size, sha256) != (row["size"], row["sha256"]):
        fault = f"{size} bytes of sha256 {sha256}, pinned {row['size']} of {row['sha256']}"
        yield _problem(PublishRule.PINS, path.name, fault)
        return
    try:
        wheel = OfferedWheel.of(path)
    except VbuildError as error:
        yield _problem(PublishRule.ARCHIVE, path.name, str(error).removeprefix(f"{path.name}: "))
        return
    wheels.append(wheel)
    expected = {"label": None, **row_of(wheel, has_value=has_value)}
    for key, value in expected.items():
        if row.get(key) != value:
            fault = f"{TABLE} says {key} {json.dumps(row.get(key))}, expected {json.dumps(value)}"
            yield _problem(PublishRule.PINS, path.name, fault)


def _statements(sdist: _Sdist, release: OfferedRelease) -> Iterator[Finding]:
    """Where PKG-INFO, and what wheels.json adds for a wheel, differ from the wheel."""
    known_to_lack = {*left_out(release.wheels), "Description", "Description-Content-Type"}
    for wheel in release.wheels:
        fields = sdist.rows[sdist.file(wheel)].get("fields", "")
        try:
            with at(PKG_INFO):
                stated = metadata_view(str(fields).encode() + sdist.pkg_info)
        except VbuildError as error:
            yield _problem(PublishRule.METADATA, sdist.path.name, str(error))
            return
        if (wheel.name.project, canonicalize_name(stated.name)) != (release.project, release.project):
            fault = f"hands over {wheel.path.name}, and its {PKG_INFO} is of {stated.name}"
            yield _problem(PublishRule.METADATA, sdist.path.name, fault)
        for difference in stated.differences(metadata_view(str(wheel.metadata).encode())):
            if difference.field not in known_to_lack:
                fault = f"{wheel.path.name} is not as its {PKG_INFO} says: {difference}"
                yield _problem(PublishRule.METADATA, sdist.path.name, fault)


def _ranking(sdist: _Sdist, release: OfferedRelease) -> Iterator[Finding]:
    if sdist.order is None:
        return
    try:
        expected = [choice.data() for choice in release_order(release)]
    except VbuildError as error:
        yield _problem(PublishRule.VARIANT, sdist.path.name, str(error))
        return
    if expected != sdist.order:
        yield _problem(PublishRule.VARIANT, sdist.path.name, "has its variants in another order than their wheels give")
