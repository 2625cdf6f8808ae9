"""What is in a wheel, as one page that needs no network: a treemap, and what slimming to a GPU would take away.

contents -> a tree of wheel, library, section, architecture -> page.html.jinja with page.css and page.js inside
         -> cards of libraries, if their closure is known    -> closure.html.jinja, closure.css and closure.js

Only `vbuild.inspection.gpu_code` knows which code a GPU needs: the page only adds up its numbers. Its content
security policy lets nothing run or load but that one script and style sheet, whatever names are in the wheel.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vbuild.binary.linkage import Via
from vbuild.binary.outline import BinaryOutline, SizedSection
from vbuild.files.html import rendered
from vbuild.files.wording import counted, percent, sized
from vbuild.gpu_code.model import Vendor
from vbuild.hardware.architectures import Device
from vbuild.hardware.gpu import GpuCodeKind, arch_order
from vbuild.inspection.closure import Closure, ClosureRole, NeededLibrary, Node
from vbuild.inspection.closure_text import grouped, majors, officially, reasons_of, together
from vbuild.inspection.gpu_code import GpuCode, Sort
from vbuild.inspection.model import Contents, DeviceFiles, LibraryContents, Others

Box = dict[str, Any]
Card = dict[str, Any]

# the letter of each vendor's colours, and how many there are
_SCALES = {Vendor.NVIDIA: ("a", 12), Vendor.AMD: ("r", 6)}
# a section or a kind of file that takes less of its parent is shown with its like
_SMALLEST = 0.002
_CODE = (".text", ".plt", ".init", ".fini", "__TEXT,__text", "__TEXT,__stub")

# files of a closure that load the same share a card if there are so many; the card names the first
_ALIKE = 4
_SHOWN = 3
# what Python puts behind the name of an extension module
_TAG = re.compile(r"\.(cpython-\d+\w*|abi3|cp\d+\w*|pypy\d+-\w+|graalpy\w*-\w+)(-[\w-]+)?\.(so|pyd)$")
_AWAY = (Via.OUTSIDE, Via.DRIVER, Via.MISSING)
_ROWS = {Via.OUTSIDE: "Other packages", Via.DRIVER: "The driver", Via.MISSING: "Not found"}


def page(contents: Contents) -> str:
    """The HTML of *contents*."""
    names = ["page", "closure"] if contents.closure else ["page"]
    colours = _colours(contents)
    drawn = {
        "root": _root(contents, colours),
        "gpus": [outlook.data() for outlook in contents.outlooks],
        "installed": contents.size,
        "wheel": contents.wheel,
        **({"closure": ClosureDrawing(contents.closure).data()} if contents.closure else {}),
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
    """The class of each architecture's colour, from the oldest to the newest along a scale for each vendor."""
    archs = sorted({architecture.arch for architecture in contents.architectures}, key=arch_order)
    found: dict[str, str] = {}
    for vendor, (letter, colours) in _SCALES.items():
        mine = [arch for arch in archs if Vendor.of(arch) is vendor]
        generations = sorted({_generation(arch) for arch in mine}, key=arch_order)
        last = max(len(generations) - 1, 1)
        place = {generation: round(index * (colours - 1) / last) for index, generation in enumerate(generations)}
        found |= {str(arch): f"gpu {letter}{place[_generation(arch)]}" for arch in mine}
    return found


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
    return arch.device


def _root(contents: Contents, colours: Mapping[str, str]) -> Box:
    children = [_library(library, contents.devices, colours) for library in contents.libraries]
    children += [
        _leaf(posixpath.basename(item.path), item.size, "files", f"{item.path}, {note}") | {"packed": item.packed_size}
        for items, note in ((contents.damaged, "damaged"), (contents.archives, "static library"))
        for item in items
    ]
    if contents.device_files:
        groups = [_device_files(files, contents.devices, colours) for files in contents.device_files]
        children.append(
            _inner("device files", groups, counted(sum(one.files for one in contents.device_files), "file"))
        )
    if others := [*_others(contents)]:
        children.append(_inner("other files", others, "not compiled"))
    return _inner(f"{contents.project} {contents.version}", children)


def _others(contents: Contents) -> Iterator[Box]:
    least = _SMALLEST * sum(others.size for others in contents.others)
    small: list[Others] = []
    for others in contents.others:
        if others.size < least:
            small.append(others)
        elif others.size:
            yield _leaf(
                f"*{others.suffix}" if others.suffix else "no suffix",
                others.size,
                "files",
                counted(others.files, "file"),
            ) | {"packed": others.packed_size}
    if size := sum(others.size for others in small):
        packed = sum(others.packed_size for others in small)
        yield _leaf("others", size, "files", counted(sum(others.files for others in small), "file")) | {
            "packed": packed
        }


