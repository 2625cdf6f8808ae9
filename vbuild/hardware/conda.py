"""How conda, mamba and pixi call machines: platforms, and archspec's CPUs with the x86-64 levels that they reach."""

from collections.abc import Mapping
from functools import lru_cache

import archspec.cpu

from vbuild.hardware.cpu import X86_64_LEVELS

MACHINES: Mapping[str, str] = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}


@lru_cache(maxsize=1)
def x86_64_cpus() -> tuple[tuple[int, str], ...]:
    """Archspec's x86-64 CPUs, each with the highest level that it reaches: ``(4, "zen4")``; sorted."""
    cpus = []
    for name, target in archspec.cpu.TARGETS.items():
        if target.family.name == "x86_64":
            reached = {name, *(ancestor.name for ancestor in target.ancestors)}
            levels = [rank for rank, level in enumerate(X86_64_LEVELS, 1) if f"x86_64_{level}" in reached]
            cpus.append((max(levels, default=1), name))
    return tuple(sorted(cpus))
