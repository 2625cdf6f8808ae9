"""Results of a release and of a split as lines for a terminal of 80 columns."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from vbuild.cli import terminal
from vbuild.errors import VbuildError
from vbuild.files.wording import counted, mb, shown, wrapped

if TYPE_CHECKING:
    from vbuild.release.model import Failure, Product, ReleaseResult
    from vbuild.splitting.results import CompanionResult, LibraryMove, SeveralBuilds, Split, SplitWheel
    from vbuild.verification.bench import BenchReport

_LABEL = 22
_SHOWN_BUILDS = 10
_SHOWN = 5
_SHOWN_FIGURES = 8

_WHEEL = re.compile(r"\S+\.whl: ")


def show_release(release: "ReleaseResult", *, as_json: bool = False) -> None:
    """Print *release*; `VbuildError`, and thus status 1, if something of it failed."""
    # the wheels are read again for their sizes and hashes, so only if asked for
    data = release.data() if as_json else None
    terminal.show(data, release_lines(release), as_json=as_json)
    if release.failures:
        raise VbuildError(f"{release.name}: {len(release.failures)} of {release.targets} targets failed")
    if errors := [report.error for report in release.bench if report.error]:
        raise VbuildError(f"{release.name}: bench: {errors[0]}")


def release_lines(release: "ReleaseResult") -> Iterator[str]:
    """The release in 80 columns: two lines a wheel, and one for its GPU code; then what failed."""
    if release.products:
        yield f"{'variant':<{_LABEL}} {'size':>9} {'build':>8}  {'instruction sets':<22} test"
    built: set[tuple[str, ...]] = set()
    pythons = dict.fromkeys(product.target.python for product in release.products)
    for python, products in groupby(release.products, key=lambda product: product.target.python):
        if len(pythons) > 1:
            yield f"Python {python}"
        for product in products:
            yield from _product_lines(product, built)
    for report in release.bench:
        yield from _bench_lines(report)
    for indexed in release.indexed:
        yield from wrapped(f"{indexed.path.name}: {', '.join(indexed.labels)}")
    yield from _notable_lines(release)
    yield from _failure_lines(release.failures)


def _bench_lines(report: "BenchReport") -> Iterator[str]:
    if report.error:
        yield from wrapped(f"bench failed, and nothing is left out: {report.error}")
        return
    measure = report.wheels[0]
    yield f"{'bench':<{_LABEL}} speed, against {measure.title} in {report.rounds} rounds"
    for wheel in report.wheels:
        yield from wrapped(f"{wheel.title:<{_LABEL}} {wheel.untried or wheel.overall or 'the measure'}")
        if len(wheel.ratios) > 1:
            shown = [f"{name} {ratio.median:.2f}x" for name, ratio in wheel.ratios.items()]
            yield from wrapped(f"  {', '.join(shown[:_SHOWN_FIGURES])}", indent=4)
        if decision := wheel.decision(report.min_gain):
            yield from wrapped(f"  {decision}", indent=4)


def _notable_lines(release: "ReleaseResult") -> Iterator[str]:
    yield from _code_lines(release)
    yield from _emulation_lines(release)
    yield from _differing_lines(release)
    if lists := release.lists:
        yield f"lists of GPU architectures that were changed: {len(lists)}"
        for text in lists[:_SHOWN]:
            yield from wrapped(f"  {text}", indent=6)
    if kept := _kept_text(release):
        yield f"kept from an earlier run: {kept}; --fresh builds them again"
    if release.split:
        yield from split_lines(release.split)
    for note in release.notes:
        yield from wrapped(note)


def _code_lines(release: "ReleaseResult") -> Iterator[str]:
    """Levels without gain, and what became of the flags of the project's own."""
    lines = [
        f"{product.title}: {finding.what}"
        for product in release.products
        for finding in product.verdict.findings
        if finding.rule in {"isa-gain", "isa-emulated"} and finding.severity == "warning"
    ]
    for line in dict.fromkeys(lines):  # once for all Pythons
        yield from wrapped(line)
    if removed := release.removed:
        yield from wrapped(f"taken out of the project's own flags: {' '.join(removed)}")
    for flag, files in release.kept_flags:
        yield from wrapped(f"kept for single files: {flag} of {shown(files, _SHOWN)}")


