"""Training: a project is built so that its code counts, and the recipe's command runs that; then it is built for real.

    job -> instrumented job -> built -> installed -> the command -> Profile, kept for later runs -> job with the profile

No instrumented wheel leaves the stage.
"""

from functools import partial
from pathlib import Path

from msgspec.structs import replace

from vbuild.build.identity import build_keys, canonical, file_digest
from vbuild.build.job import Job
from vbuild.build.profile import Profile, collected, counting, instrumented, trained
from vbuild.build.trial import WheelTrial
from vbuild.errors import BuildError, at
from vbuild.files.hashing import key_of
from vbuild.recipe.flags import ProfileSettings
from vbuild.recipe.model import Check
from vbuild.recipe.target import Target
from vbuild.release.builder import Builder
from vbuild.release.cache import BuildKind


def with_profile(builder: Builder, job: Job) -> Job:
    """*job* with the profile of its code, if the recipe trains it: that of an earlier run, or made now.

    The builds of a Python for all CPU levels share one, of the lowest level. `BuildError` if training fails.
    """
    settings, target = builder.context.recipe.build.profile, job.target
    if settings.train is None:
        return job
    others = builder.context.recipe.targets
    alike = [other for other in others if (other.python, other.choices) == (target.python, target.choices)]
    lowest = min([*alike, target], key=lambda other: other.cpu.rank)
    profile = builder.profiles.get(lowest.build_key, lambda: _profile(builder, lowest, settings, settings.train or ""))
    if builder.natives:
        builder.natives.train(profile)
        job = builder.reaching(job)
    return replace(job, plan=trained(job.plan, job.compilers.family), profile=profile)


def _profile(builder: Builder, target: Target, settings: ProfileSettings, command: str) -> Profile:
    """What training by *command* leaves of the code of *target*."""
    context, folder = builder.context, builder.context.place("training", target)
    if builder.cpu is None or not builder.cpu.runs(target.cpu):
        here = builder.cpu or "not known"
        raise BuildError(f"build.profile.train: runs code for {target.cpu}, and this machine is {here}")
    if missing := [file for file in settings.files if not file.exists()]:  # of a recipe on another machine
        raise BuildError(f"build.profile.train: {missing[0]}: no such file here; expected the recipe's folder")
    if builder.natives and any(native.profile for native in context.recipe.natives):
        builder = replace(builder, natives=builder.natives.counting(folder / "natives"))
    job = builder.prepared(target)
    place = folder / "profile"
    place.mkdir(parents=True)
    job = replace(job, plan=instrumented(job.plan, job.compilers), profile=Profile(place, "", 0))
    keys = build_keys(job, source=builder.digest, repair=context.recipe.repair)
    training = [[_digest(file) for file in settings.files], canonical(builder.cpu)]
    keys = replace(keys, whole=key_of([keys.whole, training]), bare=key_of([keys.bare, training]))
    key = context.cache.key(keys) if context.cache else keys.whole
    if kept := builder.taken(BuildKind.PROFILE, key, folder / "kept"):
        return Profile.unpacked(kept.wheel, place)
    log = context.log(target)
    log.unlink(missing_ok=True)  # an earlier run's
    on_progress = partial(context.on_progress, target)
    on_progress("building for training")
    with at("build.profile"):
        if builder.natives:
            builder.natives.build(job.prefixes, on_progress=on_progress)
        job = builder.watched(job, folder)
        made = builder.built_in(folder, job, log, None)
    on_progress("training")
    trial = WheelTrial(
        Check(command.replace("{recipe}", str(context.recipe.file.parent.absolute())), settings.requires),
        job.interpreter,
        target.cpu,
        builder.cpu,
        builder.configuration,
        pass_env=context.recipe.build.pass_env,
        variables=counting(folder / "counts"),
        name="build.profile.train",
    )
    trial.run(made.wheel, folder / "trial", log)
    trees = {"": made.project, **(builder.natives.trees if builder.natives else {})}
    profile = collected(
        folder / "counts", place, trees=trees, stage=context.stage.resolve(), compilers=job.compilers, log=log
    )
    log.unlink(missing_ok=True)
    builder.keep(BuildKind.PROFILE, key, profile.packed(folder / "profile.zip"), {})
    builder.keep_looked(keys, key, job, folder)
    return profile


def _digest(path: Path) -> list[tuple[str, str]]:
    """Names and digests of the files at *path*, a file or a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [(str(file.relative_to(path)), file_digest(file)) for file in files if file.is_file()]
