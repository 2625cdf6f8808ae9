"""Files of a site: fetched by their hash, cut, and put where a run that is killed leaves them for the next one.

    work/originals/<sha256>       as the index has it, until it is cut
    work/made/<key>/demo-….whl    what the site will have
    work/made/<key>/file.json     what is known of it; written when the wheel is complete

A few files are fetched while one is cut, so that the disk need not have them all.
"""

import contextvars
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vbuild.errors import FetchError, RepackageError, at
from vbuild.files.atomic import linked, replacing
from vbuild.files.hashing import key_of, sha256_of
from vbuild.files.reading import read_file
from vbuild.index_client.pages import Store, connected, provenance_of
from vbuild.mirroring.model import Cut, MirroredFile, Original
from vbuild.slimming.slim import slim_wheel
from vbuild.wheel.archive import open_wheel

# files that are fetched, or are here and wait for their cut
_AHEAD = 4
_RECORD = "file.json"
_LEAST = 1 << 20  # bytes between two reports of progress

OnProgress = Callable[[str, int, int], None]


class Wanted(Struct, frozen=True):
    original: Original
    cut: Cut
    machines: tuple[str, ...] = ()


class Made(Struct, frozen=True):
    """A file for the site, not yet in it."""

    file: MirroredFile
    path: Path
    attestation: Path | None = None


def make_all(
    work: Path, wanted: Sequence[Wanted], store: Store, *, keeps_originals: bool, on_progress: OnProgress
) -> Iterator[Made]:
    """Make all that is *wanted* in *work*, and yield each as soon as it is complete, in any order.

    *store* fetches, and keeps the originals if *keeps_originals*. *on_progress* gets the current file, the bytes
    fetched, and those to fetch. After an error the next run finds what is complete by then.
    """
    waiting = []
    for want in sorted(wanted, key=lambda want: -want.original.size):
        if earlier := _earlier(work, want):
            yield earlier
        else:
            waiting.append(want)
    progress = _Progress(sum(want.original.size for want in waiting), on_progress)
    users = [want.original.sha256 for want in waiting]
    is_here = all(want.original.url.startswith("file:") for want in waiting)
    with nullcontext() if is_here else connected(), ThreadPoolExecutor(_AHEAD) as executor:
        coming: dict[Future[_Fetched], Wanted] = {}
        try:
            while waiting or coming:
                while waiting and len(coming) < _AHEAD:
                    sha256 = waiting[0].original.sha256
                    if any(other.original.sha256 == sha256 for other in coming.values()):
                        break  # a thread fetches it for another cut
                    want = waiting.pop(0)
                    run = contextvars.copy_context().run
                    coming[executor.submit(run, _fetched, want.original, store, progress)] = want
                for future in wait(coming, return_when=FIRST_COMPLETED).done:
                    want, fetched = coming.pop(future), future.result()
                    with at(want.original.file):
                        yield _make(work, want, fetched)
                    users.remove(want.original.sha256)
                    if not keeps_originals and want.original.sha256 not in users:
                        fetched.path.unlink(missing_ok=True)
        finally:
            progress.stop()
            executor.shutdown(cancel_futures=True)


class _Fetched(Struct, frozen=True):
    path: Path
    attestation: bytes | None


class _Progress:
    """Counts the bytes that all threads fetch; after `stop` it raises in those threads."""

    def __init__(self, total: int, on_progress: OnProgress) -> None:
        self._total = total
        self._done = self._reported = 0
        self._on_progress = on_progress
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def add(self, file: str, count: int) -> None:
        if self._is_stopped:
            raise FetchError(f"{file}: stopped")
        self._done += count
        if self._done - self._reported > _LEAST:
            self._reported = self._done
            self._on_progress(file, self._done, max(self._total, self._done))


