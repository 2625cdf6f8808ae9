"""`vbuild mirror verify`: whether a site still is what its mirror.json says, without asking anybody.

files          there, with their sizes and hashes, sound by CRC-32 and RECORD; nothing else in the index
unchanged      the original, by the hash that its index stated
changed        with a bill of materials that agrees with the wheel, and named in provenance.json
index pages    list each file with its hash; METADATA beside it is that in the wheel
locks          of each machine, and its constraints: what its files come to
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from vbuild.errors import RepackageError, VbuildError
from vbuild.files.hashing import Digests, sha256_of
from vbuild.files.reading import read_file, read_text
from vbuild.files.wording import counted, wrapped
from vbuild.mirroring.model import MirroredFile, Site
from vbuild.mirroring.site import MIRROR, constraints_of, lock_of, read_site, variant_documents
from vbuild.sbom.keeping import carries, contradictions
from vbuild.sbom.statement import PROVENANCE
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.name import VARIANTS_JSON
from vbuild.wheel.simple_index import IndexedFile, read_index

Attested = Callable[[Iterable[tuple[str, str, Path]]], Iterable[Finding]]


class MirrorCheck(Struct, frozen=True):
    """What is wrong with the mirror in *folder*, a sentence each, and how many of its *files* are *changed*.

    *publishers* says who published each *attested* original, if signatures were checked.
    """

    folder: Path
    files: int
    changed: int
    attested: int
    problems: tuple[str, ...] = ()
    publishers: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}

    def lines(self) -> Iterator[str]:
        for problem in self.problems:
            yield from wrapped(problem, indent=2)
        yield from (line for publisher in self.publishers for line in wrapped(publisher, indent=2))
        whole = self.files - self.changed
        yield (
            f"{counted(self.files, 'file')}: {self.changed} changed, {whole} as their index has them; "
            f"{self.attested} with its attestation"
        )
        if not self.problems:
            yield "ok"


def checked_mirror(folder: Path, *, attested: Attested | None = None) -> MirrorCheck:
    """Compare all files of the mirror in *folder* with its mirror.json; `RepackageError` if it is not a mirror.

    *attested* checks the attestations of the originals, each given by name, SHA-256 and provenance.
    """
    site = read_site(folder)
    if not site.files:
        raise RepackageError(f"{folder}: no {MIRROR}; expected what `vbuild mirror` wrote")
    problems = (
        *_of_files(folder, site),
        *_of_index(folder, site),
        *_of_locks(folder, site),
        *_of_provenance(folder, site),
    )
    publishers, unsigned = _of_attestations(folder, site, attested) if attested else ((), ())
    return MirrorCheck(
        folder,
        len(site.files),
        sum(file.is_changed for file in site.files),
        sum(bool(file.attestation) for file in site.files),
        (*problems, *unsigned),
        publishers,
    )


def _of_attestations(folder: Path, site: Site, attested: Attested) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Who published the originals, and what is wrong with their attestations."""
    attested_files = {file.original.file: file for file in site.files if file.attestation}
    places = [(name, file.original.sha256, folder / file.attestation) for name, file in attested_files.items()]
    findings = [*attested(attestation for attestation in places if attestation[2].is_file())]
    notes = tuple(finding.what for finding in findings if finding.severity is Severity.NOTE)
    return notes, tuple(finding.what for finding in findings if finding.severity is not Severity.NOTE)


