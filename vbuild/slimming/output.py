"""One wheel that slimming writes: its name, its cut libraries, and its variant.

    share without a label   the wheel's own name, and its variant.json if it has one
    share with a label      a variant: the wheel's claims about other hardware, and what its GPU code is for now

The properties of the variant follow from the code that remains:

    nvidia :: sm_arch :: 90_real                     machine code that a GPU of capability 9.0 runs
    nvidia :: sm_arch :: 90_virtual                  PTX that its driver compiles; only for M.0, by the providers
    nvidia :: cuda_version_lower_bound :: 12.0       the oldest driver, by the CUDA major that the wheel links
    amd :: gfx_arch :: gfx942                        code that runs on AMD's gfx942, in any mode

https://github.com/wheelnext/nvidia-variant-provider defines the first two features, PyPI's rocm-bootstrap the third.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from vbuild.errors import RepackageError
from vbuild.files.edited import EditedFile
from vbuild.gpu_code.model import Vendor
from vbuild.hardware.architectures import Arch, GpuTarget
from vbuild.hardware.driver import ZSTD_SINCE, Dotted
from vbuild.hardware.gpu import arch_order
from vbuild.sbom.keeping import Changes, carries, listed, path_of, put
from vbuild.sbom.model import BillChange, Gone, Treatment
from vbuild.slimming.plan import SlimPlan
from vbuild.slimming.request import Share
from vbuild.slimming.results import LibraryCut
from vbuild.slimming.stated import cuda_major
from vbuild.variants.document import Document
from vbuild.variants.model import Property, Variant
from vbuild.variants.providers import metadata_for
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.name import WheelName
from vbuild.wheel.write import WheelWriter


def claimed_of_amd(cuts: Iterable[LibraryCut]) -> tuple[Property, ...]:
    """Return the properties of the wheel with these libraries, that name AMD's processors."""
    served = {each.device for cut in cuts for each in cut.served if each.machine or each.jit}
    targets = sorted((device for device in served if isinstance(device, GpuTarget)), key=arch_order)
    return tuple(Property(Vendor.AMD, "gfx_arch", str(target)) for target in targets)


def claimed_properties(cuts: Iterable[LibraryCut], *, major: int | None) -> tuple[Property, ...]:
    """Return the properties of the wheel with these libraries for NVIDIA's GPUs; *major* is CUDA's, None if unknown.

    Raises `RepackageError` if no property can say what the wheel is for.
    """
    with_code = tuple(cut for cut in cuts if any(isinstance(served.device, Arch) for served in cut.served))
    # GPUs that run machine code of some library: what single fatbins lack, they lacked before
    served = {served.device for cut in with_code for served in cut.served if served.machine}
    real = {device.number for device in served if isinstance(device, Arch)}
    # GPUs of a new major that PTX of every library serves
    shared = frozenset.intersection(*(frozenset(cut.virtual) for cut in with_code)) if with_code else frozenset[Arch]()
    values = [*(f"{number}_real" for number in sorted(real)), *(f"{arch.number}_virtual" for arch in sorted(shared))]
    if not values:
        raise RepackageError("PTX alone serves the GPUs asked for, and sm_arch can say so only of M.0; choose others")
    properties = [Property(Vendor.NVIDIA, "sm_arch", value) for value in values]
    oldest = [ZSTD_SINCE] if any(cut.zstd for cut in with_code) else []
    oldest += [Dotted(major, 0)] if major is not None else []
    if oldest:
        properties.append(Property(Vendor.NVIDIA, "cuda_version_lower_bound", str(max(oldest))))
    return tuple(properties)


def cut_warnings(cuts: Sequence[LibraryCut]) -> Iterator[str]:
    """Yield what publishers should know about the libraries of *cuts*."""
    for cut in cuts:
        if cut.is_fragile:
            yield f"{cut.member}: its program headers were moved by force: GNU strip and objcopy destroy such a file"
    if zstd := [cut.member for cut in cuts if cut.is_recompressed]:
        what = f"GPU code is compressed with zstd, which no driver before that of CUDA {ZSTD_SINCE} reads"
        yield f"{what}: in {', '.join(zstd)}"


_HOW = "vbuild slim"


