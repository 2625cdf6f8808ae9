"""Compiled code against the request, as values."""

from pathlib import Path

import pytest

from tests.factories.wheels import wheel
from vbuild.build.agreement import Agreement, Fatbins, Shortfall, agreement
from vbuild.errors import BuildError
from vbuild.hardware.gpu import GpuList, GpuOffer
from vbuild.recipe.compiling import Archs
from vbuild.toolchain.nvcc_commands import Codegen, Command, NvccOutput

LINUX = Path("demo-1.0-cp311-cp311-linux_x86_64.whl")
HARD_CODED = "the project's list is hard-coded: set build.cuda.archs = 'replace', or a rule in build.cuda.files"
BYPASSED = (
    "no command passed the wrapper of nvcc: the project calls another one by its path, and has to be told to take "
    "CUDA_HOME's or CUDACXX"
)


def offers(codes: str) -> tuple[GpuOffer, ...]:
    return tuple(Codegen.of(code).offer for code in codes.split(","))


def command(
    source: str,
    ours: str,
    *,
    theirs: str = "sm_80",
    output: NvccOutput = NvccOutput.OBJECT,
    rule: str = "intersect",
    is_ruled: bool = False,
) -> Command:
    sources, files = ((source,), ()) if source.endswith("cu") else ((), (f"/build/{source}",))
    return Command(sources, output, files, rule, is_ruled, tuple(theirs.split(",")), tuple(ours.split(",")))


def judged(
    commands: list[Command], *fatbins: str, request: str = "75,80,90", mode: Archs = Archs.INTERSECT
) -> Agreement:
    """The agreement of one library with *fatbins*, one of each."""
    library = {offers(codes): 1 for codes in fatbins}
    return agreement(commands, {"demo.so": library}, GpuList.parse(request), mode=mode)


def test_code_for_every_gpu_agrees() -> None:
    found = judged([command("a.cu", "sm_75,sm_80,sm_90")], "sm_75,sm_80,sm_90")
    assert found == Agreement()
    assert found
    found.check(LINUX)
    assert judged([command("a.cu", "sm_70,sm_80,sm_90a")], "sm_70,sm_80,sm_90a")
    assert judged([], "sm_75,sm_80,sm_90,compute_90")


def test_files_compiled_for_less_are_named() -> None:
    commands = [command("src/b.cu", "sm_80"), command("src/a.cu", "sm_80"), command("c.cu", "sm_75,sm_80,sm_90")]
    found = judged(commands, "sm_80", "sm_75,sm_80,sm_90")
    assert found.lines == (
        f"src/a.cu: compiled for sm_80 only, asked for sm_75, sm_90; {HARD_CODED}",
        f"src/b.cu: compiled for sm_80 only, asked for sm_75, sm_90; {HARD_CODED}",
    )
    assert not found
    with pytest.raises(BuildError) as caught:
        found.check(LINUX)
    assert str(caught.value) == (
        "src/a.cu: compiled for sm_80 only, asked for sm_75, sm_90; "
        f"src/b.cu: compiled for sm_80 only, asked for sm_75, sm_90; {HARD_CODED}"
    )


def test_of_many_files_five_are_named() -> None:
    found = judged([command(f"{number:02}.cu", "sm_80") for number in range(17)], "sm_80", request="80,90")
    with pytest.raises(BuildError) as caught:
        found.check(LINUX)
    assert str(caught.value).startswith("00.cu: compiled for sm_80 only, asked for sm_90; 01.cu: ")
    assert str(caught.value).endswith(f"04.cu: compiled for sm_80 only, asked for sm_90; and 12 more; {HARD_CODED}")


def test_code_that_drivers_compile_first_is_not_machine_code() -> None:
    found = judged([command("a.cu", "sm_80,compute_80")], "sm_80,compute_80", request="80,90")
    assert found.shortfalls == (Shortfall("a.cu", ("sm_80", "compute_80"), ("sm_90",), HARD_CODED),)
    assert judged([command("a.cu", "sm_80,compute_80")], "sm_80,compute_80", request="80,90-virtual")


def test_a_link_for_less_is_named_by_what_it_makes() -> None:
    commands = [command("a.cu", "sm_80,sm_90"), command("demo.so", "sm_80", output=NvccOutput.DEVICE_LINK)]
    found = judged(commands, "sm_80", request="80,90")
    assert [shortfall.what for shortfall in found.shortfalls] == ["link of demo.so"]


def test_files_that_are_for_some_gpus_on_purpose_agree() -> None:
    assert judged([command("a.cu", "sm_90a", theirs="sm_90a,sm_100f")], "sm_90a", request="75,90")
    assert judged([command("a.cu", "sm_80", rule="sm_80", is_ruled=True)], "sm_80", request="75,90")
    assert judged([command("a.cu", "sm_80", rule="keep")], "sm_80", request="75,90", mode=Archs.KEEP)
    mixed = [command("a.cu", "sm_80", rule="keep", is_ruled=True), command("b.cu", "sm_80")]
    assert [shortfall.what for shortfall in judged(mixed, "sm_80").shortfalls] == ["b.cu"]


