"""`vbuild slim`: cut fat CUDA wheels to the GPUs one names, or into a family of variant wheels, in one pass.

    wheel -> licence: the first library that is to change asks it                (an error until here leaves no files)
          -> plan: every library inflated once, surveyed, cut for each share     (nothing is written yet)
          -> GPUs that nothing serves, claims
          -> a writer for each share: cut libraries deflated, all other members' bytes as they are
          -> variant.json and RECORD, and variants.json next to the wheels

The wheels of a family contain the same host code, which is deflated once.
"""

import hashlib
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from vbuild.errors import BuildError, RepackageError, VbuildError, at
from vbuild.files.edited import EditedFile
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import read_file
from vbuild.hardware.cpu import available_cores
from vbuild.hardware.driver import ZSTD_SINCE, Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.slimming.library import GpuLibrary
from vbuild.slimming.output import SlimOutput, slim_outputs
from vbuild.slimming.plan import SlimPlan, planned
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import Saving, Slimmed
from vbuild.slimming.stated import cuda_major, still_listed
from vbuild.variants.index import index
from vbuild.wheel.archive import Wheel, gathered, open_wheel
from vbuild.wheel.deflate import Codec, Deflater, estimated
from vbuild.wheel.licence import Prohibition, prohibitions
from vbuild.wheel.unpacking import room_for
from vbuild.wheel.write import passed, placed, write_wheels
from vbuild.wheel.zip_format import ZipMethod
from vbuild.workers.cluster import Cluster, Promise, connected
from vbuild.workers.executor import LOCAL, Executor, opened, packed, scratch

# a saving of a smaller part of the wheel is not worth a line
_WORTH = 20

# bytes of a member's two headers in a zip archive, besides its path in each
_HEADERS = 76
OnProgress = Callable[[str, int, int], None]


def slim(
    paths: Sequence[Path],
    folder: Path | None,
    *,
    shares: Sequence[Share],
    cuts: Cuts | None = None,
    codec: Codec = Codec.LIBDEFLATE,
    accept_license: bool = False,
    executor: Executor = LOCAL,
    verify: bool = True,
    on_progress: OnProgress = lambda _wheel, _done, _total: None,
) -> tuple[Slimmed, ...]:
    """Write into *folder* what *shares* keep of the wheels at *paths*, which may be folders of wheels.

    Without a folder nothing is written, and sizes are those of the members. A share without a label keeps the wheel's
    name; those with one become variant wheels, with a variants.json for each release. A wheel without GPU code is
    copied unchanged, unless *cuts* strip or drop something. An *executor* that is not local sends wheels to its
    workers. What is passed on is compared with CRC-32 and RECORD, too, unless *verify* is off. *on_progress* is called
    with the name of the current wheel, the bytes done, and the bytes in total.

    Raises `RepackageError` if nothing in a wheel serves a GPU asked for, or a licence forbids the change, and
    `WheelError` if a wheel is damaged: then no part of that wheel is in *folder*.
    """
    cuts = cuts or Cuts()
    check_shares(shares, cuts)
    wheels = gathered(paths)
    _check_globs(wheels, cuts)
    make = partial(slim_wheel, shares=shares, cuts=cuts, codec=codec, accept_license=accept_license, verify=verify)
    if executor.is_local:
        slimmed = tuple(result for path in wheels for result in make(path, folder, on_progress=on_progress))
    else:
        slimmed = tuple(_slimmed_by_workers(wheels, folder, executor, make=make, on_progress=on_progress))
    if folder and any(share.label for share in shares):
        index(folder, verify=False)
    return slimmed


