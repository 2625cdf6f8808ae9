"""`vbuild slim`: cut fat CUDA wheels to the GPUs one names, or into a family of variant wheels, in one pass.

    wheel -> plan: every library inflated once, and cut for each share      (nothing is written yet)
                the licence is checked as soon as a library is to change    (an error until here leaves no files)
          -> outputs: a name and, for a variant, its claims
          -> a writer for each output: cut libraries deflated, all other members' bytes as they are
          -> variant.json, bill of materials and RECORD, and variants.json next to the wheels

Host code that a family shares is deflated once. The claims of a variant follow from the code that remains:

    nvidia :: sm_arch :: 90_real                     machine code that a GPU of capability 9.0 runs
    nvidia :: sm_arch :: 90_virtual                  PTX that its driver compiles; only for M.0, by the providers
    nvidia :: cuda_version_lower_bound :: 12.0       the oldest driver that takes what serves these GPUs
    amd :: gfx_arch :: gfx942                        code that runs on AMD's gfx942, in any mode

https://github.com/wheelnext/nvidia-variant-provider defines the first two features, PyPI's rocm-bootstrap the third.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import Strip
from vbuild.binary.outline import Format
from vbuild.errors import HardwareError, RepackageError, VbuildError, WheelError, at
from vbuild.files.atomic import stage_in
from vbuild.files.edited import EditedFile
from vbuild.files.wording import mb, sized
from vbuild.gpu_code.coverage import newest
from vbuild.gpu_code.device_file import HEADER, DeviceFile, Folders
from vbuild.gpu_code.model import Vendor
from vbuild.hardware.architectures import Arch, Device, GpuTarget
from vbuild.hardware.cpu import available_cores
from vbuild.hardware.driver import ANY_DRIVER, ZSTD_SINCE, Dotted
from vbuild.hardware.gpu import GpuList, GpuRequest, Ptx, arch_order
from vbuild.process.threads import stoppable_pool
from vbuild.sbom.keeping import Changes, bill_of, carries, cuts_of, listed, path_of, put
from vbuild.sbom.model import BillChange, Gone, GpuCut, Treatment
from vbuild.slimming.device_files import (
    examine_file,
    file_plan,
    join_device_cuts,
    stale_list_warnings,
    with_true_lists,
    worth_reading,
)
from vbuild.slimming.library import LibraryPlan, cuda_major, refusal
from vbuild.slimming.request import LOWER_BOUND, Cuts, Share
from vbuild.slimming.results import LibraryCut, Saving, Slimmed
from vbuild.variants.document import Document
from vbuild.variants.index import index
from vbuild.variants.model import Property, Variant
from vbuild.variants.providers import metadata_for
from vbuild.wheel.archive import Wheel, forget, open_wheel, room_for, wheels_at
from vbuild.wheel.deflate import Deflater, estimate_packed
from vbuild.wheel.licence import Accepted, Prohibition, is_accepted, prohibitions
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.name import WheelName
from vbuild.wheel.write import WheelWriter, copy_wheel, write_wheels
from vbuild.wheel.zip_read import Member

# a saving of a smaller part of the wheel is not worth a line
_WORTH = 20
# bytes of a member's two headers in a zip archive, besides its path in each
_HEADERS = 76
_HOW = "vbuild slim"
_WORTH_NAMING = 1_000_000  # bytes
_NO_CODE = LibraryCut(member="", before=0, after=0)
OnProgress = Callable[[str, int, int], None]


def slim(
    paths: Sequence[Path],
    folder: Path | None,
    *,
    shares: Sequence[Share],
    cuts: Cuts | None = None,
    limit: int | None = None,
    accept_license: Accepted = False,
    on_refusal: Callable[[Path, VbuildError], None] | None = None,
    on_progress: OnProgress = lambda _wheel, _done, _total: None,
) -> tuple[Slimmed, ...]:
    """Write into *folder* what *shares* keep of the wheels at *paths*, which may be folders of wheels.

    Without a folder nothing is written, and packed sizes are estimated. Shares with a label become variant wheels, with
    a variants.json for each release. A wheel without GPU code is copied unchanged, unless *cuts* strip or drop
    something. With a *limit* in bytes each wheel loses as little as makes it fit, see `_slimmed_under`. *on_refusal*
    gets each wheel that is refused, with the reason, and the others are slimmed; without it the first refusal is
    raised. *on_progress* is called with the name of the current wheel, the bytes done, and the bytes in total.

    Raises `RepackageError` if nothing in a wheel serves a GPU of a share, or a licence forbids the change, and
    `WheelError` if a wheel is damaged: then no part of it is in *folder*.
    """
    cuts = cuts or Cuts()
    if limit is not None:
        cuts = replace(cuts, zstd=True)
    _check_shares(shares, cuts)
    wheels = wheels_at(paths)
    _check_globs(wheels, cuts)
    slim_one = partial(slim_wheel, shares=shares, cuts=cuts, accept_license=accept_license, on_progress=on_progress)
    if limit is not None:
        slim_one = partial(_slimmed_under, limit, shares[0].gpus, slim_one)
    slimmed: list[Slimmed] = []
    for path in wheels:
        try:
            slimmed += slim_one(path, folder)
        except VbuildError as error:
            if on_refusal is None:
                raise
            on_refusal(path, error)
    if folder and slimmed and any(share.label for share in shares):
        index(folder, verify=False)
    return tuple(slimmed)


def _slimmed_under(
    limit: int, gpus: GpuList | None, slim_one: partial[tuple[Slimmed, ...]], path: Path, folder: Path | None
) -> tuple[Slimmed, ...]:
    """Write into *folder* the wheel at *path* with the least loss after which it has *limit* bytes or fewer.

    GPU code is compressed better; then debug data goes, then symbols that loading does not need, and at last the code
    for all but *gpus*, if these are given: that for the oldest GPUs first, and no more than is needed.
    `RepackageError` if that is not enough; it says the smallest size.
    """
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    if path.stat().st_size <= limit:
        (same,) = slim_one(path, folder, shares=[Share()], cuts=Cuts())
        return (replace(same, why_untouched=f"it is not larger than {sized(limit)}"),)
    cuts = slim_one.keywords["cuts"]
    with stage_in(folder) if folder else nullcontext() as stage:
        results: list[Slimmed] = []

        def fits(loss: _Loss) -> bool:
            if trial := stage / str(len(results)) if stage else None:
                trial.mkdir()
            (slimmed,) = slim_one(path, trial, shares=[Share(loss.gpus)], cuts=loss.cuts)
            if slimmed.path and slimmed.packed > limit:
                slimmed.path.unlink()
            results.append(replace(slimmed, how=loss.how))
            return slimmed.packed <= limit

        losses = [_Loss(replace(cuts, strip=strip)) for strip in Strip]
        if not fits(losses[0]):
            losses += _gpu_losses(gpus, losses[-1].cuts, results[0].libraries) if gpus else ()
            # each leaves less than the one before
            bisect_left(losses[1:], True, key=fits)  # noqa: FBT003 - of a function of Python's
        if fitting := [slimmed for slimmed in results if slimmed.packed <= limit]:
            least = fitting[-1]
            if folder and least.path:
                least = replace(least, path=least.path.replace(folder / least.path.name))
            return (replace(least, how=f"under {sized(limit)} by {least.how}"),)
    more = "" if gpus else "; name the GPUs that it is for, and the code for others may go: --gpu 80,90"
    about, last = "" if folder else "about ", results[-1]
    raise RepackageError(f"{path.name}: {about}{sized(last.packed)} is the least that {last.how} leaves{more}")


class _Loss(Struct, frozen=True):
    """One way to make a wheel smaller: *cuts*, and the *gpus* whose code stays, or None for all."""

    cuts: Cuts
    gpus: GpuList | None = None

    @property
    def how(self) -> str:
        strip = f" --strip {self.cuts.strip}" if self.cuts.strip is not Strip.NOTHING else ""
        gpus = f" --gpu {self.gpus}" if self.gpus else ""
        return f"--recompress{strip}{gpus}{' --ptx keep' if self.cuts.ptx is Ptx.KEEP and gpus else ''}"


def _gpu_losses(gpus: GpuList, cuts: Cuts, libraries: Iterable[LibraryCut]) -> Iterator[_Loss]:
    """All but *gpus* of the GPUs that *libraries* have machine code for, one less each time, the oldest first.

    The newest PTX, which is for GPUs to come, goes last.
    """
    archs: set[Device] = set()
    for name in {name for library in libraries for name in library.gpus_before}:
        with suppress(HardwareError):  # PTX, and what cannot be asked for
            archs.update(GpuList.asked(name).every)
    vendors = Share(gpus).vendors
    others = sorted((arch for arch in archs if Vendor.of(arch) in vendors and arch not in gpus.every), key=arch_order)
    for first in range(1, len(others)):
        also = others[first:]
        requests = [GpuRequest(arch) for arch in also if isinstance(arch, Arch)]
        targets = {*gpus.targets, *(arch for arch in also if isinstance(arch, GpuTarget))}
        kept = GpuList(GpuList.of([*gpus.requests, *requests]).requests, tuple(sorted(targets, key=arch_order)))
        # the cut takes nothing from a GPU that has nothing
        yield _Loss(replace(cuts, ptx=Ptx.KEEP, unsupported=True, strict=False), kept)
    yield _Loss(cuts, gpus)


def slim_wheel(
    path: Path,
    folder: Path | None,
    *,
    shares: Sequence[Share],
    cuts: Cuts,
    accept_license: Accepted = False,
    on_progress: OnProgress = lambda _wheel, _done, _total: None,
) -> tuple[Slimmed, ...]:
    """Slim the one wheel at *path*, as `slim` does; no index is written."""
    with open_wheel(path) as wheel, at(path.name):
        if cuts.zstd is None and all(share.label and not share.document for share in shares):
            major = cuda_major((), wheel.metadata())
            if major is not None and Dotted(major, 0) >= ZSTD_SINCE:  # its variants need such a driver anyway
                cuts = replace(cuts, zstd=True)
        # bytes read, bytes cut and bytes written
        done, total = 0, 3 * sum(member.size for member in wheel.members)
        lock = Lock()

        def advance(size: int) -> None:
            nonlocal done
            with lock:
                done += size
                on_progress(path.name, done, total)

        forbidden = tuple(prohibitions(wheel))
        own = next((prohibition for prohibition in forbidden if prohibition.is_own), None)

        def check_licence() -> None:
            if own and not is_accepted(accept_license, wheel.name.project):
                why = f"the licence forbids to modify what is in this wheel ({own})"
                raise RepackageError(f"{why}; if you are allowed to, say so with --accept-license {wheel.name.project}")

        room = room_for(folder)
        with slim_plan(wheel, shares, cuts, room=room, on_progress=advance, on_change=check_licence) as plan:
            outputs = tuple(slim_outputs(wheel, plan, shares))
            written = _write(wheel, plan, outputs, cuts, folder, on_progress=advance) if folder else ()
            warnings = [] if plan.is_idle else [*map(_licence_warning, forbidden)]
            accepted = (wheel.name.project,) if own and not plan.is_idle else ()
            results = _results(wheel, plan, outputs, written, warnings)
            if own and not is_accepted(accept_license, wheel.name.project):  # an option that changes it needs this, too
                results = (_refused_saving(result, wheel.name.project) for result in results)
            return tuple(replace(result, accepted=accepted) for result in results)


def _refused_saving(result: Slimmed, project: str) -> Slimmed:
    more = (replace(saving, option=f"{saving.option} --accept-license {project}") for saving in result.more)
    return replace(result, more=tuple(more))


def _check_shares(shares: Sequence[Share], cuts: Cuts) -> None:
    if not any(share.gpus for share in shares) and not cuts.more:
        raise RepackageError(
            "nothing to do; expected GPUs to keep (--gpu, --variant), or --recompress, --strip or --drop"
        )
    labels = [share.label for share in shares]
    if twice := sorted({label or "the plain one" for label in labels if labels.count(label) > 1}):
        raise RepackageError(f"two variants are called {', '.join(twice)}; expected a label for each")


def _check_globs(wheels: Sequence[Path], cuts: Cuts) -> None:
    unused = set(cuts.drop)
    for path in wheels if unused else ():
        # what cannot be read is refused later, in its turn
        with suppress(WheelError), open_wheel(path) as wheel, at(path.name):
            unused -= {glob for glob in unused if replace(cuts, drop=(glob,)).dropped(wheel)}
    if unused:
        raise RepackageError(f"--drop {min(unused)!r}: names no member of any wheel given; * also crosses slashes")


def _licence_warning(prohibition: Prohibition) -> str:
    if prohibition.is_own:
        return f"accepted for you: {prohibition}"
    return f"the licence of a component forbids to modify that one: {prohibition}"


class SlimPlan(Struct, frozen=True):
    """What happens to the files of a wheel, and the members that every share loses.

    It *has_others* if compiled files are of formats without GPU code, and *strips* as asked. *lists* of each share are
    without what went; *notes* are about others.
    """

    libraries: tuple[LibraryPlan, ...]
    dropped: frozenset[str]
    has_others: bool = False
    strips: bool = False
    lists: tuple[dict[str, EditedFile], ...] = ()
    notes: tuple[tuple[str, ...], ...] = ()

    @property
    def has_gpu_code(self) -> bool:
        return any(cut.has_gpu_code for library in self.libraries for cut in library.cuts)

    @property
    def is_idle(self) -> bool:
        return not self.dropped and not any(library.is_changed for library in self.libraries)

    @property
    def why_idle(self) -> str | None:
        if not self.is_idle:
            return None
        if not self.libraries and self.has_others:
            return "its compiled files are for macOS or 32-bit Windows, which slim does not change"
        if not self.libraries:
            return "it has no compiled file, and runs on any machine"
        cuts = [cut for library in self.libraries for cut in library.cuts]
        is_left = any(cut.why_whole for cut in cuts)
        if not self.has_gpu_code:
            unread = (
                "no GPU code in what could be read, and files that could not be read are left, for the reasons below"
            )
            rest = "less than a page" if any(cut.notes for cut in cuts) else "nothing"
            to_strip = f", and {rest} to strip" if self.strips else ""
            return unread if is_left else f"its compiled files have no GPU code{to_strip}"
        if is_left or any(cut.surplus for cut in cuts):
            why = "for the reasons below" if is_left else "in code that cannot be cut; vbuild inspect says why"
            return f"what could go of it is left, {why}"
        names = ", ".join(dict.fromkeys(gpu for cut in cuts for gpu in cut.gpus))
        # what another vendor's GPUs run stays whole
        others = "" if any(cut.served or cut.zstd for cut in cuts) else f": its GPU code is for {names}"
        return f"nothing in it to cut{others}"

    @property
    def needed(self) -> frozenset[str]:
        return frozenset(name for library in self.libraries for name in library.needed)

    def files(self, share: int) -> dict[str, EditedFile]:
        files = {library.member: library.files[share] for library in self.libraries if share not in library.gone}
        return {path: file for path, file in files.items() if not file.is_unchanged} | self.lists[share]

    def gone(self, share: int) -> frozenset[str]:
        return self.dropped.union(library.member for library in self.libraries if share in library.gone)

    def cuts(self, share: int) -> tuple[LibraryCut, ...]:
        cuts = (library.cuts[share] for library in self.libraries)
        return tuple(
            join_device_cuts(
                cut for cut in cuts if cut.has_gpu_code or cut.after != cut.before or cut.why_whole or cut.notes
            )
        )


@contextmanager
def slim_plan(
    wheel: Wheel,
    shares: Sequence[Share],
    cuts: Cuts,
    *,
    room: Path | None = None,
    on_progress: Callable[[int], None] = lambda _size: None,
    on_change: Callable[[], None] = lambda: None,
) -> Iterator[SlimPlan]:
    """Decide what to do to *wheel*, inflated in the folder *room*; *on_progress* gets the bytes read, and cut.

    *on_change* is called as soon as it is known that something changes. A library that changes stays mapped while the
    plan is open.

    Raises `RepackageError` if nothing serves a GPU of a share, or a glob names what a wheel needs; `WheelError` if it
    is damaged.
    """
    dropped = cuts.dropped(wheel)
    if dropped:
        on_change()
    plans, to_inflate = _sorted_out(wheel, dropped, shares, cuts)
    on_progress(2 * (sum(member.size for member in wheel.members) - sum(member.size for member in to_inflate)))
    to_inflate.sort(key=lambda member: member.size, reverse=True)
    with ExitStack() as stack, stoppable_pool(available_cores()) as (pool, check_stopped):

        def advance(size: int) -> None:
            check_stopped()
            on_progress(size)

        if any(plan.is_changed for plan in plans):
            on_change()
        fillers = {path: cut.fillers for path, cut in cuts_of(bill_of(wheel)).items()}
        examine = partial(
            _examined, wheel, stack=stack, shares=shares, cuts=cuts, room=room, fillers=fillers, on_progress=advance
        )
        for plan in pool.map(examine, to_inflate):
            if plan.is_changed:
                on_change()
            plans.append(plan)
        order = {member.path: index for index, member in enumerate(wheel.members)}
        plans.sort(key=lambda plan: order[plan.member])
        for share in range(0 if cuts.unsupported else len(shares)):
            check_served([plan.cuts[share] for plan in plans])
        libraries, lists, notes = with_true_lists(wheel, plans, len(shares))
        yield SlimPlan(
            libraries,
            dropped,
            not plans and any(Format.of(member.path, partial(wheel.head, member)) for member in wheel.members),
            cuts.strip is not Strip.NOTHING,
            lists,
            notes,
        )


def _sorted_out(
    wheel: Wheel, dropped: Collection[str], shares: Sequence[Share], cuts: Cuts
) -> tuple[list[LibraryPlan], list[Member]]:
    plans, to_inflate = [], []
    folders = Folders((member.path for member in wheel.members), wheel.read)
    for member in wheel.members:
        if member.path in dropped:
            continue
        start = wheel.head(member, HEADER)
        head = partial(_head, wheel, member, start)
        if file := DeviceFile.of(member.path, member.size, head, folders.of(member.path)):
            plans.append(file_plan(file, member.path, member.size, shares, cuts))
        elif worth_reading(member.path, head) or (not start and member.size > 0):
            to_inflate.append(member)
    return plans, to_inflate


def _head(wheel: Wheel, member: Member, start: bytes, size: int) -> bytes:
    return start if size <= HEADER else wheel.head(member, size)


def _examined(
    wheel: Wheel,
    member: Member,
    *,
    stack: ExitStack,
    shares: Sequence[Share],
    cuts: Cuts,
    room: Path | None,
    fillers: Mapping[str, str],
    on_progress: Callable[[int], None],
) -> LibraryPlan:
    with ExitStack() as mapped:
        data = mapped.enter_context(wheel.mapped(member, folder=room, to_edit=True))
        on_progress(len(data))
        with _progress_within(len(data), on_progress) as advance:
            plan = examine_file(
                member.path, data, shares, cuts, fillers=fillers.get(member.path, ""), on_progress=advance
            )
        if plan.is_changed:
            forget(data)
            stack.push(mapped.pop_all())
        return plan


@contextmanager
def _progress_within(
    size: int, on_progress: Callable[[int], None], *, units: int = 0
) -> Iterator[Callable[[int], None]]:
    """Yield a function for the bytes done of *size*, or of *units* that stand for it; at the end all of them are."""
    rest = size

    def advance(done: int) -> None:
        nonlocal rest
        done = min(done * size // units if units else done, rest)
        rest -= done
        on_progress(done)

    yield advance
    on_progress(rest)


def check_served(cuts: Sequence[LibraryCut]) -> None:
    """`RepackageError` if none of the files *cuts* serves a GPU of the share, and some have code for others."""
    served = {served.device for cut in cuts for served in cut.served if served.served.fatbins}
    for cut in cuts:
        lost = [service.device for service in cut.served if service.device not in served] if not cut.after else []
        if cut.alone and lost:
            why = f"nothing for {lost[0]} in it or in any other file, and it is for {', '.join(cut.gpus_before)}"
            raise RepackageError(refusal(cut.member, why))
        for device, why in cut.lacks.items():
            if device not in served:
                raise RepackageError(refusal(cut.member, why))


class SlimOutput(Struct, frozen=True):
    """A wheel to write, *cut_to* these GPUs; *document* is its variant.json if new, *gone* what it lacks."""

    name: WheelName
    files: dict[str, EditedFile]
    cuts: tuple[LibraryCut, ...]
    document: Document | None = None
    gone: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    cut_to: tuple[str, ...] = ()

    @property
    def properties(self) -> tuple[Property, ...]:
        return self.document.variants[0].properties if self.document else ()

    @property
    def warnings(self) -> Iterator[str]:
        for cut in self.cuts:
            if cut.is_fragile:
                reason = "its program headers were moved by force: GNU strip and objcopy destroy such a file"
                yield f"{cut.member}: {reason}"
        if zstd := [cut.member for cut in self.cuts if cut.is_recompressed]:
            reason = f"GPU code is compressed with zstd, which no driver before that of CUDA {ZSTD_SINCE} reads"
            yield f"{reason}: in {', '.join(zstd)}"
        if (beside := sum(cut.beside for cut in self.cuts)) >= _WORTH_NAMING:
            reason = "a driver takes one of the two, and it is not known which"
            yield f"{mb(beside)} MB of code stay beside code for that architecture alone (sm_90, sm_90a): {reason}"
        features = {prop.feature for prop in self.properties if prop.namespace == Vendor.NVIDIA}
        if features and LOWER_BOUND not in features:
            yield "it cannot be told which drivers its GPU code needs; the variant claims none"
        yield from self.notes

    def remakes(self, wheel: Wheel, path: str) -> bool:
        is_document = self.document is not None and path == f"{wheel.dist_info}/{VARIANT_JSON}"
        return is_document or path == path_of(wheel.dist_info)

    def finish(self, wheel: Wheel, writer: WheelWriter, *, bill: bool = True) -> None:
        """Write the new variant.json and bill of materials; with *bill*, a wheel that has none gets one."""
        if self.document:
            path = f"{wheel.dist_info}/{VARIANT_JSON}"
            writer.write(wheel.find(path) or path, self.document.pack())
        # which fatbins are fillers, nothing else says
        if bill or carries(wheel) or any(cut.fillers for cut in self.cuts):
            put(writer, wheel, changes=self._changes(wheel))

    def _changes(self, wheel: Wheel) -> Changes:
        before = listed((wheel.row(member) for member in wheel.members), also=self.files)
        cuts = {cut.member: cut for cut in self.cuts}
        edited = {
            path: BillChange(before[path], _HOW, GpuCut(cuts[path].gpus_before if path in cuts else ()))
            for path in self.files
            if path in before
        }
        gone = [path for path in sorted(self.gone) if path in before]
        return Changes(
            edited,
            {path: GpuCut(cut.gpus, self.cut_to, cut.fillers) for path, cut in cuts.items() if path in edited},
            tuple(Gone(path, before[path], path.rpartition("/")[2], Treatment.DROPPED) for path in gone),
        )


def slim_outputs(wheel: Wheel, plan: SlimPlan, shares: Sequence[Share]) -> Iterator[SlimOutput]:
    """Yield a wheel to write for each share, or a single one if *wheel* has no GPU code.

    Raises `RepackageError` if the result would be a variant that contradicts the wheel's own claims.
    """
    claimed = Document.parse(data) if (data := wheel.variant_json) is not None else None
    if not plan.has_gpu_code:
        yield SlimOutput(wheel.name, plan.files(0), plan.cuts(0), gone=plan.gone(0))
        return
    labels: dict[tuple[Property, ...], str] = {}
    # one order in a release (PEP 825, consistency)
    vendors = tuple(vendor for vendor in Vendor if any(vendor in share.vendors for share in shares))
    for number, share in enumerate(shares):
        output = SlimOutput(
            wheel.name,
            plan.files(number),
            plan.cuts(number),
            gone=plan.gone(number),
            notes=plan.notes[number],
            cut_to=tuple(map(str, share.gpus.every)) if share.gpus else (),
        )
        if share.label is None:
            if claimed and (same := share.vendors.intersection(claimed.metadata.namespaces)):
                reason = f"is a variant for {min(same).upper()} GPUs already ({wheel.name.variant})"
                reason += f", and would be one for {share.gpus} only"
                raise RepackageError(f"{reason}; give it a label of its own with --variant LABEL={share.gpus}")
            yield output
            continue
        document = share.document or _document(wheel, plan, share, vendors=vendors, claimed=claimed, cuts=output.cuts)
        if (other := labels.setdefault(document.variants[0].properties, share.label)) != share.label:
            raise RepackageError(f"variants {other!r} and {share.label!r} would be for the same GPUs; expected others")
        yield replace(output, name=wheel.name.normalised().labelled(share.label), document=document)


def _document(
    wheel: Wheel,
    plan: SlimPlan,
    share: Share,
    *,
    vendors: tuple[Vendor, ...],
    claimed: Document | None,
    cuts: tuple[LibraryCut, ...],
) -> Document:
    """The variant.json of *share*: claims about other hardware stay, the *vendors*' come first."""
    served = [served for cut in cuts for served in cut.served]
    if not served:
        names = ", ".join(dict.fromkeys(gpu for cut in cuts for gpu in cut.gpus))
        raise RepackageError(f"{share}: no GPU code is for such GPUs; it is for {names}: expected some of these")
    if Vendor.AMD in share.vendors:
        devices = {service.device for service in served if service.served.fatbins}
        targets = sorted((device for device in devices if isinstance(device, GpuTarget)), key=arch_order)
        first = tuple(Property(Vendor.AMD, "gfx_arch", str(target)) for target in targets)
    else:
        first = nvidia_properties(cuts, major=cuda_major(plan.needed, wheel.metadata()))
    claims = [claim for variant in claimed.variants for claim in variant.properties] if claimed else []
    others = [claim for claim in claims if claim.namespace not in share.vendors]
    unchanged = [name for name in claimed.metadata.namespaces if name not in vendors] if claimed else []
    providers = dict(claimed.metadata.providers) if claimed else {}
    metadata = metadata_for((*vendors, *unchanged), {name: providers[name] for name in unchanged if name in providers})
    return Document.of(Variant.of(share.label or "", (*others, *first)), metadata)


