"""What is in a wheel, for a terminal of 80 columns.

summary(contents)               one screen: where the bytes are, and for which GPUs
details(library, devices)       all that is known of one library
change_lines(old, new)          what is larger, smaller, new or gone in a later wheel
closure_lines(contents, globs)  what each file needs and where that is, and why each library is there
repeat_lines(contents)          what several wheels have byte for byte
"""

import posixpath
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from vbuild.binary.linkage import Via
from vbuild.binary.outline import BinaryOutline, Format
from vbuild.elf.catalogue import platforms_in
from vbuild.files.wording import WIDTH, counted, percent, shortened, shown, sized
from vbuild.gpu_code.coverage import Runs
from vbuild.hardware.architectures import Device
from vbuild.hardware.gpu import arch_order
from vbuild.inspection.closure import HERE, Closure, ClosureRole, NeededLibrary, Node, Official, repeats
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
_NODE_KIND, _NODE_SIZE = 8, 10
_NODE_PATH = WIDTH - _NODE_KIND - _NODE_SIZE - 1
_NAMES = 6
_REPEAT = 41
_MOST_CHAINS = 5  # that a closure gives of one library
_LABELS = {
    Via.OWN: "own path",
    Via.INHERITED: "inherited",
    Via.ADDED: "added",
    Via.NAME: "if loaded",
    Via.OUTSIDE: "elsewhere",
    Via.DRIVER: "driver",
    Via.MISSING: "missing",
}
_WHERE = {
    Via.OUTSIDE: "of other packages",
    Via.DRIVER: "of the driver",
    Via.PLATFORM: "of the platform",
    Via.MISSING: "missing",
}


def summary(contents: Contents) -> Iterator[str]:
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
        yield from _labelled("note", note)


def _facts(outline: BinaryOutline) -> Iterator[str]:
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
        yield from _labelled(label, text)


def change_lines(old: Contents, new: Contents) -> Iterator[str]:
    changes = new.changes_from(old)
    yield f"{new.project} {old.version} -> {new.version}: {counted(len(changes), 'change')} of size or GPU code"
    sizes = f"{sized(old.packed_size)} -> {sized(new.packed_size)} packed"
    yield f"  {sizes}, {sized(old.size)} -> {sized(new.size)} installed"
    if changes:
        yield f"{'changed':<{_PATH}}{'before':>11}{'after':>11}{'change':>11}"
    for change in changes[:_ROWS]:
        before, after = ("-" if size is None else sized(size) for size in (change.before, change.after))
        growth = f"{'+' if change.growth > 0 else '-'}{sized(abs(change.growth))}" if change.growth else "-"
        yield f"{shortened(change.path, _PATH):<{_PATH}}{before:>11}{after:>11}{growth:>11}"
        yield from _labelled("also for", ", ".join(change.gained))
        yield from _labelled("not for", ", ".join(change.lost))
    if rest := changes[_ROWS:]:
        yield f"… and {len(rest)} more"


def _head(contents: Contents) -> Iterator[str]:
    yield from _wrapped(f"{contents.project} {contents.version}", "  ", *contents.tags)
    count = f"{counted(contents.files, 'file')}, {counted(len(contents.libraries), 'library')}"
    yield f"{sized(contents.packed_size)} packed, {sized(contents.size)} installed, {count}"
    if contents.gpu_codes:
        alone = sum(files.files for files in contents.device_files)
        places = (len(contents.gpu_libraries), "library"), (alone, "device file")
        where = " and ".join(counted(*place) for place in places if place[0])
        yield f"{sized(contents.gpu_size)} GPU code: {percent(contents.gpu_size, contents.size)} of it, in {where}"
    yield from _wrapped("licence", " " * 9, str(contents.licence))
    if contents.forbidden:
        licence = f"forbids changes: slim refuses without --accept-license {contents.project}; {contents.forbidden}"
        yield from _wrapped(" " * 8, " " * 9, licence)
    if contents.variant:
        yield from _wrapped("variant", " " * 9, str(contents.variant))
    if contents.bill:
        yield from _wrapped("SBOM", " " * 9, bill_line(contents.bill))


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
        name = f"{architecture.arch!s:<{_LABEL}} {architecture.kind:<11}"
        yield f"{name}{sized(size):>10}{percent(size, total):>7}{architecture.entries:>9}  {stored:<9} {bar}".rstrip()
    if rest := len(architectures) - len(shown):
        size = total - sum(architecture.size for architecture in shown)
        yield f"{f'… and {rest} more':<{_LABEL + 12}}{sized(size):>10}{percent(size, total):>7}"


def _gpu_table(contents: Contents) -> Iterator[str]:
    yield f"{'GPU':<{_GPUS}} {'code runs':<14}{'needs':>10}   slimming saves"
    groups = _alike(contents.outlooks, lambda outlook: (outlook.coverage.how, outlook.kept))
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
    yield from _rest(contents.libraries[len(shown) :], "more")


