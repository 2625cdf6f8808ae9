"""Which library of a wheel loads which, for a terminal of 80 columns.

closure_lines(contents, globs) -> lines    what each file needs and where that is, and why each library is there
repeat_lines(contents) -> lines            what several wheels have byte for byte
"""

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from vbuild.binary.linkage import Via
from vbuild.binary.outline import Format
from vbuild.files.wording import WIDTH, counted, percent, sized
from vbuild.inspection.closure import HERE, Closure, ClosureRole, NeededLibrary, Node, Official, repeats
from vbuild.inspection.model import Contents
from vbuild.inspection.text import finding, flaws, labelled, shortened, wrapped

_KIND, _SIZE = 8, 10
_PATH = WIDTH - _KIND - _SIZE - 1
_SHOWN = 6
_REPEAT = 41
_MANY = 4
# no line is broken in the middle of what such spaces hold together
_GLUE = "\N{NO-BREAK SPACE}"
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


def closure_lines(contents: Contents, globs: Sequence[str] = ()) -> Iterator[str]:
    """The closure of the wheel; of the files whose paths match one of *globs*, with all their chains, if any are given.

    *contents* were inspected with their closure.
    """
    closure = closure_of(contents)
    yield from _head(contents, closure)
    chosen = [node for node in closure.nodes if not globs or any(fnmatchcase(node.path, glob) for glob in globs)]
    if globs and not chosen:
        yield f"no library matches {' or '.join(globs)}"
    for node in chosen:
        yield ""
        yield from _node_lines(closure, node, whole=bool(globs))
    if rest := [*_findings(contents, closure)] if not globs else []:
        yield ""
        yield from rest


def repeat_lines(several: Sequence[Contents]) -> Iterator[str]:
    """The libraries that *several* wheels repeat, what repeats most first; nothing for one wheel."""
    if len(several) < 2:  # noqa: PLR2004 - one cannot repeat another
        return
    packed = sum(contents.packed_size for contents in several)
    found = repeats((contents.wheel, closure_of(contents)) for contents in several)
    wheels = counted(len(several), "wheel")
    if not found:
        yield f"{wheels}, {sized(packed)}: no library is in two of them byte for byte"
        return
    yield f"{'in several wheels, byte for byte':<{_REPEAT}}{'installed':>10}{'packed':>10}{'wheels':>8}{'repeated':>11}"
    for repeat in found:
        first, *rest = repeat.names
        name = shortened(f"{first} (+{len(rest)})" if rest else first, _REPEAT - 1)
        sizes = f"{sized(repeat.size):>10}{sized(max(repeat.packed)):>10}"
        yield f"{name:<{_REPEAT}}{sizes}{len(repeat.wheels):>8}{sized(repeat.repeated):>11}"
    total = sum(repeat.repeated for repeat in found)
    yield f"{f'all {len(found)}':<{_REPEAT}}{'':>28}{sized(total):>11}"
    share = percent(total, packed)
    yield f"{wheels}, {sized(packed)}: {share} of that is repeated; see `vbuild split`"


def closure_of(contents: Contents) -> Closure:
    """The closure that *contents* were inspected with."""
    if contents.closure is None:
        raise ValueError(f"{contents.wheel}: inspected without its closure")
    return contents.closure


def officially(officials: Iterable[Official]) -> str:
    """The projects in one text, the highest major of CUDA first: ``nvidia-cufft, nvidia-cufft-cu12``."""
    found = sorted(officials, key=lambda official: (-(official.cuda or 0), official.project))
    return ", ".join(official.project for official in found)


def majors(officials: Iterable[Official]) -> str:
    """The majors of CUDA that they are for: ``CUDA 13, 12``; empty where that is all one to them."""
    found = sorted({official.cuda for official in officials if official.cuda}, reverse=True)
    return f"CUDA {', '.join(map(str, found))}" if found else ""


