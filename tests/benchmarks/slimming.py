"""Slimming real wheels: time against `wheel unpack` and `wheel pack`, resident memory, families, and what is left."""

from collections.abc import Iterator

from tests.benchmarks.figure import Figure, Peer, Wheel
from tests.benchmarks.measuring import BIN, Command, Word, installed, packed, published, shell, timed, unpacked, vbuild
from tests.benchmarks.wheels import TORCH, VLLM, XGBOOST

FAMILY = ("sm80=80,86,89", "sm90=90,90a", "sm100=100", "sm120=120")
ACCEPTED = ("--allow-unsupported", "--accept-license", "*")
SM90 = ("--gpu", "90")
UNNEEDED = ("--strip", "unneeded")


def figures() -> Iterator[Figure]:
    for name, wheel, title, reach, memory in (
        ("xgboost", XGBOOST, "xgboost 3.2.0 (131.7 MB)", 0.10, 458),
        ("vllm", VLLM, "vLLM 0.33.0 (336.4 MB)", 0.085, 550),
        ("torch", TORCH, "torch 2.15.0 (539.1 MB)", 0.07, 750),
    ):
        yield Figure(
            name=name,
            what=f"slim {title} to sm_90",
            measure=timed(slimming(wheel, *SM90)),
            peer=Peer("`wheel unpack` and `wheel pack` of it", timed(repacking(wheel))),
            reach=reach,
            memory=memory,
            inputs=(wheel,),
        )
    yield Figure(
        name="family",
        # drivers for two of the groups read zstd, in which their GPU code is compressed anew
        what="a family of four GPU groups of xgboost",
        measure=timed(family(XGBOOST)),
        peer=Peer("one group", timed(slimming(XGBOOST, *SM90))),
        reach=1.8,
        memory=458,
        inputs=(XGBOOST,),
        note="Of the CPU time of three groups more, three fifths go to zstd.",
    )


def sizes() -> Iterator[Figure]:
    """What slimming leaves of published wheels, packed and installed."""
    for requirement, options, limit in (
        ("xgboost==3.2.0", SM90, 36),
        ("bitsandbytes==0.50.2", SM90, 11.3),
        ("cupy-cuda12x==14.2.0", SM90, 51),
        ("nvidia-nccl-cu12==2.32.3", SM90, 82.5),
        ("vllm==0.33.0", SM90, None),
        ("torch==2.15.0", ("--gpu", "80,86,89"), None),
        ("torch==2.15.0", SM90, None),
        ("ctranslate2==4.8.5", UNNEEDED, 24.6),
        ("triton==3.9.0", UNNEEDED, 192),
    ):
        wheel, (project, _, version) = Wheel(requirement), requirement.partition("==")
        how = f"`{options[0]} {options[1]}`"
        more = "-sm8x" if "80" in options[1] else ""
        for name, measure, peer, bound, title in (
            (f"{project}{more}", packed, published, limit, f"{project} {version}, {how}"),
            (f"{project}{more}-installed", unpacked, installed, None, "the same, installed"),
        ):
            yield Figure(
                name=name,
                what=title,
                measure=measure(slimming(wheel, *options)),
                unit="MB",
                peer=Peer("as published", peer(wheel)),
                limit=bound,
                pairs=1,
                inputs=(wheel,),
            )


def slimming(wheel: Word, *options: str) -> Command:
    return vbuild("slim", wheel, "-o", "out", *options, *ACCEPTED)


def family(wheel: Word) -> Command:
    return slimming(wheel, *(option for share in FAMILY for option in ("--variant", share)))


def repacking(wheel: Wheel) -> Command:
    """What a release script would do: everything inflated to disk, and deflated again."""
    script = '"$1" unpack -d unpacked "$2" && mkdir packed && "$1" pack -d packed unpacked/*'
    return shell(script, BIN / "wheel", wheel)