def _device_table(groups: Sequence[DeviceFiles]) -> Iterator[str]:
    yield f"{'device files':<{_PATH}}{'installed':>11}{'packed':>10}{'files':>7}  such as"
    for group in groups[:_ROWS]:
        names = " ".join([str(arch) for arch in group.archs[:_SHOWN]])
        name = shortened(f"{group.kind} for {names}" if names else group.kind, _PATH)
        line = f"{name:<{_PATH}}{sized(group.size):>11}{sized(group.packed_size):>10}{group.files:>7}  "
        yield f"{line}{shortened(group.first, max(WIDTH - len(line), 12))}"
    yield from _rest(groups[_ROWS:], "kinds more")


def _rest(left: Sequence[LibraryContents | DeviceFiles], what: str) -> Iterator[str]:
    if left:
        size, packed = sum(each.size for each in left), sum(each.packed_size for each in left)
        yield f"{f'… and {len(left)} {what}':<{_PATH}}{sized(size):>11}{sized(packed):>10}"


def _level_table(contents: Contents) -> Iterator[str]:
    levels = [level.level for level in contents.levels]
    yield f"{'for CPU level':<{_PATH}}" + "".join(f"{level:>11}" for level in levels)
    shown = sorted(contents.copies, key=lambda copies: -sum(copy.size for copy in copies.copies))[:_SHOWN]
    for copies in shown:
        by_level = map(copies.at, levels)
        columns = "".join(f"{sized(copy.size) if copy else '-':>11}" for copy in by_level)
        yield f"{shortened(copies.path, _PATH):<{_PATH}}{columns}"
    if rest := len(contents.copies) - len(shown):
        yield f"… and {rest} more"
    for name, sizes in (
        ("all of them, installed", [level.size for level in contents.levels]),
        ("all of them, packed", [level.packed_size for level in contents.levels]),
    ):
        yield f"{name:<{_PATH}}" + "".join(f"{sized(size):>11}" for size in sizes)


def _archs(portions: Iterable[Portion], width: int) -> str:
    """The architectures in *width* columns: all, the first and the last, or their number."""
    archs = sorted({portion.sort.arch for portion in portions}, key=arch_order)
    names = [str(arch).removeprefix("sm_") for arch in archs]
    texts = (" ".join(names), f"{names[0]} … {names[-1]}" if names else "")
    return next((text for text in texts if len(text) <= width), f"{len(names)} kinds")


def _findings(contents: Contents) -> Iterator[str]:
    outlines = [library.outline for library in contents.libraries]
    if symbols := sum(outline.symbol_size + outline.debug_size for outline in outlines):
        debug = sum(outline.debug_size for outline in outlines)
        part = f", {sized(debug)} of it debug information" if debug else ""
        yield from _finding("strip", f"{sized(symbols)} of symbols{part}")
    if pinned := sum(pinned.size for gpu in contents.gpu_codes for pinned in gpu.pinned):
        yield from _finding("pinned", f"{sized(pinned)} of GPU code stays whatever GPUs are asked for")
    if contents.duplicates:
        groups = f"{sized(contents.wasted)} in {counted(len(contents.duplicates), 'group')} of byte-identical files"
        yield from _finding("twice", f"{groups}; the largest: {' = '.join(contents.duplicates[0].paths[:2])}")
    if contents.archives:
        size = sum(archive.size for archive in contents.archives)
        archives = f"{counted(len(contents.archives), 'archive')}, {sized(size)}"
        yield from _finding("static", f"{archives}; the largest: {contents.archives[0].path}")
    yield from _finding("bundled", ", ".join(library.name for library in contents.bundled))
    # needed from outside, and not promised by the platform of the tags
    platforms = platforms_in(".".join(tag.rpartition("-")[2] for tag in contents.tags))
    missing = (
        name
        for name in contents.wanted
        if not (pe.is_system(name) or macho.is_system(name) or any(platform.has(name) for platform in platforms))
    )
    yield from _finding("needs", ", ".join(missing))
    yield from _flaws(contents)


def _flaws(contents: Contents) -> Iterator[str]:
    for flaw in contents.flaws:
        yield from _finding(flaw.label, str(flaw))


