"""Results as text for a terminal of 80 columns: lines, which `vbuild.cli` prints."""

import shlex
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vbuild.build.frontend import Job
    from vbuild.contents.model import Contents
    from vbuild.release.outcome import Product, Release
    from vbuild.slimming.outcome import LibraryCut, Slimmed
    from vbuild.verdict.model import Verdict

_SHOWN = 5


def release_lines(release: "Release") -> Iterator[str]:
    """The release as a table of 80 columns: two lines a wheel, then what failed."""
    yield f"{'variant':<22} {'size':>9} {'build':>8}  {'instruction sets':<22} test"
    built: set[tuple[str, ...]] = set()
    for product in release.products:
        size, seconds = f"{product.size / 1e6:.2f} MB", _built(product, built)
        label = product.label or "plain"
        yield f"{label:<22} {size:>9} {seconds:>8}  {product.verdict.isa:<22} {product.trial}"
        yield f"  {product.wheel.name}"
        if codes := product.verdict.gpu_codes:
            yield f"  GPU code: {', '.join(codes)}"
    yield from (f"{indexed.path.name}: {', '.join(indexed.labels)}" for indexed in release.indexed)
    if removed := release.removed:
        yield f"taken out of the project's own flags: {' '.join(removed)}"
    if lists := release.lists:
        yield f"lists of GPU architectures that were changed: {len(lists)}"
        yield from (f"  {text}" for text in lists[:_SHOWN])
    if release.kept:
        yield f"kept from an earlier run: {release.kept} of {release.targets} wheels; --fresh builds them again"
    yield from release.notes
    # the wheels of one build fail together
    for error in dict.fromkeys(failure.error for failure in release.failures):
        targets = ", ".join(str(failure.target) for failure in release.failures if failure.error == error)
        # with the last lines of a log, in which compilers and make put tabs
        yield from f"{targets} failed: {error}".expandtabs().splitlines()


def _built(product: "Product", before: set[tuple[str, ...]]) -> str:
    """How long the build of *product* took, in a few letters; builds with several wheels are told *before*."""
    key = product.target.build_key
    is_first = key not in before
    before.add(key)
    if product.is_kept:
        return "kept"
    return f"{product.seconds:.1f} s" if is_first else "same"


def contents_lines(contents: "Contents", globs: Sequence[str]) -> Iterator[str]:
    """A wheel on one screen; or all about its libraries whose paths match one of *globs*."""
    from vbuild.contents.text import details, summary

    if not globs:
        yield from summary(contents)
        return
    chosen = [one for one in contents.libraries if any(fnmatchcase(one.path, glob) for glob in globs)]
    for library in chosen:
        yield from details(library, contents.devices)
    if not chosen:
        yield f"{contents.wheel}: no library matches {' or '.join(globs)}"


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


def job_lines(job: "Job") -> Iterator[str]:
    """A job as the shell would be told: variables, config settings, and what the launchers do."""
    yield f"{job.target} (Python {job.target.python}, {job.target.cpu}, {job.plan.backend})"
    yield from (f"  {name}={shlex.quote(value)}" for name, value in job.plan.environment)
    yield from (f"  -C{key}={value}" for key, value in job.plan.config_settings)
    rules = job.plan.rewriting
    yield f"  launchers: put last {' '.join((*rules.compile, *rules.link))}"
    if cuda := job.target.cuda:
        slimmed = f", slimmed to {job.target.gpus}" if job.target.gpus else ""
        yield f"  CUDA {cuda.toolkit}: compiled for {cuda.archs}{slimmed}"


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