def slim_wheel(
    path: Path,
    folder: Path | None,
    *,
    shares: Sequence[Share],
    cuts: Cuts,
    codec: Codec = Codec.LIBDEFLATE,
    accept_license: bool = False,
    verify: bool = True,
    on_progress: OnProgress = lambda _wheel, _done, _total: None,
) -> tuple[Slimmed, ...]:
    """Slim the one wheel at *path*, in one pass over it, as `slim` does; no index is written."""
    with open_wheel(path) as wheel, at(path.name):
        _check_members(wheel, shares, cuts)
        follows = cuts.zstd is None and all(share.label and not share.document for share in shares)
        major = cuda_major((), wheel.metadata()) if follows else None
        if major is not None and Dotted(major, 0) >= ZSTD_SINCE:
            cuts = replace(cuts, zstd=True)
        progress = _Progress(wheel, on_progress)
        found = tuple(prohibitions(wheel))
        allow = partial(check_licence, () if accept_license else found)
        with planned(wheel, shares, cuts, room=room_for(folder), on_progress=progress, on_change=allow) as plan:
            bare = wheel.record.unhashed(wheel.record_path)
            told = (f"RECORD has {bare}: CRC-32 alone vouches for them; the new RECORD has them all",) if bare else ()
            warnings = () if plan.is_idle else (*map(licence_warning, found), *told)
            outputs = tuple(slim_outputs(wheel, plan, shares))
            write = partial(_written, wheel, plan=plan, outputs=outputs, codec=codec, cuts=cuts, on_progress=progress)
            written = () if folder is None else write(folder, verify=verify)
            return tuple(_results(wheel, plan, outputs, written, warnings, cuts=cuts))


def library_cutter(paths: Sequence[Path], gpus: GpuList) -> Callable[[str, memoryview], EditedFile]:
    """Return a function that cuts one library of the wheels at *paths* down to *gpus*.

    Commands that write these wheels anyway use it. Raises `RepackageError` if a licence forbids it.
    """
    for path in paths:
        with open_wheel(path) as wheel:
            for prohibition in prohibitions(wheel):
                if prohibition.is_own:
                    raise RepackageError(
                        f"{path.name}: the licence forbids to modify what is in this wheel ({prohibition}); if you are "
                        "allowed to, use `vbuild slim --accept-license` first"
                    )
    return lambda path, data: GpuLibrary.of(path, data).slimmed(Share(gpus), Cuts())[0]


def slim_on_worker(make: bytes, wheel: bytes, file: str, into: str | None) -> tuple[bytes, ...]:
    """Run *make*, a packed `slim_wheel`, on *wheel*, the bytes of *file*; return packed results and each output.

    *into* is the folder for outputs. If the wheel is refused, the packed error is all that is returned.
    """
    with tempfile.TemporaryDirectory(dir=scratch()) as temporary:
        path, folder = Path(temporary, "in", Path(file).name), Path(temporary, "out")
        path.parent.mkdir()
        path.write_bytes(wheel)
        try:
            results = opened(make)(path, folder if into else None)
        except VbuildError as error:
            message = str(error).replace(str(path), file).replace(str(folder), into or "")
            return (packed(type(error)(message)),)
        return (packed(results), *(read_file(result.path) for result in results if result.path))


def _slimmed_by_workers(
    wheels: Sequence[Path],
    folder: Path | None,
    executor: Executor,
    *,
    make: Callable[[Path, Path | None], Iterable[Slimmed]],
    on_progress: OnProgress,
) -> Iterator[Slimmed]:
    """Yield what *make* makes of *wheels* on the workers of *executor*, in their order."""
    total, done = sum(path.stat().st_size for path in wheels if path.is_file()), 0
    with connected(executor) as cluster:
        left, sent = deque(wheels), deque[tuple[Path, Promise | None]]()
        ahead = 2 * cluster.threads  # the scheduler holds what is not done yet in memory
        while left or sent:
            while left and len(sent) < ahead:
                path = left.popleft()
                sent.append((path, _sent(cluster, path, folder, make=packed(make))))
            path, promise = sent.popleft()
            on_progress(path.name, done, total)
            # a file that cannot be read is refused here, with the usual message
            yield from _received(cluster.result(promise), path, folder) if promise else make(path, folder)
            done += path.stat().st_size
            on_progress(path.name, done, total)


def _sent(cluster: Cluster, path: Path, folder: Path | None, *, make: bytes) -> Promise | None:
    """Send the wheel at *path* to a worker and return its promise, or None if the file cannot be read."""
    try:
        key = f"vbuild-slim-{sha256_of(path)}-{hashlib.sha256(make).hexdigest()}"
        data = read_file(path)
    except OSError:
        return None
    return cluster.submit(
        "vbuild.slimming.slim:slim_on_worker", make, data, str(path), str(folder) if folder else None, key=key
    )