def _gpu_details(library: LibraryContents, devices: Sequence[Device]) -> Iterator[str]:
    gpu = library.gpu
    share = percent(gpu.size, library.size)
    inside = f"{counted(gpu.containers, 'container')} with {counted(gpu.entries, 'entry')}"
    yield from _labelled("GPU code", f"{sized(gpu.size)}, {share} of the file, in {inside}")
    if gpu.portions:
        columns = f"{'entries':>8}{'size':>10}{'expanded':>11}"
        yield f"    {'section':<15} {'for':<{_LABEL}} {'kind':<11} {'stored':<6}{columns}"
    for portion in gpu.portions:
        sort = portion.sort
        name = f"{shortened(sort.section, 15):<15} {sort.arch!s:<{_LABEL}} {sort.kind:<11} {sort.compression:<6}"
        yield f"    {name}{portion.entries:>8}{sized(portion.size):>10}{sized(portion.uncompressed_size):>11}"
    for pinned in gpu.pinned:
        where = f" in {pinned.section}" if pinned.section else ""
        yield from _labelled("left alone", f"{sized(pinned.size)}, {pinned.count}{where}: {pinned.why}")
    outlooks = [outlook for device in devices if (outlook := gpu.outlook(device)).runs]
    for (runs, share), group in _alike(outlooks, lambda outlook: (outlook.runs, outlook.coverage.share)):
        yield from _labelled("runs", f"{runs}: {_named(group)}" + (f" ({share})" if runs is Runs.IN_PART else ""))


def _alike(outlooks: Iterable[Outlook], key: Callable[[Outlook], Key]) -> list[tuple[Key, list[Outlook]]]:
    """The *outlooks* grouped by *key*, in the order of each group's first."""
    groups: dict[Key, list[Outlook]] = {}
    for outlook in outlooks:
        groups.setdefault(key(outlook), []).append(outlook)
    return list(groups.items())


def _named(outlooks: Iterable[Outlook]) -> str:
    first, *rest = (str(outlook.device) for outlook in outlooks)
    return " ".join([first, *(name.removeprefix("sm_") for name in rest)])


def _labelled(name: str, text: str) -> Iterator[str]:
    if text:
        yield from _wrapped(f"  {name:<11}", " " * 14, text)


def _finding(name: str, text: str) -> Iterator[str]:
    if text:
        yield from _wrapped(f"{name:<8}", " " * 9, text)


