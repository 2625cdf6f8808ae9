"""What each share keeps of a file, above all of one that is nothing but GPU code; and the lists that name such files.

A cubin, a file of PTX or an AMD code object stays if a GPU of the share can run it. A fatbin or a bundle is cut as one
in a library is, and goes if nothing in it is for these GPUs.

    checksums.txt, manifest.json    which the package's own code names: lose the rows of what went
                                    which it does not name: stay as they are, for another package may know their hash
    "9f86d081…" in kernels.py       a file whose hash is there stays as it is
"""

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile
from vbuild.files.wording import counted
from vbuild.gpu_code.coverage import Coverage, Fatbin
from vbuild.gpu_code.device_file import SUFFIXES, DeviceFile, Folder, Head, container_in, may_be_container
from vbuild.gpu_code.model import Compression, Container, Vendor
from vbuild.gpu_code.survey import Image
from vbuild.hardware.architectures import Device
from vbuild.hardware.cpu import available_cores
from vbuild.hardware.gpu import kept_offers
from vbuild.pe.image import is_64_bit
from vbuild.slimming.library import (
    Archs,
    ContainerDecision,
    GpuLibrary,
    LibraryPlan,
    names_of,
    requests_of,
    strip_savings,
)
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import LibraryCut
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import is_dist_info, recorded_sha256

if TYPE_CHECKING:
    from vbuild.wheel.licence import Package

_UNTOUCHED = EditedFile.whole(b"")
_JSON, _PYTHON = ".json", ".py"
_LINES = (".txt", ".csv", ".tsv", ".sha256", ".sha256sum", ".md5", ".list", ".lst", ".manifest")
# their names and hashes are not one to a line
_OTHERS = (".toml", ".yaml", ".yml")
# bytes of a list that is read: the longest known has 6 MB
_LONGEST = 1 << 26
_WORD = re.compile(r"[\w.+=@/-]+")
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


# as torch has it for torch.cuda.get_arch_list(): sm_75 sm_80 compute_90
_NAMES = {b"sm_": rb"sm_\d{2,3}[af]?", b"gfx": rb"gfx[0-9a-f]{3,4}"}
_NAME = re.compile(b"|".join(_NAMES.values()))
# by what a list begins with
_ARCHITECTURES = {
    start: re.compile(rb"%s(?:[ ,;|'\"]{1,4}(?:%s|compute_\d{2,3}[af]?))+" % (first, _NAME.pattern))
    for start, first in _NAMES.items()
}
_TEXTS = (".py", ".json", ".toml", ".txt", ".cfg")
# bytes of a text that is searched for architectures
_LONGEST_TEXT = 1 << 20


def is_alone(path: str, size: int, head: Head) -> bool:
    return bool(DeviceFile.of(path, size, head)) or may_be_container(path, head)


def worth_reading(path: str, head: Head) -> bool:
    """Whether the file at *path* may have GPU code, by what *head* gives."""
    is_elf = head(len(MAGIC))[: len(MAGIC)] == MAGIC
    return is_elf or is_64_bit(head) or may_be_container(path, head) or path.endswith(SUFFIXES)