class SlimOutput(Struct, frozen=True):
    """A wheel to write; *document* is its variant.json if that is new, *gone* are the members that it does not have."""

    name: WheelName
    files: dict[str, EditedFile]
    cuts: tuple[LibraryCut, ...]
    document: Document | None = None
    gone: frozenset[str] = frozenset()
    said: tuple[str, ...] = ()

    @property
    def properties(self) -> tuple[Property, ...]:
        """The properties of the variant that slimming makes, or none."""
        return self.document.variants[0].properties if self.document else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What publishers should know about the wheel."""
        return (*cut_warnings(self.cuts), *self.said)

    def finish(self, wheel: Wheel, writer: WheelWriter, *, bill: bool = True) -> None:
        """Write the new variant.json and bill of materials; with *bill*, a wheel that has none gets one."""
        if self.document:
            path = f"{wheel.dist_info}/{VARIANT_JSON}"
            writer.write(wheel.find(path) or path, self.document.pack())
        if bill or carries(wheel):
            put(writer, wheel, changes=self._changes(wheel))

    def remakes(self, wheel: Wheel, path: str) -> bool:
        """Whether the member of *wheel* at *path* is written anew."""
        is_document = self.document is not None and path == f"{wheel.dist_info}/{VARIANT_JSON}"
        return is_document or path == path_of(wheel.dist_info)

    def _changes(self, wheel: Wheel) -> Changes:
        """Return the changes to the compiled files of *wheel*, for its bill of materials."""
        before = listed((wheel.row(member) for member in wheel.members), also=self.files)
        cuts = {cut.member: cut for cut in self.cuts}
        edited = {
            path: BillChange(before[path], _HOW, cuts[path].gpus_before if path in cuts else ())
            for path in self.files
            if path in before
        }
        return Changes(
            edited,
            {path: cut.gpus for path, cut in cuts.items() if path in edited},
            tuple(
                Gone(path, before[path], path.rpartition("/")[2], Treatment.DROPPED)
                for path in sorted(self.gone)
                if path in before
            ),
        )


def slim_outputs(wheel: Wheel, plan: SlimPlan, shares: Sequence[Share]) -> Iterator[SlimOutput]:
    """Yield a wheel to write for each share, or a single one if *wheel* has no GPU code.

    Raises `RepackageError` if the result would be a variant that contradicts the wheel's own claims.
    """
    path = f"{wheel.dist_info}/{VARIANT_JSON}"
    claimed = Document.parse(wheel.read(path)) if wheel.find(path) else None
    if not plan.has_gpu_code:
        yield SlimOutput(wheel.name, plan.files(0), plan.cuts(0), gone=plan.gone(0))
        return
    labels: dict[tuple[Property, ...], str] = {}
    # the variants of a release have one order of namespaces (PEP 825, consistency)
    vendors = tuple(vendor for vendor in Vendor if any(vendor in share.vendors for share in shares))
    for place, share in enumerate(shares):
        cuts = plan.cuts(place)
        if share.label is None:
            if claimed and (same := share.vendors.intersection(claimed.metadata.namespaces)):
                what = f"is a variant for {min(same).upper()} GPUs already ({wheel.name.variant})"
                what += f", and would be one for {share.gpus} only"
                raise RepackageError(f"{what}; give it a label of its own with --variant LABEL={share.gpus}")
            yield SlimOutput(wheel.name, plan.files(place), cuts, gone=plan.gone(place), said=plan.said[place])
        else:
            document = share.document or _document(wheel, plan, share, vendors=vendors, claimed=claimed, cuts=cuts)
            properties = document.variants[0].properties
            if (other := labels.setdefault(properties, share.label)) != share.label:
                raise RepackageError(
                    f"variants {other!r} and {share.label!r} would be for the same GPUs; expected others"
                )
            name = wheel.name.normalised().labelled(share.label)
            yield SlimOutput(name, plan.files(place), cuts, document, plan.gone(place), plan.said[place])


def _document(
    wheel: Wheel,
    plan: SlimPlan,
    share: Share,
    *,
    vendors: tuple[Vendor, ...],
    claimed: Document | None,
    cuts: tuple[LibraryCut, ...],
) -> Document:
    """Return the variant.json of *share*: claims about other hardware stay, those of the *vendors* come first."""
    kept = [prop for variant in claimed.variants for prop in variant.properties] if claimed else []
    others = [prop for prop in kept if prop.namespace not in share.vendors]
    if not any(cut.served for cut in cuts):
        found = ", ".join(dict.fromkeys(gpu for cut in cuts for gpu in cut.gpus))
        raise RepackageError(f"{share}: no GPU code is for such GPUs; it is for {found}: expected some of these")
    if Vendor.AMD in share.vendors:
        first = claimed_of_amd(cuts)
    else:
        first = claimed_properties(cuts, major=cuda_major(plan.needed, wheel.metadata()))
    unchanged = [name for name in claimed.metadata.namespaces if name not in vendors] if claimed else []
    given = dict(claimed.metadata.providers) if claimed else {}
    metadata = metadata_for((*vendors, *unchanged), {name: given[name] for name in unchanged if name in given})
    return Document.of(Variant.of(share.label or "", (*others, *first)), metadata)
