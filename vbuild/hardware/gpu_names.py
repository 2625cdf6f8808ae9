"""GPUs as people call them: the compute capabilities of NVIDIA's products, and the processors in AMD's.

    H100   A100   L4   RTX 4090   NVIDIA GeForce RTX 3060 Ti   Tesla T4   NVIDIA A100-SXM4-80GB
    MI300X   AMD Instinct MI250X   Radeon RX 7900 XTX   Radeon PRO W7900   Radeon 8060S

Words that say nothing about the architecture may be there or not: the brand, the memory, the socket. A name that two
generations share is refused with both.
https://developer.nvidia.com/cuda-gpus
https://developer.nvidia.com/cuda-legacy-gpus
https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html
"""

import re
from difflib import get_close_matches

from vbuild.errors import HardwareError

_PRODUCTS: dict[int | str, str] = {
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
    "gfx900": "MI25, RX Vega 56, RX Vega 64",
    "gfx906": "MI50, MI60, Radeon VII",
    "gfx908": "MI100",
    "gfx90a": "MI210, MI250, MI250X",
    "gfx942": "MI300A, MI300X, MI308X, MI325X",
    "gfx950": "MI350X, MI355X",
    "gfx1010": "RX 5600 XT, RX 5700, RX 5700 XT",
    "gfx1011": "V520",
    "gfx1012": "RX 5500, RX 5500 XT",
    "gfx1030": "RX 6800, RX 6800 XT, RX 6900 XT, RX 6950 XT, W6800, V620",
    "gfx1031": "RX 6700, RX 6700 XT, RX 6750 XT",
    "gfx1032": "RX 6600, RX 6600 XT, RX 6650 XT, W6600",
    "gfx1034": "RX 6400, RX 6500 XT, W6400",
    "gfx1035": "660M, 680M",
    "gfx1100": "RX 7900 GRE, RX 7900 XT, RX 7900 XTX, W7800, W7900",
    "gfx1101": "RX 7700, RX 7700 XT, RX 7800 XT, V710, W7700",
    "gfx1102": "RX 7600, RX 7600 XT, RX 7650 GRE, W7500, W7600",
    "gfx1103": "740M, 760M, 780M",
    "gfx1150": "880M, 890M",
    "gfx1151": "8050S, 8060S",
    "gfx1152": "840M, 860M",
    "gfx1200": "RX 9060, RX 9060 XT",
    "gfx1201": "RX 9070, RX 9070 GRE, RX 9070 XT, AI PRO R9700",
}
_SHARED = {
    "RTX 4000": ("Quadro RTX 4000", "RTX 4000 Ada"),
    "RTX 5000": ("Quadro RTX 5000", "RTX 5000 Ada"),
    "RTX 6000": ("Quadro RTX 6000", "RTX 6000 Ada", "RTX PRO 6000"),
    "TITAN X": ("sm_52 for that of 2015", "sm_61 for that of 2016"),
}
# of a name as drivers report it, what stands for no other architecture
_SILENT = re.compile(
    r"\b(?:amd|instinct|radeon pro|radeon(?! vii)|graphics|oam|dual slot"
    r"|nvidia|geforce|tesla|jetson|agx|ti|super|max-?q|laptop|mobile|gpu|generation|blackwell|workstation|server"
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


def architecture_of(name: str) -> int | str | None:
    """What is in the product *name*: 90, a compute capability, for H100, and gfx942 for MI300X; None if not known.

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