def _of_files(folder: Path, site: Site) -> Iterator[str]:
    with Digests() as digests:
        for file in site.files:
            path = folder / file.path
            try:
                if path.stat().st_size != file.size or digests.of(path) != file.sha256:
                    yield f"{file.path}: has other bytes; delete it, and run vbuild mirror again"
                elif file.original.is_wheel:
                    yield from (f"{file.path}: {fault}" for fault in _of_wheel(path, file))
            except OSError as error:
                yield f"{file.path}: cannot be read: {error.strerror}; run vbuild mirror again"
            if file.attestation and not (folder / file.attestation).is_file():
                yield f"{file.attestation}: is not there"
    site_names = {file.path for file in site.files}
    for path in sorted((folder / "simple").rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_page = path.name in {"index.html", "index.json"} or path.name.endswith(VARIANTS_JSON)
        if not (path.is_dir() or is_page or name.removesuffix(".metadata") in site_names):
            yield f"{name}: nobody knows where it comes from; delete it"


def _of_wheel(path: Path, file: MirroredFile) -> Iterator[str]:
    try:
        with open_wheel(path, check=True) as wheel:
            if file.is_changed:
                if not carries(wheel):
                    yield "is changed, and has no bill of materials"
                yield from (f"its bill of materials {fault}" for fault in contradictions(wheel))
            if read_file(f"{path}.metadata") != wheel.read(f"{wheel.dist_info}/METADATA"):
                yield "METADATA beside it is not its own"
    except VbuildError as error:
        yield str(error).removeprefix(f"{path.name}: ")
    except OSError as error:
        yield f"cannot be read: {error.strerror}"


def _of_index(folder: Path, site: Site) -> Iterator[str]:
    try:
        listed = {
            (project, listed_file.filename): listed_file
            for project, files in read_index(folder / "simple").items()
            for listed_file in files
        }
    except VbuildError as error:
        yield f"simple: {error}"
        return
    files = {(file.original.project, file.file): file for file in site.files}
    yield from _of_documents(folder, [file for file in files.values() if file.cut.label], listed)
    listed = {
        key: listed_file for key, listed_file in listed.items() if not listed_file.filename.endswith(VARIANTS_JSON)
    }
    for key in sorted(files.keys() ^ listed.keys()):
        yield f"simple/{'/'.join(key)}: {'is not listed' if key in files else 'is listed, and not known'}"
    for key in sorted(files.keys() & listed.keys()):
        if (listed[key].sha256, listed[key].size) != (files[key].sha256, files[key].size):
            yield f"simple/{'/'.join(key)}: is listed with another hash or size"
        if f"#sha256={files[key].sha256}" not in _text(folder / "simple" / key[0] / "index.html"):
            yield f"simple/{key[0]}/index.html: does not have the hash of {key[1]}"


def _of_documents(
    folder: Path, labelled: Iterable[MirroredFile], listed: Mapping[tuple[str, str], IndexedFile]
) -> Iterator[str]:
    """What is wrong with the variants.json of the index."""
    projects: dict[str, list[Path]] = {}
    for file in labelled:
        projects.setdefault(file.original.project, []).append(folder / file.path)
    unexplained = {key for key in listed if key[1].endswith(VARIANTS_JSON)}
    for project, wheels in projects.items():
        if not all(path.is_file() for path in wheels):
            continue
        with variant_documents(wheels) as documents:
            for path in documents:
                unexplained.discard((project, path.name))
                if not (listed_file := listed.get((project, path.name))) or listed_file.sha256 != sha256_of(path):
                    yield f"{project}/{path.name}: is not what its variants come to"
    yield from (f"{project}/{name}: is of no variant that {MIRROR} has" for project, name in sorted(unexplained))


def _of_locks(folder: Path, site: Site) -> Iterator[str]:
    files: Mapping[str, MirroredFile] = {file.path: file for file in site.files}
    for machine in site.machines:
        if _text(folder / machine.lock) != lock_of(machine, files, url=site.url):
            yield f"{machine.lock}: is not what the files of {machine.name} come to"
        if _text(folder / machine.constraints) != constraints_of(machine, files):
            yield f"{machine.constraints}: is not what the files of {machine.name} come to"
    others = {machine.lock for machine in site.machines}
    for path in sorted(folder.glob("pylock.*.toml")):
        if path.name not in others:
            yield f"{path.name}: is of no machine that {MIRROR} has"


def _of_provenance(folder: Path, site: Site) -> Iterator[str]:
    changed = {(file.file, file.sha256) for file in site.files if file.is_changed}
    try:
        stated = json.loads(read_file(folder / PROVENANCE))["subject"]
        named = {(subject["name"], subject["digest"]["sha256"]) for subject in stated}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        yield f"{PROVENANCE}: cannot be read; expected a statement on each changed wheel"
        return
    for name, _ in sorted(changed ^ named):
        yield f"{PROVENANCE}: does not say of {name} what {MIRROR} says"


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError):
        return ""
