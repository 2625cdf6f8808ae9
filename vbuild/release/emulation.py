"""The import and the test of a finished wheel in an emulator of the wheel's CPU level.

On a machine with more than the level has, a test that passes says nothing of code above the level. In the emulator such
code ends the process by SIGILL.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from vbuild.build.trial import WheelTrial, environment_in
from vbuild.errors import BuildError, WheelError
from vbuild.hardware.cpu import X86_64_LEVELS, Cpu
from vbuild.recipe.model import Check
from vbuild.recipe.target import Target
from vbuild.recipe.variables import passed
from vbuild.release.model import ReleaseContext
from vbuild.toolchain.interpreter import Interpreter
from vbuild.verification.emulator import Emulator
from vbuild.verification.environments import WheelEnvironment
from vbuild.verification.level_emulation import NEVER, NO_EMULATOR, LevelMethod, LevelRun
from vbuild.verification.level_runs import LevelSettings, emulated, python_for, why_not_here
from vbuild.wheel.name import WheelName

# seconds that the import of all modules may take, and the test
_SECONDS = 300.0


def check_emulator() -> None:
    """`BuildError` if the emulator, on which a recipe insists, is not installed."""
    if Emulator.found() is None:
        raise BuildError(f"test.emulate is 'always', and {NO_EMULATOR}")


def emulator_name(check: Check) -> str | None:
    """The emulator and its version if *check* asks for it and it is there."""
    return str(Emulator.found() or "") or None if check.is_emulated else None


def why_unasked(check: Check) -> str:
    """Why *check* does not ask for the emulator, or an empty text if it does."""
    if check.is_emulated:
        return ""
    return "test.emulate is 'never'" if check.command else "the recipe has no test.command, nor test.emulate = 'always'"


def why_not(cpu: Cpu) -> str | None:
    """Why no emulator judges code for *cpu*, in a line, or None if one does."""
    if cpu.machine != "x86_64":
        return f"code for {cpu} is not emulated"
    emulator = Emulator.found()
    return emulator.why_not(cpu) if emulator else NO_EMULATOR


def emulation_elsewhere(
    context: ReleaseContext, target: Target, wheel: Path, indexes: Callable[[], Mapping[str, str]]
) -> LevelRun:
    """What becomes of *wheel*, that of *target* and built in a container, in the emulator of this machine.

    It is installed here, for a Python that takes it; *indexes* are uv's variables for package indexes. `WheelError` if
    the wheel runs code above its level, `BuildError` if it cannot be installed.
    """
    name, check, log = WheelName.parse(wheel.name), context.recipe.test, context.log(target)
    why = why_not(target.cpu) or why_not_here(name)
    try:
        interpreter = Interpreter.at(python_for(name), os.environ) if why is None else None
    except WheelError as error:
        why, interpreter = str(error), None
    if interpreter is None:
        return LevelRun(target.cpu.level, LevelMethod.QEMU, untried=why)
    folder = context.place("emulated", target)
    alone = replace(check, command=None)  # which only the emulator runs
    trial = WheelTrial(
        alone,
        interpreter,
        target.cpu,
        None,
        indexes,
        pass_env=context.recipe.build.pass_env,
        is_emulated=True,
        name="test.emulate",
    )
    trial.run(wheel, folder, log)
    return emulation_of(context, target, wheel, folder)


def is_emulated(check: Check, cpu: Cpu) -> bool:
    """Whether *check* asks for an emulator of *cpu*, and there is one."""
    return check.is_emulated and why_not(cpu) is None


def emulation_of(context: ReleaseContext, target: Target, wheel: Path, folder: Path) -> LevelRun:
    """What becomes of *wheel*, that of *target*, in the emulator; its environment is that of the test in *folder*.

    `WheelError` if the wheel runs code above its level.
    """
    recipe, cpu = context.recipe, target.cpu
    if why := why_not(cpu):
        return LevelRun(cpu.level, LevelMethod.QEMU, untried=why)
    context.on_progress(target, f"emulating {cpu}, {2 * _SECONDS:g} s at most")
    environment = environment_in(folder)
    root = environment.scripts.parent
    [packages] = root.resolve().glob("lib/*/site-packages")
    settings = LevelSettings(
        check=recipe.test,
        cpu=cpu,
        timeout=_SECONDS,
        log=context.log(target),
        variables=environment.variables(passed(os.environ, recipe.build.pass_env)),
    )
    place = WheelEnvironment(root, packages, environment.python)
    run = first = emulated(wheel, place, settings, folder=folder.resolve())
    for level in X86_64_LEVELS[cpu.rank + 1 :]:
        if run.is_tried or why_not(above := Cpu.known(cpu.machine, level).with_extras(cpu.extras)):
            break
        # what the wheel requires, or Python, is for a higher level: the next one still shows something
        run = emulated(wheel, place, replace(settings, cpu=above), folder=folder.resolve())
    if run.is_tried and first.untried:
        run = replace(run, instead=f"emulated as x86-64-{run.level}, and not as {cpu}: {first.untried}")
    run = run if run.is_tried else first
    if run.illegal:
        what = f"code above {cpu} runs on a processor without it, as {Emulator.found()} shows"
        advice = (
            f"let it run only after a check of the CPU, or build it without the flag: build.flags = 'strip'; {NEVER}"
        )
        raise WheelError(f"{wheel.name}: {what}: {'; '.join(run.grouped)}; {advice}")
    return run
