"""What a plugin of the layout extras contains, and the loader in the base wheel that imports it.

    demo/sub/_c.so      differs                       demo_cu12_plugin/sub/_c.so
    demo.libs/libx.so   differs                       demo_cu12_plugin/site-packages/demo.libs/libx.so
    demo/_d.so          equal, but needs libx.so      demo_cu12_plugin/_d.so
    other/_e.so         differs, in another package   demo_cu12_plugin/site-packages/other/_e.so
    demo/gpu/__init__.py differs, or is new           demo_cu12_plugin/gpu/*, all of that package

Files that need a library that differs come along: glibc loads no second library of the same SONAME. A folder of the
package is as deep in the plugin as it was, so ``$ORIGIN/../demo.libs`` leads to the base's libraries as before, and
most files keep their bytes. The RPATH of others leads to the plugin's libraries first, then to where it led. A package
within the package comes whole if its ``__init__.py`` does, because code looks for files next to that one.

    demo/__init__.py          from . import _vbuild_backend, before anything else
    demo/_vbuild_backend.py   finds the plugin, refuses one of another build, and puts a finder before Python's own
    demo_cu12_plugin/_c.so    is loaded as demo._c, so PyInit__c, imports in the package and pickles stay as they were

The loader refuses a plugin for an x86-64 level that the CPU does not have, by the flags in /proc/cpuinfo: ImportError
is better than SIGILL. It does not look at GPUs or Arm versions: whoever installed the plugin chose it.
https://man7.org/linux/man-pages/man8/ld.so.8.html
https://docs.python.org/3/reference/import.html#the-meta-path
"""

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.elf.catalogue import is_shared_object
from vbuild.elf.linkage import searched
from vbuild.elf.read import Loading
from vbuild.elf.surgery.relink import Relink
from vbuild.errors import RepackageError, at
from vbuild.files.templates import Written, templates
from vbuild.hardware.cpu import X86_64_FEATURES, X86_64_LEVELS, Cpu
from vbuild.publishing.model import Copied, Relinked
from vbuild.publishing.releases import OfferedWheel
from vbuild.splitting.bundle import Bundle, WheelBinary, WheelReader
from vbuild.splitting.package_init import hooked, is_namespace, package_of, python_text
from vbuild.splitting.patches import rpath_to
from vbuild.variants.model import Property
from vbuild.wheel.metadata import is_dist_info
from vbuild.wheel.name import escaped
from vbuild.wheel.paths import installed_path

OUTSIDE = "site-packages"
"""The folder of a plugin for what is in no folder of the package; no package can be called so."""

_INIT = "__init__.py"
_SOURCE = ".py"
# nothing that runs reads it
_STUB = ".pyi"
_FILE = b"__file__"
_ENTRY_POINTS = "entry_points.txt"


class Payload(Struct, frozen=True):
    """The files that a plugin has of the wheel *variant*, by installed path, each with its member.

    *compiled* are those that are ELF files, *libraries* the folders where those are that others load, *left* the same
    of the files that stay with the base, *own* all folders of the wheel. *roots* are the packages it is loaded for.
    """

    variant: OfferedWheel
    files: Mapping[str, str]
    compiled: Mapping[str, Loading]
    libraries: frozenset[str]
    left: frozenset[str]
    own: frozenset[str]
    roots: frozenset[str]

    def members(self, package: str, root: str) -> Iterator[Copied | Relinked]:
        """The same in the plugin that is imported as *package*, where *root* is the first of its packages."""
        for path, member in sorted(self.files.items()):
            target = placed(path, package, root)
            wanted = self._rpath(path, package, root) if path in self.compiled else None
            if wanted is None:
                yield Copied(self.variant.path, member, target)
            else:
                yield Relinked(self.variant.path, member, target, Relink(rpath=wanted))

    def _rpath(self, path: str, package: str, root: str) -> tuple[str, ...] | None:
        """The RPATH that the file at *path* needs in the plugin, or None if its own leads to the same folders there."""
        outline = self.compiled[path].outline
        entries = outline.runpath or outline.rpath
        target = placed(path, package, root)
        found: list[str] = []
        for entry in entries:
            wanted = []
            for folder in searched(path, [entry]):
                if folder in self.libraries:
                    wanted.append(rpath_to(target, posixpath.dirname(placed(f"{folder}/x".lstrip("/"), package, root))))
                if folder in self.left or folder not in self.own:
                    wanted.append(rpath_to(target, folder))
            found += wanted or [entry]
        rpath = tuple(dict.fromkeys(found))
        return None if _leads(target, rpath) == _leads(target, entries) else rpath


