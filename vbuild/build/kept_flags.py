"""Which of a project's own flags have to go after all, when a build with them has code above its level.

    commands with flags that were kept, functions above the level that nothing shows to be chosen at run time
      -> flags of nearly all commands of a language    they steer the build: without them, everything is built again
      -> else the files whose objects have the functions, or all with such flags: these lose theirs

The wrappers keep flags of single files, because a project that asks for them mostly asks the processor, too.
"""

import subprocess
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from glob import escape
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.build.plan import WrapperRules
from vbuild.build.wrappers import CompilerCall, Override, with_known_sources
from vbuild.files.wording import shown
from vbuild.toolchain.compiler_program import SINGLE_FILE
from vbuild.toolchain.nvcc_commands import is_trial

# the part of a language's files from which on a flag steers the build
_NEARLY_ALL = 0.9
_SHOWN = 5
_WHY = "nothing shows that code above the level runs only after a check of the CPU"


class CodeAbove(Struct, frozen=True):
    """*functions* above the level that run without a check of the CPU; who runs others may be *unfollowed*."""

    functions: frozenset[str] = frozenset()
    is_unfollowed: bool = False


class NextRules(Struct, frozen=True):
    rules: WrapperRules
    what: str


class KeptFile(Struct, frozen=True):
    """A *source* that kept *flags* of its own, and the *functions* that its object defines."""

    source: str
    flags: tuple[str, ...]
    functions: frozenset[str]


class KeptFlags(Struct, frozen=True):
    """The *files* of a build that kept flags of their own; nearly all commands have those that *steer* it."""

    files: tuple[KeptFile, ...] = ()
    steering: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        overrides: Iterable[Override],
        calls: Iterable[CompilerCall],
        project: Path,
        *,
        objects: Path | None = None,
    ) -> Self:
        """What *overrides* and *calls* show of a build.

        *objects* are kept ones of another machine's tree.
        """
        kept_overrides = tuple(
            override for override in overrides if is_for_single_files(override) and not is_trial(override.sources)
        )
        files: dict[tuple[str, tuple[str, ...]], frozenset[str]] = defaultdict(frozenset)
        for override in with_known_sources(kept_overrides, project):
            for source in override.sources:
                files[source, override.kept] |= _defined((objects or project) / override.object)

        def is_there(source: str) -> bool:
            return not is_trial([source]) if objects else (project / source).is_file()

        return cls(
            tuple(KeptFile(source, flags, names) for (source, flags), names in files.items()),
            _steering(kept_overrides, calls, is_there) if kept_overrides else frozenset(),
        )

    def following(self, rules: WrapperRules, above: CodeAbove, *, is_sure: bool = False) -> NextRules | None:
        """As `next_rules`, for the code *above* the level.

        If the proof leaves open who runs such code, only flags of nearly all commands go.
        """
        if above.functions:
            return self.next_rules(rules, above.functions, is_sure=is_sure)
        return self._without_steering(rules) if above.is_unfollowed else None

    def _without_steering(self, rules: WrapperRules) -> NextRules | None:
        if not (steering := tuple(sorted(self.steering - {*rules.steering}))):
            return None
        difference = f"{' '.join(steering)}: in nearly all commands, and {_WHY}"
        return NextRules(replace(rules, steering=(*rules.steering, *steering)), difference)

    def next_rules(self, rules: WrapperRules, above: Collection[str], *, is_sure: bool = False) -> NextRules | None:
        """The *rules* without the flags that put the functions *above* the level; None if none could have.

        Unless it has to be *is_sure*, all files lose such flags if nobody can tell whose a function is.
        """
        names_above = {_plain(name) for name in above}
        owners = [file for file in self.files if not file.functions.isdisjoint(names_above)]
        # "function at 0x1234" has no name
        is_told = all(file.functions for file in self.files) and not any(" " in name for name in above)
        if not owners and (is_sure or is_told):
            return None
        if following := self._without_steering(rules):
            return following
        leaking = owners or self.files
        flags = sorted({flag for file in leaking for flag in file.flags})
        names = sorted({file.source for file in leaking})
        globs = {escape(name) for name in names} - {*rules.leaking}
        if not globs:  # they have lost their flags already, and it made no difference
            return None
        difference = f"{' '.join(flags)} of {shown(names, _SHOWN)}: {_WHY}"
        return NextRules(replace(rules, leaking=(*rules.leaking, *sorted(globs))), difference)


def is_for_single_files(override: Override) -> bool:
    """Whether flags are kept because they are for single files, not because a rule says so."""
    return bool(override.kept) and SINGLE_FILE in dict(override.why).values()


def _steering(
    overrides: Iterable[Override], calls: Iterable[CompilerCall], is_there: Callable[[str], bool]
) -> frozenset[str]:
    compiled: dict[str, set[str]] = defaultdict(set)
    for call in calls:
        compiled[call.program].update(filter(is_there, call.sources))
    with_flag: dict[tuple[str, str], set[str]] = defaultdict(set)
    for override in overrides:
        for flag in override.kept:
            with_flag[override.program, flag].update(filter(is_there, override.sources))
    return frozenset(
        flag
        for (program, flag), sources in with_flag.items()
        if compiled[program] and len(sources) >= _NEARLY_ALL * len(compiled[program])
    )


def _defined(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    try:
        ran = subprocess.run(["nm", "--defined-only", "-P", path], capture_output=True, text=True, check=False)
    except OSError:
        return frozenset()
    return frozenset(_plain(line.split(" ", 1)[0]) for line in ran.stdout.splitlines())


def _plain(name: str) -> str:
    """*name* without what compilers append, as in `f.constprop.0`."""
    return name.split(".", 1)[0] or name
