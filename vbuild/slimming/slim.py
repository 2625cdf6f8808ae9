"""`vbuild slim`: fat CUDA wheels cut to the GPUs one names, or into a family of variant wheels, in one pass.

    wheel -> plan: every library inflated once, surveyed, cut for each share     (nothing is written yet)
          -> licence, GPUs served by nothing, claims                             (refused here, or not at all)
          -> a writer for each share: cut libraries deflated, all other members' bytes as they are
          -> variant.json and RECORD, and variants.json beside the wheels

The wheels of a family hold the same host code, which is deflated once.
"""

import hashlib
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from vbuild.errors import ExecutorError, SlimError, VbuildError, at
from vbuild.files.edited import EditedFile
from vbuild.files.hashing import sha256_of
from vbuild.hardware.gpu import GpuList
from vbuild.slimming.library import CutLibrary
from vbuild.slimming.output import SlimOutput, outputs, prohibitions
from vbuild.slimming.plan import SlimPlan, planned
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import Slimmed
from vbuild.variants.index import index
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.deflate import Codec, Deflater
from vbuild.wheel.extract import gathered, room_for
from vbuild.wheel.write import passed, placed, write_wheels
from vbuild.workers.calls import opened, packed
from vbuild.workers.cluster import Cluster, Promise, connected
from vbuild.workers.executor import LOCAL, Executor, scratch

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
    on_progress: OnProgress = lambda _wheel, _done, _total: None,
) -> tuple[Slimmed, ...]:
    """Write into *folder* what *shares* keep of the wheels at *paths*, which may be folders of wheels.

    Wheels go out to the workers of an *executor* that is not local. Without a folder nothing is written, and sizes are
    those of the members.
    A share without a label keeps the wheel's name; those with one become variant wheels, with a variants.json for
    each release. A wheel without GPU code passes as it is, unless *cuts* strip or drop something. *on_progress* hears
    the name of the wheel at work and how many of how many bytes are done. `SlimError` where a GPU asked for is served
    by nothing in a library, or a licence forbids the change; `WheelError` where a wheel is damaged: then no part of
    that wheel is in *folder*.
    """
    cuts = cuts or Cuts()
    _check(shares, cuts)
    wheels = gathered(paths)
    _check_globs(wheels, cuts)
    make = partial(family, shares=shares, cuts=cuts, codec=codec, accept_license=accept_license)
    if executor.is_local:
        slimmed = tuple(result for path in wheels for result in make(path, folder, on_progress=on_progress))
    else:
        slimmed = tuple(_made_there(wheels, folder, executor, make=make, on_progress=on_progress))
    if folder and any(share.label for share in shares):
        index(folder)
    return slimmed


def family(
    path: Path,
    folder: Path | None,
    *,
    shares: Sequence[Share],
    cuts: Cuts,
    codec: Codec = Codec.LIBDEFLATE,
    accept_license: bool = False,
    on_progress: OnProgress = lambda _wheel, _done, _total: None,
) -> tuple[Slimmed, ...]:
    """What `slim` makes of the one wheel at *path*, in one pass over it; no index is written."""
    with open_wheel(path) as wheel, at(path.name):
        progress = _Progress(wheel, on_progress)
        with planned(wheel, shares, cuts, room=room_for(folder), on_progress=progress) as plan:
            warnings = tuple(_licence(wheel, plan, accept=accept_license))
            found = tuple(outputs(wheel, plan, shares))
            write = partial(_written, wheel, plan=plan, found=found, codec=codec, bill=cuts.bill, on_progress=progress)
            written = () if folder is None else write(folder)
            return tuple(_results(wheel, plan, found, written, warnings))


def cutting(paths: Sequence[Path], gpus: GpuList) -> Callable[[str, memoryview], EditedFile]:
    """What cuts one library of the wheels at *paths* down to *gpus*, for who writes those wheels anyway.

    `SlimError` where a licence forbids it.
    """
    for path in paths:
        with open_wheel(path) as wheel:
            for prohibition in prohibitions(wheel):
                raise SlimError(
                    f"{path.name}: the licence forbids to modify what is in this wheel ({prohibition}); if you are "
                    "allowed to, use `vbuild slim --accept-license` first"
                )
    return lambda path, data: CutLibrary.of(path, data).slimmed(Share(gpus), Cuts())[0]


def there(make: bytes, wheel: bytes, file: str, into: str | None) -> tuple[bytes, ...]:
    """On a worker: what *make*, a `family` of shares, makes of *wheel*, the bytes of *file*; and each output's bytes.

    *into* is the folder that outputs are for. Where the wheel is refused, that is all.
    """
    with tempfile.TemporaryDirectory(dir=scratch()) as temporary:
        path, folder = Path(temporary, "in", Path(file).name), Path(temporary, "out")
        path.parent.mkdir()
        path.write_bytes(wheel)
        try:
            results = opened(make)(path, folder if into else None)
        except VbuildError as error:
            said = str(error).replace(str(path), file).replace(str(folder), into or "")
            return (packed(type(error)(said)),)
        return (packed(results), *(result.path.read_bytes() for result in results if result.path))


def _made_there(
    wheels: Sequence[Path],
    folder: Path | None,
    executor: Executor,
    *,
    make: Callable[[Path, Path | None], Iterable[Slimmed]],
    on_progress: OnProgress,
) -> Iterator[Slimmed]:
    """What *make* makes of *wheels* on the workers of *executor*, in their order."""
    total, done = sum(path.stat().st_size for path in wheels if path.is_file()), 0
    with connected(executor) as cluster:
        left, sent = deque(wheels), deque[tuple[Path, Promise | None]]()
        ahead = 2 * cluster.threads  # not all at once: what is not done yet is held by the scheduler
        while left or sent:
            while left and len(sent) < ahead:
                path = left.popleft()
                sent.append((path, _sent(cluster, path, folder, make=packed(make))))
            path, promise = sent.popleft()
            on_progress(path.name, done, total)
            # what cannot be read is refused here, in the words for that
            yield from _received(cluster.result(promise), path, folder) if promise else make(path, folder)
            done += path.stat().st_size
            on_progress(path.name, done, total)


