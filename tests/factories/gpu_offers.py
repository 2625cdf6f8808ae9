"""What fatbin entries offer, in short: ``80 90a ptx80 other100`` is code for sm_80 and sm_90a, PTX, LTO-IR."""

import re

from vbuild.hardware.architectures import Arch
from vbuild.hardware.gpu import GpuCodeKind, GpuOffer

_WORD = re.compile(r"(?P<kind>ptx|other)?(?P<number>\d+)(?P<suffix>[af]?)")
_KINDS = {None: GpuCodeKind.MACHINE, "ptx": GpuCodeKind.PTX, "other": GpuCodeKind.OTHER}


def offers(text: str) -> tuple[GpuOffer, ...]:
    """The offers in the order of the *text*."""
    matches = (_WORD.fullmatch(word) for word in text.split())
    return tuple(
        GpuOffer(_KINDS[match["kind"]], Arch(int(match["number"]), match["suffix"])) for match in matches if match
    )


def short_offer(offer: GpuOffer) -> str:
    """The offer as `offers` reads it."""
    kind = "" if offer.code is GpuCodeKind.MACHINE else offer.code.value
    return f"{kind}{str(offer.arch).removeprefix('sm_')}"
