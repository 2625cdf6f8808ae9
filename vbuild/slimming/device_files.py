"""Files that are nothing but GPU code: what each share keeps of them, and the lists in a wheel that name them.

A cubin, a file of PTX or an AMD code object stands alone: it stays if a GPU asked for can run it, and goes otherwise. A
file that is a fatbin or a bundle is cut as one in a library is, and goes if nothing in it is for these GPUs.

    checksums.txt, manifest.json    which the package's own code names: the rows of what went go, too
                                    which it does not name: left as it is, for another package may know its hash
    "9f86d081…" in kernels.py       a file whose hash is there stays as it is
"""

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile
from vbuild.files.wording import counted
from vbuild.gpu_code.device_file import DeviceFile, container_in
from vbuild.gpu_code.model import Compression, Container, Vendor
from vbuild.hardware.architectures import Device, GpuTarget
from vbuild.hardware.gpu import GpuRequest, GpuServed, Service, kept_offers, service
from vbuild.slimming.library import ContainerDecision, LibraryPlan, names_of
from vbuild.slimming.package import OpenPackage, Package, PackageFile
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import LibraryCut
from vbuild.wheel.metadata import is_dist_info, recorded_sha256

_UNTOUCHED = EditedFile.whole(b"")
_JSON, _PYTHON = ".json", ".py"
_LINES = (".txt", ".csv", ".tsv", ".sha256", ".sha256sum", ".md5", ".list", ".lst", ".manifest")
# names and hashes stand in them, but not one to a line
_OTHERS = (".toml", ".yaml", ".yml")
# bytes of a list that is read: the longest that is known has 6 MB
_LONGEST = 1 << 26
_WORD = re.compile(r"[\w.+=@/-]+")
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def file_plan(file: DeviceFile, path: str, size: int, shares: Sequence[Share], cuts: Cuts) -> LibraryPlan:
    """Return what each of *shares* keeps of the *file* of *size* bytes at *path*: all of it or nothing."""
    accounts = []
    for share in shares:
        # code of a vendor of whom no GPU is named stays
        requests = _requests(share, file.vendor)
        found = [kept_offers([file.offer, *file.others], request, ptx=cuts.ptx) for request in requests]
        # of files for several GPUs all stay for one that none is for: it may be given any
        stays = not requests or any(0 in places or (file.others and not places) for places in found)
        hows = [(device, service([file.offer], device)) for device in _devices(share, file.vendor)]
        served = [_served(device, how if stays else Service.NONE) for device, how in hows]
        names = tuple(names_of([file.offer]))
        accounts.append(
            LibraryCut(
                member=path,
                before=size,
                after=size if stays else 0,
                kept=int(stays),
                dropped=int(not stays),
                served=tuple(served),
                zstd=False,
                gpus_before=names,
                gpus=names if stays else (),
                alone=f"{file.kind} for {file.arch}" if file.is_known else file.kind,
                why_whole=file.trouble,
            )
        )
    gone = frozenset(place for place, account in enumerate(accounts) if not account.kept)
    return LibraryPlan(path, (_UNTOUCHED,) * len(shares), tuple(accounts), gone=gone)