def test_older_code_counts_where_it_leaves_a_gpu_out() -> None:
    own = [command("a.cu", "sm_80,sm_90")]
    found = judged(own, "sm_80,sm_90", "sm_70,sm_80", "sm_75", request="80,90")
    assert [str(shortfall) for shortfall in found.shortfalls] == [
        "demo.so: 2 of 3 fatbins, which no command of nvcc made: compiled for sm_70, sm_75, sm_80 only, asked for sm_90"
    ]
    assert found.shortfalls[0].advice == ("link a library that was compiled for them, or leave them out of the request")
    found = judged(own, "sm_80,sm_90", "sm_80", "compute_80", request="80,90")
    assert found
    (note,) = found.notes
    assert note.what == "demo.so: 2 of 3 fatbins, which no command of nvcc made"
    assert (note.found, note.missing) == (("sm_80", "compute_80"), ("sm_80", "sm_90"))


def test_a_project_that_calls_another_nvcc_is_told() -> None:
    found = judged([], "sm_80,compute_80", request="80,90+ptx")
    assert found.lines == (
        f"demo.so: 1 of 1 fatbins: compiled for sm_80, compute_80 only, asked for sm_90; {BYPASSED}",
    )


def test_a_build_without_gpu_code_is_told(tmp_path: Path) -> None:
    made = wheel(tmp_path, LINUX.name, {})
    message = (
        "no library has GPU code: set what switches the project's CUDA on in build.config-settings or build.env; "
        "if it calls CUDA's libraries alone, leave matrix.cuda[].gpus out"
    )
    nothing: list[dict[str, Fatbins]] = [{}, {"demo.so": {}}]
    for libraries in nothing:
        found = agreement([], libraries, GpuList.parse("80"))
        assert found.lines == (message,)
        with pytest.raises(BuildError) as caught:
            found.check(made)
        assert str(caught.value) == message
    # compiled, and then left out of what is linked
    assert agreement([command("a.cu", "sm_80")], {}, GpuList.parse("80")).is_empty
    assert agreement([command("a.cu", "sm_80", output=NvccOutput.FATBIN)], {}, GpuList.parse("80"))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "one wheel serves all machines; if the project has code for GPUs that it left out, "),
        ({"demo/a.cu": b"", "demo/b.cuh": b""}, "compiles its CUDA sources when they are used: demo/a.cu and 1 more; "),
    ],
)
def test_a_pure_wheel_is_said_to_be_pure(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    made = wheel(tmp_path, "demo-1.0-py3-none-any.whl", files)
    with pytest.raises(BuildError, match=r"^it is pure Python, with nothing to compile for a GPU: ") as caught:
        agreement([], {}, GpuList.parse("80")).check(made)
    assert said in str(caught.value)


def test_sources_that_a_wheel_brings_are_named_where_no_library_has_gpu_code(tmp_path: Path) -> None:
    made = wheel(tmp_path, "demo-1.0-cp311-cp311-linux_x86_64.whl", {"demo/a.cu": b""})
    with pytest.raises(BuildError, match=r"or it compiles its CUDA sources when they are used: demo/a\.cu"):
        agreement([], {}, GpuList.parse("80")).check(made)


def test_paths_are_those_of_the_log() -> None:
    found = judged([command(str(Path("/elsewhere/a.cu")), "sm_80")], "sm_80", request="90")
    assert found.shortfalls[0].what == "/elsewhere/a.cu"


def test_kernels_in_a_wheel_for_no_gpus_are_refused() -> None:
    library: dict[str, Fatbins] = {"demo.so": {offers("sm_75"): 1}}
    found = agreement([command("a.cu", "sm_75")], library, GpuList(()))
    advice = "a wheel with kernels says which GPUs it is for: matrix.cuda[].gpus, or --cuda 80,90"
    assert found.lines == (f"a.cu: compiled for sm_75 only, asked for no GPU; {advice}",)
    assert agreement([], {"demo.so": {}}, GpuList(()))
    # of a library that is linked statically, such as cuBLAS's
    assert agreement([], library, GpuList(()))


def test_a_link_is_not_blamed_for_its_objects() -> None:
    linking = command("demo.so", "sm_80", output=NvccOutput.LIBRARY)
    following = Command(
        (), NvccOutput.DEVICE_LINK, ("/build/link.o",), "intersect", is_ruled=False, theirs=(), ours=("sm_80",)
    )
    found = judged([command("a.cu", "sm_80,compute_80"), linking, following], "sm_80,compute_80", "sm_80", request="90")
    assert [shortfall.what for shortfall in found.shortfalls] == ["a.cu", "link of demo.so"]
    found = judged([command("a.cu", "sm_80"), linking], "sm_80", request="90")
    assert [shortfall.what for shortfall in found.shortfalls] == ["a.cu"]
