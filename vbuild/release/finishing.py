"""From a portable wheel to a finished one: cut to its GPUs, stamped, verified, and tested.

portable wheel -> slimmed -> stamped -> verified -> tested, emulated -> Product, or at any step a Failure
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from vbuild.build.kept_flags import is_for_single_files
from vbuild.errors import RepackageError, VbuildError, WheelError
from vbuild.files.atomic import linked
from vbuild.files.wording import counted
from vbuild.recipe.cuda import Compress
from vbuild.recipe.target import Target
from vbuild.release.builder import Builder
from vbuild.release.builds import PlannedWheel, RepairedWheel
from vbuild.release.cache import BuildKind
from vbuild.release.emulation import emulation_of, why_unasked
from vbuild.release.model import Failure, Product, ReleaseContext
from vbuild.toolchain.interpreter import Interpreter
from vbuild.verification.level_emulation import with_evidence
from vbuild.verification.model import IF_ALLOWED, VerifyRule, is_grafted

if TYPE_CHECKING:
    from vbuild.build.trial import TrialResult
    from vbuild.build.wrappers import FailedCall, Override
    from vbuild.slimming.results import Slimmed
    from vbuild.verification.model import Finding, Verdict
    from vbuild.wheel.metadata import RecordRow


_SHOWN = 5
_MOST_PATTERNS = 3
_STRIP = "if a flag of the project's own put it there: build.flags = 'strip'"
_WITHOUT = (
    "perhaps because the project's own flags were taken out: build.keep-flags = {}; or, if it is nothing without them, "
    "build for newer processors: matrix.plain = 'x86-64-v2'"
)
_STRIP_NATIVE = "; if one of native {}: flags = 'strip' in its [[native]]"


def slimmed(
    builder: Builder, item: PlannedWheel, items: Iterable[PlannedWheel], wheel: Path, *, may_be_built: bool = False
) -> Mapping[Target, Path] | Failure:
    """The wheels of those of *items* that are for some GPUs of the build of *item*, cut from its *wheel*.

    If some *may_be_built*, those that would keep what was compiled for others are left out.
    """
    targets = [other.target for other in items if other.build == item.build and other.target.gpus]
    try:
        return slimmed_to_gpus(builder.context, wheel, targets, item.target, may_be_built=may_be_built)
    except VbuildError as error:
        return builder.context.failure(item.target, error, builder.context.log(item.target))


def slimmed_to_gpus(
    context: ReleaseContext, wheel: Path, targets: Sequence[Target], first: Target, *, may_be_built: bool = False
) -> Mapping[Target, Path]:
    """The variant wheels of *targets*, cut in one pass from the *wheel* of their build, that of the target *first*.

    `RepackageError` if it has no GPU code, or two of *targets* get the same. What each library serves is for
    `vbuild verify` to judge: some are for some GPUs only. If they *may_be_built* each on its own, those are left out
    that would keep code that was compiled for others, as it cannot be cut.
    """
    if not targets:
        return {}
    from vbuild.slimming.request import Cuts, Share
    from vbuild.slimming.slim import slim_wheel

    context.on_progress(first, "slimming")
    shares = [Share(target.gpus, context.family.label(target), context.family.document(target)) for target in targets]
    # who builds a project may change its wheels; whether it has a bill of materials, its build has decided, and whether
    # its code is compressed, where all who may load the wheel can read that, the recipe
    zstd = False if context.recipe.build.cuda.compress in {Compress.NONE, Compress.SPEED} else None
    cuts = Cuts(unsupported=True, bill=False, zstd=zstd)
    cut = slim_wheel(wheel, context.place("divided", first), shares=shares, cuts=cuts, accept_license=True)
    if len(cut) != len(targets):  # it passes a wheel without GPU code as it is
        raise RepackageError(f"{wheel.name}: no GPU code to divide among {', '.join(map(str, targets))}")
    found = {
        target: result
        for target, result in zip(targets, cut, strict=True)
        if not (may_be_built and _has_code_of_others(result, target))
    }
    _check_distinct(wheel, found)
    return {target: result.path for target, result in found.items() if result.path}


def _has_code_of_others(cut: "Slimmed", target: Target) -> bool:
    """Whether *cut*, for *target*, keeps code that its build was asked for, but for other targets.

    Code for more GPUs than that comes from libraries that were linked, which another build links as well.
    """
    if target.cuda is None:
        return False
    asked = {*(request.arch for request in target.cuda.archs.requests), *target.cuda.archs.targets}
    return any(asked.issuperset(archs) for library in cut.libraries for archs in library.surplus)


def _check_distinct(wheel: Path, cut: "Mapping[Target, Slimmed]") -> None:
    """Raise `RepackageError` if two targets got the same code in *cut*: they would be one wheel under two names."""
    from vbuild.wheel.archive import open_wheel

    first: dict[frozenset[RecordRow], Target] = {}
    for target, result in cut.items():
        if result.path is None:
            continue
        with open_wheel(result.path) as one:
            held = frozenset(one.row(member) for member in one.members if not member.path.startswith(one.dist_info))
        if (other := first.setdefault(held, target)) is not target:
            whys = [f"{each.member} cannot be cut: {each.why_whole}" for each in result.libraries if each.why_whole]
            pinned = sum(each.pinned for each in result.libraries)
            whys += [f"{counted(pinned, 'fatbin')} cannot be cut"] if pinned else []
            found = ", ".join(sorted({gpu for each in result.libraries for gpu in each.gpus}))
            why = "; ".join(whys) or "the same code serves both"
            raise RepackageError(
                f"{wheel.name}: {target} and {other} would be the same wheel, with code for {found}: {why}; "
                "expected groups of GPUs that need different code, or one group"
            )


def finished(
    builder: Builder, item: PlannedWheel, build: RepairedWheel, cut: Path | None, *, baseline: Path | None
) -> Product | Failure:
    """The wheel of *item*, stamped, verified against *baseline*, and tested: *cut* from its *build*, or all of it."""
    context, target = builder.context, item.target
    try:
        wheel = cut or stamped(context, target, build.wheel)
        context.on_progress(target, "verifying")
        verdict = verified(context, wheel, target, baseline=baseline, failed=build.failed, overrides=build.overrides)
        context.on_progress(target, "testing")
        trial = result_of_test(builder, target, cut or build.wheel, interpreter=item.job.interpreter)
        emulation, why_not = None, why_unasked(context.recipe.test)
        if not why_not and verdict.libraries:
            folder, python = context.place("trials", target), item.job.interpreter.path
            emulation = emulation_of(context, target, cut or build.wheel, folder, python=python)
        verdict = with_evidence(verdict, emulation, why_not=why_not)
    except VbuildError as error:
        return context.failure(target, error, context.log(target))
    context.on_progress(target, "done")
    context.log(target).unlink(missing_ok=True)
    record = {**build.record, "verdict": verdict.data(), "trial": str(trial)}
    record["emulation"] = emulation.data() if emulation else None
    if not verdict.failed:
        builder.keep(BuildKind.PRODUCT, item.product, wheel, record)
    return Product(
        target=target,
        wheel=wheel,
        label=context.family.label(target),
        plan=item.job.plan,
        toolkit=item.job.toolkit,
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
    """*wheel* as the variant wheel of *target*, or as it is for the plain one, on the same file system."""
    folder, variant = context.place("finished", target), context.family.variant(target)
    if variant is None:
        folder.mkdir(parents=True, exist_ok=True)
        return linked(wheel, folder / wheel.name)  # a labelled target may be made of the same build
    from vbuild.variants.stamp import stamped as stamp

    return stamp(wheel, folder, variant=variant, metadata=context.family.metadata)


def verified(
    context: ReleaseContext,
    wheel: Path,
    target: Target,
    *,
    baseline: Path | None,
    failed: "Sequence[FailedCall]" = (),
    overrides: "Sequence[Override] | None" = None,
) -> "Verdict":
    """The verdict on *wheel*, that of *target*, with the build *baseline* for comparison.

    *failed* are the calls of compilers that failed in its build, and *overrides* the commands whose flags were changed
    in it, if that is known. `FetchError` if the wheel that it is to be compared
    with is not there. `WheelError` if it does not keep its promises, or has no code to keep them with. In a part of a
    release, the wheel that explains a finding may be in another part: `vbuild collect` decides.
    """
    from vbuild.release.against import published_for
    from vbuild.verification.levels import can_disassemble
    from vbuild.verification.published import Published, lost, unlike
    from vbuild.verification.verify import verify

    is_split = context.split is not None and context.split.rpath
    allow = context.recipe.verify.allow
    file: Path | None = None
    said: tuple[Finding, ...] = ()
    is_for_cpu = target.asks_for_cpu and not (target.choices or target.cuda)
    if can_disassemble(target.cpu.machine) and (target.label is None or is_for_cpu):
        file, said = published_for(context, wheel, target)
    published = Published.of(file, target.cpu) if file and target.label is None else None
    chosen_in = published.chosen_in if published else None
    verdict = verify(wheel, cpu=target.cpu, baseline=baseline, allow=allow, is_split=is_split, published=chosen_in)
    if published:
        said = lost(verdict, published, failed=failed)
    elif target.asks_for_cpu:
        said = tuple(unlike(wheel, plain=baseline, published=file, failed=failed))
    verdict = replace(verdict, findings=(*verdict.findings, *said))
    if context.is_part:
        return verdict
    if baseline and target.cpu.machine == "x86_64" and can_disassemble(target.cpu.machine):
        from vbuild.verification.gain import code_gain

        verdict = replace(verdict, findings=(*verdict.findings, *code_gain(wheel, baseline).findings))
    if verdict.failed:
        raise WheelError(f"{wheel.name}: {_complaint(context, verdict, overrides)}")
    if target.asks_for_cpu and not verdict.libraries:
        from vbuild.verification.published import likely_cause

        why = likely_cause(failed, ()) or "did the build leave its modules out?"
        raise WheelError(f"{wheel.name}: no compiled code for {target.cpu}; {why}")
    return verdict


def _complaint(context: ReleaseContext, verdict: "Verdict", overrides: "Sequence[Override] | None") -> str:
    """The first errors of *verdict*; advice on code above the level stands behind the last of them about that."""
    errors = [one for one in verdict.findings if one.is_error]
    names = " or ".join(native.name for native in context.recipe.natives)
    above = [one for one in errors if one.rule is VerifyRule.ISA_ABOVE]
    # without those of single files, it was tried already
    has_flags = overrides is None or any(one.kept and not is_for_single_files(one) for one in overrides)
    own = [one for one in above if has_flags and (names or not all(map(is_grafted, one.places)))]
    patterns = _accepting(errors)
    lines = [one.sentence if one.allow else one.advised for one in errors[:_SHOWN]]
    if len(errors) > _SHOWN:
        lines.append(f"and {len(errors) - _SHOWN} more")
    advice = [IF_ALLOWED.format(patterns)] if patterns else []  # of all in one line, as a recipe has the key once
    advice += [f"{_STRIP}{_STRIP_NATIVE.format(names) if names else ''}"] if own else []
    if above:
        last = min(errors.index(above[-1]) + 1, _SHOWN)
        lines[last:last] = advice
    undefined = any(one.rule is VerifyRule.UNDEFINED for one in errors)
    if undefined and (stripped := sorted({source for one in overrides or () if one.removed for source in one.sources})):
        lines.append(_WITHOUT.format(stripped[:_SHOWN]))
    return "; ".join(lines)


def _accepting(errors: "Iterable[Finding]") -> list[str]:
    """The patterns that accept what *errors* are about: of each library its functions, or all if these are many."""
    from vbuild.verification.levels import pattern_of

    found: dict[str, dict[str, None]] = {}
    for error in errors:
        if error.allow:
            found.setdefault(pattern_of(error.places[0]), {}).update(dict.fromkeys(error.allow))
    whole = {name for name, patterns in found.items() if name in patterns or len(patterns) > _MOST_PATTERNS}
    each = (pattern for name, patterns in found.items() for pattern in ([name] if name in whole else patterns))
    return [*dict.fromkeys(each)]


def result_of_test(
    builder: Builder, target: Target, wheel: Path, *, interpreter: Interpreter, find_links: Path | None = None
) -> "TrialResult":
    """What becomes of the recipe's test of *wheel*, that of *target*; wheels it requires may be in *find_links*."""
    from vbuild.build.trial import WheelTrial

    context = builder.context
    trial = WheelTrial(
        context.recipe.test,
        interpreter,
        target.cpu,
        builder.cpu,
        builder.configuration,
        find_links=find_links,
        pass_env=context.recipe.build.pass_env,
    )
    folder = context.place("trials with others" if find_links else "trials", target)
    return trial.run(wheel, folder, context.log(target))


def tested_again(
    builder: Builder, product: Product, find_links: Path, *, interpreter: Interpreter
) -> Product | Failure:
    """*product*, whose wheel has changed, tested again; wheels that it requires are in *find_links*."""
    context, target = builder.context, product.target
    try:
        trial = result_of_test(builder, target, product.wheel, interpreter=interpreter, find_links=find_links)
    except VbuildError as error:
        return context.failure(target, error, context.log(target))
    context.log(target).unlink(missing_ok=True)
    return replace(product, trial=trial)
