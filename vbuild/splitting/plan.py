"""The plan of a split: for each wheel what it requires and what is written, and the wheels made alongside.

    wheels of one machine -> those that promise something -> bundles -> PatchPlan -> MachinePlan
    all machines -> -libs wheels -> their versions -> requirements, the same in a release -> OutputWheels: SplitPlan

All wheels of a release get one METADATA: uv, Poetry and other tools that lock read that of one file and use it for all.

    demo-1.0-cp311-…-x86_64    demo-libs==0.1; x86_64, nvidia-…==1; x86_64     what all require together
    demo-1.0-cp311-…-aarch64   demo-libs==0.1; aarch64
    demo-1.0-cp311-…-macosx    nothing, but its METADATA states the same
    demo_libs-0.1-py3-none-any without libraries: for those that bring theirs, and what is built from source

Variants are different: an installer reads the metadata of the variant it installs.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from itertools import chain

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.binary.linkage import Via
from vbuild.config.requirements import checked_requirement
from vbuild.elf.catalogue import by_stem, covers, is_driver, is_official, is_shared_object, plain
from vbuild.elf.read import Loading
from vbuild.errors import FetchError, RepackageError, at
from vbuild.splitting.builds import common_name, with_builds
from vbuild.splitting.bundle import Bundle, Origin, WheelReader
from vbuild.splitting.companion import (
    Companion,
    LibsContents,
    libs_project,
    licence_lines,
    licence_texts,
    names_of,
    packages_in,
    unnamed,
)
from vbuild.splitting.decisions import check_drivers, with_own_names
from vbuild.splitting.libs_versions import LibsChoice, Publications, is_published, libs_choices
from vbuild.splitting.official import Officials
from vbuild.splitting.other_packages import PackageFinder, RequirementWriter, required
from vbuild.splitting.output_wheels import OutputWheel, SourceFiles, libs_wheel, thin_wheel
from vbuild.splitting.patches import PatchedFile, Patcher, PatchPlan, plan_patches
from vbuild.splitting.pools import Key, Pool, pools_of, system_of
from vbuild.splitting.preloads import PreloadFiles, preload_files
from vbuild.splitting.request import SplitRequest
from vbuild.wheel.archive import Wheel
from vbuild.wheel.deflate import Codec
from vbuild.wheel.metadata import Metadata, is_companion
from vbuild.wheel.name import WheelName

_NO_REQUIREMENTS = Metadata.parse("Metadata-Version: 2.1\nName: none\nVersion: 0\n")

_Lines = tuple[str, ...]


class MachinePlan(Struct, frozen=True, eq=False):
    bundles: tuple[Bundle, ...]
    patches: PatchPlan
    request: SplitRequest
    requirements: RequirementWriter
    packages: PackageFinder

    @property
    def transferred(self) -> int:
        origins = {binary.key: binary.origin for bundle in self.bundles for binary in bundle.binaries.values()}
        return sum(origin.transferred for origin in origins.values() if origin)

    def libs(self, pool: Pool, choices: Mapping[Pool, LibsChoice]) -> LibsContents:
        """The contents of its -libs wheel, which requires that of a base if it is one of *choices*."""
        patched = self.patches.moving[pool]
        bases = dict.fromkeys(base for file in patched for base in file.patch.pools if base in choices)
        wheels = {bundle.wheel.name.project: bundle.wheel for bundle in reversed(pool.bundles)}
        texts: dict[str, bytes] = {}
        named = frozenset(chain.from_iterable(self.names(pool).values()))
        for bundle in pool.bundles:
            folder = f"{bundle.wheel.name.project}/" if len(wheels) > 1 else ""
            for path, text in licence_texts(bundle.wheel, named=named).items():
                texts.setdefault(f"{folder}{path}", text)
        files = {}
        for file in patched:
            same_as = file.patch.binary.same_as
            files[file.patch.path] = same_as.sha256 if same_as and same_as.is_published else file.sha256
        stubs = self.patches.second_stubs(pool)
        return LibsContents(
            project=pool.owner,
            files=files | {path: sha256(data).hexdigest() for path, data in stubs.items()},
            platform=pool.platform,
            licence=licence_lines(wheel.metadata() for wheel in wheels.values()),
            texts=texts,
            requires=(
                *self.lines(patched, _NO_REQUIREMENTS),
                *(self.requirements.exactly(*choices[base].companion.release) for base in bases),
            ),
            is_pure=pool.is_pure,
            projects=pool.projects if pool.is_base and len(wheels) > 1 else (),
        )

    def names(self, pool: Pool) -> dict[str, frozenset[str]]:
        packages = {bundle: packages_in(bundle.wheel) for bundle in pool.bundles}
        files = (file.patch for file in self.patches.moving[pool])
        return {patch.binary.name: names_of(patch.binary, packages[patch.bundle]) for patch in files}

    def lines(self, files: Sequence[PatchedFile], metadata: Metadata) -> _Lines:
        """What *files* require in addition to *metadata*."""
        official = dict.fromkeys(wheel for file in files for wheel in file.patch.official)
        packages = dict.fromkeys(package for file in files for package in file.patch.packages)
        return self.requirements.lines(official, packages, metadata)

    @property
    def absent(self) -> Iterator[str]:
        """The libraries to which nothing leads: neither a path before, nor the patches and requirements."""
        majors = {None, self.request.cuda[0]} if self.request.cuda else None
        files = chain.from_iterable((*self.patches.staying.values(), *self.patches.moving.values()))
        for patch in (file.patch for file in files):
            # those certainly installed with the wheel: it requires them now, or did before
            installed = {
                package.library
                for package in patch.packages
                if (package.entry and (majors is None or package.entry.cuda in majors))
                or required(patch.bundle.wheel.metadata(), package.project) is not None
            }
            for edge in patch.bundle.graph.needs(patch.binary.path):
                is_elsewhere = edge.provider is None and edge.via in {Via.MISSING, Via.OUTSIDE}
                if (is_elsewhere and edge.name not in installed) or (edge.via is Via.NAME and not self.request.rpath):
                    yield edge.name


def plan_machine(
    wheels: Sequence[Wheel],
    request: SplitRequest,
    *,
    officials: Officials,
    machine: str,
    patcher: Patcher,
    publications: Publications,
    looks_at_all: bool,
    on_progress: Callable[[int], None],
) -> MachinePlan:
    """Plan the split of *wheels*, all for *machine*; arguments and errors as in `vbuild.splitting.split.split`."""
    reader = WheelReader(partial(_origin, officials=officials, request=request), patcher.room, on_progress)
    # official wheels, and those that a split made for others to require, are never split
    splittable = [
        wheel
        for wheel in wheels
        if not (is_official(wheel.name.project) or is_companion(wheel.metadata(), wheel.wheel_file()))
    ]
    published = {wheel: publications.library_names(wheel.name) for wheel in splittable}
    libs_wheels = dict.fromkeys(name for wheel in splittable for name in publications.libs_wheels(wheel.name))
    users = (publications.read(name).projects for name in libs_wheels)
    projects = {wheel.name.project for wheel in splittable}.union(*users)
    chosen = splittable if looks_at_all else _promising(splittable, request, published, projects)
    bundles = tuple(
        replace(_read(wheel, reader), published=published[wheel]) if wheel in chosen else Bundle(wheel, {})
        for wheel in wheels
    )
    check_drivers(bundles)
    packages = PackageFinder(officials, request)
    unnamable: set[Key] = set()
    apart: set[tuple[str, str]] = set()
    libs: tuple[Bundle, ...] = ()
    shares_builds = request.share and not request.exact
    if shares_builds:
        libs = tuple(
            reader.read(patcher.stack.enter_context(publications.opened(name, room=patcher.room)))
            for name in _joinable(bundles, libs_wheels, publications, projects)
        )
        bundles = with_builds(bundles, projects, room=patcher.room, published=libs)
    while True:
        named = with_own_names(bundles, request, besides=unnamable)
        patches = plan_patches(named, request, packages=packages, patcher=patcher)
        plan = MachinePlan(named, patches, request, RequirementWriter(request, machine), packages)
        pools = [pool for pool in patches.decisions.pools if len(pool.bundles) == 1 or pool.has_published]
        other = [pool for pool in pools if not is_published(plan.libs(pool, {}), publications)]
        # what a project shares with no other keeps its own name
        alone = {
            (pool.projects[0], common_name(library.file_name, projects))
            for pool in (() if other else patches.decisions.pools)
            for library in pool.borrowers
        }
        if other or not alone <= apart:
            names = {libs_project(pool.owner) for pool in other}  # of the same names, and not the same
            left = tuple(bundle for bundle in libs if bundle.wheel.name.project not in names)
            libs = () if other and len(left) == len(libs) else left
            apart |= alone
            bundles = tuple(_not_joining(bundle, other) for bundle in bundles)
            if shares_builds:
                bundles = with_builds(bundles, projects, room=patcher.room, published=libs, apart=apart)
            continue
        # what cannot be edited cannot get a name, nor can what it needs
        affected = [
            bundle.binaries[path]
            for bundle, file in patches.uneditable
            for path in (file, *(edge.provider for edge in bundle.graph.needs(file) if edge.provider))
        ]
        # a name that is another build's is for what leaves alone
        affected += [
            binary
            for bundle, decided in patches.decisions.by_bundle.items()
            for path, decision in decided.items()
            if not decision.is_gone and (binary := bundle.binaries[path]).same_as and not binary.own_name
        ]
        if not any(binary.new_name for binary in affected):
            return plan
        if request.private:
            (bundle, path), why = next(iter(patches.uneditable.items()))
            raise RepackageError(
                f"{bundle.wheel.path.name}: {path}: cannot be edited for names of its own: {why}; --keep leaves "
                "libraries the names that they have"
            )
        unnamable |= {(binary.file_name, binary.sha256) for binary in affected}


def _joinable(
    bundles: Sequence[Bundle], libs_wheels: Iterable[WheelName], publications: Publications, projects: Collection[str]
) -> list[WheelName]:
    """Those of *libs_wheels* that *bundles* may join, if libraries are called as those there but for a hash."""
    there = {
        common_name(path.rpartition("/")[2], projects) for name in libs_wheels for path in publications.read(name).files
    }
    platforms = {
        bundle.wheel.name.platform
        for bundle in bundles
        for library in bundle.libraries
        if library.file_name not in bundle.published and common_name(library.file_name, projects) in there
    }
    return [name for name in libs_wheels if any(covers(name.platform, platform) for platform in platforms)]


def _not_joining(bundle: Bundle, pools: Sequence[Pool]) -> Bundle:
    """*bundle*, if it is one of *pools*, without what seemed to be in their published -libs wheels."""
    owners = {pool.owner for pool in pools if any(same.wheel is bundle.wheel for same in pool.bundles)}
    there = {name: owner for name, owner in bundle.published.items() if owner not in owners}
    return replace(bundle, published=there) if owners else bundle


def _read(wheel: Wheel, reader: WheelReader) -> Bundle:
    try:
        return reader.read(wheel)
    except FetchError as error:
        raise FetchError(
            f"{wheel.path.name}: has libraries with names of official ones, and no index says if they are: {error}; "
            "--no-replace leaves them where they are"
        ) from error


def _origin(
    name: str, loading: Loading, data: memoryview, sha256: str, /, *, officials: Officials, request: SplitRequest
) -> Origin:
    entries = by_stem(plain(name)) if request.replace and loading.outline.is_loadable else ()
    if not entries:
        return None
    return officials.provenance(name, loading, data, sha256=sha256, entries=entries)


def _promising(
    wheels: Sequence[Wheel],
    request: SplitRequest,
    published: Mapping[Wheel, Collection[str]],
    projects: Collection[str],
) -> set[Wheel]:
    if request.rpath or request.private:
        return set(wheels)
    owners: dict[tuple[str, str, str | None], set[Wheel]] = {}
    files_of: dict[str, dict[tuple[str, str | None], Wheel]] = {}
    promising = set()
    for wheel in wheels:
        there = {common_name(name, projects) for name in published[wheel]}
        for member in wheel.members:
            name = member.path.rpartition("/")[2]
            if not is_shared_object(name):
                continue
            common = common_name(name, projects)
            if is_driver(plain(name)) or (request.replace and by_stem(plain(name))) or common in there:
                promising.add(wheel)
            digest = wheel.row(member).hash
            platform = system_of(wheel.name.platform) if request.libs else wheel.name.platform
            subject = (name, digest) if request.exact else (common, None)
            owners.setdefault((platform, *subject), set()).add(wheel)
            files_of.setdefault(name, {})[wheel.name.project, digest] = wheel
    promising.update(*(several for several in owners.values() if request.share and len(several) > 1))
    # other contents in another project
    ambiguous = (files for files in files_of.values() if all(len({*values}) > 1 for values in zip(*files, strict=True)))
    return promising.union(*(files.values() for files in ambiguous))


def agreed_requirements(own: Mapping[Bundle, _Lines]) -> tuple[Mapping[Bundle, _Lines], Mapping[Bundle, str]]:
    """The lines for each wheel, given those that each needs itself, and warnings if wheels contradict."""
    lines: dict[Bundle, _Lines] = {}
    warnings: dict[Bundle, str] = {}
    families: dict[tuple[str, ...], list[Bundle]] = {}
    for bundle in own:
        families.setdefault(_family(bundle), []).append(bundle)
    for family in families.values():
        by_subject: dict[tuple[str, str], dict[str, None]] = {}
        for line in (line for bundle in family for line in own[bundle]):
            requirement = checked_requirement(line, RepackageError)
            subject = canonicalize_name(requirement.name), str(requirement.marker or "")
            by_subject.setdefault(subject, {})[line] = None
        common = [line for several in by_subject.values() if len(several) == 1 for line in several]
        conflicting = next((several for several in by_subject.values() if len(several) > 1), None)
        lines |= {bundle: tuple(dict.fromkeys([*common, *own[bundle]])) for bundle in family}
        if conflicting:
            first, second, *_ = conflicting
            warning = (
                f"wheels of one release require {first} and {second}; tools that read the metadata of one file "
                "for all of them, as uv lock does, will take the wrong one for some"
            )
            warnings |= dict.fromkeys(family, warning)
    return lines, warnings


def _family(bundle: Bundle) -> tuple[str, ...]:
    return bundle.wheel.name.release, bundle.wheel.name.variant or ""


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """The plans of all *machines* together."""

    machines: tuple[MachinePlan, ...]
    codec: Codec
    sources: tuple[SourceFiles, ...] = ()
    publications: Publications = field(default_factory=Publications)

    @property
    def _bundles(self) -> Iterator[tuple[MachinePlan, Bundle]]:
        return ((machine, bundle) for machine in self.machines for bundle in machine.bundles)

    @property
    def _pools(self) -> Iterator[tuple[MachinePlan, Pool]]:
        return ((machine, pool) for machine in self.machines for pool in machine.patches.decisions.pools)

    @cached_property
    def _choices(self) -> Mapping[Pool, LibsChoice]:
        stated = {name: version for machine in self.machines for name, version in machine.request.libs_versions.items()}
        choices: dict[Pool, LibsChoice] = {}
        for is_base in (True, False):  # that of a project may require a base
            choices |= libs_choices(
                {pool: machine.libs(pool, choices) for machine, pool in self._pools if pool.is_base == is_base},
                self.publications,
                stated=stated,
                needs_empty=lambda pools: any(self._empty_users(pools)),
            )
        return choices

    @cached_property
    def companions(self) -> Mapping[Pool, Companion]:
        return {pool: choice.companion for pool, choice in self._choices.items()}

    def _empty_users(self, pools: Collection[Pool]) -> Iterator[str]:
        """The files that require the -libs wheels of *pools* and bring their libraries, or are built."""
        owners = {pool.owner for pool in pools}
        alike = [pool for _, pool in self._pools if pool.owner in owners]
        platforms = {bundle.wheel.name.platform for pool in alike for bundle in pool.bundles}
        bundles = [bundle for pool in pools for bundle in pool.bundles]
        families = {_family(bundle) for bundle in bundles}
        for _, bundle in self._bundles:
            if _family(bundle) in families and bundle.wheel.name.platform not in platforms:
                yield bundle.wheel.path.name
        yield from (
            source.path.name for source in self.sources if any(source.is_of(bundle.wheel.name) for bundle in bundles)
        )

    @cached_property
    def empty_wheels(self) -> Mapping[OutputWheel, tuple[str, ...]]:
        """The -libs wheels without libraries, each with the files that require it and bring their libraries.

        No marker tells glibc from musl, and `pip download --platform` decides markers for the machine that it runs on.
        So there is one that fits everywhere; installers prefer the other.
        """
        empty_wheels = []
        for requirement in dict.fromkeys(companion.requirement for companion in self.companions.values()):
            alike = [pool for pool, companion in self.companions.items() if companion.requirement == requirement]
            new = [pool for pool in alike if not self._choices[pool].is_published]
            if new and (users := tuple(self._empty_users(alike))):
                empty = self._choices[new[0]].contents.empty(self.companions[new[0]].name.version)
                empty_wheels.append((libs_wheel(empty, (), stubs={}), users))
        return dict(empty_wheels)

    def requires_of(self, source: SourceFiles) -> _Lines:
        """The lines that all wheels of the release of *source* get."""
        lists = [
            self.requires(bundle)
            for _, bundle in self._bundles
            if bundle.wheel.name.variant is None and source.is_of(bundle.wheel.name)
        ]
        return tuple(line for line in lists[0] if all(line in several for several in lists)) if lists else ()

    @cached_property
    def preloads(self) -> Mapping[Bundle, PreloadFiles]:
        return {
            bundle: preload_files(bundle, machine.patches, self.companions, closure=machine.packages.officials.closure)
            if machine.request.preload
            else PreloadFiles({})
            for machine, bundle in self._bundles
        }

    @cached_property
    def _agreed(self) -> tuple[Mapping[Bundle, _Lines], Mapping[Bundle, str]]:
        own = {}
        for machine, bundle in self._bundles:
            with at(bundle.wheel.path.name):
                lines = [*machine.lines(machine.patches.staying[bundle], bundle.wheel.metadata())]
            companions = [self.companions[pool] for pool in pools_of(bundle, machine.patches.decisions.pools)]
            lines += [machine.requirements.exactly(*companion.release) for companion in companions]
            lines += self.publications.libs_lines(bundle.wheel.name)
            own[bundle] = tuple(dict.fromkeys(lines))
        return agreed_requirements(own)

    def requires(self, bundle: Bundle) -> _Lines:
        return self._agreed[0][bundle]

    @cached_property
    def thin_wheels(self) -> Mapping[Bundle, OutputWheel | None]:
        """The wheels that change; None for one that is copied."""
        return {
            bundle: thin_wheel(
                bundle,
                machine.patches,
                requires=self.requires(bundle),
                companions=self.companions,
                new_files=self.preloads[bundle].files,
                bill=machine.request.bill,
            )
            for machine, bundle in self._bundles
        }

    @cached_property
    def libs_wheels(self) -> Mapping[Pool, OutputWheel]:
        for pool, choice in self._choices.items():
            if pool.has_published and not choice.is_published:
                name = pool.bundles[0].wheel.path.name
                raise RepackageError(f"{name}: has builds of published libraries, which it cannot require; say --exact")
        return {
            pool: libs_wheel(
                self.companions[pool], machine.patches.moving[pool], stubs=machine.patches.second_stubs(pool)
            )
            for machine, pool in self._pools
            if not self._choices[pool].is_published
        }

    @cached_property
    def unlicensed(self) -> Mapping[OutputWheel, tuple[str, ...]]:
        return {
            self.libs_wheels[pool]: unnamed(
                machine.names(pool), self._choices[pool].contents.texts, projects=pool.projects
            )
            for machine, pool in self._pools
            if pool in self.libs_wheels
        }

    @property
    def outputs(self) -> Iterator[OutputWheel]:
        yield from (output for output in self.thin_wheels.values() if output)
        yield from self.libs_wheels.values()
        yield from self.empty_wheels

    @property
    def unchanged(self) -> tuple[Wheel, ...]:
        return tuple(bundle.wheel for bundle, output in self.thin_wheels.items() if output is None)

    @cached_property
    def _contradictions(self) -> Mapping[str, str]:
        lines = {bundle.wheel.name.release: (bundle.wheel.name, self.requires(bundle)) for _, bundle in self._bundles}
        warnings = {release: self.publications.contradiction(name, its) for release, (name, its) in lines.items()}
        return {release: warning for release, warning in warnings.items() if warning}

    def warnings(self, machine: MachinePlan, bundle: Bundle) -> Iterator[str]:
        yield from (f"{path}: cannot be read: {why}" for path, why in bundle.damaged.items())
        yield from (
            f"{path}: left as it was, because it cannot be edited: {why}"
            for (owner, path), why in machine.patches.uneditable.items()
            if owner is bundle
        )
        yield from self.preloads[bundle].warnings
        yield from filter(None, (self._contradictions.get(bundle.wheel.name.release), self._agreed[1].get(bundle)))
