"""`vbuild split`: bundled shared libraries become dependency wheels, each published once.

    wheels -> those whose file names or RECORDs promise something are read, each content once
           -> decisions about all libraries together, patched files, each checked     (nothing is written yet)
           -> requirements, -libs wheels, bills of materials
           -> all wheels in one go: compressed bytes as they are, except for what was patched

The wheels of a run appear together or not at all: a thin wheel is useless without those that it requires.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from vbuild.elf.catalogue import platforms_in
from vbuild.errors import RepackageError, WheelError, at
from vbuild.files.cache import sweep_daily
from vbuild.hardware.cpu import available_cores
from vbuild.index_client.configuration import Indexes
from vbuild.process.threads import in_threads
from vbuild.splitting.libs_versions import Publications
from vbuild.splitting.official import Officials
from vbuild.splitting.output_wheels import OutputWheel, SourceFiles
from vbuild.splitting.patches import Patcher
from vbuild.splitting.plan import SplitPlan, plan_machine
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split, split_result
from vbuild.wheel.archive import Wheel, open_wheel, room_for, wheels_at
from vbuild.wheel.deflate import Codec, Deflater
from vbuild.wheel.name import WheelName
from vbuild.wheel.sdist import divided, write_changed
from vbuild.wheel.write import WheelWriter, write_wheels

OnProgress = Callable[[str, int, int], None]

_MODE = 0o755


def split(
    paths: Sequence[Path],
    folder: Path | None,
    *,
    request: SplitRequest | None = None,
    codec: Codec = Codec.LIBDEFLATE,
    looks_at_all: bool = False,
    verify: bool = True,
    indexes: Callable[[], Indexes] = Indexes.configured,
    on_progress: OnProgress = lambda _what, _done, _total: None,
) -> Split:
    """Split the wheels at *paths*, files or folders of them, as *request* says, and write all results to *folder*.

    Sdists among them state what the wheels of their release require afterwards. Without a folder nothing is written,
    and the packed sizes in the result are None. Wheels whose file names promise nothing are not read, unless
    *looks_at_all*. *on_progress* gets what is being done, the bytes done, and the bytes in total.

    `RepackageError` if a wheel bundles the driver's libraries, or *request* leaves a choice open; `WheelError` if a
    wheel is damaged; `FetchError` if no index answers. Then nothing is in *folder*.
    """
    request = request or SplitRequest()
    wheel_paths, sdists = divided(paths)
    if request.tries:
        from vbuild.splitting.trial import with_evidence

        def split_as(attempt: SplitRequest, target: Path | None) -> Split:
            return split(wheel_paths, target, request=attempt, codec=Codec.ISAL, verify=False, indexes=indexes)

        request = with_evidence(
            wheels_at(wheel_paths), request, split_as, indexes=indexes, on_progress=lambda step: on_progress(step, 0, 1)
        )
    with ExitStack() as stack:
        wheels = [stack.enter_context(open_wheel(path)) for path in wheels_at(wheel_paths)]
        sources = tuple(_sources(sdists, [wheel.name for wheel in wheels], named=paths))
        # bytes read and bytes written together, so every wheel counts twice
        lock = Lock()
        done, total = 0, 2 * sum(member.size for wheel in wheels for member in wheel.members)

        def add_read(size: int) -> None:
            nonlocal done
            done += size
            on_progress("looking", done, total)

        def add_written(name: str, size: int) -> None:
            nonlocal done
            with lock:
                done = max(done, total // 2) + size
                on_progress(name, min(done, total), total)

        patcher = Patcher(stack, room_for(folder))
        publications = Publications(wheels, request.against, indexes, request.libs)
        by_machine: dict[str, list[Wheel]] = {}
        for wheel in wheels:
            machine = next((platform.machine for platform in platforms_in(wheel.name.platform)), "any")
            by_machine.setdefault(machine, []).append(wheel)
        machines = tuple(
            plan_machine(
                same_machine,
                request,
                officials=Officials(machine, indexes=indexes),
                machine=machine,
                patcher=patcher,
                publications=publications,
                looks_at_all=looks_at_all,
                on_progress=add_read,
            )
            for machine, same_machine in by_machine.items()
        )
        plan = SplitPlan(machines, codec, sources, publications)
        checked = wheels if verify else []
        written = _write(folder, plan, checked=checked, on_progress=add_written) if folder else {}
        sweep_daily()
        return split_result(plan, written)


def _sources(sdists: Sequence[Path], wheels: Sequence[WheelName], *, named: Collection[Path]) -> Iterator[SourceFiles]:
    for path in sdists:
        try:
            source = SourceFiles.read(path)
        except WheelError:
            if path in named:
                raise
            continue
        if any(source.is_of(wheel) for wheel in wheels):
            yield source
        elif path in named:
            raise RepackageError(f"{path.name}: none of the wheels is of this release; give both, or leave it out")


def _write(
    folder: Path, plan: SplitPlan, *, checked: Sequence[Wheel], on_progress: Callable[[str, int], None]
) -> dict[str, Path]:
    outputs = [*plan.outputs]
    new = {str(output.name) for output in outputs}
    # a companion that is given, and made again, is the same: other contents of its name are refused
    unchanged = [wheel.path for wheel in plan.unchanged if wheel.path.name not in new]
    with (
        _written_sources(plan, folder) as sources,
        Deflater(plan.codec, folder=folder if folder.is_dir() else None, remembers=False) as deflater,
        write_wheels(
            folder,
            [output.name for output in outputs],
            deflater=deflater,
            passing=[*unchanged, *sources],
            checked=checked,
        ) as writers,
    ):
        pairs = [*zip(outputs, writers, strict=True)]
        # a large member is deflated by all cores as it is: it is the small ones that keep one core waiting
        in_threads(
            partial(_write_output, on_progress=on_progress),
            pairs,
            size=lambda pair: pair[0].unpacked,
            threads=available_cores(),
        )
    others = (*(wheel.path for wheel in plan.unchanged), *(source.path for source in plan.sources))
    return {name: folder / name for name in new.union(path.name for path in others)}


def _write_output(pair: tuple[OutputWheel, WheelWriter], *, on_progress: Callable[[str, int], None]) -> None:
    output, writer = pair
    if output.like:
        writer.follow(output.like)
    else:
        writer.anonymise(mode=_MODE)
    name = str(output.name)
    for part in output.parts:
        with at(name):
            part.write(writer)
        on_progress(name, part.size)


@contextmanager
def _written_sources(plan: SplitPlan, folder: Path) -> Iterator[list[Path]]:
    """Yield the sdists of *plan*; those that change lie in a temporary folder."""
    with ExitStack() as stack:
        paths = []
        for source in plan.sources:
            changed, path = source.changed(plan.requires_of(source)), source.path
            if (target := folder / path.name).exists() and target.samefile(path):
                raise RepackageError(f"{target}: would be written over itself; expected another output folder")
            if changed and not isinstance(changed, str):
                path = Path(stack.enter_context(TemporaryDirectory(prefix="vbuild-sdist-")), path.name)
                write_changed(source.path, path, changed)
            paths.append(path)
        yield paths
