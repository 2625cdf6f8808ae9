"""The ``.dynamic`` table of an official library, from that of the bundled copy and the official names.

    d_tag                     what a repair tool did                put back
    NEEDED, SONAME            a name with a hash, behind the rest   the official name it was made from
    RPATH, RUNPATH            taken out, changed, or put first      an official path, where linkers put it
    STRTAB, GNU_HASH, ...     follow what was moved                 where the official section is

Each table that may have been is given, the likeliest first; whoever asks has a hash to decide.
https://sourceware.org/git/?p=binutils-gdb.git;a=blob;f=bfd/elflink.c (the order in which GNU ld writes the entries)
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vbuild.binary.elfrecords import DynamicEntry, DynamicTag, SegmentType, VersionNeed
from vbuild.binary.image import Image
from vbuild.linkage.names import hashed

Entry = tuple[int, int]

_MOST_NAMES = 3
_MOST_TEXTS = 128
# folders below nvidia/ that the RPATHs of NVIDIA's own libraries lead to, each as $ORIGIN/../../cublas/lib
_FOLDERS = (
    *("cublas", "cusparse", "nvjitlink", "cuda_nvrtc", "nvrtc", "nccl", "cusolver", "cudnn", "cuda_runtime"),
    *("cufft", "curand", "cu12", "cu13", "nvidia/cublas", "nvidia/nccl", "nvidia/cu13"),
)
_MOST_TABLES = 32
# each looks ahead once, or names that never end would be read again from each of their slashes
_PATH = re.compile(rb"(?<=\0)(?=[^\0]*?(?:\$ORIGIN|\$\{ORIGIN\}|/))[^\0]+(?=\0)")
_WRITTEN_OVER = re.compile(rb"(?<=\0)(?=[^\0]*?(?:\$ORIGIN|/))[^\0]+\0X*(?=\0)")
_VERNEED = VersionNeed.layout
_MOST_RECORDS = 0x8000


# the order in which one of them is looked for
PATHS = (DynamicTag.RUNPATH, DynamicTag.RPATH)
NAMED = (DynamicTag.NEEDED, DynamicTag.SONAME)


@dataclass(frozen=True, slots=True)
class Names:
    """The official ``.dynstr``, and that of the bundled copy, which begins with it."""

    official: bytes
    bundled: bytes

    def origins(self, offset: int) -> tuple[int, ...]:
        """Where the official names may be that the bundled copy's name at *offset* was made from; nearest first."""
        if offset < len(self.official):
            return (offset,)
        name = self.text(offset)
        built = found.name if (found := hashed(name)) else name
        stem = built.partition(".so")[0] + ".so"
        alike = re.finditer(rb"(?<=\0)" + re.escape(stem.encode()) + rb"(?:\.[^\0]*)?(?=\0)", self.official)
        near = sorted(alike, key=lambda match: (built.encode().startswith(match[0]), len(match[0])), reverse=True)
        return tuple(match.start() for match in near[:_MOST_NAMES])

    def text(self, offset: int) -> str:
        """The bundled copy's name at *offset*."""
        return self.bundled[offset : self.bundled.find(b"\0", offset)].decode("utf-8", "backslashreplace")

    def paths(self) -> tuple[int, ...]:
        """Where the official names have what may be an RPATH, the last first: linkers write it behind the rest."""
        return tuple(match.start() for match in _PATH.finditer(self.official))[::-1]

    def texts(self) -> Iterator[bytes]:
        """What the official names may be: as they are, or with an RPATH where a shorter one was written over it."""
        yield self.official
        if lost := _WRITTEN_OVER.search(self.official):
            start, stop = lost.span()
            for text in itertools.islice(_rpaths(stop - start), _MOST_TEXTS):
                yield self.official[:start] + text + self.official[stop:]


def dynamics(
    entries: Sequence[Entry], slots: int, *, names: Names, moved: Callable[[Entry], int]
) -> Iterator[tuple[Entry, ...]]:
    """The tables of *slots* entries, DT_NULL included, that *entries* may have been; *moved* puts addresses back."""
    kept = [(tag, moved((tag, value))) for tag, value in entries if tag not in PATHS]
    origins = [names.origins(value) if tag in NAMED else (value,) for tag, value in kept]
    # a name that no official one is like was added, with its entry
    tags = [tag for (tag, _), found in zip(kept, origins, strict=True) if found]
    tried: set[tuple[Entry, ...]] = set()
    for values in itertools.islice(itertools.product(*filter(None, origins)), _MOST_NAMES):
        for table in _with_paths(list(zip(tags, values, strict=True)), names.paths()):
            if table not in tried and len(table) < slots and len(tried) < _MOST_TABLES:
                tried.add(table)
                yield (*table, *((DynamicTag.NULL, 0),) * (slots - len(table)))


def entries_of(image: Image) -> tuple[Entry, ...]:
    """The tags and values of PT_DYNAMIC, up to DT_NULL."""
    span = next((one.span for one in image.segments if one.p_type == SegmentType.DYNAMIC), range(0))
    return entries_in(image.view(span))


def entries_in(dynamic: memoryview) -> tuple[Entry, ...]:
    """The tags and values in *dynamic*, up to DT_NULL."""
    size = DynamicEntry.layout.size
    rows = DynamicEntry.layout.iter_unpack(dynamic[: len(dynamic) // size * size])
    return tuple(itertools.takewhile(lambda row: row[0] != DynamicTag.NULL, rows))


def named_again(versions: bytes, names: Names) -> bytes:
    """``.gnu.version_r`` of the bundled copy, with official names of libraries."""
    data, place = bytearray(versions), 0
    for _ in range(_MOST_RECORDS):
        if place + _VERNEED.size > len(data):
            break
        version, count, file, aux, following = _VERNEED.unpack_from(data, place)
        origin = next(iter(names.origins(file)), file)
        _VERNEED.pack_into(data, place, version, count, origin, aux, following)
        if not following:
            break
        place += following
    return bytes(data)


def _with_paths(table: list[Entry], paths: Sequence[int]) -> Iterator[tuple[Entry, ...]]:
    """*table* with an RPATH, a RUNPATH or both, wherever that may stand; without one; without what was put first."""
    behind = next(
        (place for place, (tag, _) in enumerate(table) if tag not in {*NAMED, DynamicTag.SYMBOLIC}), len(table)
    )
    soname = next((place + 1 for place, (tag, _) in enumerate(table) if tag == DynamicTag.SONAME), behind)
    both = tuple(zip(PATHS[::-1], PATHS[::-1], strict=True))
    for place in dict.fromkeys((behind, 0, soname)):
        for path in paths[:_MOST_NAMES]:
            for tags in (*((tag,) for tag in PATHS), tuple(tag for tag, _ in both)):
                yield (*table[:place], *((tag, path) for tag in tags), *table[place:])
    yield tuple(table)
    if table and table[0][0] in NAMED:  # patchelf adds a SONAME, and further NEEDED, in front
        yield tuple(table[1:])


def _rpaths(length: int) -> Iterator[bytes]:
    """The RPATHs of *length* bytes as NVIDIA writes them."""
    for count in range(4):
        for folders in itertools.permutations(_FOLDERS, count):
            text = ":".join(("$ORIGIN", *(f"$ORIGIN/../../{folder}/lib" for folder in folders)))
            for whole in (text, f"{text}:"):
                if len(whole) == length:
                    yield whole.encode()
