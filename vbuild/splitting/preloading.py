"""Which packages of a wheel run a preload module, and for which libraries."""

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from vbuild.elf.catalogue import by_soname
from vbuild.errors import at
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.companion import Companion
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.official import OfficialWheel
from vbuild.splitting.plan import SplitPlan
from vbuild.splitting.preload import MODULE, Preloaded, hooked, hooks, in_order, is_namespace, shim
from vbuild.wheel.paths import installed_path

PATHFINDER = "cuda-pathfinder"


class Preloading(Struct, frozen=True):
    """The new files of a wheel by member path, what they require, and a warning for each consumer that none serves."""

    files: dict[str, bytes]
    requires: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def preloading(
    bundle: Bundle,
    plan: SplitPlan,
    companion: Companion | None,
    *,
    closure: Callable[[OfficialWheel], Iterable[OfficialWheel]],
) -> Preloading:
    """The preload modules for the libraries of *bundle* that are elsewhere in *plan*; `RepackageError` where none can
    be.

    *companion* is the wheel that has its shared libraries now, *closure* gives an official wheel and all it requires.
    """
    libraries = [*_moved(bundle, plan, companion), *_beside(bundle, plan)]
    roots = [
        made.order.piece.path
        for made in plan.staying[bundle]
        if made.order.relink.rpath is not None and not made.order.piece.is_bundled
    ]
    if not (libraries and roots):
        return Preloading({})
    members = {path: member for member in bundle.wheel.members if (path := installed_path(member.path))}
    inits = {path: bundle.wheel.read(member) for path, member in members.items() if path.endswith("/__init__.py")}
    sources = {path: data.decode(errors="replace") for path, data in inits.items()}
    namespaces = {path.rpartition("/")[0] for path, text in sources.items() if is_namespace(text)}
    packages, unserved = hooks(roots, members.keys(), namespaces=namespaces, sources=sources)
    others = [*_others(bundle, plan, closure)]
    files = {}
    for package in packages:
        init = members[f"{package}/__init__.py"].path
        with at(init):
            files[init] = hooked(inits[f"{package}/__init__.py"])
        files[f"{init.rpartition('/')[0]}/{MODULE}.py"] = shim(package, libraries, others=others).encode()
    warnings = tuple(f"{path}: in no package whose __init__.py could preload its libraries" for path in unserved)
    asks = packages and any(library.pathfinder for library in libraries)
    return Preloading(files, (PATHFINDER,) if asks else (), warnings)


def _others(
    bundle: Bundle, plan: SplitPlan, closure: Callable[[OfficialWheel], Iterable[OfficialWheel]]
) -> Iterator[Preloaded]:
    """All libraries of the official wheels that any file asks for: they need one another."""
    for made in plan.staying[bundle]:
        asked = (*made.order.official, *(each.wheel for each in made.order.neighbours if each.wheel))
        for wheel in (other for one in asked for other in closure(one)):
            for library in wheel.libraries:
                yield Preloaded(library.path, wheel.project, _pathfinder(library.soname))


def _moved(bundle: Bundle, plan: SplitPlan, companion: Companion | None) -> Iterator[Preloaded]:
    """The libraries that left the wheel, first what others of them need."""
    fates = {
        path: fate
        for path, fate in plan.decision.fates[bundle].items()
        if fate.kind in {DecisionKind.REPLACE, DecisionKind.SHARE}
    }
    needs = {path: {edge.provider for edge in bundle.graph.needs(path) if edge.provider} for path in fates}
    for path in in_order(needs):
        fate = fates[path]
        if fate.provenance:
            library = fate.provenance.library
            yield Preloaded(library.path, fate.provenance.wheel.project, _pathfinder(library.soname))
        elif fate.pool and companion:
            yield Preloaded(f"{plan.homes[fate.pool]}/{bundle.pieces[path].name}", companion.project)


def _beside(bundle: Bundle, plan: SplitPlan) -> Iterable[Preloaded]:
    """The libraries of other packages that its files are led to."""
    found: dict[Preloaded, None] = {}
    for made in plan.staying[bundle]:
        for neighbour in made.order.neighbours:
            for library in neighbour.wheel.libraries if neighbour.wheel else ():
                if library.soname in made.order.piece.loading.outline.needed:
                    found[Preloaded(library.path, neighbour.project, _pathfinder(library.soname))] = None
    return found


def _pathfinder(soname: str) -> str | None:
    return next((entry.pathfinder for entry in by_soname(soname) if entry.pathfinder), None)
