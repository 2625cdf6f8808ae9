"""One wheel that slimming is to write: its name, what its libraries become, and the variant that it is.

share without a label   the wheel's own name, and its variant.json if it has one
share with a label      a variant: what the wheel claimed of other hardware, and what its GPU code is for now
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vbuild.errors import SlimError
from vbuild.hardware.driver import ZSTD_SINCE
from vbuild.materials.keeping import Changes, carries, listed, path_of, put
from vbuild.materials.model import Change, Fate, Gone
from vbuild.rope import Rope
from vbuild.slimming.claims import NAMESPACE, claims, cuda_major
from vbuild.slimming.outcome import LibraryCut
from vbuild.slimming.plan import Plan
from vbuild.slimming.request import Share
from vbuild.variant.document import Document
from vbuild.variant.model import Property, Variant
from vbuild.variant.providers import metadata_for
from vbuild.wheel.archive import Wheel
from vbuild.wheel.name import WheelName
from vbuild.wheel.writing import WheelWriter

_FILE = "variant.json"
_HOW = "vbuild slim"


@dataclass(frozen=True, slots=True)
class Output:
    """A wheel to be written; *document* is its variant.json where that is made anew."""

    name: WheelName
    ropes: dict[str, Rope]
    cuts: tuple[LibraryCut, ...]
    document: Document | None = None

    @property
    def properties(self) -> tuple[Property, ...]:
        """What it is a variant of, as far as slimming says so."""
        return self.document.variants[0].properties if self.document else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever ships it should know."""
        fragile = "{}: its program headers were moved by force: GNU strip and objcopy destroy such a file"
        zstd = "{}: has GPU code compressed with zstd: no driver before that of CUDA {} reads it"
        return (
            *(fragile.format(cut.member) for cut in self.cuts if cut.is_fragile),
            *(zstd.format(cut.member, ZSTD_SINCE) for cut in self.cuts if cut.is_recompressed),
        )

    def finish(self, wheel: Wheel, writer: WheelWriter, *, dropped: Iterable[str] = (), bill: bool = True) -> None:
        """Write what cannot be copied from *wheel*, less what is *dropped*: its variant.json, its bill of materials.

        The wheel gets a *bill* where it has none.
        """
        if self.document:
            path = f"{wheel.dist_info}/{_FILE}"
            writer.write(wheel.find(path) or path, self.document.pack())
        if bill or carries(wheel):
            put(writer, wheel, changes=self._changes(wheel, dropped))

    def remakes(self, wheel: Wheel, path: str) -> bool:
        """Whether the member of *wheel* at *path* is made anew."""
        is_document = self.document is not None and path == f"{wheel.dist_info}/{_FILE}"
        return is_document or path == path_of(wheel.dist_info)

    def _changes(self, wheel: Wheel, dropped: Iterable[str]) -> Changes:
        """What becomes of the compiled files of *wheel*, as its bill of materials tells it."""
        before = listed((wheel.row(member) for member in wheel.members), also=self.ropes)
        cuts = {cut.member: cut for cut in self.cuts}
        edited = {
            path: Change(before[path], _HOW, cuts[path].gpus_before if path in cuts else ())
            for path in self.ropes
            if path in before
        }
        return Changes(
            edited,
            {path: cut.gpus for path, cut in cuts.items() if path in edited},
            tuple(
                Gone(path, before[path], path.rpartition("/")[2], Fate.DROPPED)
                for path in sorted(dropped)
                if path in before
            ),
        )


def outputs(wheel: Wheel, plan: Plan, shares: Sequence[Share]) -> Iterator[Output]:
    """The wheels that come of *wheel*: one for each share, or a single one where there is no GPU code to share.

    `SlimError` where the result would be a variant that contradicts what the wheel says of itself.
    """
    claimed = _claimed(wheel)
    if not plan.has_gpu_code:
        yield Output(wheel.name, plan.ropes(0), plan.cuts(0))
        return
    labels: dict[tuple[Property, ...], str] = {}
    for place, share in enumerate(shares):
        cuts = plan.cuts(place)
        if share.label is None:
            _check_unlabelled(wheel, share, claimed)
            yield Output(wheel.name, plan.ropes(place), cuts)
        else:
            document = share.document or _document(wheel, plan, share.label, claimed, cuts)
            properties = document.variants[0].properties
            if (other := labels.setdefault(properties, share.label)) != share.label:
                raise SlimError(f"variants {other!r} and {share.label!r} would be for the same GPUs; expected others")
            yield Output(wheel.name.normalised().labelled(share.label), plan.ropes(place), cuts, document)


def _claimed(wheel: Wheel) -> Document | None:
    """What *wheel* says of itself, if it is a variant."""
    path = f"{wheel.dist_info}/{_FILE}"
    return Document.parse(wheel.read(path)) if wheel.find(path) else None


def _check_unlabelled(wheel: Wheel, share: Share, claimed: Document | None) -> None:
    if share.gpus and claimed and NAMESPACE in claimed.metadata.namespaces:
        what = f"is a variant for NVIDIA GPUs already ({wheel.name.variant}), and would be one for {share.gpus} only"
        raise SlimError(f"{what}; give it a label of its own with --variant LABEL={share.gpus}")


def _document(wheel: Wheel, plan: Plan, label: str, claimed: Document | None, cuts: tuple[LibraryCut, ...]) -> Document:
    """The variant.json of the share *label*: the claims on other hardware stay, NVIDIA's come first."""
    kept = [prop for variant in claimed.variants for prop in variant.properties] if claimed else []
    others = [prop for prop in kept if prop.namespace != NAMESPACE]
    properties = (*others, *claims(cuts, major=cuda_major(plan.needed, wheel.metadata())))
    beside = [name for name in claimed.metadata.namespaces if name != NAMESPACE] if claimed else []
    given = dict(claimed.metadata.providers) if claimed else {}
    metadata = metadata_for((NAMESPACE, *beside), {name: given[name] for name in beside if name in given})
    return Document.of(Variant.of(label, properties), metadata)