def placed(path: str, package: str, root: str) -> str:
    """Where the plugin that is imported as *package* has what a variant has at *path*."""
    inner = path.removeprefix(f"{root}/")
    return f"{package}/{inner}" if inner != path else f"{package}/{OUTSIDE}/{path}"


def payload(variant: OfferedWheel, base: OfferedWheel, *, reader: WheelReader) -> Payload:
    """What *variant* has otherwise than *base*, the plain wheel for the same Python and machine, as *reader* reads it.

    `RepackageError` naming the first file that no plugin can take the place of.
    """
    mine, theirs = installed(variant), installed(base)
    differing = {path for path, found in mine.items() if found[1] != theirs.get(path, ("", ""))[1]}
    with at(variant.path.name):
        _check_lacking(sorted(path for path in theirs if path not in mine))
        _check_entry_points(variant, base)
        differing = {path for path in differing if not path.endswith(_STUB)}
        if not differing:
            raise RepackageError(f"no file differs from {base.path.name}; leave one of them out")
        with variant.opened() as wheel:
            bundle = reader.read(wheel)
            chosen = differing | _dependents(bundle, differing)
            whole = frozenset(posixpath.dirname(path) for path in differing if posixpath.basename(path) == _INIT)
            packages = _Packages(frozenset(theirs), frozenset(mine), whole, _namespaces(bundle, chosen))
            roots = frozenset(root for path in sorted(chosen) if (root := _root(path, bundle, chosen, packages)))
        chosen |= {path for path in mine if packages.is_within(path) and not path.endswith(_STUB)}
        if not roots:
            raise RepackageError("nothing that can be imported differs; expected a Python module that does")
    pieces = bundle.binaries
    return Payload(
        variant,
        {path: mine[path][0] for path in sorted(chosen)},
        {path: pieces[path].loading for path in sorted(chosen) if path in pieces},
        libraries=frozenset(piece.folder for path, piece in pieces.items() if path in chosen and piece.is_library),
        left=frozenset(piece.folder for path, piece in pieces.items() if path not in chosen and piece.is_library),
        own=frozenset(folder for path in mine for folder in _above(path)),
        roots=roots,
    )


def installed(wheel: OfferedWheel) -> dict[str, tuple[str, str]]:
    """The files of *wheel* but those of its ``.dist-info``, by installed path: member, and hash as RECORD has it.

    What goes elsewhere than to site-packages is by its member's path.
    """
    rows = (row for row in wheel.rows if not is_dist_info(row.path))
    return {installed_path(row.path) or row.path: (row.path, row.hash or "") for row in rows}


class _Packages(Struct, frozen=True):
    """Which folders are packages that a loader can serve: by the files of *base* and of a variant, which are *mine*.

    *whole* are those whose ``__init__.py`` comes with the plugin, *namespaces* those that other wheels have as well.
    """

    base: frozenset[str]
    mine: frozenset[str]
    whole: frozenset[str]
    namespaces: frozenset[str]

    def root(self, path: str) -> str | None:
        """The outermost package around the file at *path* that base has and that is its own; None without one."""
        root = package_of(path, self.base, namespaces=self.namespaces)
        if root is None:
            return None
        inits = (f"{folder}/{_INIT}" for folder in _above(path) if folder.startswith(f"{root}/"))
        known = self.base | self.mine
        return root if all(init in known or self.is_within(init) for init in inits) else None

    def is_within(self, path: str) -> bool:
        """Whether *path* is in a package that comes whole."""
        return not self.whole.isdisjoint(_above(path))


