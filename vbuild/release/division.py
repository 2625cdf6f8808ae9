"""One build for all GPUs of a toolkit, divided into the variant wheels that are for some of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vbuild.errors import SlimError
from vbuild.recipe.target import Target
from vbuild.release.family import Family
from vbuild.slim import family as cut_into
from vbuild.slimming.request import Cuts, Share


def divided(wheel: Path, targets: Sequence[Target], *, family: Family, folder: Path) -> Mapping[Target, Path]:
    """The variant wheels of *targets* in *folder*, cut from the *wheel* of their build in one pass over it.

    `SlimError` where the wheel cannot be divided so. What each library serves is for `vbuild verify` to judge: some are
    for some GPUs only.
    """
    shares = [_share(target, family) for target in targets]
    # whoever builds a project may change what comes of it; whether it has a bill of materials, its build has decided
    cut = cut_into(wheel, folder, shares=shares, cuts=Cuts(unsupported=True, bill=False), accept_license=True)
    if len(cut) != len(targets):  # it passes a wheel without GPU code as it is
        raise SlimError(f"{wheel.name}: no GPU code to divide among {', '.join(map(str, targets))}")
    return {target: result.path for target, result in zip(targets, cut, strict=True) if result.path}


def _share(target: Target, family: Family) -> Share:
    variant = family.variant(target)
    return Share(target.gpus, variant.label if variant else None, family.document(target))
