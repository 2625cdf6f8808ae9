"""What is in a wheel, for a terminal of 80 columns: first where the bytes are and for which GPUs, then the details.

summary(contents) -> lines          one screen, however large the wheel is
details(library, devices) -> lines  all that is known of one library
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from vbuild.binary.outline import BinaryOutline, Format
from vbuild.elf.catalogue import PlatformPolicy
from vbuild.files.wording import WIDTH, counted, percent, sized
from vbuild.hardware.architectures import Device
from vbuild.hardware.gpu import arch_order
from vbuild.inspection.gpu_code import Outlook, Portion
from vbuild.inspection.model import ArchitectureSize, Contents, DeviceFiles, LibraryContents, bill_line
from vbuild.macho import linkage as macho
from vbuild.pe import linkage as pe

Key = TypeVar("Key")

# a space at which no line is broken
_GLUE = "\N{NO-BREAK SPACE}"
_SHOWN = 10
_PATH = 35
_BAR = 12
_ROWS = 16
_LABEL = 11
_GPUS = 26


def summary(contents: Contents) -> Iterator[str]:
    """The wheel on one screen."""
    yield from _head(contents)
    if contents.gpu_codes:
        yield ""
        yield from _architecture_table(contents.architectures)
    if contents.outlooks:
        yield ""
        yield from _gpu_table(contents)
    if contents.libraries:
        yield ""
        yield from _library_table(contents)
    if contents.device_files:
        yield ""
        yield from _device_table(contents.device_files)
    if contents.levels:
        yield ""
        yield from _level_table(contents)
    if rest := [*_findings(contents)]:
        yield ""
        yield from rest


def details(library: LibraryContents, devices: Sequence[Device]) -> Iterator[str]:
    """All that is known of *library*, and how each of *devices* fares with it."""
    outline = library.outline
    yield library.path
    yield f"  {sized(library.size)} installed, {sized(library.packed_size)} packed, {outline.machine} {outline.type}"
    if not outline.halves:
        yield from _facts(outline)
    for half in outline.halves:
        yield f"  {half.outline.machine}: {sized(half.size)}"
        yield from _facts(half.outline)
    if library.gpu:
        yield from _gpu_details(library, devices)
    for note in library.gpu.notes:
        yield from labelled("note", note)


def _facts(outline: BinaryOutline) -> Iterator[str]:
    """What *outline* says, a line for each fact."""
    largest = sorted((section for section in outline.sections if section.size), key=lambda section: -section.size)
    sections = (f"{section.name} {sized(section.size)}".replace(" ", _GLUE) for section in largest[:_SHOWN])
    asides = {**dict.fromkeys(outline.delayed, "delayed"), **dict.fromkeys(outline.weak, "weak")}
    needed = (f"{name}{_GLUE}({asides[name]})" if name in asides else name for name in outline.needed)
    is_linux = outline.format is Format.ELF
    for label, text in {
        "SONAME" if is_linux else "own name": outline.soname or "",
        "NEEDED" if is_linux else "needs": ", ".join(needed),
        "RPATH": ", ".join(outline.rpath),
        "RUNPATH": ", ".join(outline.runpath),
        "build-id": outline.build_id or "",
        "ISA needed": ", ".join(outline.isa_needed),
        "ISA used": ", ".join(outline.isa_used),
        "exports": str(outline.exports or ""),
        "signed": "yes" if outline.is_signed else "",
        "symbols": sized(outline.symbol_size) if outline.symbol_size else "",
        "debug": sized(outline.debug_size) if outline.debug_size else "",
        "sections": ", ".join(sections),
        "note": "; ".join(outline.notes),
    }.items():
        yield from labelled(label, text)


def shortened(path: str, width: int) -> str:
    """*path* in *width* columns, cut in its middle: the name stays whole if it fits, and then its folder."""
    if len(path) <= width:
        return path
    # the end says more than the start: the name, its version, and the folder of a CPU level
    folder, _, name = path.rpartition("/")
    end = len(name) + 1 + len(folder.rpartition("/")[2])
    head = max(0, min((width - 1) // 3, width - 1 - end)) if len(name) < width else (width - 1) // 3
    return f"{path[:head]}…{path[head + 1 - width :]}"


def _head(contents: Contents) -> Iterator[str]:
    yield from wrapped(f"{contents.project} {contents.version}", "  ", *contents.tags)
    count = f"{counted(contents.files, 'file')}, {counted(len(contents.libraries), 'library')}"
    yield f"{sized(contents.packed_size)} packed, {sized(contents.size)} installed, {count}"
    if contents.gpu_codes:
        alone = sum(files.files for files in contents.device_files)
        places = (len(contents.gpu_libraries), "library"), (alone, "device file")
        where = " and ".join(counted(*place) for place in places if place[0])
        yield f"{sized(contents.gpu_size)} GPU code: {percent(contents.gpu_size, contents.size)} of it, in {where}"
    yield from wrapped("licence", " " * 9, str(contents.licence))
    if contents.variant:
        yield from wrapped("variant", " " * 9, str(contents.variant))
    if contents.bill:
        yield from wrapped("SBOM", " " * 9, bill_line(contents.bill))


def _architecture_table(architectures: Sequence[ArchitectureSize]) -> Iterator[str]:
    total = sum(architecture.size for architecture in architectures)
    largest = max((architecture.size for architecture in architectures), default=0)
    yield f"{'GPU code for':<{_LABEL + 12}}{'size':>10}{'share':>7}{'entries':>9}  stored as"
    shown = sorted(architectures, key=lambda architecture: -architecture.size)[:_ROWS]
    for architecture in architectures:
        if architecture not in shown:
            continue
        size = architecture.size
        bar = "█" * round(_BAR * size / largest) if largest else ""
        stored = ", ".join(map(str, architecture.compressions))
        what = f"{architecture.arch!s:<{_LABEL}} {architecture.kind:<11}"
        yield f"{what}{sized(size):>10}{percent(size, total):>7}{architecture.entries:>9}  {stored:<9} {bar}".rstrip()
    if rest := len(architectures) - len(shown):
        size = total - sum(architecture.size for architecture in shown)
        yield f"{f'… and {rest} more':<{_LABEL + 12}}{sized(size):>10}{percent(size, total):>7}"


def _gpu_table(contents: Contents) -> Iterator[str]:
    """How the GPUs fare, those that fare alike together."""
    yield f"{'GPU':<{_GPUS}} {'code runs':<14}{'needs':>10}   slimming saves"
    groups = _alike(contents.outlooks, lambda outlook: (outlook.runs, outlook.kept))
    for (runs, kept), group in groups[:_ROWS]:
        saved = contents.gpu_size - kept
        line, *rest = textwrap.wrap(_named(group), _GPUS)
        share = percent(saved, contents.size)
        yield f"{line:<{_GPUS}} {runs:<14}{sized(kept):>10}   {sized(saved):>11}{share:>6}"
        yield from rest
    if left := [outlook for _, group in groups[_ROWS:] for outlook in group]:
        yield f"… and {counted(len(left), 'GPU')} more"


def _library_table(contents: Contents) -> Iterator[str]:
    yield f"{'library':<{_PATH}}{'installed':>11}{'packed':>10}{'GPU':>7}  for"
    shown = contents.libraries[:_SHOWN]
    for library in shown:
        share = percent(library.gpu.size, library.size) if library.gpu else "-"
        path = f"{shortened(library.path, _PATH):<{_PATH}}"
        line = f"{path}{sized(library.size):>11}{sized(library.packed_size):>10}{share:>7}  "
        yield f"{line}{_archs(library.gpu.portions, WIDTH - len(line))}".rstrip()
    if rest := contents.libraries[len(shown) :]:
        path = f"{f'… and {len(rest)} more':<{_PATH}}"
        size, packed = sum(library.size for library in rest), sum(library.packed_size for library in rest)
        yield f"{path}{sized(size):>11}{sized(packed):>10}"


def _device_table(groups: Sequence[DeviceFiles]) -> Iterator[str]:
    """The files that are nothing but GPU code, those for the same GPUs together."""
    yield f"{'device files':<{_PATH}}{'installed':>11}{'packed':>10}{'files':>7}  such as"
    for group in groups[:_ROWS]:
        names = " ".join([str(arch) for arch in group.archs[:_SHOWN]])
        what = shortened(f"{group.kind} for {names}" if names else group.kind, _PATH)
        line = f"{what:<{_PATH}}{sized(group.size):>11}{sized(group.packed_size):>10}{group.files:>7}  "
        yield f"{line}{shortened(group.first, max(WIDTH - len(line), 12))}"
    if rest := groups[_ROWS:]:
        size, packed = sum(group.size for group in rest), sum(group.packed_size for group in rest)
        line = f"{f'… and {len(rest)} kinds more':<{_PATH}}{sized(size):>11}{sized(packed):>10}"
        yield f"{line}{sum(group.files for group in rest):>7}"


def _level_table(contents: Contents) -> Iterator[str]:
    """The libraries that have copies for CPU levels, with what each copy takes installed."""
    levels = [level.level for level in contents.levels]
    yield f"{'for CPU level':<{_PATH}}" + "".join(f"{level:>11}" for level in levels)
    shown = sorted(contents.copies, key=lambda copies: -sum(copy.size for copy in copies.copies))[:_SHOWN]
    for copies in shown:
        found = (copies.at(level) for level in levels)
        columns = "".join(f"{sized(copy.size) if copy else '-':>11}" for copy in found)
        yield f"{shortened(copies.path, _PATH):<{_PATH}}{columns}"
    if rest := len(contents.copies) - len(shown):
        yield f"… and {rest} more"
    for what, sizes in (
        ("all of them, installed", [level.size for level in contents.levels]),
        ("all of them, packed", [level.packed_size for level in contents.levels]),
    ):
        yield f"{what:<{_PATH}}" + "".join(f"{sized(size):>11}" for size in sizes)


def _archs(portions: Iterable[Portion], width: int) -> str:
    """The architectures in *width* columns: all, or the first and the last, or how many there are."""
    archs = sorted({portion.sort.arch for portion in portions}, key=arch_order)
    names = [str(arch).removeprefix("sm_") for arch in archs]
    texts = (" ".join(names), f"{names[0]} … {names[-1]}" if names else "")
    return next((text for text in texts if len(text) <= width), f"{len(names)} kinds")


def _findings(contents: Contents) -> Iterator[str]:
    """What is worth knowing besides the sizes, if anything."""
    outlines = [library.outline for library in contents.libraries]
    if symbols := sum(outline.symbol_size + outline.debug_size for outline in outlines):
        debug = sum(outline.debug_size for outline in outlines)
        of_it = f", {sized(debug)} of it debug information" if debug else ""
        yield from finding("strip", f"{sized(symbols)} of symbols{of_it}")
    if pinned := sum(pinned.size for gpu in contents.gpu_codes for pinned in gpu.pinned):
        yield from finding("pinned", f"{sized(pinned)} of GPU code stays whatever GPUs are asked for")
    if contents.duplicates:
        what = f"{sized(contents.wasted)} in {counted(len(contents.duplicates), 'group')} of byte-identical files"
        yield from finding("twice", f"{what}; the largest: {' = '.join(contents.duplicates[0].paths[:2])}")
    if contents.archives:
        size = sum(archive.size for archive in contents.archives)
        what = f"{counted(len(contents.archives), 'archive')}, {sized(size)}"
        yield from finding("static", f"{what}; the largest: {contents.archives[0].path}")
    yield from finding("bundled", ", ".join(library.name for library in contents.bundled))
    # what the libraries need from outside that the platform of the tags does not promise
    found = [PlatformPolicy.parse(tag) for tag in {tag.rpartition("-")[2] for tag in contents.tags}]
    platforms = [platform for platform in found if platform]
    missing = (
        name
        for name in contents.wanted
        if not (pe.is_system(name) or macho.is_system(name) or any(platform.has(name) for platform in platforms))
    )
    yield from finding("needs", ", ".join(missing))
    yield from flaws(contents)


def flaws(contents: Contents) -> Iterator[str]:
    for damaged in contents.damaged:
        yield from finding("damaged", f"{damaged.path}: {damaged.why}")
    for library in contents.libraries:
        for note in (*library.outline.notes, *library.gpu.notes):
            yield from finding("note", f"{library.path}: {note}")
    for files in contents.device_files:
        for pinned in files.gpu.pinned:
            more = f" (and {files.files - 1} more)" if files.files > 1 else ""
            yield from finding("note", f"{files.first}{more}: {pinned.why}")
    for warning in contents.warnings:
        yield from finding("warning", warning)


def _gpu_details(library: LibraryContents, devices: Sequence[Device]) -> Iterator[str]:
    gpu = library.gpu
    share = percent(gpu.size, library.size)
    inside = f"{counted(gpu.containers, 'container')} with {counted(gpu.entries, 'entry')}"
    what = f"{sized(gpu.size)}, {share} of the file, in {inside}"
    yield from labelled("GPU code", what)
    if gpu.portions:
        columns = f"{'entries':>8}{'size':>10}{'expanded':>11}"
        yield f"    {'section':<15} {'for':<{_LABEL}} {'kind':<11} {'stored':<6}{columns}"
    for portion in gpu.portions:
        sort = portion.sort
        what = f"{shortened(sort.section, 15):<15} {sort.arch!s:<{_LABEL}} {sort.kind:<11} {sort.compression:<6}"
        yield f"    {what}{portion.entries:>8}{sized(portion.size):>10}{sized(portion.uncompressed_size):>11}"
    for pinned in gpu.pinned:
        where = f" in {pinned.section}" if pinned.section else ""
        yield from labelled("left alone", f"{sized(pinned.size)}, {pinned.count}{where}: {pinned.why}")
    # the GPUs that are served alike together
    outlooks = [gpu.outlook(device) for device in devices]
    for (runs, served), group in _alike(outlooks, lambda outlook: (outlook.runs, outlook.machine + outlook.jit)):
        total = served + group[0].nothing
        share = f" ({served} of {total} containers)" if 0 < served < total else ""
        yield from labelled("runs", f"{runs}: {_named(group)}{share}")


def _alike(outlooks: Iterable[Outlook], key: Callable[[Outlook], Key]) -> list[tuple[Key, list[Outlook]]]:
    """The *outlooks* that have the same *key* together, where the first of them stood."""
    found: dict[Key, list[Outlook]] = {}
    for outlook in outlooks:
        found.setdefault(key(outlook), []).append(outlook)
    return list(found.items())


def _named(outlooks: Iterable[Outlook]) -> str:
    """The GPUs of *outlooks*, the prefix of the first one standing for all: ``sm_80 86 89``."""
    first, *rest = (str(outlook.device) for outlook in outlooks)
    return " ".join([first, *(name.removeprefix("sm_") for name in rest)])


def labelled(name: str, text: str) -> Iterator[str]:
    """A line of the details, continued below itself; nothing without *text*."""
    if text:
        yield from wrapped(f"  {name:<11}", " " * 14, text)


def finding(name: str, text: str) -> Iterator[str]:
    if text:
        yield from wrapped(f"{name:<8}", " " * 9, text)


def wrapped(name: str, indent: str, *texts: str) -> Iterator[str]:
    lines = textwrap.wrap(f"{name} {' '.join(texts)}", WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return (line.replace(_GLUE, " ") for line in lines)