def nvidia_properties(cuts: Iterable[LibraryCut], *, major: int | None) -> tuple[Property, ...]:
    """The properties of the wheel with these libraries; *major* is CUDA's.

    Raises `RepackageError` if no property can say what the wheel is for.
    """
    with_code = tuple(cut for cut in cuts if any(isinstance(served.device, Arch) for served in cut.served))
    # what single fatbins lack, the user has let go
    real = {served.device: served for cut in with_code for served in cut.served if served.machine.fatbins}
    # GPUs of a new major that PTX of every library serves
    shared = frozenset.intersection(*(frozenset(ptx.device for ptx in cut.virtual) for cut in with_code or [_NO_CODE]))
    numbers = [(device.number, "real") for device in real if isinstance(device, Arch)]
    numbers += [(device.number, "virtual") for device in shared if isinstance(device, Arch)]
    values = [f"{number}_{kind}" for number, kind in sorted(numbers, key=itemgetter(1, 0))]
    if not values:
        raise RepackageError("PTX alone serves the GPUs asked for, and sm_arch can say so only of M.0; choose others")
    properties = [Property(Vendor.NVIDIA, "sm_arch", value) for value in values]
    compiled = (ptx for cut in with_code for ptx in cut.virtual if ptx.device in shared - real.keys())
    # those that have nothing for a GPU link cudart all the same
    served = (served for cut in with_code for served in cut.served)
    oldest = newest([*(coverage.driver for coverage in (*served, *compiled)), Dotted(major or 0, 0)])
    if oldest not in {None, ANY_DRIVER}:
        properties.append(Property(Vendor.NVIDIA, LOWER_BOUND, str(oldest)))
    return tuple(properties)