def _fetched(original: Original, store: Store, progress: _Progress) -> _Fetched:
    with at(original.file):
        path = store.file(original.url, original.sha256, on_bytes=lambda count: progress.add(original.file, count))
        if original.size not in {0, size := path.stat().st_size}:
            raise FetchError(f"has {size} bytes, expected {original.size}, which the lock has")
    attestation = None
    if not original.url.startswith("file:"):
        # an index without attestations, or none at all: the lock may name files of any place
        with suppress(FetchError):
            attestation = provenance_of(original.file)
    return _Fetched(path, attestation)


def _folder_of(work: Path, want: Wanted) -> Path:
    return work / "made" / key_of([want.original.file, want.original.sha256, msgspec.to_builtins(want.cut)])


def _earlier(work: Path, want: Wanted) -> Made | None:
    folder = _folder_of(work, want)
    try:
        file = msgspec.json.decode(read_file(folder / _RECORD), type=MirroredFile)
        if sha256_of(folder / file.file) != file.sha256:
            return None
    except (OSError, msgspec.DecodeError):
        return None
    attestation = folder / "attestation"
    return Made(replace(file, machines=want.machines), folder / file.file, attestation if file.attestation else None)


def _make(work: Path, want: Wanted, fetched: _Fetched) -> Made:
    own_folder = _folder_of(work, want)
    shutil.rmtree(own_folder, ignore_errors=True)
    try:
        own_folder.mkdir(parents=True)
        # under its own name, which says what it is
        with TemporaryDirectory(dir=work, prefix="named-") as folder:
            source = Path(folder, want.original.file)
            linked(fetched.path, source)
            file = _cut(source, own_folder, want) if want.original.is_wheel else _whole(source, own_folder, want)
        attestation = own_folder / "attestation"
        if fetched.attestation:
            attestation.write_bytes(fetched.attestation)
            file = replace(file, attestation=f"attestations/{want.original.file}.provenance")
        with replacing(own_folder / _RECORD) as part:
            part.write_bytes(msgspec.json.encode(file))
    except OSError as error:
        raise RepackageError(f"{work}: cannot be written: {error.strerror}") from error
    return Made(file, own_folder / file.file, attestation if fetched.attestation else None)


def _cut(source: Path, folder: Path, want: Wanted) -> MirroredFile:
    with open_wheel(source) as wheel:
        size = sum(member.size for member in wheel.members)
    packed = source.stat().st_size
    uncut = MirroredFile(
        want.original.public(packed), want.original.sha256, packed, size, size, want.cut, want.machines
    )
    why = ""
    if not want.cut.is_nothing:
        try:
            (slimmed,) = slim_wheel(
                source,
                folder,
                shares=(want.cut.share,),
                cuts=want.cut.cuts,
                accept_license=want.cut.licence_accepted,
            )
            path = folder / slimmed.name
            reasons = dict.fromkeys(library.why_whole for library in slimmed.libraries if library.why_whole)
            served = {str(gpu.device) for library in slimmed.libraries for gpu in library.served if gpu.machine.fatbins}
            return replace(
                uncut,
                sha256=sha256_of(path),
                size=path.stat().st_size,
                installed=slimmed.unpacked,
                has_gpu_code=bool(slimmed.libraries),
                why_left="; ".join(reasons),
                renamed=path.name if path.name != want.original.file else "",
                served=tuple(sorted(served)),
            )
        except RepackageError as error:
            why = str(error).removeprefix(f"{source.name}: ")
    with open_wheel(source, check=True):
        linked(source, folder / source.name)
    return replace(uncut, has_gpu_code=True, why_left=why)


def _whole(source: Path, folder: Path, want: Wanted) -> MirroredFile:
    path = linked(source, folder / want.original.file)
    size = path.stat().st_size
    why = "an sdist: each installation builds it, with what its pyproject.toml requires"
    sizes = (size, size, size)
    return MirroredFile(want.original.public(size), want.original.sha256, *sizes, want.cut, want.machines, why_left=why)