def _root(path: str, bundle: Bundle, chosen: Collection[str], packages: _Packages) -> str | None:
    """The package whose loader brings the file at *path*, None for a library; `RepackageError` if none can."""
    piece = bundle.binaries.get(path)
    with at(path):
        if path in packages.base or not packages.is_within(path):
            if piece and piece.is_library:
                _check_library(piece, bundle, chosen)
                return None
            _check_module(path, bundle)
        root = packages.root(path)
        if root is None:
            raise RepackageError("differs, and is in no package of the base's own whose __init__.py could load it")
        if path == f"{root}/{_INIT}":
            raise RepackageError("differs, and is what loads plugins; expected the same as in the base")
        if not packages.is_within(path):
            _check_place(path, bundle)
        return root


def _check_module(path: str, bundle: Bundle) -> None:
    """Refuse what is no Python module."""
    if path != installed_path(path):
        raise RepackageError("differs, and is installed elsewhere than in a package; expected the same as in the base")
    stem = posixpath.basename(path).partition(".")[0]
    piece = bundle.binaries.get(path)
    if not (stem in piece.loading.modules if piece else path.endswith(_SOURCE)):
        raise _read_by_path("is no Python module")


def _check_library(piece: WheelBinary, bundle: Bundle, chosen: Collection[str]) -> None:
    """Refuse a library that anybody may open by its path."""
    if not any(edge.consumer in chosen for edge in bundle.graph.consumers(piece.path)):
        raise _read_by_path("nothing in the wheel needs it")
    if namer := bundle.namer(piece):
        raise _read_by_path(f"is named in {namer}")


def _read_by_path(what: str) -> RepackageError:
    return RepackageError(
        f"differs, and {what}: code that opens it by its path gets the base's; expected the same as in the base"
    )


def _check_place(path: str, bundle: Bundle) -> None:
    """Refuse a module that looks for files alongside it: they are in the base."""
    member = next(member for member in bundle.wheel.members if installed_path(member.path) == path)
    if path.endswith(_SOURCE) and _FILE in bundle.wheel.read(member):
        what = f"differs, and asks for its {_FILE.decode()}: a plugin does not have what is beside it"
        raise RepackageError(f"{what}; expected the same as in the base")


def _dependents(bundle: Bundle, differing: Collection[str]) -> set[str]:
    """The files that need one of *differing*, directly or not."""
    found: set[str] = set()
    left = [path for path in differing if path in bundle.binaries]
    while left:
        consumers = {edge.consumer for edge in bundle.graph.consumers(left.pop())} - found
        found |= consumers
        left += consumers
    return found


def _namespaces(bundle: Bundle, chosen: Collection[str]) -> frozenset[str]:
    """The packages around files *chosen* whose ``__init__.py`` other distributions have as well."""
    folders = {folder for path in chosen for folder in _above(path)}
    members = {installed_path(member.path): member for member in bundle.wheel.members}
    inits = {folder: members[f"{folder}/{_INIT}"] for folder in folders if f"{folder}/{_INIT}" in members}
    read = bundle.wheel.read
    return frozenset(folder for folder, init in inits.items() if is_namespace(read(init).decode(errors="replace")))


def _check_lacking(lacking: Collection[str]) -> None:
    """Refuse what the variant does not have; a library that nothing needs any more does no harm."""
    for path in lacking:
        folder, name = posixpath.split(path)
        is_library = is_shared_object(path) and (name.startswith("lib") or folder.endswith(".libs"))
        if not (is_library or path.endswith(_STUB)):
            raise RepackageError(f"lacks {path}, which a plugin cannot take away; expected it as in the base")


def _check_entry_points(variant: OfferedWheel, base: OfferedWheel) -> None:
    mine, theirs = (
        {row.hash for row in wheel.rows if row.path == f"{wheel.dist_info}/{_ENTRY_POINTS}"}
        for wheel in (variant, base)
    )
    if mine != theirs:
        raise RepackageError(f"{_ENTRY_POINTS}: differs; expected the same as in the base, which has the commands")


