"""What libraries and wheels state of themselves: CUDA's major, sizes of fatbins, lists of architectures."""

import re
from collections.abc import Iterable, Iterator, Mapping

from vbuild.binary.image import Image
from vbuild.files.wording import counted
from vbuild.gpu_code.fatbin import FATBINS, HEADER_SIZE
from vbuild.gpu_code.model import DeviceCode
from vbuild.slimming.package import Package
from vbuild.slimming.results import LibraryCut
from vbuild.wheel.metadata import Metadata

# libraries whose SONAME has CUDA's own major version; those of CUDA 11 have 11.0 and 11.2
_SONAMES = (
    re.compile(r"lib(?:cudart|nvrtc|cublas|cublasLt)\.so\.(?P<major>[0-9]{1,2})(?:\.[0-9]+)?"),
    # as Windows has them: cudart64_110.dll, cublas64_12.dll, nvrtc64_120_0.dll
    re.compile(r"(?:cudart|nvrtc|cublas|cublasLt)64_(?P<major>[0-9]{2})0?(?:_0)?\.dll", re.IGNORECASE),
)
# the packages of CUDA 12 have its number in their names; those of CUDA 13 only in the version that is required
_REQUIREMENTS = (
    re.compile(r"nvidia[-_.][\w.-]+?[-_]cu(?P<major>[0-9]{1,2})\b", re.IGNORECASE),
    re.compile(r"(?:nvidia-cuda-runtime|cuda-toolkit)(?:\[[^]]*\])? *\(?== *(?P<major>[0-9]{1,2})\.", re.IGNORECASE),
)


def cuda_major(needed: Iterable[str], metadata: Metadata | None = None) -> int | None:
    """Return the CUDA major of a wheel with these NEEDED entries, or None unless it is exactly one."""
    found = {int(match["major"]) for name in needed for pattern in _SONAMES if (match := pattern.fullmatch(name))}
    if not found and metadata:
        found = {
            int(match["major"])
            for text in metadata.requires_dist
            for pattern in _REQUIREMENTS
            if (match := pattern.match(text))
        }
    return found.pop() if len(found) == 1 else None


# pinned containers of a library that are looked at, the largest: each means a look at all of its code and data
_MOST_PINNED = 32


def unmeasured(image: Image, code: DeviceCode) -> frozenset[int]:
    """Return the file offsets of the pinned containers that may shrink where they are: nothing else has their size.

    Code that knew it, to hand it on or to find what follows, would have it as a number of four bytes or more.
    """
    pinned = [container for container in code.containers if container.in_place and not container.movable]
    pinned = sorted(pinned, key=lambda container: len(container.span), reverse=True)[:_MOST_PINNED]
    sizes = {container.span.start: (len(container.span), len(container.span) - HEADER_SIZE) for container in pinned}
    left = {start: [size.to_bytes(4, "little") for size in each] for start, each in sizes.items()}
    filled = [section for section in image.sections if section.is_loaded and section.span]
    for section in filled if left else ():
        if section.name not in FATBINS.sections:
            data = bytes(image.view(section.span))
            left = {start: each for start, each in left.items() if not any(size in data for size in each)}
    return frozenset(left)


# as torch has it for torch.cuda.get_arch_list(): sm_75 sm_80 compute_90
_NAMES = {b"sm_": rb"sm_\d{2,3}[af]?", b"gfx": rb"gfx[0-9a-f]{3,4}"}
_NAME = re.compile(b"|".join(_NAMES.values()))
# by what a list begins with: a search for fixed letters is quick, and most files have none of them
_LISTS = {
    start: re.compile(rb"%s(?:[ ,;|'\"]{1,4}(?:%s|compute_\d{2,3}[af]?))+" % (first, _NAME.pattern))
    for start, first in _NAMES.items()
}
_TEXTS = (".py", ".json", ".toml", ".txt", ".cfg")
# bytes of a text that is looked at
_LONGEST = 1 << 20


def _listed(data: bytes | memoryview) -> frozenset[str]:
    text = bytes(data)
    lists = (found[0] for start, pattern in _LISTS.items() if start in text for found in pattern.finditer(text))
    return frozenset(name.decode() for found in lists for name in _NAME.findall(found))


def listed_in(image: Image) -> frozenset[str]:
    """Return the architectures in lists of them among the constants of a library."""
    constants = (
        section for section in image.sections if section.name.startswith((".rodata", ".rdata")) and section.span
    )
    return frozenset().union(*(_listed(image.view(section.span)) for section in constants))


def still_listed(package: Package, cuts: Iterable[LibraryCut], listed: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yield what to know of a *package* that lists the architectures it is for, if some that *cuts* took are in a list.

    *listed* has the architectures in the lists of its libraries; texts are looked at.
    """
    before, after = set[str](), set[str]()
    for cut in cuts:
        before.update(cut.gpus_before)
        after.update(cut.gpus)
    gone = frozenset(name for name in before - after if not name.startswith("PTX"))
    if not gone:
        return
    texts = [member for member in package.members if member.path.endswith(_TEXTS) and member.size <= _LONGEST]
    paths = [path for path, names in listed.items() if names & gone]
    paths += [member.path for member in texts if _listed(package.read(member)) & gone]
    if paths:
        more = f" and {counted(len(paths) - 1, 'more file')}" if len(paths) > 1 else ""
        what = f"architectures are listed in {paths[0]}{more}, and still with {', '.join(sorted(gone, key=_number))}"
        yield f"{what}: what the package says of itself, as torch.cuda.get_arch_list() does, names code that went"


def _number(arch: str) -> tuple[int, str]:
    return int("0" + "".join(filter(str.isdigit, arch))), arch
