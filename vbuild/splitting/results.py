"""What came of a split: each library, each wheel before and after, the wheels beside them, and the sdists.

Sizes are bytes: packed as in the wheel, unpacked as installed; a packed size is None in a dry run.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from vbuild.splitting.builds import common_name
from vbuild.splitting.bundle import Bundle, WheelBinary
from vbuild.splitting.decisions import DecisionKind, LibraryDecision
from vbuild.splitting.official import OfficialEvidence
from vbuild.splitting.output_wheels import SourceFiles
from vbuild.splitting.patches import removed_entries
from vbuild.splitting.plan import MachinePlan, SplitPlan

# paths of the files that were written, by name
Written = Mapping[str, Path]

# keys in JSON
_COMPANION_KEYS = {"name": "wheel", "packed": "packed_bytes", "unpacked": "bytes", "wheels": "for"}


class LibraryMove(Struct, frozen=True, kw_only=True, rename={"size": "bytes", "packed": "packed_bytes"}):
    """What became of one library in the *wheels* that had it; *target* is what they require instead.

    It is called *own_name* then if other projects have another library of its SONAME, or all names are private.
    *builds* of it differ in the bytes *traces* alone, by what they are: the most in which one differs from that which
    stays.
    *differs* says which library of the same name in other wheels is another one, and why.
    *size* and *packed* are of all copies together. *reason* says why it stays, is not replaced, or leaves a *stub*.
    *to_try* has the SHA-256 of each copy if a run may show that it can move.
    """

    name: str
    path: str
    size: int
    packed: int
    wheels: tuple[str, ...]
    kind: DecisionKind
    own_name: str | None = None
    builds: int = 1
    traces: Mapping[str, int] = {}
    differs: str = ""
    target: str | None = None
    evidence: OfficialEvidence | None = None
    reason: str = ""
    stub: bool = False
    to_try: tuple[str, ...] = ()


class LibraryBuild(Struct, frozen=True, rename={"packed": "packed_bytes"}):
    """A build of a library, the *projects* that have it, its size in one wheel, and how many *copies* of it there are.

    A base has one for all of its projects.
    """

    name: str
    projects: tuple[str, ...]
    packed: int
    copies: int = 1

    def __str__(self) -> str:
        number = self.name.partition(".so.")[2]
        return f"{' and '.join(self.projects)} {number}".rstrip()


class SeveralBuilds(Struct, frozen=True):
    """A library, by its SONAME without a hash, that projects have in several copies: its *builds*, largest first."""

    name: str
    builds: tuple[LibraryBuild, ...]

    @property
    def projects(self) -> tuple[str, ...]:
        return tuple(sorted({project for build in self.builds for project in build.projects}))

    @property
    def packed(self) -> int:
        return sum(build.packed * build.copies for build in self.builds)

    @property
    def saving(self) -> int:
        """Compressed bytes of all copies but the largest."""
        return self.packed - self.builds[0].packed


class EditedLibrary(Struct, frozen=True):
    """A file whose NEEDED or RPATH changed; *removed* are the entries of RPATH that led nowhere on other machines."""

    path: str
    rpath: tuple[str, ...] | None
    renamed: Mapping[str, str]
    removed: tuple[str, ...] = ()


class SplitWheel(Struct, frozen=True, kw_only=True):
    """One wheel before and after; *path* is None if nothing was written, *requires* are the new lines of METADATA."""

    wheel: Path
    path: Path | None
    before: int
    packed: int | None
    unpacked_before: int
    unpacked: int
    edited: tuple[EditedLibrary, ...] = ()
    requires: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_untouched: bool = False

    @property
    def name(self) -> str:
        return self.wheel.name

    def data(self) -> dict[str, Any]:
        return {
            "wheel": self.name,
            "path": str(self.path) if self.path else None,
            "before": {"packed_bytes": self.before, "bytes": self.unpacked_before},
            "after": {"packed_bytes": self.packed, "bytes": self.unpacked},
            "edited": to_builtins(self.edited),
            "requires": list(self.requires),
            "warnings": list(self.warnings),
            "untouched": self.is_untouched,
        }


class CompanionResult(Struct, frozen=True, kw_only=True, rename=_COMPANION_KEYS):
    """A -libs wheel that was made for *wheels*; *files* are the paths in it.

    *unlicensed* are the libraries in it that none of its licence texts names.
    """

    name: str
    path: Path | None
    packed: int | None
    unpacked: int
    files: tuple[str, ...]
    wheels: tuple[str, ...]
    unlicensed: tuple[str, ...] = ()


class SplitSource(Struct, frozen=True, kw_only=True, rename={"name": "sdist"}):
    """An sdist of a release; *requires* are its new requirements, and *reason* says why it has none."""

    name: str
    path: Path | None
    requires: tuple[str, ...] = ()
    reason: str = ""


class Split(Struct, frozen=True, kw_only=True):
    """The result of a whole run; *transferred* are the bytes read from official wheels.

    *absent* are libraries that wheels need and to which no path led before or leads now: something opens them first.
    *sources* are the sdists of the wheels' releases. *rebuilt* are libraries of which several projects have copies.
    """

    wheels: tuple[SplitWheel, ...]
    companions: tuple[CompanionResult, ...] = ()
    libraries: tuple[LibraryMove, ...] = ()
    transferred: int = 0
    absent: tuple[str, ...] = ()
    sources: tuple[SplitSource, ...] = ()
    rebuilt: tuple[SeveralBuilds, ...] = ()

    @property
    def before(self) -> int:
        """Bytes of the wheels given."""
        return sum(wheel.before for wheel in self.wheels)

    @property
    def packed(self) -> int | None:
        """Bytes of all that was written; None if nothing was."""
        sizes = [wheel.packed for wheel in self.wheels] + [companion.packed for companion in self.companions]
        return sum(size for size in sizes if size is not None) if None not in sizes else None

    def of(self, names: Collection[str]) -> Self:
        wheels = tuple(wheel for wheel in self.wheels if wheel.name in names)
        companions = tuple(
            companion for companion in self.companions if any(wheel in names for wheel in companion.wheels)
        )
        return replace(self, wheels=wheels, companions=companions)

    def moved(self, folder: Path) -> Self:
        """The result after all written files moved to *folder*."""
        lists: Mapping[str, Sequence[SplitWheel | CompanionResult | SplitSource]]
        lists = {"wheels": self.wheels, "companions": self.companions, "sources": self.sources}
        there = {
            name: tuple(replace(file, path=file.path and folder / file.path.name) for file in files)
            for name, files in lists.items()
        }
        return replace(self, **there)

    @property
    def companion_paths(self) -> tuple[Path, ...]:
        return tuple(companion.path for companion in self.companions if companion.path)

    @property
    def paths(self) -> tuple[Path, ...]:
        return (*(wheel.path for wheel in self.wheels if wheel.path), *self.companion_paths)

    def data(self) -> dict[str, Any]:
        return {
            "before": {"packed_bytes": self.before},
            "after": {"packed_bytes": self.packed},
            "libraries": to_builtins(self.libraries),
            "wheels": [wheel.data() for wheel in self.wheels],
            "beside": to_builtins(self.companions, enc_hook=str),
            "sources": to_builtins(self.sources, enc_hook=str),
            "absent": list(self.absent),
            "rebuilt": [{**to_builtins(library), "saving_bytes": library.saving} for library in self.rebuilt],
            "transferred_bytes": self.transferred,
        }


def split_result(plan: SplitPlan, written: Written) -> Split:
    return Split(
        wheels=tuple(
            _split_wheel(plan, machine, bundle, written) for machine in plan.machines for bundle in machine.bundles
        ),
        companions=tuple(_companions(plan, written)),
        libraries=tuple(move for machine in plan.machines for move in _moves(plan, machine)),
        transferred=sum(machine.transferred for machine in plan.machines),
        absent=tuple(sorted({name for machine in plan.machines for name in machine.absent})),
        sources=tuple(_split_source(plan, source, written) for source in plan.sources),
        rebuilt=tuple(library for machine in plan.machines for library in _rebuilt(machine)),
    )


def _rebuilt(machine: MachinePlan) -> list[SeveralBuilds]:
    """The libraries of which several projects have copies, those with which one build saves most first."""
    copies: dict[str, dict[str, list[tuple[str, str, WheelBinary]]]] = {}
    projects = {bundle.wheel.name.project for bundle in machine.bundles}
    for bundle in machine.bundles:
        project, decided = bundle.wheel.name.project, machine.patches.decisions.by_bundle[bundle]
        for path, decision in decided.items():
            library, pool = bundle.binaries[path], decision.pool
            stem, _, rest = common_name(library.file_name, projects).partition(".so")
            if library.is_bundled and not decision.provenance:
                name = f"{stem}.so{'.'.join(rest.split('.')[:2])}"
                owner = pool.owner if pool and pool.is_base else project
                copies.setdefault(name, {}).setdefault(library.contents, []).append((project, owner, library))
    libraries = []
    for name, builds in copies.items():
        rows = [
            LibraryBuild(
                several[0][2].name,
                tuple(sorted({project for project, _, _ in several})),
                max(library.member.compressed_size for *_, library in several),
                len({owner for _, owner, _ in several}),
            )
            for several in builds.values()
        ]
        rebuilt = SeveralBuilds(name, tuple(sorted(rows, key=lambda row: (-row.packed, row.name))))
        if sum(row.copies for row in rows) > 1 < len(rebuilt.projects):
            libraries.append(rebuilt)
    return sorted(libraries, key=lambda rebuilt: (-rebuilt.saving, rebuilt.name))


def _split_source(plan: SplitPlan, source: SourceFiles, written: Written) -> SplitSource:
    lines, name = plan.requires_of(source), source.path.name
    changed = source.changed(lines) if lines else {}
    reason = changed if isinstance(changed, str) else "" if changed else "it requires nothing new"
    return SplitSource(name=name, path=written.get(name), requires=() if reason else lines, reason=reason)


def _split_wheel(plan: SplitPlan, machine: MachinePlan, bundle: Bundle, written: Written) -> SplitWheel:
    wheel, output = bundle.wheel, plan.thin_wheels[bundle]
    path = written.get(wheel.path.name)
    record = wheel.find(f"{wheel.dist_info}/RECORD")
    unpacked_before = sum(member.size for member in wheel.members) - (record.size if record else 0)
    edited = []
    for patch in (file.patch for file in machine.patches.staying[bundle] if file.data is not None):
        rpath, loading = patch.relink.rpath, patch.binary.loading
        gone = () if rpath is None else removed_entries(patch.binary.path, loading, left=rpath)
        edited.append(EditedLibrary(patch.path, rpath, dict(patch.relink.renamed), gone))
    return SplitWheel(
        wheel=wheel.path,
        path=path,
        before=wheel.path.stat().st_size,
        packed=path.stat().st_size if path else None,
        unpacked_before=unpacked_before,
        unpacked=output.unpacked if output else unpacked_before,
        edited=tuple(edited),
        requires=plan.requires(bundle) if output else (),
        warnings=tuple(plan.warnings(machine, bundle)),
        is_untouched=output is None,
    )


def _companions(plan: SplitPlan, written: Written) -> Iterator[CompanionResult]:
    companions = (
        (output, tuple(bundle.wheel.path.name for bundle in pool.bundles)) for pool, output in plan.libs_wheels.items()
    )
    for output, users in (*companions, *plan.empty_wheels.items()):
        path = written.get(str(output.name))
        yield CompanionResult(
            name=str(output.name),
            path=path,
            packed=path.stat().st_size if path else None,
            unpacked=output.unpacked,
            files=output.files,
            wheels=users,
            unlicensed=plan.unlicensed.get(output, ()),
        )


def _moves(plan: SplitPlan, machine: MachinePlan) -> Iterator[LibraryMove]:
    """Every library once for each decision about it, the largest first."""
    copies: dict[tuple[str, str, LibraryDecision], list[tuple[Bundle, WheelBinary]]] = {}
    for bundle in machine.bundles:
        for path, decision in machine.patches.decisions.by_bundle[bundle].items():
            binary = bundle.binaries[path]
            subject = (binary.name, "") if decision.is_gone and binary.is_bundled else ("", path)
            copies.setdefault((*subject, decision), []).append((bundle, binary))
    moves = (_move(plan, decision, several) for (*_, decision), several in copies.items())
    yield from sorted(
        moves,
        key=lambda move: (move.kind is DecisionKind.KEEP, [*DecisionKind].index(move.kind), -move.packed, move.path),
    )


def _move(plan: SplitPlan, decision: LibraryDecision, several: Sequence[tuple[Bundle, WheelBinary]]) -> LibraryMove:
    copies = [binary for _, binary in several]
    first = next((binary for binary in copies if binary.same_as is None), copies[0])
    target = None
    if decision.kind is DecisionKind.REPLACE and decision.provenance:
        target = f"{decision.provenance.wheel.project}=={decision.provenance.wheel.version}"
    elif decision.pool:
        target = plan.companions[decision.pool].requirement
    traces = Counter[str]()
    for same_as in filter(None, (copy.same_as for copy in copies)):
        traces |= Counter(same_as.traces)
    return LibraryMove(
        name=first.file_name,
        own_name=first.own_name,
        builds=len({sha256 for copy in copies for sha256 in (copy.sha256, copy.contents)}) if decision.is_gone else 1,
        traces=traces if decision.is_gone else {},
        differs="" if decision.is_gone else first.differs,
        path=first.path,
        size=sum(copy.member.size for copy in copies),
        packed=sum(copy.member.compressed_size for copy in copies),
        wheels=tuple(bundle.wheel.path.name for bundle, _ in several),
        kind=decision.kind,
        target=target,
        evidence=decision.provenance.evidence if decision.provenance else None,
        reason=decision.reason,
        stub=decision.leaves_stub,
        to_try=tuple(dict.fromkeys(copy.sha256 for copy in copies)) if decision.can_be_tried else (),
    )