def _sent(cluster: Cluster, path: Path, folder: Path | None, *, make: bytes) -> Promise | None:
    """The promise of what comes of the wheel at *path*; None where it cannot be read."""
    try:
        key = f"vbuild-slim-{sha256_of(path)}-{hashlib.sha256(make).hexdigest()}"
        data = path.read_bytes()
    except OSError:
        return None
    return cluster.submit("vbuild.slimming.slim:there", make, data, str(path), str(folder) if folder else None, key=key)


def _received(result: Any, path: Path, folder: Path | None) -> Iterator[Slimmed]:  # noqa: ANN401 - what `there` gives
    """What came of the wheel at *path*, its outputs in *folder*; the `VbuildError` with which it was refused."""
    found = result if isinstance(result, ExecutorError) else opened(result[0])
    if isinstance(found, VbuildError):
        raise found
    outputs = dict(zip((slimmed.name for slimmed in found if slimmed.path), result[1:], strict=True))
    with at(path.name):
        files = {file.name: file for file in placed(outputs, folder, made_from=path)} if folder else {}
    for slimmed in found:
        yield replace(slimmed, wheel=path, path=files.get(slimmed.name))


class _Progress:
    """Bytes looked at and bytes written, told together: every member counts once for either."""

    def __init__(self, wheel: Wheel, on_progress: OnProgress) -> None:
        self._name = wheel.path.name
        self._on_progress = on_progress
        self._done = 0
        self._total = 2 * sum(member.size for member in wheel.members)

    def __call__(self, size: int) -> None:
        self._done += size
        self._on_progress(self._name, self._done, self._total)


def _check(shares: Sequence[Share], cuts: Cuts) -> None:
    """`SlimError` where nothing is asked for, or two outputs would be one."""
    if not any(share.gpus for share in shares) and not cuts.more:
        raise SlimError("nothing to do; expected GPUs to keep (--gpu, --variant), or --strip, --drop or --zstd")
    labels = [share.label for share in shares]
    if twice := sorted({label or "the plain one" for label in labels if labels.count(label) > 1}):
        raise SlimError(f"two variants are called {', '.join(twice)}; expected a label for each")


def _check_globs(wheels: Sequence[Path], cuts: Cuts) -> None:
    """`SlimError` for a glob that names nothing in any wheel: a slip of the pen, found before anything is written."""
    unused = set(cuts.drop)
    for path in wheels if unused else ():
        with open_wheel(path) as wheel, at(path.name):
            unused -= {glob for glob in unused if replace(cuts, drop=(glob,)).dropped(wheel)}
    if unused:
        raise SlimError(f"--drop {min(unused)!r}: names no member of any wheel given; * also crosses slashes")


def _licence(wheel: Wheel, plan: SlimPlan, *, accept: bool) -> Iterator[str]:
    """A warning for each sentence of the licence that forbids what *plan* does; `SlimError` unless it is accepted."""
    for prohibition in prohibitions(wheel) if not plan.is_idle else ():
        if not accept:
            what = "the licence forbids to modify what is in this wheel"
            raise SlimError(f"{what} ({prohibition}); if you are allowed to, say so with --accept-license")
        yield f"accepted for you: {prohibition}"


def _written(
    wheel: Wheel,
    folder: Path,
    *,
    plan: SlimPlan,
    found: Sequence[SlimOutput],
    codec: Codec,
    bill: bool,
    on_progress: Callable[[int], None],
) -> tuple[Path, ...]:
    """Write the wheels *found*, all in one pass over *wheel*; where there is nothing to do, it passes as it is.

    Each gets a *bill* of materials.
    """
    if plan.is_idle and not any(output.document for output in found):
        return (passed(wheel, folder),)
    with ExitStack() as stack:
        press = stack.enter_context(Deflater(codec, folder=folder, remembers=len(found) > 1))
        names = [output.name for output in found]
        writers = stack.enter_context(write_wheels(folder, names, like=wheel, press=press))
        for member in wheel.members:
            for output, writer in zip(found, writers, strict=True):
                if member.path in plan.dropped or output.remakes(wheel, member.path):
                    continue
                if rope := output.ropes.get(member.path):
                    writer.write(member, rope)
                else:
                    writer.copy(wheel, member)
            press.forget()
            on_progress(member.size)
        for output, writer in zip(found, writers, strict=True):
            output.finish(wheel, writer, dropped=plan.dropped, bill=bill)
    return tuple(writer.path for writer in writers)


def _results(
    wheel: Wheel, plan: SlimPlan, found: Sequence[SlimOutput], written: Sequence[Path], warnings: Sequence[str]
) -> Iterator[Slimmed]:
    before = sum(member.size for member in wheel.members)
    dropped = sum(member.size for member in wheel.members if member.path in plan.dropped)
    for place, output in enumerate(found):
        path = written[place] if written else None
        gone = sum(len(rope.source) - rope.size for rope in output.ropes.values())
        yield Slimmed(
            wheel=wheel.path,
            name=str(output.name),
            path=path,
            before=wheel.path.stat().st_size,
            packed=path.stat().st_size if path else None,
            unpacked_before=before,
            unpacked=before - dropped - gone,
            libraries=output.cuts,
            removed=tuple(sorted(plan.dropped)),
            properties=output.properties,
            warnings=(*warnings, *output.warnings),
            is_untouched=plan.is_idle and output.document is None,
        )
