"""Files of a site: fetched by their hash, cut, and put where a run that is killed leaves them for the next one.

    work/originals/<sha256>       as the index has it, until it is cut
    work/made/<key>/demo-….whl    what the site will have
    work/made/<key>/file.json     what is known of it; written when the wheel is complete

A few files are fetched while one is cut, so that the disk need not have them all.

On request a wheel's version says what it was cut for: torch 2.9.1 for sm_90 becomes 2.9.1+sm90. An installer that also
sees the original takes the local version, which comes after it (PEP 440), and ``==2.9.1`` admits both.
https://packaging.python.org/en/latest/specifications/version-specifiers/#local-version-identifiers
"""

import contextvars
import re
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
from vbuild.publishing.local import local_version
from vbuild.publishing.model import PublishPlan, renamed
from vbuild.publishing.publish import written
from vbuild.publishing.releases import OfferedWheel
from vbuild.slimming.slim import slim_wheel
from vbuild.wheel.archive import open_wheel

# files that are fetched, or are here and wait for their cut
_AHEAD = 4
_FOUND = "file.json"
_LEAST = 1 << 20  # bytes that have come since progress was told last

OnProgress = Callable[[str, int, int], None]


class Wanted(Struct, frozen=True):
    """A file that the site is to have: an *original*, its *cut*, and the *index* and *machines* that it is for."""

    original: Original
    cut: Cut
    index: str = ""
    machines: tuple[str, ...] = ()


class Made(Struct, frozen=True):
    """A file of the site at *path*, not yet in it, and the bytes of its attestation, if it has one."""

    file: MirroredFile
    path: Path
    attestation: Path | None = None


def made_in(
    work: Path, wanted: Sequence[Wanted], store: Store, *, keeps_originals: bool, on_progress: OnProgress
) -> Iterator[Made]:
    """Make in *work* all that is *wanted*, and give each as soon as it is complete, in any order.

    *store* fetches, and keeps the originals if it *keeps_originals*. *on_progress* is called with the file at work, the
    bytes fetched, and those to fetch. `FetchError` if one cannot be had, `WheelError` if it is damaged: what is
    complete by then is found by the next run.
    """
    waiting = []
    for one in sorted(wanted, key=lambda one: -one.original.size):
        if found := _found(work, one):
            yield found
        else:
            waiting.append(one)
    progress = _Progress(sum(one.original.size for one in waiting), on_progress)
    users = [one.original.sha256 for one in waiting]
    is_here = all(one.original.url.startswith("file:") for one in waiting)
    with nullcontext() if is_here else connected(), ThreadPoolExecutor(_AHEAD) as executor:
        coming: dict[Future[_Fetched], Wanted] = {}
        try:
            while waiting or coming:
                while waiting and len(coming) < _AHEAD:
                    if _is_coming(waiting[0], coming):
                        break
                    one = waiting.pop(0)
                    run = contextvars.copy_context().run
                    coming[executor.submit(run, _fetched, one.original, store, progress)] = one
                for future in wait(coming, return_when=FIRST_COMPLETED).done:
                    one, fetched = coming.pop(future), future.result()
                    with at(one.original.file):
                        yield _made(work, one, fetched)
                    users.remove(one.original.sha256)
                    if not keeps_originals and one.original.sha256 not in users:
                        fetched.path.unlink(missing_ok=True)
        finally:
            progress.stop()
            executor.shutdown(cancel_futures=True)


class _Fetched(Struct, frozen=True):
    """The *path* of an original, and what its index attests of it."""

    path: Path
    attestation: bytes | None


class _Progress:
    """Counts bytes fetched, of any thread; raises in those threads when nobody needs them any more."""

    def __init__(self, total: int, on_progress: OnProgress) -> None:
        self._total = total
        self._done = self._told = 0
        self._on_progress = on_progress
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def add(self, file: str, count: int) -> None:
        if self._is_stopped:
            raise FetchError(f"{file}: stopped")
        self._done += count
        if self._done - self._told > _LEAST:
            self._told = self._done
            self._on_progress(file, self._done, max(self._total, self._done))


def _is_coming(one: Wanted, coming: dict["Future[_Fetched]", Wanted]) -> bool:
    """Whether a thread fetches the original of *one* for another index."""
    return any(other.original.sha256 == one.original.sha256 for other in coming.values())


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


def _place(work: Path, one: Wanted) -> Path:
    """The folder of what becomes of *one*."""
    return work / "made" / key_of([one.index, one.original.file, one.original.sha256, msgspec.to_builtins(one.cut)])


