"""The stage of a command that makes a whole folder of results: what is finished moves out of it in one step."""

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from vbuild.errors import RecipeError, refusal_of
from vbuild.files.archives import source_date_epoch
from vbuild.files.atomic import stage_in
from vbuild.process.signals import uninterrupted

LOGS = "logs"

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A stage in *folder*, as `stage_in` has it; its path has no links.

    A *folder* that was not there goes too, unless something is in it. `RecipeError` if it cannot be written to, or
    if the disk is full or refuses a file before the block is done; `VbuildError` if SOURCE_DATE_EPOCH is not a time.
    """
    source_date_epoch()
    is_new = not folder.exists()
    try:
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stage = stack.enter_context(stage_in(folder))
            except OSError as error:
                raise RecipeError(f"{folder}: cannot be written to: {error.strerror}") from error
            # compilers write down where they are, and the flags that hide it name the resolved folder
            yield stage.resolve()
    except OSError as error:
        if error.errno in _FULL:
            raise RecipeError(f"{folder}: cannot be written to: {error.strerror}") from error
        if reason := refusal_of(error, where=folder):
            raise RecipeError(reason) from error
        raise
    finally:
        with uninterrupted():
            logs = folder / LOGS
            for empty in (logs, folder) if is_new else (logs,):
                with suppress(OSError):  # there is something in it, or another run has removed it
                    empty.rmdir()