def _write(
    wheel: Wheel,
    plan: SlimPlan,
    outputs: Sequence[SlimOutput],
    cuts: Cuts,
    folder: Path,
    *,
    on_progress: Callable[[int], None],
) -> tuple[Path, ...]:
    """Write the *outputs* in one pass over *wheel*; members not yet read are compared with RECORD meanwhile."""
    if plan.is_idle and not any(output.document for output in outputs):
        return (copy_wheel(wheel, folder),)
    with ExitStack() as stack:
        deflater = stack.enter_context(Deflater(folder=folder, remembers=len(outputs) > 1))
        writers = stack.enter_context(
            write_wheels(folder, [output.name for output in outputs], like=wheel, deflater=deflater, checked=[wheel])
        )
        pool = stack.enter_context(ThreadPoolExecutor(available_cores()))
        stack.callback(deflater.stop)  # before the pool waits for what an interrupt left
        for member in wheel.members:
            changed = []
            for output, writer in zip(outputs, writers, strict=True):
                if member.path in output.gone or output.remakes(wheel, member.path):
                    continue
                if file := output.files.get(member.path):
                    changed.append((writer, file))
                else:
                    writer.copy(wheel, member)
            new_size = sum(file.size for _, file in changed)
            with _progress_within(member.size, on_progress, units=new_size) as deflater.on_piece:
                # one hashes and writes while pieces for another are made
                deque(pool.map(lambda pair, member=member: pair[0].write(member, pair[1]), changed), maxlen=0)
            deflater.forget()
        for output, writer in zip(outputs, writers, strict=True):
            output.finish(wheel, writer, bill=cuts.bill)
    return tuple(writer.path for writer in writers)