def _received(result: Any, path: Path, folder: Path | None) -> Iterator[Slimmed]:  # noqa: ANN401 - of `slim_on_worker`
    """Yield the results for the wheel at *path*, written to *folder*; raises the worker's `VbuildError`."""
    found = result if isinstance(result, BuildError) else opened(result[0])
    if isinstance(found, VbuildError):
        raise found
    outputs = dict(zip((slimmed.name for slimmed in found if slimmed.path), result[1:], strict=True))
    with at(path.name):
        files = {file.name: file for file in placed(outputs, folder, made_from=path)} if folder else {}
    for slimmed in found:
        yield replace(slimmed, wheel=path, path=files.get(slimmed.name))


class _Progress:
    """Counts bytes examined and bytes written together, so every member counts twice."""

    def __init__(self, wheel: Wheel, on_progress: OnProgress) -> None:
        self._name = wheel.path.name
        self._on_progress = on_progress
        self._done = 0
        self._total = 2 * sum(member.size for member in wheel.members)

    def __call__(self, size: int) -> None:
        self._done += size
        self._on_progress(self._name, self._done, self._total)


def check_shares(shares: Sequence[Share], cuts: Cuts) -> None:
    """Raise `RepackageError` if nothing is asked for, or two outputs would have one name."""
    if not any(share.gpus for share in shares) and not cuts.more:
        raise RepackageError(
            "nothing to do; expected GPUs to keep (--gpu, --variant), or --recompress, --strip or --drop"
        )
    labels = [share.label for share in shares]
    if twice := sorted({label or "the plain one" for label in labels if labels.count(label) > 1}):
        raise RepackageError(f"two variants are called {', '.join(twice)}; expected a label for each")


def _check_members(wheel: Wheel, shares: Sequence[Share], cuts: Cuts) -> None:
    """Raise `RepackageError` if members that only uv reads are asked for in a wheel that pip would install."""
    if cuts.members is ZipMethod.ZSTD and not all(share.label or wheel.name.variant for share in shares):
        raise RepackageError(
            "--members zstd: pip, which installs plain wheels, cannot read such members; expected a variant wheel, or "
            "--variant LABEL=LIST to make some"
        )


def _check_globs(wheels: Sequence[Path], cuts: Cuts) -> None:
    """Raise `RepackageError` for a glob that matches nothing in any wheel, probably a typo, before anything is
    written.
    """
    unused = set(cuts.drop)
    for path in wheels if unused else ():
        with open_wheel(path) as wheel, at(path.name):
            unused -= {glob for glob in unused if replace(cuts, drop=(glob,)).dropped(wheel)}
    if unused:
        raise RepackageError(f"--drop {min(unused)!r}: names no member of any wheel given; * also crosses slashes")


def check_licence(found: Iterable[Prohibition]) -> None:
    """Raise `RepackageError` if the own licence of a distribution forbids changes."""
    for prohibition in found:
        if prohibition.is_own:
            why = "the licence forbids to modify what is in this wheel"
            raise RepackageError(f"{why} ({prohibition}); if you are allowed to, say so with --accept-license")


def licence_warning(prohibition: Prohibition) -> str:
    """What to know about a wheel or a package that is changed although some licence in it forbids that."""
    if prohibition.is_own:
        return f"accepted for you: {prohibition}"
    return f"the licence of a component forbids to modify that one: {prohibition}"