def container_plan(path: str, data: memoryview, shares: Sequence[Share], cuts: Cuts) -> LibraryPlan:
    """Return what each of *shares* keeps of the fatbin or the bundle that the file *data* at *path* is."""
    whole = EditedFile.whole(data)
    try:
        container = container_in(data)
        trouble = None if container else "begins like a fatbin or a bundle, and is none"
    except BinaryError as error:
        container, trouble = None, str(error)
    if container is None:
        account = LibraryCut(member=path, before=len(data), after=len(data), why_whole=trouble)
        return LibraryPlan(path, (whole,) * len(shares), (account,) * len(shares))
    files, accounts = [], []
    for share in shares:
        decision = ContainerDecision.untouched(container)
        if share.gpus:
            decision = ContainerDecision.of(container, share.gpus, cuts)
        is_idle = decision.is_for_gpus and not decision.serves
        trouble = _why_not_gone(container) if is_idle else None
        stays = not is_idle or trouble is not None
        file = whole
        if stays and container.movable and (cuts.zstd or decision.is_cut):
            decision, replacement, trouble = decision.replaced(data, zstd=bool(cuts.zstd))
            file = EditedFile.of(data, replacement.parts)
        kept = decision.kept if stays else ()
        served = [_served(device, decision.service(device)) for device in _devices(share, container.vendor)]
        files.append(file)
        accounts.append(
            LibraryCut(
                member=path,
                before=len(data),
                after=file.size if stays else 0,
                kept=len(kept),
                dropped=len(container.entries) - len(kept),
                served=tuple(served),
                zstd=any(entry.compression is Compression.ZSTD for entry in kept),
                is_recompressed=bool(cuts.zstd) and not file.is_unchanged,
                gpus_before=tuple(names_of(entry.offer for entry in container.entries)),
                gpus=tuple(names_of(entry.offer for entry in kept)),
                alone="fatbin" if container.vendor is Vendor.NVIDIA else "bundle",
                why_whole=trouble,
            )
        )
    gone = frozenset(place for place, account in enumerate(accounts) if not account.after)
    return LibraryPlan(path, tuple(files), tuple(accounts), gone=gone)


def _why_not_gone(container: Container) -> str | None:
    """Why *container* stays although it names none of the GPUs: it may not say what it is for; or None."""
    if container.why_pinned:
        return container.why_pinned
    try:
        # what is compressed is read to its end, and held against its hash
        container.keeping(frozenset())
    except BinaryError as error:
        return str(error)
    return None


def together(cuts: Iterable[LibraryCut]) -> Iterator[LibraryCut]:
    """The *cuts*, with one account of all device files of a kind: the first stands for them, numbers are added up."""
    groups: dict[tuple[str, str | None], list[LibraryCut]] = defaultdict(list)
    for cut in cuts:
        if cut.alone:
            groups[cut.alone, cut.why_whole].append(cut)
        else:
            yield cut
    for group in groups.values():
        first = group[0]
        served = [
            GpuServed(
                same[0].device,
                sum(each.machine for each in same),
                sum(each.jit for each in same),
                sum(each.nothing for each in same),
            )
            for same in zip(*(cut.served for cut in group), strict=True)
        ]
        yield replace(
            first,
            files=len(group),
            gone=sum(not cut.after for cut in group),
            before=sum(cut.before for cut in group),
            after=sum(cut.after for cut in group),
            kept=sum(cut.kept for cut in group),
            dropped=sum(cut.dropped for cut in group),
            served=tuple(served),
            gpus=tuple(dict.fromkeys(name for cut in group for name in cut.gpus)),
            is_recompressed=any(cut.is_recompressed for cut in group),
        )


def _requests(share: Share, vendor: Vendor) -> tuple[GpuRequest | GpuTarget, ...]:
    if share.gpus is None:
        return ()
    return share.gpus.targets if vendor is Vendor.AMD else share.gpus.requests


def _devices(share: Share, vendor: Vendor) -> list[Device]:
    return [device for device in (share.gpus.every if share.gpus else ()) if Vendor.of(device) is vendor]


def _served(device: Device, how: Service) -> GpuServed:
    return GpuServed(device, how is Service.MACHINE, how is Service.JIT, how is Service.NONE)