def _leads(path: str, entries: Collection[str]) -> list[tuple[str, ...] | str]:
    """Where *entries* lead from the file at *path*."""
    return [searched(path, [entry]) or entry for entry in entries]


def _above(path: str) -> Iterator[str]:
    """The folders around *path*, the nearest first; site-packages itself is the last, as ''."""
    while path:
        path = posixpath.dirname(path)
        yield path


MODULE = "_vbuild_backend"
PLAIN = "plain"

_TEMPLATE = "loader.py.jinja"
_X86_64 = "x86_64"


class PluginBackend(Struct, frozen=True):
    """A variant as an extra of *project*: its label, and the properties of machines that it is for."""

    project: str
    label: str
    properties: tuple[Property, ...]

    @property
    def extra(self) -> str:
        """What installers and the loader call it: ``x86-64-v3`` for the label ``x86_64_v3`` (PEP 685)."""
        return canonicalize_name(self.label)

    @property
    def plugin(self) -> str:
        """The plugin's name, as package indexes spell it."""
        return f"{self.project}-{self.extra}-plugin"

    @property
    def package(self) -> str:
        """The plugin's import package."""
        return escaped(self.plugin)

    @property
    def cpu(self) -> Cpu | None:
        """The x86-64 level and single features that it needs, if it names any: a loader can ask for nothing else."""
        found = Cpu.of_properties(map(str, self.properties))
        return found if found and found.machine == _X86_64 else None

    @property
    def flags(self) -> str:
        """The flags of /proc/cpuinfo that it needs beyond those of every x86-64 CPU."""
        if self.cpu is None:
            return ""
        levels = X86_64_LEVELS[1 : self.cpu.rank + 1]
        flags = (feature.cpuinfo for level in levels for feature in X86_64_FEATURES[level])
        return " ".join(sorted((*flags, *self.cpu.extras)))

    @property
    def rest(self) -> str:
        """What it needs alongside an x86-64 level: of backends that are alike in this, the higher level is better."""
        known = self.cpu.variant_properties if self.cpu else ()
        return ", ".join(text for text in map(str, self.properties) if text not in known)


def in_order(backends: Sequence[PluginBackend]) -> tuple[PluginBackend, ...]:
    """The *backends*, higher CPU levels first, and of one level those with more features."""
    cpus = ((one, one.cpu or Cpu.parse("x86-64")) for one in backends)
    return tuple(one for one, _ in sorted(cpus, key=lambda pair: (-pair[1].rank, -len(pair[1].extras), pair[0].extra)))


def variable(project: str) -> str:
    """The variable of the environment that names a backend of *project*: ``DEMO_BACKEND``, ``_3D_BACKEND``."""
    name = f"{escaped(project).upper()}_BACKEND"
    return name if name.isidentifier() else f"_{name}"  # shells take none that begins with a digit


def group(project: str) -> str:
    """The entry-point group of the plugins of *project*: ``demo.backends``."""
    return f"{escaped(project)}.backends"


def loader(backends: Sequence[PluginBackend], *, version: str, build: str, folder: str) -> bytes:
    """The module for a package whose files plugins have in *folder* of theirs.

    *build* names the plain wheel that the plugins were made for.
    """
    project, ordered = backends[0].project, in_order(backends)
    values = {
        "project": project,
        "example": Written(f"{project}[{ordered[0].extra}]"),
        "backends": ordered,
        "version": version,
        "build": build,
        "variable": variable(project),
        "asked": Written(variable(project)),
        "folder": folder,
    }
    return templates("vbuild.publishing", python_text).get_template(_TEMPLATE).render(values).encode()


def with_loader(init: bytes) -> bytes:
    """The ``__init__.py`` *init* importing the loader first; `RepackageError` if this Python cannot read it."""
    try:
        return hooked(init, MODULE, option="--layout extras")
    except RepackageError as error:
        raise RepackageError(str(error)) from error
