"""`vbuild slim PKG.conda`: packages for conda cut to the GPUs one names, or a family of them; the output is a channel.

    package -> unpacked, held against paths.json -> what each share keeps of its files, as in a wheel
            -> a share without a label: the same name, version and build
               a label: a build for machines whose __cuda_arch fits, and the whole package beside it for all others
            -> the channel's repodata

    demo-1.0-cuda126_h1_304            the whole package, as it was
    demo-1.0-cuda126_h1_sm90_504       __cuda_arch >=9.0,<10

Of builds that fit, solvers take the highest build number. Those of a family are higher than that of the whole package
by two hundred or more: the order is PEP 825's, as in the layout conda.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from vbuild.errors import RepackageError, at
from vbuild.files.atomic import duplicate, settle, settle_names
from vbuild.files.staging import staging
from vbuild.gpu_code.model import Vendor
from vbuild.hardware.driver import ZSTD_SINCE, Dotted
from vbuild.publishing.conda.channel import index_channel
from vbuild.publishing.conda.depends import conditions
from vbuild.publishing.conda.file_names import packages_at, stem_of
from vbuild.publishing.conda.plan import choices
from vbuild.publishing.conda.slim_output import (
    FAST_LEVEL,
    LEVEL,
    CondaOutput,
    SlimFiles,
    estimated,
    packed,
    safe_plan,
    write_package,
)
from vbuild.publishing.conda.unpacked import (
    INDEX,
    PATHS,
    UnpackedPackage,
    checked_index,
    checked_paths,
    information_at,
    unpacked,
)
from vbuild.slimming.output import claimed_properties, cut_warnings
from vbuild.slimming.plan import SlimPlan, planned
from vbuild.slimming.request import Cuts, Share, is_named
from vbuild.slimming.results import Saving, Slimmed
from vbuild.slimming.slim import check_licence, check_shares, licence_warning
from vbuild.slimming.stated import cuda_major, still_listed
from vbuild.variants.document import Document, combine
from vbuild.variants.model import Variant
from vbuild.variants.providers import metadata_for
from vbuild.wheel.zip_format import ZipMethod

OnProgress = Callable[[str, int, int], None]

_CUDA = re.compile(r"cuda-version >=(?P<major>[0-9]{1,2})\b", re.ASCII)
# characters of a build string (CEP 26)
_LONGEST_BUILD = 64
_WORTH = 20
_WHOLE = "as it is, for machines that no variant fits"


def slim_packages(
    paths: Sequence[Path],
    folder: Path | None,
    *,
    shares: Sequence[Share],
    cuts: Cuts | None = None,
    fast: bool = False,
    accept_license: bool = False,
    verify: bool = True,
    on_progress: OnProgress = lambda _package, _done, _total: None,
) -> tuple[Slimmed, ...]:
    """Write into the channel *folder* what *shares* keep of the packages at *paths*, files or folders of them.

    Without a folder nothing is written, and packed sizes are estimates. What is written is of format 2, ``.conda``; a
    package in which nothing changes is copied. With *fast* it is compressed in less time. Every file is compared with
    info/paths.json, unless *verify* is off. The channel's repodata lists all packages in it.

    Raises `RepackageError` if a package is damaged or contradicts itself, nothing in it serves a GPU asked for, or a
    licence forbids the change: then no part of that package is in *folder*.
    """
    cuts = cuts or Cuts()
    _check(shares, cuts)
    packages = packages_at(paths)
    _check_globs(packages, cuts)
    pins = _pins(packages) if any(share.label for share in shares) else {}
    slimmed: list[Slimmed] = []
    with ExitStack() as stack:
        stage = stack.enter_context(staging(folder)) if folder else Path(stack.enter_context(TemporaryDirectory()))
        run = _Run(shares, cuts, folder, stage, fast=fast, accept_license=accept_license, verify=verify, pins=pins)
        for path in packages:
            with at(path.name):
                slimmed += run.slimmed(path, on_progress)
    if folder:
        index_channel(folder)
    return tuple(slimmed)


class _Run:
    """One run over packages, which writes into *stage* first."""

    def __init__(
        self,
        shares: Sequence[Share],
        cuts: Cuts,
        folder: Path | None,
        stage: Path,
        *,
        fast: bool,
        accept_license: bool,
        verify: bool,
        pins: Mapping[str, str],
    ) -> None:
        self._pins = pins
        self._shares, self._cuts = shares, cuts
        self._folder, self._stage = folder, stage
        self._level = FAST_LEVEL if fast else LEVEL
        self._accept_license, self._verify = accept_license, verify

    def slimmed(self, path: Path, on_progress: OnProgress) -> list[Slimmed]:
        """What becomes of the package at *path*."""
        with ExitStack() as stack:
            package = stack.enter_context(unpacked(path, room=self._stage if self._folder else None))
            cuts = self._cuts_for(package)
            progress = _Progress(package, len(self._shares), on_progress)
            found = package.prohibitions()
            allow = partial(check_licence, () if self._accept_license else found, "package")
            shares = self._shares
            plan = stack.enter_context(planned(package, shares, cuts, on_progress=progress, on_change=allow))
            plan = safe_plan(package, plan, cuts)
            outputs = conda_outputs(package, plan, shares)
            if self._verify and self._folder:
                package.check()
            warnings = () if plan.is_idle else tuple(map(licence_warning, found))
            return list(self._results(package, plan, outputs, warnings, progress))

    def _cuts_for(self, package: UnpackedPackage) -> Cuts:
        """The cuts, with zstd where all who may load a variant have a driver for it."""
        follows = self._cuts.zstd is None and all(share.label for share in self._shares)
        major = _major_asked(package) if follows else None
        return replace(self._cuts, zstd=True) if major and Dotted(major, 0) >= ZSTD_SINCE else self._cuts

    def _results(
        self,
        package: UnpackedPackage,
        plan: SlimPlan,
        outputs: Sequence[CondaOutput],
        warnings: tuple[str, ...],
        on_progress: Callable[[int], None],
    ) -> Iterator[Slimmed]:
        """Write the *outputs*, and tell what each of them is."""
        same = _same(package)
        is_family = any(output.build for output in outputs)
        if plan.is_idle and not is_family:
            results = [replace(same, libraries=plan.cuts(0), why_untouched=plan.why_idle)]
        else:
            results = []
            for share in dict.fromkeys(output.share for output in outputs):
                files = SlimFiles.of(package, plan, share)
                own = [output for output in outputs if output.share == share]
                sizes = self._written(package, files, own, on_progress)
                accounts = plan.cuts(share)
                listed = {library.member: library.listed for library in plan.libraries}
                told = (*cut_warnings(accounts), *plan.said[share], *still_listed(package, accounts, listed))
                results += [
                    replace(
                        same,
                        name=output.file(package),
                        packed=size,
                        unpacked=files.size,
                        libraries=accounts,
                        removed=tuple(sorted(plan.dropped)),
                        warnings=(*warnings, *told),
                        depends=output.depends,
                        more=tuple(_savings(plan, share, size)),
                    )
                    for output, size in zip(own, sizes, strict=True)
                ]
            if is_family:
                index = package.index
                pinning = self._pins.get(f"{index['name']} {index['version']} {index['build']}")
                told = (f"{pinning} depends on this very build, and on no other of the family",) if pinning else ()
                results.append(replace(same, why_untouched=_WHOLE, warnings=told))
        placed = _placed(package, [result.name for result in results], self._stage, self._folder)
        yield from (replace(result, path=placed.get(result.name)) for result in results)

    def _written(
        self,
        package: UnpackedPackage,
        files: SlimFiles,
        outputs: Sequence[CondaOutput],
        on_progress: Callable[[int], None],
    ) -> list[int]:
        """Write the packages *outputs*, all with the same *files*, into the stage; returns sizes, or estimates."""
        if not self._folder:
            return [estimated(package, files, level=self._level)] * len(outputs)
        sizes = []
        with packed(files.installed, level=self._level, folder=self._stage, on_progress=on_progress) as installed:
            for output in outputs:
                target = self._stage / output.file(package)
                describing = files.describing_with(output.index(package))
                with packed(describing, level=LEVEL, folder=self._stage) as described:
                    write_package(target, output.stem(package), installed, described)
                sizes.append(target.stat().st_size)
        return sizes


def _same(package: UnpackedPackage) -> Slimmed:
    """What becomes of *package* if nothing does."""
    packed_size = package.path.stat().st_size
    size = sum(entry.size for entry in package.files.entries)
    return Slimmed(
        wheel=package.path,
        name=package.path.name,
        path=None,
        before=packed_size,
        packed=packed_size,
        unpacked_before=size,
        unpacked=size,
        libraries=(),
    )


def _placed(package: UnpackedPackage, names: Sequence[str], stage: Path, folder: Path | None) -> dict[str, Path]:
    """Where the files *names* are in the channel *folder*: they get there when all are complete.

    What is not in *stage* is *package* itself.
    """
    if folder is None:
        return {}
    subdir = folder / str(package.index["subdir"])
    targets = {name: subdir / name for name in names}
    try:
        for name, target in targets.items():
            if target.exists() and target.samefile(package.path):
                raise RepackageError("would overwrite the package it is made from; choose another folder")
            if not (stage / name).exists():
                duplicate(package.path, stage / name)
            settle(stage / name)
        subdir.mkdir(exist_ok=True)
        for name, target in targets.items():
            (stage / name).replace(target)
        settle_names(subdir)
    except OSError as error:
        raise RepackageError(f"{subdir}: cannot be written: {error.strerror}") from error
    return targets


def conda_outputs(package: UnpackedPackage, plan: SlimPlan, shares: Sequence[Share]) -> tuple[CondaOutput, ...]:
    """The packages to write of *package*: one for a share without a label, one or more for one with a label.

    `RepackageError` if two variants would be for the same machines, or a build string would be too long.
    """
    if not plan.has_gpu_code or all(share.label is None for share in shares):
        return (CondaOutput(0),)
    majors = cuda_major(plan.needed), _major_asked(package)
    major = next((found for found in majors if found), None)
    documents, places = [], {}
    for place, share in enumerate(shares):
        with at(f"variant {share.label}"):
            cuts = plan.cuts(place)
            if not any(cut.served for cut in cuts):
                found = ", ".join(dict.fromkeys(gpu for cut in cuts for gpu in cut.gpus))
                raise RepackageError(f"no GPU code is for such GPUs; it is for {found}: expected some of these")
            variant = Variant.of(share.label or "", claimed_properties(cuts, major=major))
        documents.append((variant.label, Document.of(variant, metadata_for((Vendor.NVIDIA,)))))
        places[variant.label] = place
    build, number = str(package.index["build"]), int(package.index["build_number"])
    first = build.removesuffix(str(number)).rstrip("_") if build.endswith(f"_{number}") else build
    outputs = []
    for choice in choices(combine(documents)):
        own = number + choice.number
        new = "_".join((*filter(None, [first]), choice.label, str(own)))
        if len(new) > _LONGEST_BUILD:
            raise RepackageError(f"build string {new} has {len(new)} characters; expected {_LONGEST_BUILD} at most")
        outputs.append(CondaOutput(places[choice.label], new, own, conditions(choice.alternatives)))
    return tuple(outputs)


def _major_asked(package: UnpackedPackage) -> int | None:
    """The CUDA major that *package* depends on, or None if it does not say."""
    matches = map(_CUDA.match, package.index.get("depends", []))
    return next((int(match["major"]) for match in matches if match), None)


def _check(shares: Sequence[Share], cuts: Cuts) -> None:
    """Raise `RepackageError` for what does not go with packages."""
    check_shares(shares, cuts)
    if cuts.members is not ZipMethod.DEFLATED:
        raise RepackageError("--members is for wheels; packages for conda are compressed with zstd")
    if amd := [str(share) for share in shares if share.label and Vendor.AMD in share.vendors]:
        what = "conda has no virtual package for AMD's GPUs"
        raise RepackageError(f"variant {amd[0]!r}: {what}; expected --gpu, which keeps the build")


def _pins(packages: Sequence[Path]) -> dict[str, str]:
    """What *packages* depend on, each with the file name of the first that does."""
    found: dict[str, str] = {}
    for path in packages:
        with at(path.name):
            for depends in checked_index(information_at(path)[INDEX], stem_of(path)).get("depends", []):
                found.setdefault(str(depends), path.name)
    return found


def _check_globs(packages: Sequence[Path], cuts: Cuts) -> None:
    """Raise `RepackageError` for a glob that names nothing in any package, before anything is written."""
    unused = set(cuts.drop)
    for path in packages if unused else ():
        with at(path.name):
            stated = checked_paths(information_at(path)[PATHS])
            unused -= {glob for glob in unused if any(is_named(each, glob) for each in stated)}
    if unused:
        raise RepackageError(f"--drop {min(unused)!r}: names no file of any package given; * also crosses slashes")


class _Progress:
    """Counts bytes that are looked at, and those that are compressed for each share."""

    def __init__(self, package: UnpackedPackage, shares: int, on_progress: OnProgress) -> None:
        self._name, self._on_progress = package.path.name, on_progress
        self._done = 0
        self._total = (1 + shares) * sum(entry.size for entry in package.files.entries)

    def __call__(self, size: int) -> None:
        self._done = min(self._done + size, self._total)
        self._on_progress(self._name, self._done, self._total)


def _savings(plan: SlimPlan, share: int, packed_size: int) -> Iterator[Saving]:
    """Yield what other options would save besides: a twentieth of a package of *packed_size* bytes, or more."""
    found: dict[str, list[Saving]] = {}
    for library in plan.libraries:
        for saving in library.cuts[share].more:
            found.setdefault(saving.option, []).append(saving)
    for option, several in found.items():
        total = Saving(option, sum(one.packed for one in several), sum(one.unpacked for one in several))
        if total.packed * _WORTH >= packed_size:
            yield total