def _written(
    wheel: Wheel,
    folder: Path,
    *,
    plan: SlimPlan,
    outputs: Sequence[SlimOutput],
    codec: Codec,
    cuts: Cuts,
    on_progress: Callable[[int], None],
    verify: bool,
) -> tuple[Path, ...]:
    """Write the *outputs* in one pass over *wheel*, each as *cuts* say; an idle plan copies the wheel.

    To *verify* is to compare what was not read yet with RECORD meanwhile.
    """
    if plan.is_idle and not _is_repacked(wheel, cuts) and not any(output.document for output in outputs):
        return (passed(wheel, folder, verify=verify),)
    with ExitStack() as stack:
        deflater = stack.enter_context(Deflater(codec, folder=folder, remembers=len(outputs) > 1))
        names = [output.name for output in outputs]
        checked = [wheel] if verify else []
        writers = stack.enter_context(write_wheels(folder, names, like=wheel, deflater=deflater, checked=checked))
        for writer in writers:
            writer.members = cuts.members
        pool = stack.enter_context(ThreadPoolExecutor(available_cores()))
        stack.callback(deflater.stop)  # before the pool waits for what an interrupt left at work
        for member in wheel.members:
            changed = []
            for output, writer in zip(outputs, writers, strict=True):
                if member.path in output.gone or output.remakes(wheel, member.path):
                    continue
                if file := output.files.get(member.path):
                    changed.append((writer, file))
                else:
                    writer.copy(wheel, member)
            # one hashes and writes while pieces for another are made
            deque(pool.map(lambda pair, place=member: pair[0].write(place, pair[1]), changed), maxlen=0)
            deflater.forget()
            on_progress(member.size)
        for output, writer in zip(outputs, writers, strict=True):
            output.finish(wheel, writer, bill=cuts.bill)
    return tuple(writer.path for writer in writers)


def _is_repacked(wheel: Wheel, cuts: Cuts) -> bool:
    """Whether all members of *wheel* are compressed anew, whatever becomes of them."""
    return cuts.members is ZipMethod.ZSTD and wheel.name.variant is not None


def _estimated(wheel: Wheel, output: SlimOutput, cuts: Cuts) -> int:
    """About how many bytes *output* will have: the members that change by samples, the rest as they lie in *wheel*."""
    size = wheel.path.stat().st_size
    members = cuts.members if output.name.variant else ZipMethod.DEFLATED
    for member in wheel.members:
        if member.path in output.gone:
            size -= member.compressed_size + _HEADERS + 2 * len(member.path)
        elif file := output.files.get(member.path):
            size += estimated(file, members=members) - member.compressed_size
    return size


def _savings(wheel: Wheel, plan: SlimPlan, share: int, output: SlimOutput, packed: int) -> Iterator[Saving]:
    """Yield what other options would save of *output*, which is that of *share*: a twentieth of its *packed* bytes."""
    found: dict[str, list[Saving]] = {}
    for library in plan.libraries:
        for saving in library.cuts[share].more:
            found.setdefault(saving.option, []).append(saving)
    static = [member for member in wheel.members if member.path.endswith(".a") and member.path not in output.gone]
    found["--drop '*.a'"] = [Saving("", member.compressed_size, member.size) for member in static]
    for option, several in found.items():
        total = Saving(option, sum(one.packed for one in several), sum(one.unpacked for one in several))
        if total.packed * _WORTH >= packed:
            yield total


def _results(
    wheel: Wheel,
    plan: SlimPlan,
    outputs: Sequence[SlimOutput],
    written: Sequence[Path],
    warnings: Sequence[str],
    *,
    cuts: Cuts,
) -> Iterator[Slimmed]:
    before = sum(member.size for member in wheel.members)
    listed = {library.member: library.listed for library in plan.libraries}
    for place, output in enumerate(outputs):
        path = written[place] if written else None
        packed = path.stat().st_size if path else _estimated(wheel, output, cuts)
        sizes = {path: file.size for path, file in output.files.items()}
        still = still_listed(wheel, output.cuts, listed)
        after = sum(sizes.get(member.path, member.size) for member in wheel.members if member.path not in output.gone)
        yield Slimmed(
            wheel=wheel.path,
            name=str(output.name),
            path=path,
            before=wheel.path.stat().st_size,
            packed=packed,
            unpacked_before=before,
            unpacked=after,
            libraries=output.cuts,
            removed=tuple(sorted(plan.dropped)),
            properties=output.properties,
            warnings=(*warnings, *output.warnings, *still),
            why_untouched=None if output.document or _is_repacked(wheel, cuts) else plan.why_idle,
            more=tuple(_savings(wheel, plan, place, output, packed)),
        )
