"""Whether a recipe's rules for single files were of use: what a build compiled, against the globs that name files."""

from collections.abc import Iterable

from vbuild.build.agreement import is_trial
from vbuild.build.codegen import matches
from vbuild.build.nvcc import Command
from vbuild.recipe.cuda import FileRule


def unused(files: Iterable[FileRule], commands: Iterable[Command]) -> tuple[str, ...]:
    """The globs of *files*, in their order, that match no source of *commands*, those of the launcher's log.

    What build systems compile to try the compiler does not count.
    """
    sources = {source for command in commands if not is_trial(command) for source in command.sources}
    # the log has the paths of a project's own files from its folder on
    paths = [source if source.startswith("/") else f"/{source}" for source in sorted(sources)]
    return tuple(rule.glob for rule in files if not any(matches(path, rule.glob) for path in paths))
