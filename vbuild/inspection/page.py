"""What is in a wheel, as one page that needs no network: a treemap, and what slimming to a GPU would take away.

    contents -> a tree of wheel, library, section, architecture -> page.html.jinja with page.css and page.js inside

Only `vbuild.inspection.gpu_code` knows which code a GPU needs: the page only adds up its numbers. Its content
security policy lets nothing run or load but that one script and style sheet, whatever names are in the wheel.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vbuild.binary.outline import BinaryOutline
from vbuild.files.templates import rendered
from vbuild.files.wording import counted, percent, shown, sized
from vbuild.gpu_code.model import Vendor
from vbuild.hardware.architectures import Device
from vbuild.hardware.gpu import GpuCodeKind, arch_order, products
from vbuild.inspection.gpu_code import GpuCode, Sort
from vbuild.inspection.model import OTHERS, Advice, Contents, DeviceFiles, LibraryContents
from vbuild.inspection.text import grouped, reasons_of, together

Box = dict[str, Any]

# the letter of each vendor's colours, and how many there are
_SCALES = {Vendor.NVIDIA: ("a", 12), Vendor.AMD: ("r", 6)}
# a section that takes less of its library is shown with its like
_SMALLEST = 0.002
_CODE = (".text", ".plt", ".init", ".fini", "__TEXT,__text", "__TEXT,__stub")


def page(contents: Contents, advice: Sequence[Advice] = (), before: Contents | None = None) -> str:
    """The page of *contents*; *advice* says what commands would save, *before* is an older wheel to compare with."""
    colours = _colours(contents)
    legend: dict[str, str] = {}  # of each colour: "sm_90 90a"
    for arch, look in colours.items():
        legend[look] = f"{legend[look]} {arch.removeprefix('sm_')}" if look in legend else arch
    return rendered(
        "vbuild.inspection",
        "page.html.jinja",
        styles=["page.css"],
        scripts=["page.js"],
        filters={"sized": sized, "shown": shown},
        contents=contents,
        advice=advice,
        before=before,
        changes=contents.changes_from(before) if before else (),
        made_by="vbuild doctor" if contents.packages else "vbuild inspect",
        grouped=grouped,
        together=together,
        reasons_of=reasons_of,
        drawn={
            "root": _root(contents, contents.devices, colours),
            "gpus": [outlook.data() for outlook in contents.outlooks],
            "packed": contents.packed_size,
            "forbidden": contents.project if contents.forbidden else None,
            "wheel": contents.wheel,
            "slim": contents.slim,
            "whole": "all" if contents.packages else "the wheel",
        },
        colours=colours,
        legend=legend,
        percent=percent,
        products=products,
    )


def _colours(contents: Contents) -> dict[str, str]:
    """The class of each architecture's colour, from the oldest to the newest along a scale for each vendor."""
    archs = sorted({architecture.arch for architecture in contents.architectures}, key=arch_order)
    colours: dict[str, str] = {}
    for vendor, (letter, steps) in _SCALES.items():
        of_vendor = [arch for arch in archs if Vendor.of(arch) is vendor]
        devices = sorted({arch.device for arch in of_vendor}, key=arch_order)  # sm_90 and sm_90a share a colour
        last = max(len(devices) - 1, 1)
        step = {device: round(index * (steps - 1) / last) for index, device in enumerate(devices)}
        colours |= {str(arch): f"gpu {letter}{step[arch.device]}" for arch in of_vendor}
    return colours


def _root(contents: Contents, devices: tuple[Device, ...], colours: Mapping[str, str]) -> Box:
    name = f"{contents.project} {contents.version}".rstrip()
    if contents.packages:
        return _inner(name, [_root(package, devices, colours) for package in contents.packages])
    children = [_library(library, devices, colours) for library in contents.libraries]
    children += [
        _leaf(posixpath.basename(file.path), file.size, "files", f"{file.path}, {note}") | {"packed": file.packed_size}
        for files, note in ((contents.damaged, "damaged"), (contents.archives, "static library"))
        for file in files
    ]
    if contents.device_files:
        groups = [_device_files(files, devices, colours) for files in contents.device_files]
        children.append(
            _inner("device files", groups, counted(sum(group.files for group in contents.device_files), "file"))
        )
    if others := [*_others(contents)]:
        children.append(_inner("other files", others, "not compiled"))
    return _inner(name, children)


