"""Where the GPU code of a library is, and which of it may be moved.

A container may become smaller and move within its section when one wrapper that the loader fills is the only word that
leads to it. Any other is pinned, but for what nvcc's link leaves of sources without relocatable code: cubins without
any, in a container that nothing leads to.

    .nv_fatbin __nv_relfatbin  <- .nvFatBinSegment   NVIDIA, `vbuild.gpu_code.fatbin`
    .hip_fatbin                <- .hipFatBinSegment  AMD, `vbuild.gpu_code.bundle`

Host code chooses among fatbins elsewhere (.rodata, .ldata, .cask_resource) and cubins without one: they stay.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from vbuild.binary.code import Pointer
from vbuild.elf.image import ElfImage
from vbuild.elf.image import Section as ElfSection
from vbuild.elf.records import FileHeader
from vbuild.errors import BinaryError
from vbuild.files.wording import counted
from vbuild.gpu_code import fatbin
from vbuild.gpu_code.bundle import BUNDLES
from vbuild.gpu_code.fatbin import FATBINS
from vbuild.gpu_code.model import (
    WRAPPER_DATA,
    Blob,
    Container,
    ContainerForm,
    ContainerWrapper,
    DeviceCode,
    GpuEntry,
    Vendor,
)
from vbuild.gpu_code.toolkit_marks import cudart_driver
from vbuild.hardware.driver import ANY_DRIVER, Dotted
from vbuild.hardware.gpu import GpuCodeKind
from vbuild.pe.image import PeImage, PeSection

Image = ElfImage | PeImage
Section = ElfSection | PeSection
FORMS = (FATBINS, BUNDLES)
# these sections hold only containers: what is unreadable is damaged, or newer than vbuild
DEVICE_SECTIONS = frozenset(name for form in FORMS for name in form.sections)

_ELF_OF_DEVICE = {190: "bare cubin", 224: "bare code object"}
_ELF64_LITTLE_ENDIAN = re.compile(re.escape(b"\x7fELF\x02\x01"))
_FATBIN = re.compile(re.escape(fatbin.MAGIC_BYTES))
_FILLERS = re.compile(r"(?P<count>\d{1,7}) of (?P<total>\d{1,7}): 0x(?P<bits>[0-9a-f]{1,40000})", re.ASCII)
_ZEROS = 1 << 12
_WORD = 8
# pieces, five times cuFFT's: a file of one pattern, hours of work, can come in a tiny wheel
_MOST = 1 << 17
_DAMAGED = 1 << 6  # pieces that a damaged one counts for
_NOTES = 100


def device_code(image: Image, *, everywhere: bool = True) -> DeviceCode:
    """The GPU code of *image*, perhaps *everywhere*; `BinaryError` if it has more than any library."""
    findings = _Findings()
    for form in FORMS:
        sections = _Sections(image, form, findings)
        for section in sections.sections:
            sections.walk(section)
    if everywhere:
        known = {section.span for form in FORMS for name in form.sections for section in image.named(name)}
        known |= {section.span for form in FORMS for section in image.named(form.wrapper_section)}
        for section in image.sections:
            if section.is_data and section.span not in known:
                _search(image, section, findings)
    notes = findings.notes
    cudart: Dotted | None = ANY_DRIVER
    if findings.containers:
        try:
            cudart = cudart_driver(image)
        except BinaryError as error:
            cudart = None
            notes.append(f"cannot tell which CUDA it links: {error}")
    return DeviceCode(
        tuple(sorted(findings.containers, key=lambda container: container.span.start)),
        tuple(sorted(findings.blobs, key=lambda blob: blob.span.start)),
        tuple(notes if len(notes) <= _NOTES else [*notes[:_NOTES], f"and {len(notes) - _NOTES} notes more"]),
        cudart,
    )


def filler_text(containers: Iterable[Container]) -> str:
    """The fillers among the *containers* of a library as "2 of 3: 0x5", with a bit for each; empty if there is none.

    Those that a library's own code looks for do not count: not every reader looks for these.
    """
    bits = ["01"[container.is_filler] for container in containers if container.section in DEVICE_SECTIONS]
    fillers = int("".join(reversed(bits)) or "0", 2)
    return f"{fillers.bit_count()} of {len(bits)}: {fillers:#x}" if fillers else ""


def with_fillers(code: DeviceCode, text: str) -> DeviceCode:
    """*code* with the containers marked that *text* of `filler_text` names; a note if that is not of this file."""
    if not text:
        return code
    places = [place for place, container in enumerate(code.containers) if container.section in DEVICE_SECTIONS]
    match = _FILLERS.fullmatch(text)
    bits = int(match["bits"], 16) if match else 0
    fillers = {place for number, place in enumerate(places) if bits >> number & 1}
    # what slimming leaves of one is one entry, and such as are for other libraries
    entries = [[entry.code is not GpuCodeKind.OTHER for entry in code.containers[place].entries] for place in fillers]
    is_of_it = match and (int(match["count"]), int(match["total"])) == (bits.bit_count(), len(places))
    if not is_of_it or len(fillers) < bits.bit_count() or any(sum(are_for_gpus) > 1 for are_for_gpus in entries):
        return replace(code, notes=(*code.notes, f"the bill of materials says {text!r} of fillers, not of this file"))
    containers = (replace(container, is_filler=place in fillers) for place, container in enumerate(code.containers))
    return replace(code, containers=tuple(containers))


class _Findings(Struct):
    containers: list[Container] = field(default_factory=list)
    blobs: list[Blob] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pieces: int = 0

    def count(self, more: int = 1) -> None:
        """Count *more* pieces; `BinaryError` if no library can have as many."""
        self.pieces += more
        if self.pieces > _MOST:
            raise BinaryError(f"more than {_MOST} pieces of GPU code; no library has so many, so this one is damaged")


class _Sections:
    """The sections of one form of containers, and the pointers into them."""

    def __init__(self, image: Image, form: ContainerForm, findings: _Findings) -> None:
        self.image, self.form, self.findings = image, form, findings
        self.sections = tuple(section for name in form.sections for section in image.named(name) if len(section.span))
        # the targets of wrappers in a program that is loaded where it says: no pointer there has to be filled
        self.fixed: set[int] = set()
        places = self._wrapper_pointers()
        try:
            pointers = image.pointers([section.addresses for section in self.sections])
        except BinaryError as error:
            findings.notes.append(f"no {form.name} can be moved: {error}")
            pointers = ()
        self.wrappers: dict[int, list[Pointer]] = defaultdict(list)
        for pointer in pointers:
            if pointer.place in places:
                self.wrappers[pointer.target].append(pointer)
        self.targets = sorted(pointer.target for pointer in pointers)

    def _wrapper_pointers(self) -> set[int]:
        places: set[int] = set()
        for section in self.image.named(self.form.wrapper_section):
            size = ContainerWrapper.layout.size
            end = section.span.start
            # linkers for Windows pad them with zeros
            while (start := _behind_zeros(self.image.data, range(end, section.span.stop))) < section.span.stop:
                start -= (start - end) % _WORD
                if (over := section.span.stop - start) < size:
                    self.findings.notes.append(f"{section.name} has {over} bytes behind its last wrapper")
                    break
                end = start + size
                self.findings.count()
                wrapper = ContainerWrapper.parse(self.image.data, start)
                if wrapper.magic == self.form.wrapper_magic and wrapper.version in self.form.wrapper_versions:
                    places.add(section.addresses.start + start - section.span.start + WRAPPER_DATA)
                    if self.image.is_fixed:
                        self.fixed.add(wrapper.data)
                else:
                    whose = self.form.foreign.get(wrapper.magic, f"of version {wrapper.version}, which is not known")
                    self.findings.notes.append(f"wrapper at {start:#x} has magic {wrapper.magic:#x}, {whose}")
        return places

    def walk(self, section: Section) -> None:
        """Every container of *section*; after damage, go on where the next wrapper points."""
        shift = section.addresses.start - section.span.start
        starts = sorted(target - shift for target in self.wrappers if target in section.addresses)
        start = _behind_zeros(self.image.data, section.span)
        first = len(self.findings.containers)
        while start < section.span.stop:
            following = bisect_right(starts, start)
            end = starts[following] if following < len(starts) else section.span.stop
            try:
                span = self.form.extent(self.image.data, range(start, section.span.stop))
                end = min(end, span.stop)
                reading = self.form.read(self.image.data, span)
            except BinaryError as error:
                self.findings.notes.append(f"{section.name}: {error}")
                damage = f"damaged or unknown {self.form.name}"
                self.findings.blobs.append(Blob(section.name, range(start, end), damage))
                self.findings.count(_DAMAGED)
                start = end
            else:
                self.findings.count(1 + len(reading.entries))
                addresses = range(span.start + shift, span.stop + shift)
                self.findings.containers.append(
                    Container(
                        self.form.vendor,
                        section.name,
                        span,
                        addresses.start,
                        reading.entries,
                        tuple(self.wrappers.get(addresses.start, ())),
                        reading.why_pinned or self._why_pinned(addresses, reading.entries),
                        reading.packing or self.form.packing,
                        not reading.why_pinned and self._has_only_its_start(addresses),
                    )
                )
                start = span.stop
            start = _behind_zeros(self.image.data, range(start, section.span.stop))
        if self.form.vendor is Vendor.AMD:
            # the runtime may read on from one container to the next, if that has no wrapper
            containers = self.findings.containers
            why = f"another {self.form.name} follows, to which no wrapper points"
            for index in range(first, len(containers) - 1):
                if containers[index].movable and not containers[index + 1].wrappers:
                    containers[index] = replace(containers[index], why_pinned=why)

    def _why_pinned(self, addresses: range, entries: Sequence[GpuEntry]) -> str | None:
        wrappers, targets = len(self.wrappers.get(addresses.start, ())), self._targets_in(addresses)
        if not wrappers and not targets and all(fatbin.is_without_kernels(self.image.data, entry) for entry in entries):
            return None
        if wrappers != 1:
            return f"{wrappers} wrappers point to it" if wrappers else "no wrapper points to it"
        # the first is the wrapper's own
        if len(targets) > 1:
            return f"the loader fills {len(targets) - 1} more pointers into it"
        return None

    def _targets_in(self, addresses: range) -> list[int]:
        return self.targets[bisect_left(self.targets, addresses.start) : bisect_left(self.targets, addresses.stop)]

    def _has_only_its_start(self, addresses: range) -> bool:
        """Whether wrappers lead to the fatbin at *addresses*, and no pointer into its middle."""
        is_wrapped = addresses.start in self.wrappers or addresses.start in self.fixed
        return self.form is FATBINS and is_wrapped and set(self._targets_in(addresses)) <= {addresses.start}


def _search(image: Image, section: Section, findings: _Findings) -> None:
    false: list[int] = []
    fatbins, elves = _Magic(_FATBIN, image, section), _Magic(_ELF64_LITTLE_ENDIAN, image, section)
    at = section.span.start
    while (start := min(fatbins.after(at), elves.after(at))) < section.span.stop:
        at = start + 1
        findings.count()
        if start != fatbins.start:
            if blob := _bare(image, section, start):
                findings.blobs.append(blob)
                at = blob.span.stop
            continue
        try:
            container = _stray(image, section, start)
        except BinaryError:
            # code that compares with the magic has it alone
            if fatbin.has_header(image.data, start):
                false.append(start)
        else:
            findings.count(len(container.entries))
            findings.containers.append(container)
            at = container.span.stop
    if false:
        count = counted(len(false), "place")
        findings.notes.append(f"{section.name}: not read: {count} with the header of a fatbin, first at {false[0]:#x}")


class _Magic:
    """The offsets of *pattern* in *section*, searched once."""

    def __init__(self, pattern: re.Pattern[bytes], image: Image, section: Section) -> None:
        self._pattern, self._data, self._end = pattern, image.data, section.span.stop
        self.start = -1

    def after(self, offset: int) -> int:
        if self.start < offset:
            match = self._pattern.search(self._data, offset, self._end)
            self.start = match.start() if match else self._end
        return self.start


def _stray(image: Image, section: Section, start: int) -> Container:
    span = fatbin.extent(image.data, range(start, section.span.stop))
    reading = fatbin.read(image.data, span)
    if not reading.entries or reading.why_pinned:
        raise BinaryError(f"no known fatbin at {start:#x}")
    why = f"lies in {section.name}, where the library's own code looks for it"
    address = start + section.addresses.start - section.span.start
    return Container(FATBINS.vendor, section.name, span, address, reading.entries, (), why, FATBINS.packing)


def _bare(image: Image, section: Section, start: int) -> Blob | None:
    try:
        header = FileHeader.parse(image.data[: section.span.stop], start)
    except BinaryError:
        return None
    if (kind := _ELF_OF_DEVICE.get(header.e_machine)) is None:
        return None
    sections = header.e_shoff + header.e_shnum * header.e_shentsize
    size = max(sections, header.e_phoff + header.e_phnum * header.e_phentsize, FileHeader.layout.size)
    return Blob(section.name, range(start, min(start + size, section.span.stop)), kind)


def _behind_zeros(data: memoryview, span: range) -> int:
    for start in range(span.start, span.stop, _ZEROS):
        piece = bytes(data[start : min(start + _ZEROS, span.stop)])
        if rest := piece.lstrip(b"\0"):
            return start + len(piece) - len(rest)
    return span.stop