def _wrapped(name: str, indent: str, *texts: str) -> Iterator[str]:
    lines = textwrap.wrap(f"{name} {' '.join(texts)}", WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return (line.replace(_GLUE, " ") for line in lines)


def closure_lines(contents: Contents, globs: Sequence[str] = ()) -> Iterator[str]:
    """The closure of the wheel; with *globs*, of the files whose paths match one, with all their chains."""
    closure = closure_of(contents)
    yield from _closure_head(contents, closure)
    chosen = [node for node in closure.nodes if not globs or any(fnmatchcase(node.path, glob) for glob in globs)]
    if globs and not chosen:
        yield f"no library matches {' or '.join(globs)}"
    for node in chosen:
        yield ""
        yield from _node_lines(closure, node, whole=bool(globs))
    if not globs and (rest := [*_closure_findings(contents, closure)]):
        yield ""
        yield from rest


def repeat_lines(several: Sequence[Contents]) -> Iterator[str]:
    """The libraries that *several* wheels repeat, what repeats most first; nothing for one wheel."""
    if len(several) == 1:
        return
    packed = sum(contents.packed_size for contents in several)
    repeated = repeats((contents.wheel, closure_of(contents)) for contents in several)
    wheels = f"{counted(len(several), 'wheel')}, {sized(packed)}"
    if not repeated:
        yield f"{wheels}: no library is in two of them byte for byte"
        return
    yield f"{'in several wheels, byte for byte':<{_REPEAT}}{'installed':>10}{'packed':>10}{'wheels':>8}{'repeated':>11}"
    for repeat in repeated:
        first, *rest = repeat.names
        name = shortened(f"{first} (+{len(rest)})" if rest else first, _REPEAT - 1)
        sizes = f"{sized(repeat.size):>10}{sized(max(repeat.packed)):>10}"
        yield f"{name:<{_REPEAT}}{sizes}{len(repeat.wheels):>8}{sized(repeat.repeated):>11}"
    total = sum(repeat.repeated for repeat in repeated)
    yield f"{f'all {len(repeated)}':<{_REPEAT}}{'':>28}{sized(total):>11}"
    yield f"{wheels}: {percent(total, packed)} of that is repeated; see `vbuild split`"


def closure_of(contents: Contents) -> Closure:
    if contents.closure is None:
        raise ValueError(f"{contents.wheel}: inspected without its closure")
    return contents.closure


def _projects(officials: Iterable[Official]) -> str:
    """The projects, the highest major of CUDA first: ``nvidia-cufft, nvidia-cufft-cu12 (CUDA 13, 12)``."""
    ordered = sorted(officials, key=lambda official: (-(official.cuda or 0), official.project))
    majors = f",{_GLUE}".join(str(cuda) for cuda in dict.fromkeys(official.cuda for official in ordered) if cuda)
    return ", ".join(official.project for official in ordered) + (f" (CUDA{_GLUE}{majors})" if majors else "")


def grouped(needs: Iterable[NeededLibrary]) -> Iterator[str]:
    """The needed names, grouped by project: ``torch: libc10.so, libtorch.so``."""
    names: dict[tuple[Official, ...], list[str]] = {}
    for need in needs:
        file = posixpath.basename(need.provider or need.name)
        name = posixpath.basename(need.name)
        names.setdefault(need.projects, []).append(name if file == name else f"{need.name}{_GLUE}({file})")
    for projects, group in names.items():
        owner = f"{_projects(projects)}: " if projects else ""
        yield owner + ", ".join(group)


def reasons_of(closure: Closure, node: Node, *, whole: bool = True) -> Iterator[str]:
    """Why the library *node* is there: the chains that load it, else the files that name it; all if *whole*."""
    chains = [chain for chain in closure.chains(node.path) if len(chain) > 1]
    yield from (" > ".join(map(posixpath.basename, chain)) for chain in chains)
    if not chains:
        openers = closure.openers(node.path)
        names = shown(openers, len(openers) if whole else _NAMES)
        yield f"opened by name: {names}" if openers else "nothing needs it, and nothing names it"


def together(names: Iterable[str]) -> Iterator[str]:
    """The *names*, those that differ only in their version as one: ``libx.so.1 2 10``."""
    versions: dict[str, list[str]] = {}
    for name in names:
        stem, _, version = name.rpartition(".so.")
        versions.setdefault(f"{stem}.so." if stem else name, []).append(version if stem else "")
    for stem, group in sorted(versions.items()):
        yield stem + _GLUE.join(sorted(group, key=lambda version: (len(version), version)))


def _closure_head(contents: Contents, closure: Closure) -> Iterator[str]:
    yield from _wrapped(f"{contents.project} {contents.version}", "  ", *contents.tags)
    if not closure.nodes:
        yield "no file that a loader loads"
        return
    roles = Counter(node.role for node in closure.nodes)
    kinds = ", ".join(counted(roles[role], str(role)) for role in ClosureRole if roles[role])
    size = sized(sum(node.linked.size for node in closure.nodes))
    yield f"{size} that the loader loads: {kinds}{f'; CUDA {closure.cuda}' if closure.cuda else ''}"
    names = {need.name: need.via for node in closure.nodes for need in node.needs}
    ways = Counter("here" if via in HERE else _WHERE[via] for via in names.values())
    where = (f"{ways[way]} {way}" for way in ("here", *_WHERE.values()) if ways[way])
    if names:
        yield from _wrapped(f"{counted(len(names), 'name')} needed:", "  ", ", ".join(where))


def _node_lines(closure: Closure, node: Node, *, whole: bool) -> Iterator[str]:
    """One file: a line, then one for each fact; all its chains if *whole*."""
    kind, size = f"{node.role:<{_NODE_KIND}}", f"{sized(node.linked.size):>{_NODE_SIZE}}"
    yield f"{shortened(node.path, _NODE_PATH):<{_NODE_PATH}} {kind}{size}"
    outline = node.loading.outline
    origin = f", a library of {_projects(node.officials)}" if node.officials else ""
    yield from _labelled(
        "SONAME" if outline.format is Format.ELF else "own name",
        outline.soname if outline.soname and outline.soname != node.name else "",
    )
    if node.original:
        yield from _labelled("bundled", f"{node.original.name}, hash {node.original.digest}{origin}")
    elif origin:
        yield from _labelled("bundled", node.name + origin)
    for via, label in _LABELS.items():
        yield from _labelled(label, "; ".join(grouped(node.via(via))))
    if promised := len(node.via(Via.PLATFORM)):
        yield from _labelled("platform", counted(promised, "library"))
    yield from _labelled("may open", shown(node.mentioned, len(node.mentioned) if whole else _NAMES))
    if node.role is not ClosureRole.LIBRARY:
        return
    reasons = [*reasons_of(closure, node, whole=whole)]
    for reason in reasons if whole else reasons[:1]:
        yield from _labelled("why", reason)
    if (rest := len(reasons) - 1) > 0 and not whole:
        is_all = len(reasons) < _MOST_CHAINS
        yield from _labelled("", f"and {counted(rest, 'chain')} more" if is_all else f"and {rest} chains or more")


def _closure_findings(contents: Contents, closure: Closure) -> Iterator[str]:
    missing = {need.name for node in closure.nodes for need in node.via(Via.MISSING)}
    yield from _finding("missing", ", ".join(together(missing)))
    if unneeded := closure.unneeded:
        size = sized(sum(node.linked.size for node in unneeded))
        count = f"{counted(len(unneeded), 'library')}, {size}, that nothing needs or names"
        yield from _finding("idle", f"{count}: {shown([node.name for node in unneeded], _NAMES)}")
    yield from _flaws(contents)