def _differing_lines(release: "ReleaseResult") -> Iterator[str]:
    from vbuild.release.report import REPORT, differing

    files = [*differing(release.products).items()]
    if files:
        yield f"not the same bytes if built elsewhere: {counted(len(files), 'file')}"
    for file, titles in files[:_SHOWN]:
        yield from wrapped(f"  {file.file} {file.why} ({shown(titles, _SHOWN)})", indent=4)
    if len(files) > _SHOWN:
        yield f"  and {len(files) - _SHOWN} more, in {REPORT}"


def _emulation_lines(release: "ReleaseResult") -> Iterator[str]:
    untried: dict[str, list[str]] = {}
    for product in release.products:
        if product.emulation and product.emulation.untried:
            untried.setdefault(product.emulation.untried, []).append(product.title)
    for why, labels in untried.items():
        yield from wrapped(f"not emulated: {', '.join(dict.fromkeys(labels))}: {why}")


def _product_lines(product: "Product", built: set[tuple[str, ...]]) -> Iterator[str]:
    size, seconds = f"{product.size / 1e6:.2f} MB", _built(product, built)
    label = product.title
    if len(label) > _LABEL:
        yield label
        label = ""
    yield f"{label:<{_LABEL}} {size:>9} {seconds:>8}  {f'{product.verdict.isa} ':<22} {_tested(product)}"
    yield f"  {product.wheel.name}"
    if codes := product.verdict.gpu_codes:
        yield from wrapped(f"  GPU code: {', '.join(codes)}", indent=12)


def _tested(product: "Product") -> str:
    """The result of *product*'s test, and the level at which it works in an emulator."""
    run = product.emulation
    if not (run and run.works):
        return str(product.trial)
    if run.is_tested and product.trial == "not run":
        return f"passed as {run.level}"  # for another machine than this one
    return f"{product.trial}, as {run.level}" if run.is_tested else f"imported as {run.level}"


def _built(product: "Product", before: set[tuple[str, ...]]) -> str:
    """How long the build of *product* took, or "same" if it is one of *before*."""
    key = product.target.build_key
    is_first = key not in before
    before.add(key)
    if not product.is_built:
        return "kept"
    return f"{product.seconds:.1f} s" if is_first else "same"


def _kept_text(release: "ReleaseResult") -> str:
    wheels = f"{release.kept_wheels} of {release.targets} wheels" if release.kept_wheels else ""
    builds = counted(release.kept_builds, "build") if release.kept_builds else ""
    return " and ".join(filter(None, (wheels, builds)))


def _failure_lines(failures: Iterable["Failure"]) -> Iterator[str]:
    """What failed, and why, once for wheels that failed alike."""
    alike: dict[str, list[Failure]] = {}
    for failure in failures:
        alike.setdefault(_reason(failure), []).append(failure)
    for group in alike.values():
        # of several logs, which differ in the level's flags, one is enough
        error = group[0].error
        if len({failure.error.partition("\n")[0] for failure in group}) > 1:
            error = _WHEEL.sub("", error, count=1)
        # with the last lines of a log, in which compilers and make put tabs
        first, *log = f"{', '.join(str(failure.target) for failure in group)} failed: {error}".expandtabs().splitlines()
        yield from wrapped(first)
        yield from log
        for file in dict.fromkeys(str(failure.log) for failure in group if failure.log):
            if file not in error:
                yield from wrapped(f"  its log is {file}")


def _reason(failure: "Failure") -> str:
    """What failures for one reason share: the first line, and the end of its log, if any."""
    first, *_ = failure.error.splitlines() or [""]
    if failure.log and str(failure.log) in first:
        return failure.error.replace(str(failure.log), "")
    return _WHEEL.sub("", first, count=1)


def _total_lines(split: "Split") -> Iterator[str]:
    made = f" and {counted(len(split.companions), 'new wheel')}" if split.companions else ""
    after = "" if split.packed is None else f" -> {mb(split.packed)}"
    yield f"{counted(len(split.wheels), 'wheel')}{made}: {mb(split.before)}{after} MB"
    if elsewhere := [wheel for wheel in split.wheels if "-win" in wheel.name or "-macosx" in wheel.name]:
        size, several = mb(sum(wheel.before for wheel in elsewhere)), counted(len(elsewhere), "wheel")
        yield from wrapped(f"{size} MB are {several} for Windows or macOS, whose libraries stay where they are")