class OwnLists(Struct, frozen=True):
    """What the code of a package has of its files: *digests* by the place where they are, *words* of lists it reads."""

    digests: Mapping[str, str]
    words: Mapping[str, str]

    @classmethod
    def of(cls, package: Package) -> Self:
        code, texts = _texts(package)
        named = [(member.path, text) for member, text in texts if _is_named(member.path, code)]
        places = [*code.items(), *((path, text.encode()) for path, text in named)]
        return cls(
            {match.decode(): place for place, data in places for match in _DIGEST.findall(data)},
            {posixpath.basename(word): path for path, text in named for word in _WORD.findall(text)},
        )

    def why_whole(self, path: str, digest: str) -> str | None:
        """Why the file at *path* with this SHA-256 has to stay as it is; None if nothing is known."""
        if place := self.digests.get(digest):
            return f"its SHA-256 is in {place}"
        place = self.words.get(posixpath.basename(path))
        return f"{place} lists it, which the package reads" if place else None


def _is_named(path: str, code: Mapping[str, bytes]) -> bool:
    name = posixpath.basename(path).encode()
    return any(name in source for source in code.values())


class Listing(Struct, frozen=True):
    """A list in a package that names device files: *named* are the paths that its words lead to.

    *is_own* says that the package's code names the list, *is_known* that its own hash is somewhere in the package.
    """

    member: PackageFile
    text: str
    named: Mapping[str, frozenset[str]]
    is_own: bool
    is_known: bool

    def without(self, gone: Collection[str]) -> bytes | None:
        """The list without what names a file in *gone*; None if nobody can say how it would look."""
        words = {word for word, paths in self.named.items() if paths & {*gone}}
        if self.is_known or self.member.path.endswith(_OTHERS):
            return None
        if self.member.path.endswith(_JSON):
            return _without_values(self.text, words)
        lines = self.text.splitlines(keepends=True)
        return "".join(line for line in lines if words.isdisjoint(_WORD.findall(line))).encode()


def kept_true(
    package: OpenPackage, plans: Sequence[LibraryPlan], shares: int
) -> tuple[tuple[LibraryPlan, ...], tuple[dict[str, EditedFile], ...], tuple[tuple[str, ...], ...]]:
    """*plans* without what lists would miss; the new lists of each share, and what to say about the others."""
    loose = {plan.member: plan for plan in plans if plan.is_changed and any(cut.alone for cut in plan.cuts)}
    if not loose:
        return tuple(plans), ({},) * shares, ((),) * shares
    listings, pinned = _listings(package, loose)
    held: dict[str, str] = dict(pinned)
    files: list[dict[str, EditedFile]] = [{} for _ in range(shares)]
    said: list[list[str]] = [[] for _ in range(shares)]
    goes = [frozenset(plan.member for plan in plans if place in plan.gone) for place in range(shares)]
    for listing in listings:
        named = frozenset[str]().union(*listing.named.values())
        for place in range(shares):
            gone = {path for path in named if place in loose[path].gone} - held.keys()
            if not gone or listing.member.path in goes[place]:
                continue
            count = counted(len(gone), "file")
            if not listing.is_own:
                what = f"{listing.member.path} still lists {count} that went"
                said[place].append(f"{what}; left as it is, for another package may know its hash")
            elif (data := listing.without(gone)) is None:
                held |= dict.fromkeys(gone, f"{listing.member.path} lists it, and cannot be changed with it")
            else:
                files[place][listing.member.path] = EditedFile.whole(data)
                said[place].append(f"{listing.member.path} no longer lists {count} that went")
    plans = tuple(kept_whole(plan, held[plan.member]) if plan.member in held else plan for plan in plans)
    return plans, tuple(files), tuple(map(tuple, said))


def kept_whole(plan: LibraryPlan, why: str) -> LibraryPlan:
    """*plan* for a file that stays as it is, and why."""
    cuts = (
        replace(cut, after=cut.before, kept=cut.kept + cut.dropped, dropped=0, gpus=cut.gpus_before, why_whole=why)
        for cut in plan.cuts
    )
    return LibraryPlan(plan.member, (_UNTOUCHED,) * len(plan.files), tuple(cuts))


