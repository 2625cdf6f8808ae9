"""What a slimmed wheel may promise: the properties of its variant, from the code that is left in it.

    nvidia :: sm_arch :: 90_real                     machine code that a GPU of capability 9.0 runs
    nvidia :: sm_arch :: 90_virtual                  PTX that its driver compiles; only for M.0, by the providers
    nvidia :: cuda_version_lower_bound :: 12.0       the oldest driver, by the CUDA major that the wheel links

https://github.com/wheelnext/nvidia-variant-provider (the meaning of the two features)
"""

import re
from collections.abc import Iterable, Iterator

from vbuild.errors import SlimError
from vbuild.hardware.driver import ZSTD_SINCE, Dotted
from vbuild.slimming.outcome import LibraryCut
from vbuild.variant.model import Property
from vbuild.wheel.distinfo import Metadata

NAMESPACE = "nvidia"

# libraries whose SONAME carries CUDA's own major version; those of 11 carry 11.0 and 11.2
_SONAMES = re.compile(r"lib(?:cudart|nvrtc|cublas|cublasLt)\.so\.(?P<major>[0-9]{1,2})(?:\.[0-9]+)?")
_REQUIREMENTS = re.compile(r"nvidia[-_.][\w.-]+?[-_]cu(?P<major>[0-9]{1,2})\b", re.IGNORECASE)


def cuda_major(needed: Iterable[str], metadata: Metadata) -> int | None:
    """The major version of CUDA that a wheel with these NEEDED entries is for; None unless it is exactly one."""
    found = {int(match["major"]) for name in needed if (match := _SONAMES.fullmatch(name))}
    if not found:
        found = {int(match["major"]) for text in metadata.requires_dist if (match := _REQUIREMENTS.match(text))}
    return found.pop() if len(found) == 1 else None


def claims(cuts: Iterable[LibraryCut], *, major: int | None) -> tuple[Property, ...]:
    """The properties of the wheel that holds these libraries; *major* is that of CUDA, None where it is not known.

    `SlimError` where no property can say what the wheel is for.
    """
    with_code = tuple(cut for cut in cuts if cut.has_gpu_code)
    values = (*_real(with_code), *_virtual(with_code))
    if not values:
        raise SlimError("PTX alone serves the GPUs asked for, and sm_arch can say so only of M.0; choose others")
    properties = [Property(NAMESPACE, "sm_arch", value) for value in values]
    if major is not None:
        first = Dotted(major, 0)
        oldest = max(first, ZSTD_SINCE) if any(cut.zstd for cut in with_code) else first
        properties.append(Property(NAMESPACE, "cuda_version_lower_bound", str(oldest)))
    return tuple(properties)


def _real(cuts: tuple[LibraryCut, ...]) -> Iterator[str]:
    """Each GPU that runs machine code of some library; what single fatbins lack was lacking before."""
    yield from sorted(
        {f"{served.device.number}_real" for cut in cuts for served in cut.served if served.machine}, key=_number
    )


def _virtual(cuts: tuple[LibraryCut, ...]) -> Iterator[str]:
    """Each GPU of a new major that PTX of every library serves."""
    shared = frozenset.intersection(*(frozenset(cut.virtual) for cut in cuts)) if cuts else frozenset()
    yield from (f"{arch.number}_virtual" for arch in sorted(shared))


def _number(value: str) -> int:
    return int(value.partition("_")[0])