def _library(library: LibraryContents, devices: tuple[Device, ...], colours: Mapping[str, str]) -> Box:
    outline = library.outline
    if outline.halves:
        halves = [
            _inner(half.outline.machine, _sections(half.outline, half.size, library, devices, colours))
            for half in outline.halves
        ]
        rest = library.size - sum(half.size for half in outline.halves)
        children = [*halves, _leaf("other sections", rest, "data", "headers")]
    else:
        children = _sections(outline, library.size, library, devices, colours)
    name = f"{library.name} ({library.level})" if library.level else library.name
    node = _inner(name, children, f"{library.path}, {outline.machine} {outline.type}")
    return node | {"packed": library.packed_size}


def _sections(
    outline: BinaryOutline,
    size: int,
    library: LibraryContents,
    devices: tuple[Device, ...],
    colours: Mapping[str, str],
) -> list[Box]:
    """The sections of *outline*, which is all of *library* or half of it, of *size* bytes."""
    kept = library.gpu.shares(devices)
    children = []
    small: list[SizedSection] = []
    gpu_sections = {stack.section for stack in library.gpu.stacks}
    for section in outline.sections:
        if section.name in gpu_sections:
            children.append(_gpu_section(section, library.gpu, kept, colours))
        elif section.size < _SMALLEST * size:
            small.append(section)
        else:
            kinds = {"debug": section.is_debug, "symbols": section.is_symbols, "text": section.name.startswith(_CODE)}
            look = next((kind for kind, is_kind in kinds.items() if is_kind), "data")
            children.append(_leaf(section.name, section.size, look))
    rest = size - sum(child["size"] for child in children)
    if rest > 0:
        what = f"{len(small)} small sections, headers" if small else "headers"
        children.append(_leaf("other sections", rest, "data", what))
    return children


def _gpu_section(
    section: SizedSection, gpu: GpuCode, shares: Mapping[Sort, Sequence[tuple[int, ...]]], colours: Mapping[str, str]
) -> Box:
    children = [*_portions(gpu, section.name, shares, colours)]
    if (rest := section.size - sum(child["size"] for child in children)) > 0:
        children.append(_leaf("other contents", rest, "data"))
    return _inner(section.name, children, "GPU code")


def _portions(
    gpu: GpuCode, section: str, shares: Mapping[Sort, Sequence[tuple[int, ...]]], colours: Mapping[str, str]
) -> Iterator[Box]:
    """What is in *section* of each sort."""
    for portion in gpu.portions:
        sort = portion.sort
        if sort.section != section:
            continue
        entries = counted(portion.entries, "entry")
        note = f"{sort.kind}, {entries}, {sort.compression}, {sized(portion.uncompressed_size)} expanded"
        look = colours[str(sort.arch)] + ("" if sort.code is GpuCodeKind.MACHINE else " ptx")
        node = _leaf(f"{sort.arch} {sort.kind}", portion.size, look, note)
        node["short"] = str(sort.arch)
        node["shares"] = [[size, least, *map(hex, sets)] for size, least, *sets in shares[sort]]
        yield node


def _device_files(files: DeviceFiles, devices: tuple[Device, ...], colours: Mapping[str, str]) -> Box:
    """The *files* of a kind for the same GPUs, with what is in them."""
    children = [*_portions(files.gpu, "", files.gpu.shares(devices), colours)]
    if (rest := files.size - sum(child["size"] for child in children)) > 0:
        children.append(_leaf("headers", rest, "data"))
    name = f"{' '.join(map(str, files.archs))} {files.kind}"
    return _inner(name, children, f"{counted(files.files, 'file')}, such as {files.first}") | {
        "packed": files.packed_size
    }


def _leaf(name: str, size: int, look: str, note: str = "") -> Box:
    return {"name": name, "size": size, "look": look, "note": note}


def _inner(name: str, children: list[Box], note: str = "") -> Box:
    found = [child for child in children if child["size"] > 0]
    size = sum(child["size"] for child in found)
    # what is drawn too small to be opened has the colour of most of it
    look = max(found, key=lambda child: child["size"])["look"] if found else "data"
    return {"name": name, "size": size, "look": look, "note": note, "children": found}


def title(node: Node) -> str:
    """The name of *node* as short as it still differs from others: without hash, and without Python's own suffix."""
    return _TAG.sub("", node.original.name if node.original else node.name)


