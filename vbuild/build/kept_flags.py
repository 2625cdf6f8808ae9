"""Which of a project's own flags have to go after all, when a build with them has code above its level.

    commands with flags that were kept, functions above the level that nothing shows to be chosen at run time
      -> flags of nearly all commands of a language    they steer the build: without them, everything is built again
      -> else the files whose objects have the functions, or all with such flags: these lose theirs

The wrappers keep flags of single files, because a project that asks for them mostly asks the processor, too.
"""

import subprocess
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from glob import escape
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from vbuild.build.plan import Rewriting
from vbuild.build.wrappers import CompilerCall, Override
from vbuild.toolchain.rewriting import SINGLE_FILE

# of the files of a language, the part that has to be compiled with a flag for it to steer the build
_NEARLY_ALL = 0.9
_SHOWN = 5


class NextRules(Struct, frozen=True):
    """The rules of the next try, and in a sentence what is different in them."""

    rules: Rewriting
    what: str


def for_single_files(overrides: Iterable[Override]) -> tuple[Override, ...]:
    """Those of *overrides* that kept flags because they are for single files, not because a rule says so."""
    return tuple(one for one in overrides if one.kept and SINGLE_FILE in dict(one.why).values())


def next_rules(
    rules: Rewriting,
    overrides: Iterable[Override],
    calls: Iterable[CompilerCall],
    *,
    above: Collection[str],
    project: Path,
) -> NextRules | None:
    """The rules without the flags that put the functions *above* the level; None if no kept flag could have.

    *overrides* and *calls* are those of the build by *rules* in the tree *project*.
    """
    kept = for_single_files(overrides)
    if not kept:
        return None
    if steering := tuple(sorted(_steering(kept, calls, project) - {*rules.steering})):
        what = f"{' '.join(steering)}: in nearly all commands, and code above the level ran without a check of the CPU"
        return NextRules(replace(rules, steering=(*rules.steering, *steering)), what)
    files = _leaking(kept, frozenset(above), project)
    flags = sorted({flag for one in kept if files.intersection(one.sources) for flag in one.kept})
    names = sorted(files)
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    what = f"{' '.join(flags)} of {shown}: code above the level ran without a check of the CPU"
    globs = {escape(_lasting(name)) for name in names} - {*rules.leaking}
    if not globs:  # they have lost their flags already, and it made no difference
        return None
    return NextRules(replace(rules, leaking=(*rules.leaking, *sorted(globs))), what)


def _lasting(name: str) -> str:
    """What stays of the path *name* in another build: all of it in the project's tree, else its last two parts.

    A project that builds a library somewhere below /tmp has another folder there each time.
    """
    return name if not name.startswith("/") else "/".join(name.split("/")[-2:])


def _steering(kept: Iterable[Override], calls: Iterable[CompilerCall], project: Path) -> frozenset[str]:
    """The flags of nearly all files that a compiler compiled; files that are gone were only there for a question."""
    compiled: dict[str, set[str]] = defaultdict(set)
    for call in calls:
        compiled[call.program].update(source for source in call.sources if Path(source).is_file())
    with_flag: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in kept:
        for flag in one.kept:
            with_flag[one.program, flag].update(source for source in one.sources if (project / source).is_file())
    return frozenset(
        flag
        for (program, flag), sources in with_flag.items()
        if compiled[program] and len(sources) >= _NEARLY_ALL * len(compiled[program])
    )


def _leaking(kept: Sequence[Override], functions: frozenset[str], project: Path) -> frozenset[str]:
    """The sources of *kept* whose objects define one of *functions*; all of them if none of the objects does.

    Names are missing from stripped libraries, and objects of link-time optimisation have none.
    """
    found = frozenset(source for one in kept if functions & _defined(project / one.object) for source in one.sources)
    return found or frozenset(source for one in kept for source in one.sources)


def _defined(path: Path) -> frozenset[str]:
    """The names of what the object file at *path* defines, static functions included; none if nobody can tell."""
    if not path.is_file():
        return frozenset()
    try:
        ran = subprocess.run(["nm", "--defined-only", "-P", path], capture_output=True, text=True, check=False)
    except OSError:
        return frozenset()
    return frozenset(line.split(" ", 1)[0] for line in ran.stdout.splitlines())
