"""What other options would save of a library besides, estimated from samples of it: nothing is claimed unmeasured.

What goes is compressed as it lies in a wheel, at a few places; what would be compressed better is, a few entries of it.
"""

from collections.abc import Iterable, Iterator, Sequence

from vbuild.binary.edits import Strip
from vbuild.binary.image import Image
from vbuild.elf.image import ElfImage
from vbuild.elf.surgery.holes import stripped
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile, Part
from vbuild.gpu_code.fatbin import recompressed_size
from vbuild.gpu_code.model import Compression, GpuEntry, Vendor
from vbuild.pe.cutting import debug_sections, symbols_of
from vbuild.pe.image import PeImage
from vbuild.slimming.request import Cuts
from vbuild.slimming.results import Saving
from vbuild.wheel.deflate import estimated
from vbuild.wheel.zip_format import ZipMethod

# bytes of debug data or GPU code worth a word, and worth the time that a sample takes
_LEAST = 1 << 16
_SAMPLES = 4
# bytes that are looked at of each: of its code, which zstd compresses slowly, and as it lies there
_CODE, _LYING = 1 << 19, 1 << 20


def savings(image: Image, kept: Sequence[GpuEntry], cuts: Cuts) -> Iterator[Saving]:
    """Yield what stripping *image* would save, and compressing *kept*, its movable entries that stay, with zstd."""
    gone = _debug(image) if cuts.strip is Strip.NOTHING else []
    size = sum(map(len, gone))
    if size >= _LEAST:
        yield Saving("--strip debug", _packed(image, gone, cuts.members), size)
    plain = [
        entry
        for entry in kept
        if entry.vendor is Vendor.NVIDIA and entry.compression in {Compression.RAW, Compression.LZ4}
    ]
    size = sum(entry.size for entry in plain)
    if cuts.zstd or size < _LEAST:
        return
    # the largest and some between: what is small does not count, and what is alike lies together
    chosen = sorted(plain, key=lambda entry: entry.size, reverse=True)[:: max(len(plain) // _SAMPLES, 1)][:_SAMPLES]
    try:
        after = sum(recompressed_size(image.data, entry, sample=_CODE) for entry in chosen)
    except BinaryError:
        return  # an entry that cannot be read is named by what looks at it
    seen = sum(entry.size for entry in chosen)
    # a zstd frame does not get smaller in a wheel
    middles = [_middle(entry.span) for entry in chosen]
    before = _packed(image, middles, cuts.members) * seen // sum(map(len, middles))
    packed, unpacked = (before - after) * size // seen, (seen - after) * size // seen
    if packed > 0 or unpacked > 0:
        yield Saving("--recompress", packed, unpacked)


def _middle(span: range) -> range:
    start = span.start + max(len(span) - _LYING, 0) // 2
    return range(start, min(start + _LYING, span.stop))


def _debug(image: Image) -> list[range]:
    """The file offsets of what ``--strip debug`` takes."""
    if isinstance(image, PeImage):
        found = debug_sections(image)
        return [] if found is None else [*(image.sections[index].raw for index in found), symbols_of(image)]
    return [section.span for section in stripped(image, Strip.DEBUG)] if isinstance(image, ElfImage) else []


def _packed(image: Image, spans: Iterable[range], members: ZipMethod) -> int:
    """About how many bytes *spans* of the file take in a wheel."""
    parts: list[Part] = [*sorted(spans, key=lambda span: span.start)]
    return estimated(EditedFile.of(image.data, parts), members=members)
