"""`vbuild index`: write ``{name}-{version}-variants.json`` for every release in a folder of wheels.

    wheels with a label -> their variant.json, each checked against its file name -> one document for each release

Nothing is written unless every release is consistent. https://peps.python.org/pep-0825/#index-level-metadata
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from vbuild.errors import VariantError, at
from vbuild.files.atomic import replacing_all, sweep, turn
from vbuild.files.reading import read_file
from vbuild.files.wording import shown
from vbuild.variants.document import Document, combine
from vbuild.wheel.archive import open_wheel, peek, wheels_in
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.name import WheelName
from vbuild.wheel.simple_index import others_in, updating

_MODE = 0o644


class Indexed(Struct, frozen=True):
    """The variants.json of one release: the labels that it lists, and how many wheels they have.

    *notes* say which wheels are of other tools or an earlier draft, and what that means.
    """

    path: Path
    labels: tuple[str, ...]
    wheels: int
    is_changed: bool
    notes: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        return {
            "index": self.path.name,
            "labels": list(self.labels),
            "wheels": self.wheels,
            "changed": self.is_changed,
            **({"notes": list(self.notes)} if self.notes else {}),
        }


def index(
    folder: Path, *, simple: Path | None = None, remove: Sequence[str] = (), verify: bool = True
) -> tuple[Indexed, ...]:
    """Write into *folder* the variants.json of each release whose variant wheels are there, unless it is the same.

    *simple* is a folder for a static simple index of all of it, which keeps its other releases, but for those in
    *remove*; see `updating`. Every wheel in *folder* is compared with its RECORD, unless *verify* is off.
    `VariantError` names the two wheels that contradict each other, or the one that contradicts its own file name;
    `WheelError` the one that cannot be read, or a folder in use. Then nothing is written.
    """
    if not folder.is_dir():
        raise VariantError(f"{folder}: no such folder of wheels")
    with turn(folder), updating(simple, remove=remove) if simple else nullcontext() as site:
        releases: dict[str, list[tuple[str, Document]]] = {}
        for path in wheels_in(folder):
            name = WheelName.parse(path.name)
            if site or verify:
                with open_wheel(path, check=verify) as opened:
                    data = opened.variant_json
                    if site:
                        site.add_wheel(opened)
            else:
                data = peek(path, VARIANT_JSON)
            with at(path.name), at(VARIANT_JSON):
                wheel = Document.of_wheel(name.variant, data)
            if wheel:
                releases.setdefault(name.variants_json, []).append((str(name), wheel))
        documents = {folder / file: combine(pairs) for file, pairs in sorted(releases.items())}
        packed = {path: document.pack() for path, document in documents.items()}
        there = (path for path in packed if path.is_file() and os.access(path, os.R_OK))
        same = {path for path in there if read_file(path) == packed[path]}
        changed = {path: data for path, data in packed.items() if path not in same}
        sweep(folder)
        if changed:
            _write(changed)
        if site:
            for path in others_in(folder):
                site.add(path)
    return tuple(
        Indexed(
            path,
            tuple(variant.label for variant in document.variants),
            len(releases[path.name]),
            path in changed,
            tuple(_notes(releases[path.name])),
        )
        for path, document in documents.items()
    )


def _notes(documents: Sequence[tuple[str, Document]]) -> Iterator[str]:
    """Each note once, with its first wheel, and how many more there are."""
    wheels: dict[str, list[str]] = {}
    for wheel, document in documents:
        for note in document.notes:
            wheels.setdefault(note, []).append(wheel)
    for note, names in wheels.items():
        yield f"{shown(names, 1)}: {note}"


def _write(documents: Mapping[Path, bytes]) -> None:
    try:
        with replacing_all([*documents]) as parts:
            for path, part in parts.items():
                part.write_bytes(documents[path])
                part.chmod(_MODE)
    except OSError as error:
        place = error.filename2 or next(iter(documents)).parent
        raise VariantError(f"{place}: cannot be written: {error.strerror}") from error
