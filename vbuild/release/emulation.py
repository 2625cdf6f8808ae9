"""The import and the test of a finished wheel in an emulator of the wheel's CPU level.

On a machine with more than the level has, a test that passes says nothing of code above the level. In the emulator such
code ends the process by SIGILL.
"""

import os
from pathlib import Path

from msgspec.structs import replace

from vbuild.build.trial import environment_in
from vbuild.errors import BuildError, RepackageError, WheelError
from vbuild.hardware.cpu import AARCH64_VERSIONS, X86_64_LEVELS, Cpu
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.model import Check
from vbuild.recipe.target import Target
from vbuild.recipe.variables import passed
from vbuild.release.model import ReleaseContext
from vbuild.verification.emulator import Emulator
from vbuild.verification.environments import (
    WheelEnvironment,
    WheelSources,
    foreign_pythons,
    is_foreign,
    make_environment,
)
from vbuild.verification.level_emulation import NEVER, NO_EMULATOR, LevelMethod, LevelRun
from vbuild.wheel.name import WheelName

# seconds that the import of all modules may take, and the test
_SECONDS = 300.0


def check_emulator() -> None:
    """`BuildError` if the emulator, on which a recipe insists, is not installed."""
    machine = os.uname().machine
    if Emulator.found(machine) is None:
        raise BuildError(f"test.emulate is 'always', and {NO_EMULATOR.format(LevelMethod.emulator_of(machine))}")


def emulator_name(check: Check, machine: str) -> str | None:
    """The emulator of *machine* and its version, with the Pythons for it, if *check* asks for it and it is there."""
    emulator = Emulator.found(machine) if check.is_emulated else None
    if emulator is None:
        return None
    pythons = foreign_pythons(machine) if machine != os.uname().machine else ()
    return " ".join(map(str, (emulator, *pythons)))


def why_unasked(check: Check) -> str:
    """Why *check* does not ask for the emulator, or an empty text if it does."""
    return "" if check.is_emulated else "test.emulate is 'never'"


def why_not(cpu: Cpu) -> str | None:
    """Why no emulator judges code for *cpu*, in a line, or None if one does."""
    emulator = Emulator.found(cpu.machine)
    return emulator.why_not(cpu) if emulator else NO_EMULATOR.format(LevelMethod.emulator_of(cpu.machine))


def emulation_of(
    context: ReleaseContext, target: Target, wheel: Path, folder: Path, *, python: Path | None = None
) -> LevelRun:
    """What becomes of *wheel*, that of *target*, in the emulator; its environment is that of the test in *folder*.

    If no test was run there, it is made there, of *python*, or one of this machine that takes the wheel. `WheelError`
    if the wheel runs code above its level.
    """
    from vbuild.verification.level_runs import LevelSettings, emulated, why_not_here

    recipe, cpu = context.recipe, target.cpu
    name = WheelName.parse(wheel.name)
    if why := why_not(cpu) or why_not_here(name):
        return LevelRun(cpu.level, LevelMethod.emulator_of(cpu.machine), untried=why)
    context.on_progress(target, f"emulating {cpu}, {2 * _SECONDS:g} s at most")
    try:
        place = _environment(wheel, name, recipe.test, folder, python)
    except (RepackageError, WheelError) as error:
        what = f"cannot be installed for {cpu.machine}: {error}"
        return LevelRun(cpu.level, LevelMethod.emulator_of(cpu.machine), untried=what)
    environment = environment_in(folder)
    settings = LevelSettings(
        check=recipe.test,
        cpu=cpu,
        timeout=_SECONDS,
        log=context.log(target),
        variables=environment.variables(passed(os.environ, recipe.build.pass_env)),
    )
    run = first = emulated(wheel, place, settings, folder=folder.resolve())
    levels = X86_64_LEVELS if cpu.machine == "x86_64" else AARCH64_VERSIONS
    for level in levels[cpu.rank + 1 :]:
        if run.is_tried or why_not(above := Cpu.known(cpu.machine, level).with_extras(cpu.extras)):
            break
        # what the wheel requires, or Python, is for a higher level: the next one still shows something
        run = emulated(wheel, place, replace(settings, cpu=above), folder=folder.resolve())
    if run.is_tried and first.untried:
        shown = Cpu.known(cpu.machine, run.level)
        run = replace(run, instead=f"emulated as {shown}, and not as {cpu}: {first.untried}")
    run = run if run.is_tried else first
    if run.illegal:
        what = f"code above {cpu} runs on a processor without it, as {Emulator.found(cpu.machine)} shows"
        advice = (
            f"let it run only after a check of the CPU, or build it without the flag: build.flags = 'strip'; {NEVER}"
        )
        raise WheelError(f"{wheel.name}: {what}: {'; '.join(run.grouped)}; {advice}")
    return run


def _environment(wheel: Path, name: WheelName, check: Check, folder: Path, python: Path | None) -> WheelEnvironment:
    """The environment of the test of *wheel* in *folder*; without one, a new one there, of *python* if that fits."""
    from vbuild.verification.level_runs import python_for

    environment = environment_in(folder)
    if not environment.python.is_symlink():
        folder.mkdir(parents=True, exist_ok=True)
        own = python if python and not is_foreign(name) else python_for(name)
        return make_environment(
            wheel,
            own,
            requires=check.requires,
            # only a test is worth a build of what it needs
            sources=WheelSources((), Indexes.configured(), builds=check.command is not None),
            folder=folder,
            is_enough_alone=check.command is None,
        )
    root = environment.scripts.parent
    [packages] = root.resolve().glob("lib/*/site-packages")
    return WheelEnvironment(root, packages, environment.python)
