"""Folders that others read meanwhile, such as an index: replaced as a whole, in one step, by one run at a time.

site/                       what readers see, before and after
.site.<hex>.part/           what is to become it; it shares files with it by hard links
"""

import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from vbuild.errors import WheelError
from vbuild.files.atomic import exchange, locked, settle, settle_names, unmade
from vbuild.files.turns import turn


@contextmanager
def turn_for(out: Path) -> Iterator[None]:
    """In the block no other run writes *out*, a new folder if nothing is there, which goes again if it stays empty."""
    is_new = not os.path.lexists(out)
    try:
        if is_new:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WheelError(f"{out}: cannot be written: {unmade(error).strerror}") from error
    try:
        with turn(out) if out.is_dir() else nullcontext():
            yield
    finally:
        if is_new:
            with suppress(OSError):  # there is something in it, as there should be
                out.rmdir()


@contextmanager
def completed(out: Path) -> Iterator[Path]:
    """A folder that becomes *out* when the block ends well, and is gone otherwise; those of killed runs go, too.

    It is locked for as long as its run lives, and gets its name only then, so that no living one looks dead.
    """
    place = out.absolute()
    name = f".{place.name}.{secrets.token_hex(8)}"
    new, folder = place.with_name(f"{name}.new"), place.with_name(f"{name}.part")
    with ExitStack() as stack:
        try:
            new.mkdir(parents=True)
            with suppress(OSError):  # some network file systems have no locks
                stack.enter_context(locked(new))
            new.rename(folder)
            for left in place.parent.glob(f".{glob.escape(place.name)}.*.part"):
                with suppress(OSError), locked(left, wait=False) as is_dead:
                    if is_dead and left != folder:  # which could get no lock
                        shutil.rmtree(left, ignore_errors=True)
            yield folder
            settle(folder)
            if out.exists() and any(out.iterdir()):
                exchange(folder, out)
            else:
                if out.exists():
                    out.rmdir()
                folder.rename(out)
            settle_names(place.parent)
        except OSError as error:
            raise WheelError(f"{out}: cannot be written: {error.strerror}") from error
        finally:  # what was never finished, or the index of before
            shutil.rmtree(folder, ignore_errors=True)
