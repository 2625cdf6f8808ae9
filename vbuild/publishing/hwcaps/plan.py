"""One plain wheel for all CPU levels: glibc chooses among the copies of a library that it has.

    plain wheel, v3's, v4's, of one Python and platform -> one wheel that every installer takes
    demo/_c.so                                          a stub without code, where the module differs
    demo.libs/libvb__c-1a2b3c4d.so                      what every x86-64 processor runs, glibc before 2.33, and musl
    demo.libs/glibc-hwcaps/x86-64-v3/libvb__c-…so       what processors of level v3 run

Whatever is the same at two levels is there once. A wheel that is out already, with another one built elsewhere *added*,
gets a build tag, by which installers prefer it; where copies need a newer system than its tags promise, also the tag of
the wheel that they are from, and the old wheel stays beside it.
https://man7.org/linux/man-pages/man8/ld.so.8.html (glibc-hwcaps)
"""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct
from packaging.version import Version

from vbuild.errors import LayoutError
from vbuild.hardware.cpu import Cpu
from vbuild.publishing.address import install
from vbuild.publishing.hwcaps.joined import opened
from vbuild.publishing.hwcaps.sets import JoinSet, sets
from vbuild.publishing.model import ConsumerUse, LinkedFile, NewWheel, PublishPlan, SimpleIndex
from vbuild.publishing.offer import Offered, OfferedRelease

_OLDER = "glibc before 2.33, and musl, load the baseline's copies: as fast as the plain wheel, no faster"
_DEBUG = "LD_DEBUG=libs shows which file the loader took; GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2 takes the lower level's"


class Hwcaps(Struct, frozen=True):
    """The layout; joined wheels have *max_size* bytes at most, and *added* wheels, each of a level, are joined as well.

    *url* is where its folder will be served. Functions and paths that the regular expressions *allow* find may have
    instructions above their level.
    """

    max_size: int | None = None
    added: tuple[tuple[Cpu, Path], ...] = ()
    url: str | None = None
    allow: tuple[str, ...] = ()
    name: str = "hwcaps"

    def planned(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """For each tag the join of its wheels; other plain wheels, and those of other releases, as they are."""
        added = [(cpu, Offered.of(path)) for cpu, path in self.added]
        found = [one for offer in offers for one in sets(offer, added)]
        self._check_added(found, added)
        if not any(one.others for one in found):
            raise LayoutError("found no wheel of an x86-64 level above the baseline; expected some to join")
        outputs: list[LinkedFile | NewWheel] = []
        notes: dict[str, None] = {}
        for one in found:
            with opened(one, allow=self.allow) as joins:
                joins.check_added()
                joins.check_size(self.max_size)
                outputs += joins.outputs()
                notes |= dict.fromkeys((*one.notes, *joins.notes()))
        files = tuple(output.target for output in outputs)
        index = SimpleIndex(PurePosixPath("simple"), files)
        return PublishPlan(self.name, (*outputs, index), tuple(self._uses(offers)), (*notes, _OLDER, _DEBUG))

    @staticmethod
    def _check_added(found: Sequence[JoinSet], added: Sequence[tuple[Cpu, Offered]]) -> None:
        taken = {offered.path for one in found for _, offered in one.others}
        for _, offered in added:
            if offered.path not in taken:
                tags = ", ".join(sorted({"-".join(one.base.tag) for one in found})) or "none"
                raise LayoutError(
                    f"{offered.path.name}: no plain wheel of its release, Python and ABI to add it to; found: {tags}"
                )

    def _uses(self, offers: Sequence[OfferedRelease]) -> Iterator[ConsumerUse]:
        ordered = sorted(offers, key=lambda offer: Version(offer.version))
        latest = {offer.project: offer.version for offer in ordered if not offer.is_companion}
        if wanted := " ".join(f"{project}=={version}" for project, version in sorted(latest.items())):
            yield ConsumerUse(
                "With pip and with uv, which know nothing of levels; what else is required comes from the index that "
                "they have:",
                install(wanted, url=self.url, has_rivals=True),
            )


def joined(wheels: Sequence[Offered], *, max_size: int | None = None, allow: Sequence[str] = ()) -> NewWheel:
    """The plain wheel that *wheels* come to: the plain one and those of x86-64 levels, of one release and one tag.

    `LayoutError` where they do not fit together, or the wheel would take more than *max_size* bytes.
    """
    one = JoinSet.of(wheels)
    with opened(one, allow=tuple(allow)) as found:
        found.check_size(max_size)
        return found.wheel()
