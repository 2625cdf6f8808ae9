"""From a portable wheel to a finished one: cut to its GPUs, stamped, verified, tested, and emulated.

A test says nothing of code above the level on a machine that has more; in an emulator of the level such code ends the
process by SIGILL.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import convert
from msgspec.structs import replace
from packaging.tags import Tag

from vbuild.build.advice import missing_module
from vbuild.build.wrappers import FailedCall, Override
from vbuild.errors import BuildError, FetchError, RepackageError, VbuildError, WheelError, at
from vbuild.files.atomic import linked
from vbuild.files.reading import read_text
from vbuild.files.wording import counted
from vbuild.hardware.cpu import X86_64_LEVELS, Cpu
from vbuild.hardware.machine import cpu_here
from vbuild.index_client.configuration import Indexes
from vbuild.process.run import run as run_command
from vbuild.process.threads import OncePerKey
from vbuild.recipe.compiling import Compress, OwnFlags
from vbuild.recipe.matrix import releases_of
from vbuild.recipe.model import Check, TrialResult
from vbuild.recipe.target import Target
from vbuild.recipe.variables import passed, undisturbed
from vbuild.release.builder import Builder, PlannedWheel, RepairedWheel, interpreter_of
from vbuild.release.cache import BuildKind
from vbuild.release.model import Failure, Product, ReleaseContext
from vbuild.slimming.request import Cuts, Share
from vbuild.toolchain.compiler_program import RULE
from vbuild.toolchain.interpreter import Interpreter
from vbuild.variants.stamp import stamped as stamped_as
from vbuild.verification.emulator import Emulator
from vbuild.verification.environments import (
    WheelEnvironment,
    WheelSources,
    environment_in,
    make_environment,
    python_for,
    why_not_here,
)
from vbuild.verification.level_emulation import NEVER, LevelMethod, LevelRun, with_evidence
from vbuild.verification.level_runs import LevelSettings, emulated
from vbuild.verification.levels import can_disassemble, pattern_of
from vbuild.verification.model import IF_ALLOWED, Finding, Severity, Verdict, VerifyRule, is_grafted
from vbuild.verification.other_builds import Published, code_gain, file_on_index, likely_cause, lost, unlike
from vbuild.verification.verify import verify
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.metadata import RecordRow
from vbuild.wheel.name import WheelName

if TYPE_CHECKING:
    from vbuild.slimming.results import Slimmed

_SHOWN = 5
_MOST_PATTERNS = 3
_STRIP = "if a flag of the project's own put it there: build.flags = 'strip'"
_STRIP_NATIVE = "; if one of native {}: flags = 'strip' in its [[native]]"
_WITHOUT = (
    "perhaps because the project's own flags were taken out: build.keep-flags = {}; or, if it is nothing without them, "
    "build for newer processors: matrix.plain = 'x86-64-v2'"
)
_RUN_ABOVE = "let it run only after a check of the CPU"
_OR_STRIP = ", or build it without the flag: build.flags = 'strip'"
# seconds for the import of all modules in the emulator, and for the test
_SECONDS = 300.0

# by folder: all variants are compared with one file
_PUBLISHED_FILES: OncePerKey[Path, Path] = OncePerKey(most=64)


def slimmed(
    builder: Builder, first: PlannedWheel, wheels: Iterable[PlannedWheel], build: Path, *, may_be_built: bool = False
) -> Mapping[Target, Path] | Failure:
    context = builder.context
    targets = [wheel.target for wheel in wheels if wheel.build == first.build and wheel.target.gpus]
    try:
        return slimmed_to_gpus(context, build, targets, first.target, may_be_built=may_be_built)
    except VbuildError as error:
        return context.failure(first.target, error, context.log(first.target))


def slimmed_to_gpus(
    context: ReleaseContext, wheel: Path, targets: Sequence[Target], first: Target, *, may_be_built: bool = False
) -> Mapping[Target, Path]:
    """The variant wheels of *targets*, cut in one pass from the *wheel* of their build, that of the target *first*.

    `RepackageError` if it has no GPU code, or two *targets* get the same. If they *may_be_built* alone, those with code
    for others are left out.
    """
    if not targets:
        return {}
    from vbuild.slimming.slim import slim_wheel

    context.on_progress(first, "slimming")
    shares = [Share(target.gpus, target.label, context.family.document(target)) for target in targets]
    # who builds a project may change its wheels; the build has decided on a bill of materials, and the recipe on
    # compression
    zstd = False if context.recipe.build.cuda.compress in {Compress.NONE, Compress.SPEED} else None
    cuts = Cuts(unsupported=True, bill=False, zstd=zstd)
    cut = slim_wheel(wheel, context.stage_folder("divided", first), shares=shares, cuts=cuts, accept_license=True)
    if len(cut) != len(targets):  # it passes a wheel without GPU code as it is
        raise RepackageError(f"{wheel.name}: no GPU code to divide among {', '.join(map(str, targets))}")
    results = {
        target: result
        for target, result in zip(targets, cut, strict=True)
        if not (may_be_built and _has_code_of_others(result, target))
    }
    _check_distinct(wheel, results)
    return {target: result.path for target, result in results.items() if result.path}


def _has_code_of_others(cut: "Slimmed", target: Target) -> bool:
    """Whether *cut* keeps code that the build of *target* was asked for, but for other targets.

    Code for further GPUs is of linked libraries, which another build links as well.
    """
    if target.cuda is None:
        return False
    requested = {*(request.arch for request in target.cuda.archs.requests), *target.cuda.archs.targets}
    return any(requested.issuperset(archs) for library in cut.libraries for archs in library.surplus)


def _check_distinct(wheel: Path, cut: "Mapping[Target, Slimmed]") -> None:
    """`RepackageError` if two targets got the same code: they would be one wheel under two names."""
    first: dict[frozenset[RecordRow], Target] = {}
    for target, result in cut.items():
        if result.path is None:
            continue
        with open_wheel(result.path) as source:
            rows = frozenset(
                source.row(member) for member in source.members if not member.path.startswith(source.dist_info)
            )
        if (other := first.setdefault(rows, target)) is not target:
            libraries = result.libraries
            whys = [
                f"{library.member} cannot be cut: {library.why_whole}" for library in libraries if library.why_whole
            ]
            pinned = sum(library.pinned for library in libraries)
            whys += [f"{counted(pinned, 'fatbin')} cannot be cut"] if pinned else []
            gpus = ", ".join(sorted({gpu for library in libraries for gpu in library.gpus}))
            why = "; ".join(whys) or "the same code serves both"
            raise RepackageError(
                f"{wheel.name}: {target} and {other} would be the same wheel, with code for {gpus}: {why}; "
                "expected groups of GPUs that need different code, or one group"
            )


def finished(
    builder: Builder, planned_wheel: PlannedWheel, build: RepairedWheel, cut: Path | None, *, baseline: Path | None
) -> Product | Failure:
    """The *planned_wheel*, *cut* from its *build* or all of it, stamped, verified against *baseline*, and tested."""
    context, target, interpreter = builder.context, planned_wheel.target, planned_wheel.job.interpreter
    plain = cut or build.wheel
    try:
        wheel = cut or stamped(context, target, build.wheel)
        context.on_progress(target, "verifying")
        verdict = verified(context, wheel, target, baseline=baseline, failed=build.failed, overrides=build.overrides)
        context.on_progress(target, "testing")
        trial = result_of_test(builder, target, plain, interpreter=interpreter)
        folder = context.stage_folder("trials", target)
        verdict, emulation = with_emulation(context, target, plain, verdict, folder, python=interpreter.path)
    except VbuildError as error:
        return context.failure(target, error, context.log(target))
    context.on_progress(target, "done")
    context.log(target).unlink(missing_ok=True)
    record = {**build.record, "verdict": verdict.data(), "trial": str(trial)}
    record["emulation"] = emulation.data() if emulation else None
    if not verdict.failed:
        builder.keep(BuildKind.PRODUCT, planned_wheel.product, wheel, record)
    return _product(planned_wheel, wheel, build, verdict=verdict, trial=trial, emulation=emulation)


def finished_before(builder: Builder, planned_wheel: PlannedWheel) -> Product | None:
    context = builder.context
    entry = builder.taken(BuildKind.PRODUCT, planned_wheel.product, context.stage_folder("kept", planned_wheel.target))
    if entry is None:
        return None
    context.on_progress(planned_wheel.target, "kept")
    record = entry.record
    build = RepairedWheel.of_record(entry.wheel, record)
    builder.notes.extend(build.notes)
    product = _product(
        planned_wheel,
        entry.wheel,
        build,
        verdict=Verdict.of_data(record["verdict"], entry.wheel),
        trial=TrialResult(record["trial"]),
        emulation=convert(record["emulation"], LevelRun | None),
    )
    return replace(product, is_kept=True)


def _product(
    planned_wheel: PlannedWheel,
    wheel: Path,
    build: RepairedWheel,
    *,
    verdict: Verdict,
    trial: TrialResult,
    emulation: LevelRun | None,
) -> Product:
    return Product(
        target=planned_wheel.target,
        wheel=wheel,
        plan=planned_wheel.job.plan,
        toolkit=planned_wheel.job.toolkit,
        seconds=build.seconds,
        overrides=build.overrides,
        lists=build.lists,
        verdict=verdict,
        trial=trial,
        emulation=emulation,
        is_built=not build.is_kept,
        not_reproducible=build.not_reproducible,
    )


def stamped(context: ReleaseContext, target: Target, wheel: Path) -> Path:
    folder, variant = context.stage_folder("finished", target), context.family.variant(target)
    if variant is None:
        folder.mkdir(parents=True, exist_ok=True)
        return linked(wheel, folder / wheel.name)  # a labelled target may be made of the same build
    return stamped_as(wheel, folder, variant=variant, metadata=context.family.metadata)


def verified(
    context: ReleaseContext,
    wheel: Path,
    target: Target,
    *,
    baseline: Path | None,
    failed: Sequence[FailedCall] = (),
    overrides: Sequence[Override] | None = None,
) -> Verdict:
    """The verdict on *wheel*, compared with *baseline*; *failed* compiler calls may explain what it lacks.

    *overrides* are the commands with changed flags, if known. `WheelError` if *wheel* breaks its promises, or has no
    code; in a part of a release `vbuild collect` says so.
    """
    verdict = _judged(context, wheel, target, baseline=baseline, failed=failed)
    if context.is_part:
        return verdict
    if baseline and target.cpu.machine == "x86_64" and can_disassemble(target.cpu.machine):
        verdict = replace(verdict, findings=(*verdict.findings, *code_gain(wheel, baseline).findings))
    if verdict.failed:
        natives = [native.name for native in context.recipe.natives]
        raise WheelError(f"{wheel.name}: {'; '.join(_complaints(verdict, natives, overrides))}")
    if target.asks_for_cpu and not verdict.libraries:
        why = likely_cause(failed, ()) or "did the build leave its modules out?"
        raise WheelError(f"{wheel.name}: no compiled code for {target.cpu}; {why}")
    return verdict


def _judged(
    context: ReleaseContext, wheel: Path, target: Target, *, baseline: Path | None, failed: Sequence[FailedCall]
) -> Verdict:
    file: Path | None = None
    findings: tuple[Finding, ...] = ()
    is_for_cpu = target.asks_for_cpu and not (target.choices or target.cuda)
    if can_disassemble(target.cpu.machine) and (target.label is None or is_for_cpu):
        file, findings = _published_for(context, wheel, target)
    published = Published.of(file, target.cpu) if file and target.label is None else None
    verdict = verify(
        wheel,
        cpu=target.cpu,
        baseline=baseline,
        allow=context.recipe.verify.allow,
        is_split=context.split is not None and context.split.rpath,
        published=published.chosen_in if published else None,
    )
    if published:
        findings = lost(verdict, published, failed=failed)
    elif target.asks_for_cpu:
        findings = tuple(unlike(wheel, plain=baseline, published=file, failed=failed))
    return replace(verdict, findings=(*verdict.findings, *findings))


def _published_for(context: ReleaseContext, wheel: Path, target: Target) -> tuple[Path | None, tuple[Finding, ...]]:
    """The published wheel that *wheel* is compared with, or a note that there is none for an sdist's version.

    `FetchError` if the one that the recipe names is not there.
    """
    against = context.published
    if against is None or isinstance(against, Path):
        return against, ()
    folder = context.stage_folder("published", replace(target, label=None))
    fetch = partial(file_on_index, wheel, folder, Indexes.configured, version=against, tag=_tag(target))
    try:
        return _PUBLISHED_FILES.get(folder, fetch), ()
    except FetchError as error:
        if context.recipe.verify.against != "auto":
            raise
        fault = f"not compared with the published wheel: {error}"
        return None, (Finding(Severity.NOTE, VerifyRule.PUBLISHED, (), fault),)


def _tag(target: Target) -> Tag | None:
    try:
        python = interpreter_of(target)
    except BuildError:
        return None
    major, minor, *_ = python.version
    name = {"cpython": "cp", "pypy": "pp"}.get(python.implementation, python.implementation)
    return Tag(f"{name}{major}{minor}", f"{name}{major}{minor}", f"linux_{target.cpu.machine}")


def _complaints(verdict: Verdict, natives: Sequence[str], overrides: Sequence[Override] | None) -> list[str]:
    """The first errors of *verdict*; advice on code above the level follows the last of these."""
    errors = [finding for finding in verdict.findings if finding.is_error]
    lines = [error.sentence if error.allow else error.advised for error in errors[:_SHOWN]]
    if len(errors) > _SHOWN:
        lines.append(f"and {len(errors) - _SHOWN} more")
    if above := [error for error in errors if error.rule is VerifyRule.ISA_ABOVE]:
        last = min(errors.index(above[-1]) + 1, _SHOWN)
        lines[last:last] = _advice(errors, above, natives, overrides)
    if any(error.rule is VerifyRule.UNDEFINED for error in errors):
        stripped = {source for override in overrides or () if override.removed for source in override.sources}
        if stripped:
            lines.append(_WITHOUT.format(sorted(stripped)[:_SHOWN]))
    return lines


def _advice(
    errors: Sequence[Finding], above: Sequence[Finding], natives: Sequence[str], overrides: Sequence[Override] | None
) -> list[str]:
    patterns = _accepting(errors)
    advice = [IF_ALLOWED.format(patterns)] if patterns else []  # of all in one line, as a recipe has the key once
    # a build without the flags of single files was tried already, and those of assembly stay
    has_flags = overrides is None or any(RULE in dict(override.why).values() for override in overrides if override.kept)
    if has_flags and (natives or not all(is_grafted(path) for error in above for path in error.places)):
        advice.append(f"{_STRIP}{_STRIP_NATIVE.format(' or '.join(natives)) if natives else ''}")
    return advice


def _accepting(errors: Iterable[Finding]) -> list[str]:
    """The patterns that accept *errors*: of each library its functions, or all if these are many."""
    functions: dict[str, dict[str, None]] = {}
    for error in errors:
        if error.allow:
            functions.setdefault(pattern_of(error.places[0]), {}).update(dict.fromkeys(error.allow))
    patterns: dict[str, None] = {}
    for library, own in functions.items():
        is_whole = library in own or len(own) > _MOST_PATTERNS
        patterns |= dict.fromkeys([library] if is_whole else own)
    return [*patterns]


def result_of_test(
    builder: Builder, target: Target, wheel: Path, *, interpreter: Interpreter, find_links: Path | None = None
) -> TrialResult:
    context = builder.context
    folder = context.stage_folder("trials with others" if find_links else "trials", target)
    # a wheel that is for several releases of a project is tested with each
    several = [(project, releases_of(value)) for project, value in target.requires if len(releases_of(value)) > 1]
    if not several:
        return trial_of(context, target, wheel, python=interpreter.path, folder=folder, find_links=find_links)
    result = TrialResult.NONE
    for pins in product(*([f"{project}=={release}.*" for release in releases] for project, releases in several)):
        with at(", ".join(pins)):
            own = folder / "_".join(pins)
            result = trial_of(
                context, target, wheel, python=interpreter.path, folder=own, pins=pins, find_links=find_links
            )
    return result


def trial_of(
    context: ReleaseContext,
    target: Target,
    wheel: Path,
    *,
    python: Path,
    folder: Path,
    pins: Sequence[str] = (),
    find_links: Path | None = None,
) -> TrialResult:
    """The test of *wheel*, of *target*, in the new *folder*, with *pins* besides, unless this machine lacks its level.

    *find_links* has more wheels. The log of *target* gets what the command prints.
    """
    check, here, log = context.recipe.test, cpu_here(), context.log(target)
    if check.command is None:
        return TrialResult.NONE
    if here is None or not here.runs(target.cpu):
        return TrialResult.NOT_RUN
    folder = folder.absolute()
    empty = folder / "empty"  # the command must find the wheel installed, not the source tree
    empty.mkdir(parents=True)
    sources = WheelSources((find_links,) if find_links else (), Indexes.configured(), builds=True)
    requires = (*check.requires, *pins)
    with at("test"):
        environment = make_environment(wheel, python, sources=sources, folder=folder, requires=requires)
        variables = undisturbed(passed(os.environ, context.recipe.build.pass_env))
        variables["PATH"] = os.pathsep.join([str(environment.python.parent), variables.get("PATH", os.defpath)])
        try:
            run_command(["sh", "-c", check.command], log=log, cwd=empty, environment=variables)
        except BuildError as error:
            if missing := missing_module(read_text(log, errors="replace")):
                line = f"Name the package that has the module: test.requires = [{missing!r}]"
                raise BuildError(f"{error}\n{line}") from error
            raise
    return TrialResult.PASSED


def tested_again(
    builder: Builder, product: Product, find_links: Path, *, interpreter: Interpreter
) -> Product | Failure:
    context, target = builder.context, product.target
    try:
        trial = result_of_test(builder, target, product.wheel, interpreter=interpreter, find_links=find_links)
    except VbuildError as error:
        return context.failure(target, error, context.log(target))
    context.log(target).unlink(missing_ok=True)
    return replace(product, trial=trial)


def emulator_name(check: Check, machine: str) -> str | None:
    """The emulator of *machine* and its version, if *check* asks for it and it is there."""
    emulator = Emulator.on_path() if check.is_emulated and machine == "x86_64" else None
    return str(emulator) if emulator else None


def with_emulation(
    context: ReleaseContext, target: Target, wheel: Path, verdict: Verdict, folder: Path, *, python: Path | None = None
) -> tuple[Verdict, LevelRun | None]:
    """*verdict* with what an emulator shows of *wheel*, and the run if the recipe asks for it.

    `WheelError` if the wheel runs code above its level.
    """
    if not context.recipe.test.is_emulated:
        return with_evidence(verdict, None, why_not="test.emulate is 'never'"), None
    run = _emulation(context, target, wheel, folder, python=python) if verdict.libraries else None
    return with_evidence(verdict, run), run


def _emulation(context: ReleaseContext, target: Target, wheel: Path, folder: Path, *, python: Path | None) -> LevelRun:
    recipe, cpu = context.recipe, target.cpu
    name = WheelName.parse(wheel.name)
    untried = LevelRun(cpu.level, LevelMethod.QEMU)
    emulator = Emulator.of(cpu)
    if why := emulator if isinstance(emulator, str) else why_not_here(name):
        return replace(untried, untried=why)
    context.on_progress(target, f"emulating {cpu}, {2 * _SECONDS:g} s at most")
    try:
        installed = _environment(wheel, name, recipe.test, folder, python)
    except (RepackageError, WheelError) as error:
        return replace(untried, untried=f"cannot be installed for {cpu.machine}: {error}")
    settings = LevelSettings(
        check=recipe.test,
        cpu=cpu,
        timeout=_SECONDS,
        log=context.log(target),
        variables=undisturbed(passed(os.environ, recipe.build.pass_env)),
    )
    run = first = emulated(wheel, installed, settings, folder=folder.resolve())
    for level in X86_64_LEVELS[cpu.rank + 1 :]:
        if run.is_tried or isinstance(Emulator.of(above := Cpu.known("x86_64", level).with_extras(cpu.extras)), str):
            break
        # Python or a requirement is for a higher level: the next one still shows something
        run = emulated(wheel, installed, replace(settings, cpu=above), folder=folder.resolve())
    if not run.is_tried:
        return first
    if first.untried:
        run = replace(run, instead=f"emulated as {run.cpu}, and not as {cpu}: {first.untried}")
    if run.illegal:
        advice = _RUN_ABOVE if recipe.build.flags.default is OwnFlags.STRIP else f"{_RUN_ABOVE}{_OR_STRIP}"
        fault = f"code above {cpu} runs on a processor without it, as {Emulator.on_path()} shows"
        raise WheelError(f"{wheel.name}: {fault}: {'; '.join(run.grouped)}; {advice}; {NEVER}")
    return run


def _environment(wheel: Path, name: WheelName, check: Check, folder: Path, python: Path | None) -> WheelEnvironment:
    if (tested_in := environment_in(folder)) is not None:
        return tested_in
    folder.mkdir(parents=True, exist_ok=True)
    return make_environment(
        wheel,
        python or python_for(name),
        requires=check.requires,
        # only a test is worth a build of what it needs
        sources=WheelSources((), Indexes.configured(), builds=check.command is not None),
        folder=folder,
        is_enough_alone=check.command is None,
    )
