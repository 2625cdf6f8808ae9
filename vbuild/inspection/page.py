"""What is in a wheel, as one page that needs no network: a treemap, and what slimming to a GPU would take away.

contents -> a tree of wheel, library, section, architecture -> page.html.jinja with page.css and page.js inside
         -> rows of libraries, if their closure is known     -> closure.html.jinja, closure.css and closure.js

Only `vbuild.inspection.gpu_code` knows which code a GPU needs: the page only adds up its numbers. Its content
security policy lets nothing run or load but that one script and style sheet, whatever names are in the wheel.
"""

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from vbuild.elf.layout import Section
from vbuild.files.html import rendered
from vbuild.gpu_code.model import GpuTarget
from vbuild.hardware.gpu import GpuCodeKind
from vbuild.inspection import closure_page as closurepage
from vbuild.inspection.closure_text import grouped, reasons_of, together
from vbuild.inspection.gpu_code import Device, GpuCode, Sort, arch_order
from vbuild.inspection.model import Contents, LibraryContents, Others
from vbuild.inspection.text import counted, percent, sized

Node = dict[str, Any]

_COLOURS = 12
# a section or a kind of file that takes less of its parent is shown with its like
_SMALLEST = 0.002
_CODE = (".text", ".plt", ".init", ".fini")


def page(contents: Contents) -> str:
    """The HTML of *contents*."""
    names = ["page", "closure"] if contents.closure else ["page"]
    colours = _colours(contents)
    drawn = {
        "root": _root(contents, colours),
        "gpus": [outlook.data() for outlook in contents.outlooks],
        "installed": contents.size,
        **({"closure": closurepage.drawn(contents.closure)} if contents.closure else {}),
    }
    return rendered(
        "vbuild.inspection",
        "page.html.jinja",
        styles=[f"{name}.css" for name in names],
        scripts=[f"{name}.js" for name in ("common", *names)],
        filters={"sized": sized},
        contents=contents,
        closure=contents.closure,
        grouped=grouped,
        together=together,
        reasons_of=reasons_of,
        drawn=drawn,
        colours=colours,
        legend=_legend(colours),
        percent=percent,
    )


def _colours(contents: Contents) -> dict[str, str]:
    """The class of each architecture's colour, from the oldest to the newest along one scale."""
    archs = sorted({architecture.arch for architecture in contents.architectures}, key=arch_order)
    generations = sorted({_generation(arch) for arch in archs}, key=arch_order)
    last = max(len(generations) - 1, 1)
    place = {generation: round(index * (_COLOURS - 1) / last) for index, generation in enumerate(generations)}
    return {str(arch): f"gpu a{place[_generation(arch)]}" for arch in archs}


def _legend(colours: Mapping[str, str]) -> dict[str, str]:
    """The architectures of each colour in one text: ``sm_90 90a``."""
    found: dict[str, list[str]] = {}
    for arch, look in colours.items():
        found.setdefault(look, []).append(arch)
    return {
        look: " ".join([first, *(arch.removeprefix("sm_") for arch in rest)]) for look, (first, *rest) in found.items()
    }


def _generation(arch: Device) -> Device:
    """What has a colour of its own: sm_90 and sm_90a share one."""
    return GpuTarget(arch.processor) if isinstance(arch, GpuTarget) else arch.device


def _root(contents: Contents, colours: Mapping[str, str]) -> Node:
    children = [_library(library, contents.devices, colours) for library in contents.libraries]
    children += [
        _leaf(posixpath.basename(item.path), item.size, "files", f"{item.path}, {note}")
        for items, note in ((contents.damaged, "damaged"), (contents.archives, "static library"))
        for item in items
    ]
    if others := [*_others(contents)]:
        children.append(_inner("other files", others, "not compiled"))
    return _inner(f"{contents.project} {contents.version}", children)


def _others(contents: Contents) -> Iterator[Node]:
    least = _SMALLEST * sum(others.size for others in contents.others)
    small: list[Others] = []
    for others in contents.others:
        if others.size < least:
            small.append(others)
        elif others.size:
            yield _leaf(
                f"*{others.suffix}" if others.suffix else "no suffix", others.size, "files", _files(others.files)
            )
    if size := sum(others.size for others in small):
        yield _leaf("others", size, "files", _files(sum(others.files for others in small)))


def _files(number: int) -> str:
    return f"{number} file" if number == 1 else f"{number} files"


def _library(library: LibraryContents, devices: tuple[Device, ...], colours: Mapping[str, str]) -> Node:
    sections = library.outline.sections
    kept = {device: library.gpu.kept(device) for device in devices}
    children = []
    small: list[Section] = []
    gpu_sections = {stack.section for stack in library.gpu.stacks}
    for section in sections:
        if section.name in gpu_sections:
            children.append(_gpu_section(section, library.gpu, kept, colours))
        elif section.size < _SMALLEST * library.size:
            small.append(section)
        else:
            children.append(_leaf(section.name, section.size, _look(section)))
    rest = library.size - sum(child["size"] for child in children)
    if rest > 0:
        what = f"{len(small)} small sections, headers" if small else "headers"
        children.append(_leaf("other sections", rest, "data", what))
    name = f"{library.name} ({library.level})" if library.level else library.name
    return _inner(name, children, f"{library.path}, {library.outline.machine} {library.outline.type}")


def _gpu_section(
    section: Section, gpu: GpuCode, kept: Mapping[Device, Mapping[Sort, int]], colours: Mapping[str, str]
) -> Node:
    children = []
    for portion in gpu.portions:
        sort = portion.sort
        if sort.section != section.name:
            continue
        entries = counted(portion.entries, "entry")
        note = f"{sort.kind}, {entries}, {sort.compression}, {sized(portion.uncompressed_size)} expanded"
        look = colours[str(sort.arch)] + ("" if sort.code is GpuCodeKind.MACHINE else " ptx")
        node = _leaf(f"{sort.arch} {sort.kind}", portion.size, look, note)
        node["kept"] = {str(device): sizes.get(sort, 0) for device, sizes in kept.items()}
        children.append(node)
    if (rest := section.size - sum(child["size"] for child in children)) > 0:
        children.append(_leaf("other contents", rest, "data"))
    return _inner(section.name, children, "GPU code")


def _look(section: Section) -> str:
    """The class of the colour of a section that is not GPU code."""
    if section.is_debug:
        return "debug"
    if section.is_symbols:
        return "symbols"
    return "text" if section.name.startswith(_CODE) else "data"


def _leaf(name: str, size: int, look: str, note: str = "") -> Node:
    return {"name": name, "size": size, "look": look, "note": note}


def _inner(name: str, children: list[Node], note: str = "") -> Node:
    found = [child for child in children if child["size"] > 0]
    size = sum(child["size"] for child in found)
    # what is drawn too small to be opened has the colour of most of it
    look = max(found, key=lambda child: child["size"])["look"] if found else "data"
    return {"name": name, "size": size, "look": look, "note": note, "children": found}