def grouped(needs: Iterable[NeededLibrary]) -> Iterator[str]:
    """The names, those of one project together behind it and its CUDA, without line breaks in what should have none.

    ``torch: libc10.so, libtorch.so``
    """
    found: dict[tuple[Official, ...], list[str]] = {}
    for need in needs:
        file = posixpath.basename(need.provider or need.name)
        # with the file, if that has another name
        asked = posixpath.basename(need.name)
        found.setdefault(need.projects, []).append(asked if file == asked else f"{need.name}{_GLUE}({file})")
    for projects, names in found.items():
        cuda = majors(projects).replace(" ", _GLUE)
        whose = f"{officially(projects)}{f' ({cuda})' if cuda else ''}: " if projects else ""
        yield whose + ", ".join(names)


def reasons_of(closure: Closure, node: Node, *, whole: bool = True) -> Iterator[str]:
    """Why the library *node* is there: the chains of those who load it, or else who has its name, all if *whole*."""
    chains = [chain for chain in closure.chains(node.path) if len(chain) > 1]
    yield from (" > ".join(map(posixpath.basename, chain)) for chain in chains)
    if not chains:
        openers = closure.openers(node.path)
        yield f"opened by name: {_some(openers, whole=whole)}" if openers else "nothing needs it, and nothing names it"


def together(names: Iterable[str]) -> Iterator[str]:
    """The *names*, those that differ in their version alone in one: ``libx.so.1 2 10``."""
    found: dict[str, list[str]] = {}
    for name in names:
        stem, _, version = name.rpartition(".so.")
        found.setdefault(f"{stem}.so." if stem else name, []).append(version if stem else "")
    for stem, versions in sorted(found.items()):
        yield stem + _GLUE.join(sorted(versions, key=lambda version: (len(version), version)))


def _head(contents: Contents, closure: Closure) -> Iterator[str]:
    yield from wrapped(f"{contents.project} {contents.version}", "  ", *contents.tags)
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
        yield from wrapped(f"{counted(len(names), 'name')} needed:", "  ", ", ".join(where))


def _node_lines(closure: Closure, node: Node, *, whole: bool) -> Iterator[str]:
    """One file: a line, and one for each kind of thing there is to say; its chains all where that is *whole*."""
    yield f"{shortened(node.path, _PATH):<{_PATH}} {node.role:<{_KIND}}{sized(node.linked.size):>{_SIZE}}"
    outline = node.loading.outline
    plain = node.original.name if node.original else node.name
    yield from labelled(
        "SONAME" if outline.format is Format.ELF else "own name",
        outline.soname if outline.soname and outline.soname != node.name else "",
    )
    if node.original:
        yield from labelled("bundled", f"{plain}, hash {node.original.digest}{_from(node)}")
    elif node.officials:
        yield from labelled("bundled", plain + _from(node))
    for via, label in _LABELS.items():
        yield from labelled(label, "; ".join(grouped(node.via(via))))
    if promised := len(node.via(Via.PLATFORM)):
        yield from labelled("platform", counted(promised, "library"))
    yield from labelled("may open", _some(node.mentioned, whole=whole))
    if node.also_in:
        yield from labelled("also in", ", ".join(node.also_in) if whole else counted(len(node.also_in), "other wheel"))
    if node.role is not ClosureRole.LIBRARY:
        return
    reasons = [*reasons_of(closure, node, whole=whole)]
    for reason in reasons if whole else reasons[:1]:
        yield from labelled("why", reason)
    if (rest := len(reasons) - 1) > 0 and not whole:
        # the graph gives no more than five
        yield from labelled("", f"and {counted(rest, 'chain')} more" if rest < _MANY else f"and {rest} chains or more")


def _from(node: Node) -> str:
    """Whose library *node* is a copy of, as far as its names tell."""
    projects, cuda = officially(node.officials), majors(node.officials)
    return f", a library of {projects}{f' ({cuda})' if cuda else ''}" if projects else ""


def _findings(contents: Contents, closure: Closure) -> Iterator[str]:
    missing = {need.name for node in closure.nodes for need in node.via(Via.MISSING)}
    yield from finding("missing", ", ".join(together(missing)))
    if unneeded := closure.unneeded:
        size = sized(sum(node.linked.size for node in unneeded))
        what = f"{counted(len(unneeded), 'library')}, {size}, that nothing needs or names"
        yield from finding("idle", f"{what}: {_some([node.name for node in unneeded], whole=False)}")
    yield from flaws(contents)


def _some(names: Sequence[str], *, whole: bool) -> str:
    shown = names if whole else names[:_SHOWN]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