def _listings(package: OpenPackage, loose: Mapping[str, LibraryPlan]) -> tuple[list[Listing], dict[str, str]]:
    """The lists in *package* that name *loose* files, and which of these have to stay as they are, with the reason."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for member in package.members:
        by_name[posixpath.basename(member.path)].append(member.path)
    code, texts = _texts(package)
    digests = {recorded_sha256(package.row(member).hash): member.path for member in package.members}
    known = {path: place for place, data in code.items() for path in _with_digests(data, digests)}
    held = {path: f"its SHA-256 is in {place}" for path, place in known.items() if path in loose}
    found = []
    for member, text in texts:
        for path in _with_digests(text.encode(), digests):
            # what changes is no longer what the list says
            if path in loose and len(loose[path].gone) < len(loose[path].files):
                held[path] = f"its SHA-256 is in {member.path}"
        if named := dict(_named(text, posixpath.dirname(member.path), by_name, loose)):
            found.append(Listing(member, text, named, _is_named(member.path, code), member.path in known))
    return found, held


def _texts(package: Package) -> tuple[dict[str, bytes], list[tuple[Any, str]]]:
    """The Python code in *package* by path, and what else of it may be a list."""
    code, texts = {}, []
    for member in package.members:
        if not may_list(member.path, member.size):
            continue
        if member.path.endswith(_PYTHON):
            code[member.path] = package.read(member)
        else:
            with suppress(UnicodeDecodeError):
                texts.append((member, package.read(member).decode()))
    return code, texts


def may_list(path: str, size: int) -> bool:
    """Whether the file of a package at *path*, of *size* bytes, is code, or may be a list of files."""
    if is_dist_info(path) or size > _LONGEST:
        return False
    return path.endswith((_PYTHON, _JSON, *_LINES, *_OTHERS)) or "." not in posixpath.basename(path)


def _with_digests(text: bytes, digests: Mapping[str | None, str]) -> Iterator[str]:
    """The paths of the files whose SHA-256 stands in *text*."""
    return (digests[digest] for match in _DIGEST.findall(text) if (digest := match.decode()) in digests)


def _named(
    text: str, folder: str, by_name: Mapping[str, Sequence[str]], loose: Mapping[str, LibraryPlan]
) -> Iterator[tuple[str, frozenset[str]]]:
    """The words of *text*, which lies in *folder*, that name only *loose* files, and which."""
    for word in {*_WORD.findall(text)}:
        there = [path for path in by_name.get(posixpath.basename(word), ()) if f"/{path}".endswith(f"/{word}")]
        beside = posixpath.normpath(posixpath.join(folder, word))
        paths = [beside] if beside in there else there
        if paths and all(path in loose for path in paths):
            yield word, frozenset(paths)


def _without_values(text: str, words: Collection[str]) -> bytes | None:
    """The JSON *text* without the entries that have one of *words* as key or value; None if that leaves some."""
    try:
        values = json.loads(text)
    except ValueError:
        return None
    second = text.lstrip().partition("\n")[2]
    indent = len(second) - len(second.lstrip(" ")) or None
    separators = (",", ":") if indent is None and ": " not in text else None
    left = json.dumps(_pruned(values, words), indent=indent, separators=separators, ensure_ascii=text.isascii())
    if not words or not {*words}.isdisjoint(_WORD.findall(left)):
        return None
    return (left + ("\n" if text.endswith("\n") else "")).encode()


def _pruned(value: Any, words: Collection[str]) -> Any:  # noqa: ANN401 - of JSON
    names = partial(_is_entry_of, words=words)
    if isinstance(value, dict):
        return {key: _pruned(item, words) for key, item in value.items() if key not in words and not names(item)}
    if isinstance(value, list):
        return [_pruned(item, words) for item in value if not names(item)]
    return value


def _is_entry_of(value: Any, words: Collection[str]) -> bool:  # noqa: ANN401 - of JSON
    """Whether *value* is about one file alone: its name, or an object that has its name."""
    if isinstance(value, dict):
        return any(isinstance(item, str) and item in words for item in value.values())
    return isinstance(value, str) and value in words
