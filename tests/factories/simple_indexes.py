"""Static simple indexes as vbuild writes them, of wheels that need not be sound variants."""

from collections.abc import Iterable
from pathlib import Path

from vbuild.wheel.archive import wheels_in
from vbuild.wheel.simple_index import others_in, updating


def write_simple(folder: Path, out: Path, *, remove: Iterable[str] = ()) -> None:
    """The files in *folder*, added to the index *out*, which loses releases in *remove*."""
    with updating(out, remove=remove) as index:
        for path in (*wheels_in(folder), *others_in(folder)):
            index.add(path)