def _found(work: Path, one: Wanted) -> Made | None:
    """What an earlier run made of *one*."""
    place = _place(work, one)
    try:
        file = msgspec.json.decode(read_file(place / _FOUND), type=MirroredFile)
        if sha256_of(place / file.file) != file.sha256:
            return None
    except (OSError, msgspec.DecodeError):
        return None
    attestation = place / "attestation"
    return Made(replace(file, machines=one.machines), place / file.file, attestation if file.attestation else None)


def _made(work: Path, one: Wanted, fetched: _Fetched) -> Made:
    place = _place(work, one)
    shutil.rmtree(place, ignore_errors=True)
    try:
        place.mkdir(parents=True)
        # under its own name, which says what it is
        with TemporaryDirectory(dir=work, prefix="named-") as named:
            source = Path(named, one.original.file)
            linked(fetched.path, source)
            file = _cut(source, place, one) if one.original.is_wheel else _whole(source, place, one)
        attestation = place / "attestation"
        if fetched.attestation:
            attestation.write_bytes(fetched.attestation)
            file = replace(file, attestation=f"attestations/{one.original.file}.provenance")
        with replacing(place / _FOUND) as part:
            part.write_bytes(msgspec.json.encode(file))
    except OSError as error:
        raise RepackageError(f"{work}: cannot be written: {error.strerror}") from error
    return Made(file, place / file.file, attestation if fetched.attestation else None)


def _cut(source: Path, place: Path, one: Wanted) -> MirroredFile:
    """The wheel at *source* in *place*, cut as asked, or as it is, and why."""
    with open_wheel(source) as wheel:
        size = sum(member.size for member in wheel.members)
    packed = source.stat().st_size
    whole = MirroredFile(
        one.original.public(packed), one.original.sha256, packed, size, size, one.cut, one.index, one.machines
    )
    if one.cut.is_nothing:
        _pass_on(source, place)
        return replace(whole, has_gpu_code=True)
    try:
        (slimmed,) = slim_wheel(
            source,
            place,
            shares=(one.cut.share,),
            cuts=one.cut.cuts,
            accept_license=one.cut.licence_accepted,
        )
    except RepackageError as error:
        _pass_on(source, place)
        why = str(error).removeprefix(f"{source.name}: ")
        return replace(whole, has_gpu_code=True, why_left=why)
    path = place / slimmed.name
    if one.cut.local and sha256_of(path) != one.original.sha256:
        path = localized(path, one.cut)
    left = dict.fromkeys(library.why_whole for library in slimmed.libraries if library.why_whole)
    served = {str(each.device) for library in slimmed.libraries for each in library.served if each.machine}
    return replace(
        whole,
        sha256=sha256_of(path),
        size=path.stat().st_size,
        installed=slimmed.unpacked,
        has_gpu_code=bool(slimmed.libraries),
        why_left="; ".join(left),
        renamed=path.name if path.name != one.original.file else "",
        served=tuple(sorted(served)),
    )


def _pass_on(source: Path, place: Path) -> None:
    """Put the wheel at *source* into the folder *place* as it is; `WheelError` if it is damaged."""
    with open_wheel(source, check=True):
        linked(source, place / source.name)


def _whole(source: Path, place: Path, one: Wanted) -> MirroredFile:
    """The sdist at *source* in *place*, as it is."""
    path = linked(source, place / one.original.file)
    size = path.stat().st_size
    why = "an sdist: whoever installs it builds it, with what its pyproject.toml requires"
    return MirroredFile(
        one.original.public(size), one.original.sha256, size, size, size, one.cut, one.index, one.machines, why_left=why
    )


_WITHOUT_GPUS = "slim"
_STAGE = "local"


def localized(wheel: Path, cut: Cut) -> Path:
    """The *wheel*, which was *cut*, under its local version instead; its new path, in the same folder.

    `RepackageError` if it has a version that takes none.
    """
    offered = OfferedWheel.of(wheel)
    label = ".".join(re.findall(r"[a-z0-9]+", cut.gpus.replace("_", ""))) or _WITHOUT_GPUS
    plain = offered.name.normalised()
    output = renamed(offered, replace(plain, version=local_version(plain.version, label)))
    stage = wheel.parent / _STAGE
    written(PublishPlan(_STAGE, (output,), ()), stage)
    return (stage / output.target).replace(wheel.parent / output.target.name)