def split_lines(split: "Split") -> Iterator[str]:
    yield from _total_lines(split)
    alike: dict[str, list[LibraryMove]] = {}
    for move in split.libraries:
        alike.setdefault(_becomes(move), []).append(move)
    for what, moves in alike.items():
        yield from wrapped(f"{mb(sum(move.packed for move in moves))} MB {what}")
        shown = moves[:_SHOWN] if moves[0].kind == "keep" else moves
        for move in shown:
            yield from wrapped(f"  {_copies(move)}", indent=4)
        if len(moves) > len(shown):
            yield f"  and {len(moves) - len(shown)} more"
    yield from _rebuilt_lines(split.rebuilt)
    for companion in split.companions:
        yield from _companion_lines(companion)
    for wheel in split.wheels:
        yield from _wheel_lines(wheel)
    for source in split.sources:
        yield source.name
        if source.reason:
            yield from wrapped(f"  left as it was: {source.reason}", indent=4)
        yield from _requirements(source.requires)
    if any(move.kind in {"share", "replace"} for move in split.libraries):
        yield from wrapped(
            "auditwheel show calls wheels whose libraries moved linux_x86_64 and the like, because it looks into one "
            "wheel only; vbuild verify checks their tags together with the wheels beside them",
        )


def _rebuilt_lines(rebuilt: "Sequence[SeveralBuilds]") -> Iterator[str]:
    if not rebuilt:
        return
    saving = mb(sum(library.saving for library in rebuilt))
    subject = "1 library is" if len(rebuilt) == 1 else f"{len(rebuilt)} libraries are"
    yield from wrapped(
        f"{subject} in several projects, each with its own. One build of each would save {saving} MB: of one version, "
        "in one image, by one recipe, with all that it needs, and split together with --libs NAME==VERSION"
    )
    for library in rebuilt[:_SHOWN_BUILDS]:
        builds = ", ".join(map(str, library.builds))
        yield from wrapped(f"  {library.name}: {mb(library.saving)} of {mb(library.packed)} MB: {builds}", indent=4)
    if len(rebuilt) > _SHOWN_BUILDS:
        yield f"  and {len(rebuilt) - _SHOWN_BUILDS} more"


def _copies(move: "LibraryMove") -> str:
    notes = f" ({move.evidence})" if move.evidence else ""
    if move.builds > 1:
        traces = [f"{counted(size, 'byte')} of {name}" for name, size in sorted(move.traces.items())]
        notes = f" ({move.builds} builds that differ in {', '.join([*traces, 'names'])})"
    own = f", now {move.own_name}" if move.own_name else ""
    own += ", since another project has another" if own and move.kind != "rename" else ""
    differs = f"; {move.differs}" if move.differs else ""
    return f"{move.name} in {counted(len(move.wheels), 'wheel')}{notes}{own}{differs}"


def _becomes(move: "LibraryMove") -> str:
    because = f"; {move.reason}" if move.reason else ""
    match str(move.kind):
        case "replace":
            return f"replaced by {move.target}"
        case "share":
            return f"moved to {move.target}{because}"
        case "rename":
            return "left where it was, under a name of its own"
        case _:
            return f"left {'where' if move.own_name else 'as'} it was, because {move.reason}"


def _companion_lines(companion: "CompanionResult") -> Iterator[str]:
    yield companion.name
    packed = "" if companion.packed is None else f"{mb(companion.packed)} MB, "
    files = counted(len(companion.files), "file")
    yield f"  {packed}unpacked {mb(companion.unpacked)} MB, {files} for {counted(len(companion.wheels), 'wheel')}"
    if companion.unlicensed:
        text = f"  warning: no licence text in it names {', '.join(companion.unlicensed)}: the wheels have"
        yield from wrapped(f"{text} none; add those that apply to the project's license-files", indent=4)


def _requirements(lines: "Sequence[str]") -> Iterator[str]:
    # each file of a release states those for all machines
    for line in dict.fromkeys(line.partition(";")[0] for line in lines):
        yield from wrapped(f"  requires {line}", indent=4)


def _wheel_lines(wheel: "SplitWheel") -> Iterator[str]:
    yield wheel.name
    if wheel.is_untouched:
        yield "  unchanged: no library leaves it"
        return
    packed = "" if wheel.packed is None else f"{mb(wheel.before)} -> {mb(wheel.packed)} MB, "
    yield f"  {packed}unpacked {mb(wheel.unpacked_before)} -> {mb(wheel.unpacked)} MB"
    yield from _requirements(wheel.requires)
    for edited in wheel.edited:
        rpath = "" if edited.rpath is None else f": RPATH {':'.join(edited.rpath) or 'none'}"
        yield from wrapped(f"  {edited.path}{rpath}", indent=4)
        for entry in edited.removed:
            yield from wrapped(f"    without {entry}", indent=6)
    for warning in wheel.warnings:
        yield from wrapped(f"  warning: {warning}", indent=4)
