"""`vbuild split`: bundled shared libraries become dependency wheels, each published once.

    wheels -> those whose file names or RECORDs promise something are read, each content once
           -> decisions about all libraries together, patched files, each checked     (nothing is written yet)
           -> requirements, -libs and -dev wheels, bills of materials
           -> all wheels in one go: compressed bytes as they are, except for what was patched

The wheels of a run appear together or not at all: a thin wheel is useless without those that it requires.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from vbuild.elf.policy import PlatformPolicy
from vbuild.errors import at
from vbuild.files.cache import sweep_daily
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.official import Officials
from vbuild.splitting.patch_plan import LibraryCutter, Patcher
from vbuild.splitting.plan import SplitPlan, plan_machine
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split, split_result
from vbuild.wheel.archive import Wheel, gathered, open_wheel, room_for
from vbuild.wheel.deflate import Codec, Deflater
from vbuild.wheel.write import write_wheels

OnProgress = Callable[[str, int, int], None]

_ANY = "any"


def split(
    paths: Sequence[Path],
    folder: Path | None,
    *,
    request: SplitRequest | None = None,
    cut: LibraryCutter | None = None,
    codec: Codec = Codec.LIBDEFLATE,
    looks_at_all: bool = False,
    indexes: Callable[[], Indexes] = Indexes.configured,
    on_progress: OnProgress = lambda _what, _done, _total: None,
) -> Split:
    """Split the wheels at *paths*, files or folders of them, as *request* says, and write all results to *folder*.

    Without a folder nothing is written, and the packed sizes in the result are None. *cut* is applied to every library
    first: see `vbuild.slimming.slim.library_cutter`. Wheels whose file names promise nothing are not read, unless
    *looks_at_all*, which lists what they lack. *indexes* says where official wheels are; vbuild reads parts of them,
    and downloads whole libraries only if ``request.fetch`` is set. A wheel with nothing to take out is copied byte for
    byte. *on_progress* is called with what is being done, the bytes done, and the bytes in total.

    Raises `RepackageError` if a wheel bundles the driver's libraries, or *request* leaves a choice open; `WheelError`
    if a wheel is damaged; `FetchError` if no index answers. Then nothing is in *folder*.
    """
    request = request or SplitRequest()
    with ExitStack() as stack:
        wheels = [stack.enter_context(open_wheel(path)) for path in gathered(paths)]
        progress = _Progress(wheels, on_progress)
        patcher = Patcher(stack, room_for(folder), cut)
        machines = tuple(
            plan_machine(
                same_machine,
                request,
                officials=Officials(machine, indexes=indexes),
                machine=machine,
                patcher=patcher,
                looks_at_all=looks_at_all or cut is not None,
                on_progress=progress.add_read,
            )
            for machine, same_machine in _by_machine(wheels).items()
        )
        plan = SplitPlan(machines, codec)
        written = _write(folder, plan, on_progress=progress.add_written) if folder else {}
        sweep_daily()
        return split_result(plan, written)


class _Progress:
    """Counts bytes read and bytes written together, so every wheel counts twice."""

    def __init__(self, wheels: Sequence[Wheel], on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._done = 0
        self._total = 2 * sum(member.size for wheel in wheels for member in wheel.members)

    def add_read(self, size: int) -> None:
        self._done += size
        self._on_progress("looking", self._done, self._total)

    def add_written(self, name: str, size: int) -> None:
        self._done = max(self._done, self._total // 2) + size
        self._on_progress(name, min(self._done, self._total), self._total)


def _by_machine(wheels: Sequence[Wheel]) -> dict[str, list[Wheel]]:
    """Group the wheels by the machine in their platform tag."""
    found: dict[str, list[Wheel]] = {}
    for wheel in wheels:
        platforms = (PlatformPolicy.parse(tag) for tag in wheel.name.platform.split("."))
        machine = next((platform.machine for platform in platforms if platform), _ANY)
        found.setdefault(machine, []).append(wheel)
    return found


def _write(folder: Path, plan: SplitPlan, *, on_progress: Callable[[str, int], None]) -> dict[str, Path]:
    """Write all wheels of *plan*, and return their paths by file name."""
    outputs = [*plan.outputs]
    new = {str(output.name) for output in outputs}
    # a -libs wheel that is given, and made again, is the same: its version is a hash of its contents
    unchanged = [wheel for wheel in plan.unchanged if wheel.path.name not in new]
    with (
        Deflater(plan.codec, folder=folder if folder.is_dir() else None, remembers=False) as deflater,
        write_wheels(folder, [output.name for output in outputs], press=deflater, passing=unchanged) as writers,
    ):
        for output, writer in zip(outputs, writers, strict=True):
            output.prepare(writer)
            for part in output.parts:
                with at(output.name):
                    part.write(writer)
                on_progress(str(output.name), part.size)
    names = (*(str(output.name) for output in outputs), *(wheel.path.name for wheel in plan.unchanged))
    return {name: folder / name for name in names}