def depths(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many steps down each is by the longest way that goes through none twice; *needs* says what needs what."""
    order, closing = _walked(needs)
    found = dict.fromkeys(needs, 0)
    for name in reversed(order):
        for below in needs[name]:
            if (name, below) not in closing:
                found[below] = max(found[below], found[name] + 1)
    return found


def _walked(needs: Mapping[str, Sequence[str]]) -> tuple[list[str], set[tuple[str, str]]]:
    """Each name behind what it needs, and the pairs that close a circle."""
    order: list[str] = []
    closing: set[tuple[str, str]] = set()
    begun: dict[str, Iterator[str]] = {}
    done: set[str] = set()
    needed = {below for several in needs.values() for below in several}
    # a circle that nothing else needs has no beginning: any of it will do
    for root in sorted(needs, key=lambda name: (name in needed, name)):
        way = [] if root in begun else [root]
        while way:
            name = way[-1]
            below = next(begun.setdefault(name, iter(needs[name])), None)
            if below is None:
                order.append(way.pop())
                done.add(name)
            elif below not in begun:
                way.append(below)
            elif below not in done:
                closing.add((name, below))
    return order, closing


class ClosureDrawing:
    """The closure of a wheel as cards in rows, which the page's script draws and joins; numbered as they are made.

    Rows of cards: modules and programs, what nothing needs, what they load, step by step, what is not here. A row is
    as far down as the longest way to it. Files that Python loads and that load the same have a card together.
    """

    def __init__(self, closure: Closure) -> None:
        self._closure = closure
        self._nodes = {node.path: node for node in closure.nodes}
        self._needed = {need.provider for _, need in closure.edges}
        self._opened = closure.opened
        self._idle = {node.path for node in closure.unneeded}
        self._cards: list[Card] = []
        self._of_path: dict[str, int] = {}
        self._of_away: dict[tuple[Via, str], int] = {}

    def data(self) -> dict[str, Any]:
        """The rows, the cards and their links as the script takes them; each card with the chains that lead to it."""
        rows = [
            *self._rows_here(),
            *({"label": label, "cards": cards} for via, label in _ROWS.items() if (cards := self._away(via))),
        ]
        # who needs what is not in the wheel, by the card of that
        consumers: dict[int, dict[str, Node]] = {}
        for node in self._closure.nodes:
            for need in _drawn_needs(node):
                if not need.provider:
                    consumers.setdefault(self._card_for(need), {})[node.path] = node
        for card in self._cards:
            card["chains"] = [*dict.fromkeys(self._chains(card, consumers.get(card["id"], {}).values()))]
        return {"rows": rows, "cards": self._cards, "links": [*self._links()]}

    def _rows_here(self) -> Iterator[Card]:
        needs = {
            node.path: [need.provider for need in node.needs if need.provider and need.provider != node.path]
            for node in self._closure.nodes
        }
        levels = depths(needs)
        first = [node for node in self._closure.nodes if node.path not in self._needed]
        starting = [node for node in first if node.role is not ClosureRole.LIBRARY]
        idle = [node for node in first if node.role is ClosureRole.LIBRARY]
        if starting:
            yield {"label": "Modules and programs", "cards": [*self._together(starting)]}
        if idle:
            yield {"label": "Needed by nothing here", "cards": [*self._together(idle)]}
        rest = [node for node in self._closure.nodes if node.path in self._needed]
        for level in sorted({levels[node.path] for node in rest}):
            row = [node for node in rest if levels[node.path] == level]
            label = "They load" if level <= 1 else f"{level} steps down"
            yield {"label": label, "cards": [self._card_of([node]) for node in self._ordered(row)]}

    def _together(self, nodes: Iterable[Node]) -> Iterator[int]:
        """The cards of *nodes*, those that load the same and are many on one card."""
        groups: dict[tuple[str, ...], list[Node]] = {}
        for node in nodes:
            named = node.path if node.path in self._opened or node.opens else ""
            groups.setdefault((named, *sorted(map(_target, _drawn_needs(node)))), []).append(node)
        for group in groups.values():
            for several in [group] if len(group) >= _ALIKE else [[node] for node in group]:
                yield self._card_of(several)

    def _ordered(self, row: Iterable[Node]) -> list[Node]:
        """The *row* so that each stands about where those stand that need it."""
        places: dict[str, list[int]] = {}
        for node, need in self._closure.edges:
            if node.path in self._of_path:
                places.setdefault(str(need.provider), []).append(self._of_path[node.path])
        mean = {path: sum(found) / len(found) for path, found in places.items()}
        return sorted(row, key=lambda node: (mean.get(node.path, 0), node.path))

    def _card_of(self, nodes: Sequence[Node]) -> int:
        number = len(self._cards)
        self._of_path.update(dict.fromkeys((node.path for node in nodes), number))
        first, *rest = nodes
        size = sum(node.linked.size for node in nodes)
        look = "idle" if first.path in self._idle else str(first.role)
        card: Card = {"id": number, "look": look, "size": size, "files": [self._file(node) for node in nodes]}
        if rest:
            names = ", ".join(title(node) for node in nodes[:_SHOWN])
            card |= {"title": counted(len(nodes), str(first.role)), "note": f"{names} …"}
        else:
            card |= {"title": title(first), "note": ""}
        self._cards.append(card)
        return number

    def _file(self, node: Node) -> dict[str, Any]:
        facts = {"SONAME": node.loading.outline.soname if node.loading.outline.soname != node.name else None}
        if node.original:
            facts["Hash"] = node.original.digest
        if node.officials:
            cuda = majors(node.officials)
            facts["Library of"] = officially(node.officials) + (f", {cuda}" if cuda else "")
        promised = len(node.via(Via.PLATFORM))
        facts["Platform's"] = counted(promised, "library") if promised else None
        facts["May open"] = ", ".join(node.mentioned)
        facts["Opened by"] = ", ".join(self._opened.get(node.path, ()))
        facts["Also in"] = ", ".join(node.also_in)
        return {
            "path": node.path,
            "name": title(node),
            "size": node.linked.size,
            "facts": {name: text for name, text in facts.items() if text},
        }

    def _away(self, via: Via) -> list[int]:
        """The cards of what is not in the wheel and is come to in that way."""
        found: dict[str, dict[str, NeededLibrary]] = {}
        for node in self._closure.nodes:
            for need in node.via(via):
                found.setdefault(_target(need), {})[need.name] = need
        numbers = []
        for target, needs in sorted(found.items()):
            number = self._of_away[via, target] = len(self._cards)
            officials = next(iter(needs.values())).projects
            names = [*together(needs)]
            self._cards.append(
                {
                    "id": number,
                    "look": {Via.OUTSIDE: "outside", Via.DRIVER: "driver"}.get(via, "missing"),
                    "title": officials[0].project if len(officials) == 1 else ", ".join(names),
                    "note": ", ".join(names) if len(officials) == 1 else officially(officials),
                    "cuda": majors(officials),
                    "size": None,
                    "files": [],
                }
            )
            numbers.append(number)
        return numbers

    def _links(self) -> Iterator[dict[str, Any]]:
        """Who loads what, once for two cards: how, and under which names."""
        found: dict[tuple[int, int, str], list[str]] = {}
        for node in self._closure.nodes:
            here = self._of_path[node.path]
            for need in _drawn_needs(node):
                found.setdefault((here, self._card_for(need), str(need.via)), []).append(need.name)
            for path in node.opens:
                found.setdefault((here, self._of_path[path], "opens"), []).append(self._nodes[path].name)
        for (start, end, via), names in found.items():
            yield {"from": start, "to": end, "via": via, "names": [*dict.fromkeys(names)]}

    def _card_for(self, need: NeededLibrary) -> int:
        return self._of_path[need.provider] if need.provider else self._of_away[need.via, _target(need)]

    def _chains(self, card: Card, consumers: Iterable[Node]) -> Iterator[tuple[int, ...]]:
        """The chains of cards down to *card*, which *consumers* need, the shortest of each that it begins with."""
        if card["files"]:
            for file in card["files"]:
                for chain in self._closure.chains(file["path"]):
                    if len(chain) > 1:
                        yield tuple(dict.fromkeys(self._of_path[path] for path in chain))
            return
        # those that only need each other have no chain
        above = [next(iter(self._closure.chains(node.path)), (node.path,)) for node in consumers]
        yield (*dict.fromkeys(self._of_path[path] for path in min(above, key=len)), card["id"])


def _drawn_needs(node: Node) -> list[NeededLibrary]:
    """What *node* needs of what is drawn: all but itself and the platform's."""
    return [need for need in node.needs if need.provider != node.path and (need.provider or need.via in _AWAY)]


def _target(need: NeededLibrary) -> str:
    """What stands for *need* in the drawing: the file, the package, or the driver."""
    if need.provider:
        return need.provider
    if need.via is Via.DRIVER:
        return ""
    return need.projects[0].project if len(need.projects) == 1 else need.name.partition(".so")[0]
