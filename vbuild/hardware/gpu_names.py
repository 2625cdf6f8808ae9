"""GPUs as people call them: the compute capabilities of NVIDIA's products.

    H100   A100   L4   RTX 4090   NVIDIA GeForce RTX 3060 Ti   Tesla T4   NVIDIA A100-SXM4-80GB

Words that say nothing about the architecture may be there or not: the brand, the memory, the socket. A name that two
generations share is refused with both.
https://developer.nvidia.com/cuda-gpus
https://developer.nvidia.com/cuda-legacy-gpus
"""

import re
from difflib import get_close_matches

from vbuild.errors import HardwareError

_PRODUCTS = {
    50: "GTX 745, GTX 750, K620, K1200, K2200, M10",
    52: "GTX 950, GTX 960, GTX 970, GTX 980, M4, M40, M60, M2000, M4000, M5000, M6000",
    53: "Jetson Nano, Jetson TX1",
    60: "P100, GP100",
    61: "GTX 1050, GTX 1060, GTX 1070, GTX 1080, P4, P6, P40, TITAN Xp, P400, P600, P620, P1000, P2000, P4000, P5000, "
    "P6000",
    62: "Jetson TX2",
    70: "V100, GV100, TITAN V",
    72: "Jetson Xavier, Xavier NX",
    75: "T4, T400, T600, T1000, GTX 1630, GTX 1650, GTX 1660, RTX 2060, RTX 2070, RTX 2080, TITAN RTX, "
    "Quadro RTX 3000, Quadro RTX 4000, Quadro RTX 5000, Quadro RTX 6000, Quadro RTX 8000",
    80: "A100, A800, A30, CMP 170HX",
    86: "A2, A10, A10G, A10M, A16, A40, RTX 3050, RTX 3060, RTX 3070, RTX 3080, RTX 3090, RTX A400, RTX A1000, "
    "RTX A2000, RTX A3000, RTX A4000, RTX A4500, RTX A5000, RTX A5500, RTX A6000, A2000, A4000, A5000, A6000",
    87: "Orin, Orin NX, Orin Nano",
    89: "L2, L4, L20, L40, L40S, L40G, RTX 4050, RTX 4060, RTX 4070, RTX 4080, RTX 4090, RTX 2000 Ada, RTX 4000 Ada, "
    "RTX 4500 Ada, RTX 5000 Ada, RTX 5880 Ada, RTX 6000 Ada",
    90: "H100, H200, H20, H800, GH200",
    100: "B100, B200, GB200",
    103: "B300, GB300",
    110: "Thor, Jetson T4000, Jetson T5000",
    120: "RTX 5050, RTX 5060, RTX 5070, RTX 5080, RTX 5090, RTX PRO 2000, RTX PRO 4000, RTX PRO 4500, RTX PRO 5000, "
    "RTX PRO 6000",
    121: "GB10, DGX Spark",
}
_SHARED = {
    "RTX 4000": ("Quadro RTX 4000", "RTX 4000 Ada"),
    "RTX 5000": ("Quadro RTX 5000", "RTX 5000 Ada"),
    "RTX 6000": ("Quadro RTX 6000", "RTX 6000 Ada", "RTX PRO 6000"),
    "TITAN X": ("sm_52 for that of 2015", "sm_61 for that of 2016"),
}
# of a name as drivers report it, what stands for no other architecture
_SILENT = re.compile(
    r"\b(?:nvidia|geforce|tesla|jetson|agx|ti|super|max-?q|laptop|mobile|gpu|generation|blackwell|workstation|server"
    r"|edition|developer|kit|sxm\d?|pcie?e?|nvl|hbm\d\w?|\d+ ?gb)\b|\(.*\)"
)
_OTHERS = re.compile(r"[^a-z0-9]+")
_CLOSE = 0.75
_LONGEST = 40


def _plain(name: str) -> str:
    """The letters and digits of *name* that tell it from others; all of them if no others are left."""
    text = name.lower().replace("-", " ")
    return _OTHERS.sub("", _SILENT.sub(" ", text)) or _OTHERS.sub("", text)


_SHOWN = {_plain(name): name for names in _PRODUCTS.values() for name in names.split(", ")}
_NUMBERS = {_plain(name): number for number, names in _PRODUCTS.items() for name in names.split(", ")}
_AMBIGUOUS = {_plain(name): others for name, others in _SHARED.items()}


def capability_of(name: str) -> int | None:
    """The number of the compute capability of the product *name*, 90 for H100; None if it is not known.

    `HardwareError` for a name that two generations share.
    """
    plain = _plain(name)
    if others := _AMBIGUOUS.get(plain):
        raise HardwareError(f"{name!r} is the name of several GPUs; expected {' or '.join(others)}")
    return _NUMBERS.get(plain)


def similar_names(name: str) -> tuple[str, ...]:
    """The products whose names are nearest to *name*, nearest first; three at most."""
    plain = _plain(name[:_LONGEST])
    ending = [shown for known, shown in _SHOWN.items() if plain.isdigit() and known.endswith(plain)]
    return tuple(ending or (_SHOWN[near] for near in get_close_matches(plain, _SHOWN, cutoff=_CLOSE)))[:3]