def _others(contents: Contents) -> Iterator[Box]:
    for others in contents.others:
        yield _leaf(others.name, others.size, "files", counted(others.files, "file")) | {"packed": others.packed_size}


def _library(library: LibraryContents, devices: tuple[Device, ...], colours: Mapping[str, str]) -> Box:
    outline = library.outline
    if outline.halves:
        children = [
            _inner(half.outline.machine, _sections(half.outline, half.size, library, devices, colours))
            for half in outline.halves
        ]
        rest = library.size - sum(half.size for half in outline.halves)
        children.append(_leaf("other sections", rest, "data", "headers"))
    else:
        children = _sections(outline, library.size, library, devices, colours)
    name = f"{library.name} ({library.level})" if library.level else library.name
    return _inner(name, children, f"{library.path}, {outline.machine} {outline.type}") | {"packed": library.packed_size}


def _sections(
    outline: BinaryOutline,
    size: int,
    library: LibraryContents,
    devices: tuple[Device, ...],
    colours: Mapping[str, str],
) -> list[Box]:
    """The sections of *outline*, which is all of *library* or half of it, of *size* bytes."""
    shares = library.gpu.shares(devices)
    gpu_sections = {stack.section for stack in library.gpu.stacks}
    children = []
    small = 0
    for section in outline.sections:
        if section.name in gpu_sections:
            portions = [
                portion | _density(library, sort)
                for sort, portion in _portions(library.gpu, section.name, shares, colours)
            ]
            if (rest := section.size - sum(portion["size"] for portion in portions)) > 0:
                portions.append(_leaf("other contents", rest, "data") | _density(library, OTHERS))
            children.append(_inner(section.name, portions, "GPU code"))
        elif section.size < _SMALLEST * size:
            small += 1
        else:
            kinds = {"debug": section.is_debug, "symbols": section.is_symbols, "text": section.name.startswith(_CODE)}
            look = next((kind for kind, is_kind in kinds.items() if is_kind), "data")
            children.append(_leaf(section.name, section.size, look) | _density(library, section.name))
    rest = size - sum(child["size"] for child in children)
    if rest > 0:
        note = f"{small} small sections, headers" if small else "headers"
        children.append(_leaf("other sections", rest, "data", note) | _density(library, OTHERS))
    return children


def _density(library: LibraryContents, part: str | Sort) -> Box:
    density = library.densities.get(part, library.densities.get(OTHERS))
    return {} if density is None else {"density": density}


def _portions(
    gpu: GpuCode, section: str, shares: Mapping[Sort, Sequence[tuple[int, ...]]], colours: Mapping[str, str]
) -> Iterator[tuple[Sort, Box]]:
    for portion in gpu.portions:
        sort = portion.sort
        if sort.section != section:
            continue
        entries = counted(portion.entries, "entry")
        note = f"{sort.kind}, {entries}, {sort.compression}, {sized(portion.uncompressed_size)} expanded"
        look = colours[str(sort.arch)] + ("" if sort.code is GpuCodeKind.MACHINE else " ptx")
        yield (
            sort,
            _leaf(f"{sort.arch} {sort.kind}", portion.size, look, note)
            | {
                "short": str(sort.arch),
                "shares": [[size, least, *map(hex, sets)] for size, least, *sets in shares[sort]],
            },
        )


def _device_files(files: DeviceFiles, devices: tuple[Device, ...], colours: Mapping[str, str]) -> Box:
    children = [portion for _, portion in _portions(files.gpu, "", files.gpu.shares(devices), colours)]
    if (rest := files.size - sum(child["size"] for child in children)) > 0:
        children.append(_leaf("headers", rest, "data"))
    name = f"{' '.join(map(str, files.archs))} {files.kind}"
    note = f"{counted(files.files, 'file')}, such as {files.first}"
    return _inner(name, children, note) | {"packed": files.packed_size}


def _leaf(name: str, size: int, look: str, note: str = "") -> Box:
    return {"name": name, "size": size, "look": look, "note": note}


def _inner(name: str, children: list[Box], note: str = "") -> Box:
    shown = [child for child in children if child["size"] > 0]
    # what is drawn too small to be opened has the colour of most of it
    look = max(shown, key=lambda child: child["size"])["look"] if shown else "data"
    return _leaf(name, sum(child["size"] for child in shown), look, note) | {"children": shown}
