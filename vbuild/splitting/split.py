"""`vbuild split`: bundled shared libraries become dependency wheels, each kept once.

    wheels -> those whose file names or RECORDs promise something are looked into, each content once
           -> fates of all libraries together, edited consumers, each proved     (nothing is written yet)
           -> requirements, dependency wheels, bills of materials
           -> all wheels in one go: compressed bytes as they are, but for what was edited

The wheels of a run appear together or not at all: a thin one is worth nothing without those that it requires.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from vbuild.elf.policy import PlatformPolicy
from vbuild.errors import at
from vbuild.files.cache import sweep_daily
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.batch import Whole, batch
from vbuild.splitting.official import Officials
from vbuild.splitting.plan import Cut, Editor
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split, results
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.deflate import Codec, Deflater
from vbuild.wheel.extract import gathered, room_for
from vbuild.wheel.write import write_wheels

OnProgress = Callable[[str, int, int], None]

_ANY = "any"


def split(
    paths: Sequence[Path],
    folder: Path | None,
    *,
    request: SplitRequest | None = None,
    cut: Cut | None = None,
    codec: Codec = Codec.LIBDEFLATE,
    looks_at_all: bool = False,
    indexes: Callable[[], Indexes] = Indexes.configured,
    on_progress: OnProgress = lambda _what, _done, _total: None,
) -> Split:
    """Write into *folder* what *request* leaves of the wheels at *paths*, which may be folders, and what they require.

    Without a folder nothing is written, and the packed sizes of results are not known. *cut* is done to every library
    on the way: see `vbuild.slimming.slim.cutting`. Wheels whose file names promise nothing are not looked into, but for
    an account of what they lack: *looks_at_all*. *indexes* says where official wheels are; they are read by range, and
    none is brought here but by ``request.fetch``. A wheel with nothing to take out passes as it is, byte for byte.

    `RepackageError` where a wheel bundles the driver's libraries, or *request* is not enough to decide; `WheelError`
    where a wheel is damaged; `FetchError` where no index can be asked. Then nothing is in *folder*.
    """
    request = request or SplitRequest()
    with ExitStack() as stack:
        wheels = [stack.enter_context(open_wheel(path)) for path in gathered(paths)]
        progress = _Progress(wheels, on_progress)
        editor = Editor(stack, room_for(folder), cut)
        batches = []
        for machine, several in _by_machine(wheels).items():
            officials = Officials(machine, indexes=indexes)
            batches.append(
                batch(
                    several,
                    request,
                    officials=officials,
                    machine=machine,
                    editor=editor,
                    looks_at_all=looks_at_all or cut is not None,
                    on_progress=progress.looked,
                )
            )
        whole = Whole(tuple(batches), codec)
        written = _written(folder, whole, on_progress=progress.wrote) if folder else {}
        sweep_daily()
        return results(whole, written)


class _Progress:
    """Bytes looked at and bytes written, told together: every wheel counts once for either."""

    def __init__(self, wheels: Sequence[Wheel], on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._done = 0
        self._total = 2 * sum(member.size for wheel in wheels for member in wheel.members)

    def looked(self, size: int) -> None:
        self._done += size
        self._on_progress("looking", self._done, self._total)

    def wrote(self, name: str, size: int) -> None:
        self._done = max(self._done, self._total // 2) + size
        self._on_progress(name, min(self._done, self._total), self._total)


def _by_machine(wheels: Sequence[Wheel]) -> dict[str, list[Wheel]]:
    """The wheels by the machine that their platform tag names."""
    found: dict[str, list[Wheel]] = {}
    for wheel in wheels:
        platforms = (PlatformPolicy.parse(tag) for tag in wheel.name.platform.split("."))
        machine = next((platform.machine for platform in platforms if platform), _ANY)
        found.setdefault(machine, []).append(wheel)
    return found


def _written(folder: Path, whole: Whole, *, on_progress: Callable[[str, int], None]) -> dict[str, Path]:
    """Write all wheels of *whole*, and give their paths by file name."""
    outputs = [*whole.outputs]
    made = {str(output.name) for output in outputs}
    # a dependency wheel that is given, and made again, is the same: its version is that of its contents
    passing = [wheel for wheel in whole.passing if wheel.path.name not in made]
    with (
        Deflater(whole.codec, folder=folder if folder.is_dir() else None, remembers=False) as press,
        write_wheels(folder, [output.name for output in outputs], press=press, passing=passing) as writers,
    ):
        for output, writer in zip(outputs, writers, strict=True):
            output.prepare(writer)
            for part in output.parts:
                with at(output.name):
                    part.write(writer)
                on_progress(str(output.name), part.size)
    names = (*(str(output.name) for output in outputs), *(wheel.path.name for wheel in whole.passing))
    return {name: folder / name for name in names}
