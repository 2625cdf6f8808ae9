"""Wheels as `split` reads them, without asking an index where libraries come from."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.factories.repaired_wheels import NAME
from tests.factories.wheels import wheel
from vbuild.elf.read import Loading
from vbuild.splitting.bundle import Bundle, Origin, WheelReader
from vbuild.wheel.archive import open_wheel


@dataclass(slots=True)
class BundleReader:
    """Makes wheels below *folder* and reads them; *asked* are the libraries whose origin was asked for."""

    folder: Path
    stack: ExitStack
    origins: Mapping[str, Origin] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    looked_at: int = 0

    def __post_init__(self) -> None:
        """Have one reader for all wheels."""
        self._reader = WheelReader(self._origin, None, self._told)

    _reader: WheelReader = field(init=False)

    def at(self, files: Mapping[str, bytes | str], name: str = NAME, *, metadata: str = "") -> Bundle:
        """The wheel *name* with *files*, as it is seen."""
        path = wheel(self.folder, name, files, metadata=metadata)
        return self._reader.read(self.stack.enter_context(open_wheel(path)))

    def _origin(self, name: str, _loading: Loading, _data: memoryview, _sha256: str, /) -> Origin:
        self.asked.append(name)
        return self.origins.get(name)

    def _told(self, size: int) -> None:
        self.looked_at += size