def examine_file(
    path: str,
    data: memoryview,
    shares: Sequence[Share],
    cuts: Cuts,
    folder: Folder | None = None,
    *,
    fillers: str = "",
    on_progress: Callable[[int], None] = lambda _size: None,
) -> LibraryPlan:
    """What each of *shares* keeps of the file *data* at *path*, which lies in *folder*, and has *fillers* by its bill.

    *on_progress* gets the bytes of GPU code that were rewritten.

    Raises `RepackageError` if the cuts are strict, and it has no code for a GPU of a share.
    """

    def head(size: int) -> bytes:
        return bytes(data[:size])

    if file := DeviceFile.of(path, len(data), head, folder):
        return file_plan(file, path, len(data), shares, cuts)
    if may_be_container(path, head):
        return _container_plan(path, data, shares, cuts)
    if not worth_reading(path, head):
        account = LibraryCut(member=path, before=len(data), after=len(data))
        return LibraryPlan(path, (EditedFile.whole(data),) * len(shares), (account,) * len(shares))
    library = GpuLibrary.of(path, data, fillers=fillers)
    cores = available_cores()
    cut = partial(
        library.slimmed,
        cuts=cuts,
        threads=max(cores // len(shares), 1),
        on_progress=lambda size: on_progress(size // len(shares)),
    )
    with ThreadPoolExecutor(min(len(shares) + 1, cores)) as pool:
        results = pool.map(cut, shares)
        more = pool.submit(tuple, strip_savings(library.image, cuts) if library.image else ())
        files, accounts = (tuple(column) for column in zip(*results, strict=True))
    listed = _listed_in(library.image) if library.image else frozenset[Archs]()
    return LibraryPlan(path, files, accounts, library.needed, listed, more=more.result())


def file_plan(file: DeviceFile, path: str, size: int, shares: Sequence[Share], cuts: Cuts) -> LibraryPlan:
    accounts = []
    for share in shares:
        # code of a vendor of whom no GPU is named stays
        requests = requests_of(share.gpus, file.vendor) if share.gpus else ()
        kept = [kept_offers([file.offer, *file.others], request, ptx=cuts.ptx) for request in requests]
        # for a GPU that none is for all stay: it may be given any
        stays = not requests or any(0 in places or (file.others and not places) for places in kept)
        fatbin = Fatbin((file.offer,), (file.driver,), size, is_filler=not stays)
        names = tuple(names_of([file.offer]))
        accounts.append(
            LibraryCut(
                member=path,
                before=size,
                after=size if stays else 0,
                kept=int(stays),
                dropped=int(not stays),
                served=tuple(map(fatbin.coverage, _devices(share, file.vendor))),
                gpus_before=names,
                gpus=names if stays else (),
                alone=f"{file.kind} for {file.arch}" if file.is_known else file.kind,
                why_whole=file.trouble,
            )
        )
    gone = frozenset(index for index, account in enumerate(accounts) if not account.kept)
    return LibraryPlan(path, (_UNTOUCHED,) * len(shares), tuple(accounts), gone=gone)


def _container_plan(path: str, data: memoryview, shares: Sequence[Share], cuts: Cuts) -> LibraryPlan:
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
        decision = (
            ContainerDecision.of(container, share.gpus, cuts) if share.gpus else ContainerDecision.untouched(container)
        )
        is_idle = decision.is_for_gpus and not decision.serves
        trouble = _why_not_gone(container) if is_idle else None
        stays = not is_idle or trouble is not None
        file = whole
        if stays and container.movable and (cuts.zstd or decision.is_cut):
            rewrite = decision.rewritten(data, zstd=bool(cuts.zstd))
            decision, trouble = rewrite.decision, rewrite.damage
            file = EditedFile.of(data, rewrite.replacement.parts)
        kept = decision.kept if stays else ()
        files.append(file)
        accounts.append(
            LibraryCut(
                member=path,
                before=len(data),
                after=file.size if stays else 0,
                kept=len(kept),
                dropped=len(container.entries) - len(kept),
                served=tuple(map(decision.fatbin.coverage, _devices(share, container.vendor))),
                zstd=any(entry.compression is Compression.ZSTD for entry in kept),
                is_recompressed=bool(cuts.zstd) and not file.is_unchanged,
                gpus_before=tuple(names_of(entry.offer for entry in container.entries)),
                gpus=tuple(names_of(entry.offer for entry in kept)),
                alone="fatbin" if container.vendor is Vendor.NVIDIA else "bundle",
                why_whole=trouble,
            )
        )
    gone = frozenset(index for index, account in enumerate(accounts) if not account.after)
    return LibraryPlan(path, tuple(files), tuple(accounts), gone=gone)


def _why_not_gone(container: Container) -> str | None:
    if container.why_pinned:
        return container.why_pinned
    try:
        container.keeping(frozenset())
    except BinaryError as error:
        return str(error)
    return None


def join_device_cuts(cuts: Iterable[LibraryCut]) -> Iterator[LibraryCut]:
    """The *cuts*, with one account for all device files of a kind."""
    groups: dict[tuple[str, str | None], list[LibraryCut]] = defaultdict(list)
    for cut in cuts:
        if cut.alone:
            groups[cut.alone, cut.why_whole].append(cut)
        else:
            yield cut
    for group in groups.values():
        first = group[0]
        served = (
            sum(of_device, Coverage(of_device[0].device))
            for of_device in zip(*(cut.served for cut in group), strict=True)
        )
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


def _devices(share: Share, vendor: Vendor) -> list[Device]:
    return [device for device in (share.gpus.every if share.gpus else ()) if Vendor.of(device) is vendor]


class OwnLists(Struct, frozen=True):
    """What a package's code has of its files: *digests* by their file, and *words* of its lists."""

    digests: Mapping[str, str]
    words: Mapping[str, str]

    @classmethod
    def of(cls, package: "Package") -> Self:
        code, texts = _texts(package)
        lists = [(path, text) for path, text in texts if _is_named(path, code)]
        sources = [*code.items(), *((path, text.encode()) for path, text in lists)]
        return cls(
            {match.decode(): path for path, data in sources for match in _DIGEST.findall(data)},
            {posixpath.basename(word): path for path, text in lists for word in _WORD.findall(text)},
        )

    def why_whole(self, path: str, digest: str) -> str | None:
        if source := self.digests.get(digest):
            return f"its SHA-256 is in {source}"
        source = self.words.get(posixpath.basename(path))
        return f"{source} lists it, which the package reads" if source else None


def _is_named(path: str, code: Mapping[str, bytes]) -> bool:
    name = posixpath.basename(path).encode()
    return any(name in source for source in code.values())


class Listing(Struct, frozen=True):
    """A list in a package that names device files, at the paths *named*.

    *is_own*: the package's code names the list. *is_known*: the code has the list's hash.
    """

    path: str
    text: str
    named: Mapping[str, frozenset[str]]
    is_own: bool
    is_known: bool

    def without(self, gone: Collection[str]) -> bytes | None:
        """The list without what names a file in *gone*; None if that cannot be known."""
        words = {word for word, paths in self.named.items() if paths & {*gone}}
        if self.is_known or self.path.endswith(_OTHERS):
            return None
        if self.path.endswith(_JSON):
            return _without_values(self.text, words)
        lines = self.text.splitlines(keepends=True)
        return "".join(line for line in lines if words.isdisjoint(_WORD.findall(line))).encode()


def with_true_lists(
    wheel: Wheel, plans: Sequence[LibraryPlan], shares: int
) -> tuple[tuple[LibraryPlan, ...], tuple[dict[str, EditedFile], ...], tuple[tuple[str, ...], ...]]:
    """*plans* without what lists would miss; each share's new lists, and notes about others."""
    loose = {plan.member: plan for plan in plans if plan.is_changed and any(cut.alone for cut in plan.cuts)}
    if not loose:
        return tuple(plans), ({},) * shares, ((),) * shares
    listings, why_whole = _listings(wheel, loose)
    files: list[dict[str, EditedFile]] = [{} for _ in range(shares)]
    notes: list[list[str]] = [[] for _ in range(shares)]
    all_gone = [frozenset(plan.member for plan in plans if share in plan.gone) for share in range(shares)]
    for listing in listings:
        named = frozenset[str]().union(*listing.named.values())
        for share in range(shares):
            gone = {path for path in named if share in loose[path].gone} - why_whole.keys()
            if not gone or listing.path in all_gone[share]:
                continue
            count = counted(len(gone), "file")
            if not listing.is_own:
                still = f"{listing.path} still lists {count} that went"
                notes[share].append(f"{still}; left as it is, for another package may know its hash")
            elif (data := listing.without(gone)) is None:
                why_whole |= dict.fromkeys(gone, f"{listing.path} lists it, and cannot be changed with it")
            else:
                files[share][listing.path] = EditedFile.whole(data)
                notes[share].append(f"{listing.path} no longer lists {count} that went")
    plans = tuple(_left_whole(plan, why_whole[plan.member]) if plan.member in why_whole else plan for plan in plans)
    return plans, tuple(files), tuple(map(tuple, notes))


def _left_whole(plan: LibraryPlan, why: str) -> LibraryPlan:
    cuts = (
        replace(cut, after=cut.before, kept=cut.kept + cut.dropped, dropped=0, gpus=cut.gpus_before, why_whole=why)
        for cut in plan.cuts
    )
    return LibraryPlan(plan.member, (_UNTOUCHED,) * len(plan.files), tuple(cuts))


def _listings(wheel: Wheel, loose: Mapping[str, LibraryPlan]) -> tuple[list[Listing], dict[str, str]]:
    """The lists in *wheel* that name *loose* files, and why some of these files have to stay."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for member in wheel.members:
        by_name[posixpath.basename(member.path)].append(member.path)
    code, texts = _texts(wheel)
    digests = {recorded_sha256(wheel.row(member).hash): member.path for member in wheel.members}
    in_code = {path: source for source, data in code.items() for path in _with_digests(data, digests)}
    why_whole = {path: f"its SHA-256 is in {source}" for path, source in in_code.items() if path in loose}
    listings = []
    for list_path, text in texts:
        for path in _with_digests(text.encode(), digests):
            # what changes is no longer what the list says
            if path in loose and len(loose[path].gone) < len(loose[path].files):
                why_whole[path] = f"its SHA-256 is in {list_path}"
        if named := dict(_named(text, posixpath.dirname(list_path), by_name, loose)):
            listings.append(Listing(list_path, text, named, _is_named(list_path, code), list_path in in_code))
    return listings, why_whole


def _texts(package: "Package") -> tuple[dict[str, bytes], list[tuple[str, str]]]:
    code, texts = {}, []
    for member in package.members:
        if not may_list(member.path, member.size):
            continue
        if member.path.endswith(_PYTHON):
            code[member.path] = package.read(member.path)
        else:
            with suppress(UnicodeDecodeError):
                texts.append((member.path, package.read(member.path).decode()))
    return code, texts


def may_list(path: str, size: int) -> bool:
    if is_dist_info(path) or size > _LONGEST:
        return False
    return path.endswith((_PYTHON, _JSON, *_LINES, *_OTHERS)) or "." not in posixpath.basename(path)


def _with_digests(text: bytes, digests: Mapping[str | None, str]) -> Iterator[str]:
    return (digests[digest] for match in _DIGEST.findall(text) if (digest := match.decode()) in digests)


def _named(
    text: str, folder: str, by_name: Mapping[str, Sequence[str]], loose: Mapping[str, LibraryPlan]
) -> Iterator[tuple[str, frozenset[str]]]:
    for word in {*_WORD.findall(text)}:
        candidates = [path for path in by_name.get(posixpath.basename(word), ()) if f"/{path}".endswith(f"/{word}")]
        beside = posixpath.normpath(posixpath.join(folder, word))
        paths = [beside] if beside in candidates else candidates
        if paths and all(path in loose for path in paths):
            yield word, frozenset(paths)


def _without_values(text: str, words: Collection[str]) -> bytes | None:
    """The JSON *text* without entries that have one of *words* as key or value; None if that is impossible."""
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
    if isinstance(value, dict):
        return any(isinstance(item, str) and item in words for item in value.values())
    return isinstance(value, str) and value in words


def stale_list_warnings(
    package: "Package", cuts: Iterable[LibraryCut], listed: Mapping[str, frozenset[Archs]]
) -> Iterator[str]:
    """Yield a warning if *package* lists architectures that *cuts* took; *listed* has those in libraries.

    A list that names others as well is what a compiler knows, such as LLVM, and no word on the package.
    """
    before, after = set[str](), set[str]()
    for cut in cuts:
        before.update(cut.gpus_before)
        after.update(cut.gpus)
    gone = frozenset(name for name in before - after if not name.startswith("PTX"))
    known = frozenset(name.removeprefix("PTX for ") for name in before)
    if not gone:
        return
    texts = [member.path for member in package.members if member.path.endswith(_TEXTS) and member.size <= _LONGEST_TEXT]
    lists = {**listed, **{path: _listed(package.read(path)) for path in texts}}
    paths = [path for path, several in lists.items() if any(archs & gone and archs <= known for archs in several)]
    if paths:
        more = f" and {counted(len(paths) - 1, 'more file')}" if len(paths) > 1 else ""
        where = f"architectures are listed in {paths[0]}{more}, and still with {', '.join(sorted(gone, key=_number))}"
        yield f"{where}: what the package says of itself, as torch.cuda.get_arch_list() does, names code that went"


def _listed_in(image: Image) -> frozenset[Archs]:
    constants = (
        section for section in image.sections if section.name.startswith((".rodata", ".rdata")) and section.span
    )
    return frozenset().union(*(_listed(image.view(section.span)) for section in constants))


def _listed(data: bytes | memoryview) -> frozenset[Archs]:
    text = bytes(data)
    matches = (match for start, pattern in _ARCHITECTURES.items() if start in text for match in pattern.finditer(text))
    return frozenset(frozenset(name.decode() for name in _NAME.findall(match[0])) for match in matches)


def _number(arch: str) -> tuple[int, str]:
    return int("0" + "".join(filter(str.isdigit, arch))), arch