def _results(
    wheel: Wheel,
    plan: SlimPlan,
    outputs: Sequence[SlimOutput],
    written: Sequence[Path],
    warnings: Sequence[str],
) -> Iterator[Slimmed]:
    before = sum(member.size for member in wheel.members)
    listed = {library.member: library.listed for library in plan.libraries}
    for number, output in enumerate(outputs):
        path = written[number] if written else None
        packed = path.stat().st_size if path else _estimated(wheel, output)
        sizes = {path: file.size for path, file in output.files.items()}
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
            warnings=(*warnings, *output.warnings, *stale_list_warnings(wheel, output.cuts, listed)),
            why_untouched=None if output.document else plan.why_idle,
            more=tuple(_savings(wheel, plan, number, output, packed)),
        )


def _estimated(wheel: Wheel, output: SlimOutput) -> int:
    size = wheel.path.stat().st_size
    for member in wheel.members:
        if member.path in output.gone:
            size -= member.compressed_size + _HEADERS + 2 * len(member.path)
        elif file := output.files.get(member.path):
            size += estimate_packed(file) - member.compressed_size
    return size


def _savings(wheel: Wheel, plan: SlimPlan, share: int, output: SlimOutput, packed: int) -> Iterator[Saving]:
    """What other options would save, if at least a twentieth of *packed* bytes; a stronger one has to save more."""
    by_option: dict[str, list[Saving]] = {}
    for library in plan.libraries:
        for saving in (*library.more, *library.cuts[share].more):
            by_option.setdefault(saving.option, []).append(saving)
    static = [member for member in wheel.members if member.path.endswith(".a") and member.path not in output.gone]
    by_option["--drop '*.a'"] = [Saving("", member.compressed_size, member.size) for member in static]
    shown = dict.fromkeys((option.partition(" ")[0] for option in by_option), 0)  # bytes of the milder ones
    for option, savings in sorted(by_option.items()):
        total = Saving(option, sum(saving.packed for saving in savings), sum(saving.unpacked for saving in savings))
        name = option.partition(" ")[0]
        if (total.packed - shown[name]) * _WORTH >= packed:
            shown[name] = total.packed
            yield total
