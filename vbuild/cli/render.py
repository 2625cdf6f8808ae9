"""Results as text for a terminal of 80 columns: lines, which `vbuild.cli.terminal` prints."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vbuild.build.cibuildwheel.runs import CibuildwheelRun
    from vbuild.build.frontend import Job
    from vbuild.inspection.model import Contents
    from vbuild.publishing.check import Checklist
    from vbuild.publishing.publish import Laid
    from vbuild.release.outcome import Failure, Product, ReleaseResult
    from vbuild.slimming.results import LibraryCut, Slimmed
    from vbuild.splitting.results import LibraryMove, Split, Thinned
    from vbuild.variants.doctor import Diagnosis
    from vbuild.verification.install_check import InstallCheck
    from vbuild.verification.model import Verdict

_WIDTH = 80
_LABEL = 22
_SHOWN = 5
_FILES = 12
_SHIPPED = (".whl", ".tar.gz", ".conda", "oci-layout")

# a line may end behind blanks and, in lists, behind a comma
_PIECE = re.compile(r"\S+?(?:\s+|,(?=\S)|$)")
_WHEEL = re.compile(r"\S+\.whl: ")


def release_lines(release: "ReleaseResult") -> Iterator[str]:
    """The release as a table of 80 columns: two lines a wheel, and one for its GPU code; then what failed."""
    if release.products:
        yield f"{'variant':<{_LABEL}} {'size':>9} {'build':>8}  {'instruction sets':<22} test"
    built: set[tuple[str, ...]] = set()
    for product in release.products:
        yield from _product_lines(product, built)
    for indexed in release.indexed:
        yield from _wrapped(f"{indexed.path.name}: {', '.join(indexed.labels)}")
    yield from _notable_lines(release)
    yield from _failure_lines(release.failures)


def _notable_lines(release: "ReleaseResult") -> Iterator[str]:
    """What there is to know of a release besides its wheels."""
    if removed := release.removed:
        yield from _wrapped(f"taken out of the project's own flags: {' '.join(removed)}")
    if lists := release.lists:
        yield f"lists of GPU architectures that were changed: {len(lists)}"
        for text in lists[:_SHOWN]:
            yield from _wrapped(f"  {text}", indent=6)
    if kept := _kept(release):
        yield f"kept from an earlier run: {kept}; matrix --fresh builds them again"
    if release.split:
        yield from split_lines(release.split)
    if release.changes:
        for line in release.changes.lines():
            yield from _wrapped(line, indent=4)
    for note in release.notes:
        yield from _wrapped(note)


def _product_lines(product: "Product", built: set[tuple[str, ...]]) -> Iterator[str]:
    size, seconds = f"{product.size / 1e6:.2f} MB", _built(product, built)
    label = product.label or "plain"
    if len(label) > _LABEL:
        yield label
        label = ""
    yield f"{label:<{_LABEL}} {size:>9} {seconds:>8}  {product.verdict.isa:<22} {product.trial}"
    yield f"  {product.wheel.name}"
    if codes := product.verdict.gpu_codes:
        yield from _wrapped(f"  GPU code: {', '.join(codes)}", indent=12)


def _built(product: "Product", before: set[tuple[str, ...]]) -> str:
    """How long the build of *product* took, in a few letters; builds with several wheels are told *before*."""
    key = product.target.build_key
    is_first = key not in before
    before.add(key)
    if not product.is_built:
        return "kept"
    return f"{product.seconds:.1f} s" if is_first else "same"


def _kept(release: "ReleaseResult") -> str:
    """What *release* has from an earlier run, in a few words; none where it has nothing."""
    wheels = f"{release.kept} of {release.targets} wheels" if release.kept else ""
    count = release.kept_builds
    builds = f"{count} build{'' if count == 1 else 's'}" if count else ""
    return " and ".join(filter(None, (wheels, builds)))


def _failure_lines(failures: Iterable["Failure"]) -> Iterator[str]:
    """What failed, and why: once for wheels that failed alike, as those of one build do."""
    alike: dict[str, list[Failure]] = {}
    for failure in failures:
        alike.setdefault(_WHEEL.sub("", failure.error, count=1), []).append(failure)
    for said, group in alike.items():
        error = said if len({failure.error for failure in group}) > 1 else group[0].error
        # with the last lines of a log, in which compilers and make put tabs
        first, *log = f"{', '.join(str(failure.target) for failure in group)} failed: {error}".expandtabs().splitlines()
        yield from _wrapped(first)
        yield from log
        for file in dict.fromkeys(str(failure.log) for failure in group if failure.log):
            if file not in error:
                yield from _wrapped(f"  its log is {file}")


def _wrapped(text: str, *, indent: int = 2) -> Iterator[str]:
    """*text* in lines of 80 columns, those behind the first set in; a word is not broken, a path can be copied."""
    begin = " " * (len(text) - len(text.lstrip()))
    line = begin
    for piece in _PIECE.findall(text):
        if line.strip() and len(line) + len(piece.rstrip()) > _WIDTH:
            yield line.rstrip()
            line = " " * indent
        line += piece
    yield line.rstrip()


def contents_lines(several: Iterable["Contents"], globs: Sequence[str]) -> Iterator[str]:
    """Each wheel on one screen; or all about its libraries whose paths match one of *globs*."""
    from vbuild.inspection.text import details, summary

    for contents in several:
        if not globs:
            yield from summary(contents)
            continue
        chosen = [one for one in contents.libraries if any(fnmatchcase(one.path, glob) for glob in globs)]
        for library in chosen:
            yield from details(library, contents.devices)
        if not chosen:
            yield f"{contents.wheel}: no library matches {' or '.join(globs)}"


def closure_lines(several: Sequence["Contents"], globs: Sequence[str]) -> Iterator[str]:
    """Which library loads which in each wheel, and what wheels repeat; or how those matching *globs* are reached."""
    from vbuild.inspection import closure_text as closuretext

    for place, contents in enumerate(several):
        yield from [""] if place else []
        yield from closuretext.closure_lines(contents, globs)
    if not globs and (repeated := [*closuretext.repeat_lines(several)]):
        yield ""
        yield from repeated


def verdict_lines(verdict: "Verdict") -> Iterator[str]:
    yield f"{verdict.wheel.name}: {'failed' if verdict.failed else 'ok'}"
    yield f"  instruction sets: {verdict.isa}{f', held against {verdict.cpu}' if verdict.cpu else ''}"
    for library in verdict.libraries:
        highest = f"{library.level} at most" if library.level else "not disassembled"
        yield f"  {library.member}: {library.code_size / 1e6:.2f} MB of {library.machine} code, {highest}"
    if verdict.gpus or verdict.claimed_gpus:
        yield f"  GPU code: {verdict.gpu}"
    for found in verdict.gpus:
        archs = ", ".join((*found.machine, *(f"PTX {name}" for name in found.ptx)))
        yield f"  {found.member}: {found.fatbins} fatbins with {archs or 'code of an unknown kind'}"
        yield from (f"    would run on {served.device}: {served}" for served in found.served)
    yield from (f"  {finding}" for finding in verdict.findings)


def job_lines(jobs: Iterable["Job"]) -> Iterator[str]:
    """Jobs as the shell would be told: variables, config settings, and what the launchers do; each build once."""
    builds: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        builds.setdefault(job.target.build_key, []).append(job)
    for wheels in builds.values():
        yield from _build_lines(wheels)
    for job in [wheels[0] for wheels in builds.values()][:1]:  # all builds see the same
        names = ", ".join(job.passed) or "none"
        yield from _wrapped(f"variables of the environment that builds see: {names}; {job.held_back} are held back")


def _build_lines(wheels: Sequence["Job"]) -> Iterator[str]:
    job = wheels[0]
    targets = ", ".join(str(wheel.target) for wheel in wheels)
    yield from _wrapped(f"{targets} (Python {job.target.python}, {job.target.cpu}, {job.plan.backend})")
    yield from (f"  {name}={shlex.quote(value)}" for name, value in job.plan.environment)
    yield from (f"  -C{key}={value}" for key, value in job.plan.config_settings)
    rules = job.plan.rewriting
    yield from _wrapped(f"  launchers: put last {' '.join((*rules.compile, *rules.link))}", indent=4)
    for prefix in job.prefixes:
        yield from _wrapped(f"  native {prefix}", indent=4)
    if cuda := job.target.cuda:
        where = "" if job.toolkit and job.toolkit.root.exists() else ", which is to be fetched"
        yield from _wrapped(f"  CUDA {cuda.toolkit}{where}: compiled for {cuda.archs}", indent=4)
    for wheel in wheels:
        if gpus := wheel.target.gpus:
            yield from _wrapped(f"  {wheel.target}: slimmed to {gpus}", indent=4)


def run_lines(runs: Iterable["CibuildwheelRun"]) -> Iterator[str]:
    """Runs of cibuildwheel: what each is for, then its variables, as the shell would be told."""
    for run in runs:
        yield from _wrapped(f"{run}: {', '.join(run.identifiers)}")
        yield from (f"  {name}={shlex.quote(value)}" for name, value in run.variables)


def split_lines(split: "Split") -> Iterator[str]:
    """A split: what went where, what stayed and why, and each wheel before and after."""
    made = f" and {_counted(len(split.beside), 'wheel')} beside" if split.beside else ""
    after = "" if split.packed is None else f" -> {_mb(split.packed)}"
    yield f"{_counted(len(split.wheels), 'wheel')}{made}: {_mb(split.before)}{after} MB"
    alike: dict[str, list[LibraryMove]] = {}
    for move in split.libraries:
        alike.setdefault(_becomes(move), []).append(move)
    for what, moves in alike.items():
        yield from _wrapped(f"{_mb(sum(move.packed for move in moves))} MB {what}")
        shown = moves[:_SHOWN] if moves[0].kind == "keep" else moves
        for move in shown:
            proof = f" ({move.evidence})" if move.evidence else ""
            yield from _wrapped(f"  {move.name} in {_counted(len(move.wheels), 'wheel')}{proof}", indent=4)
        if len(moves) > len(shown):
            yield f"  and {len(moves) - len(shown)} more"
    for beside in split.beside:
        yield beside.name
        packed = "" if beside.packed is None else f"{_mb(beside.packed)} MB, "
        files = _counted(len(beside.files), "file")
        yield f"  {packed}unpacked {_mb(beside.unpacked)} MB, {files} for {_counted(len(beside.wheels), 'wheel')}"
    for wheel in split.wheels:
        yield from _thinned_lines(wheel)


def _becomes(move: "LibraryMove") -> str:
    """What becomes of a library, and the reason where it is not the best."""
    because = f"; {move.reason}" if move.reason else ""
    match str(move.kind):
        case "replace":
            return f"replaced by {move.target}"
        case "share":
            return f"moved to {move.target}{because}"
        case "drop":
            return f"dropped: {move.reason}"
        case _:
            return f"left as it was, because {move.reason}"


def checked_lines(checked: Iterable["InstallCheck"]) -> Iterator[str]:
    """What came of installing the results, a wheel and an installer at a time."""
    for one in checked:
        for line in one.lines():
            yield from _wrapped(line, indent=6)


def check_lines(checklist: "Checklist") -> Iterator[str]:
    """What keeps a folder from being published, errors first; then what was looked at."""
    for problem in checklist.problems:
        yield from _wrapped(f"{problem.severity}: {problem.place}: {problem.what}")
        yield from _wrapped(f"  {problem.advice} [{problem.demand}]", indent=4)
    found = f"{_counted(checklist.errors, 'error')}, {_counted(checklist.warnings, 'warning')}"
    what = ", ".join(checklist.releases) or str(checklist.folder)
    yield from _wrapped(f"{what}: {_counted(checklist.files, 'file')}, {found}")


def diagnosis_lines(found: Iterable["Diagnosis"]) -> Iterator[str]:
    """What is installed, and how to install anew what should be; commands are not broken, they can be copied."""
    found = tuple(found)
    for one in found:
        yield from _wrapped(str(one), indent=4)
        if one.advice:
            yield from _wrapped(f"  {one.advice}:", indent=4)
            yield from (f"    {command}" for command in one.commands)
    if not found:
        yield "no installed variant wheels"


def _thinned_lines(wheel: "Thinned") -> Iterator[str]:
    yield wheel.name
    if wheel.is_untouched:
        yield "  as it was: nothing in it to take out"
        return
    packed = "" if wheel.packed is None else f"{_mb(wheel.before)} -> {_mb(wheel.packed)} MB, "
    yield f"  {packed}unpacked {_mb(wheel.unpacked_before)} -> {_mb(wheel.unpacked)} MB"
    for line in wheel.requires:
        # the machine that it is for is in the wheel's own name
        yield from _wrapped(f"  requires {line.partition(';')[0]}", indent=4)
    for edited in wheel.edited:
        found = "" if edited.rpath is None else f": RPATH {':'.join(edited.rpath) or 'none'}"
        yield from _wrapped(f"  {edited.path}{found}", indent=4)
        for entry in edited.removed:
            yield from _wrapped(f"    without {entry}", indent=6)
    for warning in wheel.warnings:
        yield from _wrapped(f"  warning: {warning}", indent=4)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def slimmed_lines(slimmed: "Slimmed") -> Iterator[str]:
    """One output of slimming: the wheel, and two lines or so for each library that was looked at."""
    yield slimmed.name
    if slimmed.is_untouched:
        yield "  as it was: nothing in it to cut"
    packed = "" if slimmed.packed is None else f"{_mb(slimmed.before)} -> {_mb(slimmed.packed)} MB, "
    yield f"  {packed}unpacked {_mb(slimmed.unpacked_before)} -> {_mb(slimmed.unpacked)} MB"
    for library in slimmed.libraries:
        yield from (f"  {line}" for line in _cut_lines(library))
    if slimmed.removed:
        yield f"  dropped: {len(slimmed.removed)} members, {slimmed.removed[0]} first"
    yield from (f"  {prop}" for prop in slimmed.properties)
    yield from (f"  warning: {warning}" for warning in slimmed.warnings)


def _cut_lines(cut: "LibraryCut") -> Iterator[str]:
    yield f"{cut.member}: {_mb(cut.before)} -> {_mb(cut.after)} MB"
    if cut.has_gpu_code:
        pinned = f", {_fatbins(cut.pinned)} pinned" if cut.pinned else ""
        yield f"  {cut.kept} of {cut.kept + cut.dropped} entries kept{pinned}"
    for served in cut.served:
        jit = f", PTX in {served.jit} (compiled at first use)" if served.jit else ""
        nothing = f", nothing in {served.nothing}" if served.nothing else ""
        yield f"  {served.device}: machine code in {_fatbins(served.machine)}{jit}{nothing}"
    if cut.why_whole:
        yield f"  left as it was: {cut.why_whole}"
    yield from (f"  left alone: {note}" for note in cut.notes)


def _fatbins(count: int) -> str:
    return f"{count} fatbin{'' if count == 1 else 's'}"


def _mb(size: int) -> str:
    """*size* bytes in MB, 10^6 bytes."""
    return f"{size / 1e6:.1f}"


def laid_lines(laid: "Laid", *, pixi: bool = False) -> Iterator[str]:
    """A layout's folder: what is in it for consumers, and what its publisher should know; with *pixi* its tables."""
    links = sum(file.is_linked for file in laid.files)
    if laid.folder:
        written = f"{laid.size / 1e6:.2f} MB in {_counted(len(laid.files) - links, 'file')}, {_counted(links, 'link')}"
        yield from _wrapped(f"{laid.folder}: {written}; how to use it: {laid.folder / 'README.md'}")
        there = [file.path for file in laid.files]
    else:
        yield f"{laid.plan.layout}: would be made"
        there = [output.target for output in laid.plan.outputs]
    # links for an index, deeper down, have the names of what they lead to
    there = sorted(there, key=lambda path: (len(path.parts), path), reverse=True)
    names = {path.name: path for path in there if path.name.endswith(_SHIPPED)}
    shown = sorted(names.values())
    yield from (f"  {path}" for path in shown[:_FILES])
    if len(shown) > _FILES:
        yield f"  and {len(shown) - _FILES} more"
    for note in laid.plan.notes:
        yield from _wrapped(f"  {note}", indent=4)
    if pixi:
        yield from (line for use in laid.plan.uses if use.language == "toml" for line in ("", *use.text.splitlines()))
