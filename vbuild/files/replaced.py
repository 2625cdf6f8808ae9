"""Folders that others read meanwhile, such as an index: replaced as a whole, in one step, by one run at a time.

site/                       what readers see, before and after
.vbuild-x7f3/site/          what is to become it, in a stage; it shares files with it by hard links
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from vbuild.errors import WheelError
from vbuild.files.atomic import exchange, settle, settle_names, stage_in, unmade
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
    """A folder that becomes *out* when the block ends well, and is gone otherwise; those of killed runs go, too."""
    place = out.absolute()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with stage_in(place.parent) as stage:
            folder = stage / place.name
            folder.mkdir()
            yield folder
            settle(folder)
            if out.exists() and any(out.iterdir()):
                exchange(folder, out)  # the index of before goes with the stage
            else:
                if out.exists():
                    out.rmdir()
                folder.rename(out)
            settle_names(place.parent)
    except OSError as error:
        raise WheelError(f"{out}: cannot be written: {error.strerror}") from error
