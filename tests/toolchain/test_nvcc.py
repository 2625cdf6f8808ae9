"""What becomes of commands of nvcc, as values; `test_nvcc_wrapper` runs them."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories.plans import rules
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.compiling import Archs, FileRule
from vbuild.toolchain.compiler_program import THREADS
from vbuild.toolchain.nvcc import HostCompiler, RewrittenNvcc, rewritten_nvcc, side_by_side
from vbuild.toolchain.nvcc_commands import Command, CudaRules, NvccOutput

HOST = HostCompiler(rules("v3"), {"g++": "/usr/bin/g++", "gcc": "/usr/bin/gcc"})
OURS = ("-Xcompiler", "-march=x86-64-v3", "-Xcompiler", "-mtune=generic")
SM80, SM90 = "-gencode=arch=compute_80,code=[sm_80]", "-gencode=arch=compute_90,code=[sm_90]"


def cuda(archs: str = "80,90", mode: Archs = Archs.INTERSECT, **more: object) -> CudaRules:
    return CudaRules(Path("/cuda/bin/nvcc"), GpuList.parse(archs), mode, **more)  # type: ignore[arg-type]


def run(command: str, settings: CudaRules | None = None, **more: object) -> RewrittenNvcc:
    return rewritten_nvcc(shlex.split(command), settings or cuda(), HOST, **more)  # type: ignore[arg-type]


def lists(command: str, settings: CudaRules | None = None) -> tuple[str, str]:
    """The list that *command* has, and the one it gets."""
    found = run(command, settings).command
    assert found
    return ",".join(found.theirs), ",".join(found.ours)


def made_by(source: str, ours: tuple[str, ...]) -> Command:
    """The command that made an object beside *source* for *ours*."""
    file = str(Path.cwd() / Path(source).with_suffix(".o"))
    return Command((source,), NvccOutput.OBJECT, (file,), "intersect", is_ruled=False, theirs=(), ours=ours)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("-c src/a.cu -o b/a.o", "-Xcudafe=--orig_src_path_name=./src/a.cu -objtemp -frandom-seed=./b/a.o"),
        ("-dc src/a.cu", "-Xcudafe=--orig_src_path_name=./src/a.cu -objtemp -frandom-seed=./a.o"),
        ("-c src/a.cu --keep", "-Xcudafe=--orig_src_path_name=./src/a.cu -frandom-seed=./a.o"),
        ("-c a.cu -frandom-seed=7", "-Xcudafe=--orig_src_path_name=./a.cu -objtemp"),
        ("-ptx a.cu -o /elsewhere/a.ptx", "-Xcudafe=--orig_src_path_name=./a.cu"),
        ("-c /elsewhere/a.cu", ""),
        ("-c 'a b.cu'", ""),
        ("-c a.cpp", ""),
        ("-shared a.cu b.cu -o c.so", "-Xcudafe=--orig_src_path_name=./a.cu -frandom-seed=./c.so"),
        ("-shared a.cu x/a.cu -o c.so", ""),
        ("-shared a.cu b.cpp -o c.so", ""),
        ("-dlink a.o -o b.o", ""),
    ],
)
def test_names_in_the_object_are_of_paths_below_the_folder_of_the_build(
    command: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    host = HostCompiler(rules("v3"), {}, (f"-ffile-prefix-map={tmp_path}=.",))
    found = rewritten_nvcc(shlex.split(command), cuda(mode=Archs.KEEP, seeds=True), host).words
    options = ("-Xcudafe=", "-objtemp", "-frandom-seed=./")
    assert [word for word in found if word.startswith(options)] == named.split()
    without = rewritten_nvcc(shlex.split(command), cuda(mode=Archs.KEEP), host).words
    assert [word for word in found if word not in without] == [w for w in named.split() if w.startswith(options[2])]


SPELLINGS = {
    "-gencode arch=compute_70,code=sm_70 -gencode arch=compute_80,code=sm_80": "sm_70,sm_80",
    "-gencode=arch=compute_80,code=[sm_80,compute_80]": "sm_80,compute_80",
    "--generate-code arch=compute_80,code=[sm_80,sm_86]": "sm_80,sm_86",
    "--generate-code=arch=compute_80,code=[compute_80,sm_80]": "compute_80,sm_80",
    """-gencode 'arch=compute_80,code="sm_80,compute_80"'""": "sm_80,compute_80",
    r"""-gencode 'arch=compute_80,code=\"sm_80,compute_80\"'""": "sm_80,compute_80",
    "-gencode code=sm_80,arch=compute_80": "sm_80",
    "-gencode 'arch=compute_80, code=sm_80'": "sm_80",
    "-gencode arch=compute_80": "compute_80",
    "-gencode arch=compute_90a,code=sm_90a": "sm_90a",
    "-arch=sm_80": "sm_80,compute_80",
    "-arch sm_80": "sm_80,compute_80",
    "-arch=compute_80": "compute_80",
    "--gpu-architecture=sm_80": "sm_80,compute_80",
    "--gpu-architecture sm_80": "sm_80,compute_80",
    "-arch=compute_80 -code=sm_80,compute_80": "sm_80,compute_80",
    "-arch=compute_80 -code sm_80 -code=sm_86": "sm_80,sm_86",
    "--gpu-code=sm_80 --gpu-architecture=compute_75": "sm_80",
    "-arch=sm_70 -arch=sm_80": "sm_80,compute_80",
    "-arch=sm_80 -gencode arch=compute_80,code=sm_80": "sm_80,compute_80",
    "-gencode arch=compute_80,code=lto_80 -dc": "lto_80",
    "-arch=sm_80 -dlto -dc": "lto_80,compute_80",
    "-arch=sm_80 -lto -dc": "lto_80,compute_80",
    "-arch=lto_80 -dc": "lto_80",
}


@pytest.mark.parametrize("options", SPELLINGS)
def test_a_list_is_understood_in_every_spelling(options: str) -> None:
    theirs, _ = lists(f"-c a.cu {options}", cuda(mode=Archs.KEEP))
    assert sorted(theirs.split(",")) == sorted(SPELLINGS[options].split(","))


@pytest.mark.parametrize(
    "options",
    [
        "-gencode arch=sm_xx,code=sm_80",
        "-gencode code=sm_80",
        "-gencode arch=compute_80,code=sm_80,arch=compute_90,code=sm_90 -gencode nonsense",
        "-arch=sm_80 -code=sm_80",
        "-code=sm_80",
        "-arch=90",
        "-arch=all -code=sm_80",
        "-gencode",
    ],
)
def test_a_list_that_nvcc_refuses_is_left_to_nvcc(options: str) -> None:
    words = shlex.split(f"-c a.cu {options}")
    assert rewritten_nvcc(words, cuda(mode=Archs.REPLACE), HOST).words == (*words, *OURS)


# request, their list, what is kept of it
INTERSECTIONS = [
    ("80,90", "70,80,90,100", "80,90"),
    ("80,86,89", "70,80", "80"),
    ("75,80", "70,80", "70,80"),
    ("86", "80,90", "80"),
    ("90", "90,90a,100", "90,90a"),
    ("90a", "80,90", "90"),
    ("80", "90a", "90a"),
    ("80,90", "90a,100a", "90a"),
    ("90", "70,75", "70,75"),
    ("80,90", "80,90+ptx", "80,90"),
    ("80,90+ptx", "80,90+ptx", "80,90+ptx"),
    ("80,90", "80+ptx", "80+ptx"),
    ("80,120+ptx", "80,90+ptx", "80,90-virtual"),
    ("80,90-virtual", "80,90+ptx", "80,90-virtual"),
    ("103", "100f,120", "100f"),
    ("103", "100,120", "100"),
    ("103", "100a,120+ptx", "100a,120+ptx"),
    ("87", "80,86,87", "87"),
    ("87", "80+ptx", "80-virtual"),
    ("80,90", "60,61", "60,61"),
]


def _gencodes(archs: str) -> str:
    words = []
    for request in GpuList.parse(archs):
        form = f"{request.arch.number}{request.arch.suffix}"
        words += [f"-gencode=arch=compute_{form},code=sm_{form}"] if request.real else []
        words += [f"-gencode=arch=compute_{form},code=compute_{form}"] if request.ptx else []
    return " ".join(words)


def _codes(archs: str) -> list[str]:
    return [word.rpartition("=")[2] for word in _gencodes(archs).split()]


@pytest.mark.parametrize(("request_", "theirs", "ours"), INTERSECTIONS)
def test_of_their_list_stays_what_the_request_needs(request_: str, theirs: str, ours: str) -> None:
    _, found = lists(f"-c a.cu {_gencodes(theirs)}", cuda(request_))
    assert found.split(",") == _codes(ours)


def test_a_list_that_is_right_stays_in_its_own_words() -> None:
    words = ("-c", "a.cu", "--generate-code=arch=compute_80,code=[sm_80]", "-arch=sm_90")
    assert rewritten_nvcc(words, cuda("80,90+ptx"), HOST).words == (*words, *OURS)


@pytest.mark.parametrize("options", ["", "-arch=native", "-arch=all", "--gpu-architecture=all-major", "-arch native"])
@pytest.mark.parametrize("mode", [Archs.INTERSECT, Archs.REPLACE])
def test_without_an_opinion_the_request_is_put(options: str, mode: Archs) -> None:
    assert run(f"-c a.cu {options}", cuda(mode=mode)).words == ("-c", "a.cu", SM80, SM90, *OURS)


def test_completing_puts_the_request_but_for_files_that_are_for_one_gpu_or_family() -> None:
    for theirs in ("sm_75,compute_75", "compute_75", "sm_80", "sm_70,sm_90a"):
        options = " ".join(f"-gencode=arch=compute_{code.partition('_')[2]},code={code}" for code in theirs.split(","))
        assert lists(f"-c a.cu {options}", cuda("80,90", Archs.COMPLETE)) == (theirs, "sm_80,sm_90")
    assert lists("-c a.cu", cuda("80,90", Archs.COMPLETE)) == ("", "sm_80,sm_90")
    hopper = "-gencode=arch=compute_90a,code=sm_90a"
    assert lists(f"-c a.cu {hopper}", cuda("80,90", Archs.COMPLETE)) == ("sm_90a", "sm_90a")


def test_without_gpus_asked_for_every_list_stays() -> None:
    settings = CudaRules.of_data(CudaRules(Path("/cuda/bin/nvcc"), GpuList(())).data())
    for mode in Archs:
        assert lists("-c a.cu -arch=sm_75", replace(settings, mode=mode)) == ("sm_75,compute_75", "sm_75,compute_75")
        assert lists("-c a.cu", replace(settings, mode=mode)) == ("", "")


def test_a_file_for_several_gpus_uses_the_processes_that_are_left(tmp_path: Path) -> None:
    nvcc, cached = ("/cuda/bin/nvcc",), ("ccache", "/cuda/bin/nvcc")
    one, three = made_by("a.cu", ("sm_80",)), made_by("a.cu", ("sm_80", "sm_90", "compute_90"))
    assert side_by_side(one, tmp_path, {THREADS: "4"}, nvcc) == ()
    assert side_by_side(three, tmp_path, {}, nvcc) == ()
    assert side_by_side(three, tmp_path, {THREADS: "1"}, nvcc) == ()
    # the locks are this process's as long as it runs, and what it would start
    assert side_by_side(three, tmp_path, {THREADS: "5"}, nvcc) == ("--threads", "3")
    environment = {THREADS: "5"}
    assert side_by_side(three, tmp_path, environment, cached) == ()
    assert environment == {THREADS: "2", "CCACHE_PREFIX": str(tmp_path / "side-by-side")}
    assert side_by_side(three, tmp_path, {THREADS: "5"}, nvcc) == ()
    # somebody's own program behind ccache stays
    theirs = {THREADS: "2", "CCACHE_PREFIX": "distcc"}
    assert side_by_side(three, tmp_path / "..", theirs, cached) == ()
    assert theirs["CCACHE_PREFIX"] == "distcc"


def test_a_rule_for_a_file_counts_before_the_one_for_all() -> None:
    files = (
        FileRule("*_sm90.cu", GpuList.parse("90a")),
        FileRule("csrc/*.cu", Archs.KEEP),
        FileRule("*.cu", Archs.REPLACE),
    )
    settings = cuda(files=files)
    command = "-c -gencode arch=compute_70,code=sm_70 -gencode arch=compute_80,code=sm_80"
    assert lists(f"{command} csrc/a_sm90.cu", settings) == ("sm_70,sm_80", "sm_90a")
    assert lists(f"{command} /x/csrc/a.cu", settings) == ("sm_70,sm_80", "sm_70,sm_80")
    assert lists(f"{command} a.cu", settings) == ("sm_70,sm_80", "sm_80,sm_90")
    assert lists(f"{command} a.cc", settings) == ("sm_70,sm_80", "sm_80")
    ruled = [run(f"{command} {name}", settings).command for name in ("a.cu", "a.cc")]
    assert [found.is_ruled for found in ruled if found] == [True, False]


def test_a_list_in_poorer_words_than_the_request_stands_for_it() -> None:
    settings = cuda("100f,120", aliases=(("sm_100", "sm_120"),))
    assert lists(f"-c a.cu {_gencodes('100,120')}", settings)[1] == "sm_100f,sm_120"
    assert lists(f"-c a.cu {_gencodes('100')}", settings)[1] == "sm_100"


@pytest.mark.parametrize("stage", ["-cubin", "-ptx", "--cubin", "--ptx"])
def test_what_takes_one_code_is_never_given_several(stage: str) -> None:
    for mode in (Archs.INTERSECT, Archs.REPLACE):
        assert lists(f"{stage} a.cu", cuda("80,90", mode)) == ("", "")
        assert lists(f"{stage} a.cu -arch=sm_75", cuda("80,90", mode))[1] == "sm_75,compute_75"
        assert lists(f"{stage} a.cu", cuda("90", mode)) == ("", "sm_90")
    assert lists(f"{stage} a.cu -arch=sm_75", cuda("90", Archs.REPLACE))[1] == "sm_90"
    assert lists(f"{stage} a.cu", cuda("90-virtual", Archs.REPLACE)) == ("", "")
    assert lists(f"{stage} a.cu", cuda("90", Archs.KEEP)) == ("", "")


@pytest.mark.parametrize(
    "command",
    ["--version", "-V", "--help", "--list-gpu-arch", "-v __cmake_determine_cuda", "-optix-ir a.cu", "-ltoir a.cu"],
)
def test_questions_and_other_outputs_keep_their_lists(command: str) -> None:
    found = run(command, cuda(mode=Archs.REPLACE))
    assert [word for word in found.words if "gencode" in word] == (
        [SM80, SM90] if command.endswith("determine_cuda") else []
    )


def test_a_link_is_for_what_its_objects_are_for() -> None:
    codes = {"a": ("sm_90a", "compute_90a"), "b": ("lto_80", "sm_90a"), "c": ("sm_120",)}
    made = [made_by(f"{name}.cu", found) for name, found in codes.items()]
    for command in ("-dlink a.o b.o -o d.o", "-shared a.o b.o"):
        found = run(command, log=made).command
        assert found
        assert found.ours == ("sm_90a", "sm_80")
    assert lists("-dlink x.o -o d.o")[1] == "sm_80,sm_90"
    assert lists("-dlink a.o -o d.o", cuda(mode=Archs.KEEP)) == ("", "")
    assert lists(f"-dlink a.o {_gencodes('70,80')}")[1] == "sm_80"
    assert lists("-dlink -dlto a.o -o d.o") == ("", "sm_80,sm_90")


def test_options_in_files_are_seen_and_replaced_where_they_change(tmp_path: Path) -> None:
    (tmp_path / "inner.txt").write_text("-arch=sm_70 -Xcompiler=-mavx512f,-O3 'b c.o'\n")
    (tmp_path / "outer.txt").write_text(f"-I /inc\n--options-file {tmp_path}/inner.txt,{tmp_path}/outer.txt")
    found = run(f"-c a.cu -optf {tmp_path}/outer.txt -o a.o")
    head = ("-c", "a.cu", "-I", "/inc", "-Xcompiler=-O3", "b c.o", "-o", "a.o")
    assert found.words == (*head, "-gencode=arch=compute_70,code=[compute_70]", *OURS)
    assert found.removed == ("-mavx512f",)
    (tmp_path / "inner.txt").write_text("-DX=1\n")
    assert run(f"-c a.cu -optf {tmp_path}/outer.txt").words[:4] == ("-c", "a.cu", "-optf", f"{tmp_path}/outer.txt")
    assert run("-c a.cu -optf /none,b.txt").words[:4] == ("-c", "a.cu", "-optf", "/none,b.txt")


HOST_FLAGS = {
    "-Xcompiler -march=native": "",
    "-Xcompiler=-march=native,-O3": "-Xcompiler=-O3",
    "--compiler-options '-fPIC -mavx512f'": "-Xcompiler=-fPIC",
    "--compiler-options=-fPIC,-Wall": "--compiler-options=-fPIC,-Wall",
    """-Xcompiler '"-mavx512f",-DX=\\"a,b\\"'""": """-Xcompiler=-DX=\\"a,b\\" """,
    "-Xcompiler -msse4.2": "-Xcompiler -msse4.2",
    "-Xcompiler -march=x86-64-v3": "-Xcompiler -march=x86-64-v3",
    "-forward-unknown-to-host-compiler -march=native -maxrregcount=32 -m64": (
        "-forward-unknown-to-host-compiler -maxrregcount=32 -m64"
    ),
    "-march=native": "-march=native",
}


@pytest.mark.parametrize("options", HOST_FLAGS)
def test_host_flags_that_choose_instructions_are_taken_out(options: str) -> None:
    found = run(f"-c a.cu {options}", cuda(mode=Archs.KEEP))
    expected = HOST_FLAGS[options]
    kept = expected.split() if "\\" in expected else shlex.split(expected)
    assert found.words == ("-c", "a.cu", *kept, *OURS)
    assert bool(found.removed) == (expected.split() != shlex.split(options))


def test_files_whose_flags_the_recipe_keeps_keep_them_and_their_compiler() -> None:
    host = HostCompiler(rules("v3", keep=("simd/*.cu",)), HOST.compilers)
    found = rewritten_nvcc(("-c", "simd/a.cu", "-Xcompiler=-mavx512f,-march=native"), cuda(mode=Archs.KEEP), host)
    assert found.words == (*OURS, "-c", "simd/a.cu", "-Xcompiler=-mavx512f")
    assert found.keeps
    assert not rewritten_nvcc(("-c", "a.cu"), cuda(), host).keeps


def test_a_question_whether_the_host_compiler_takes_a_flag_is_answered(tmp_path: Path) -> None:
    (tmp_path / "src.cu").write_text("__host__ int main() { return 0; }\n")
    assert run(f"-c {tmp_path}/src.cu -Xcompiler=-mavx512f").refused == ("-mavx512f",)
    assert run(f"-c {tmp_path}/src.cu -Xcompiler=-mavx2").refused == ()
    assert run(f"-c {tmp_path}/src.cu -Xcompiler=-Wall").refused == ()


COMPILERS = {
    "-ccbin g++": "-ccbin=g++",
    "-ccbin=/usr/bin/g++": "-ccbin=g++",
    "--compiler-bindir /usr/bin": "-ccbin=gcc",
    "-ccbin 'gcc -pthread'": "-ccbin=gcc -Xcompiler=-pthread",
    "-ccbin 'ccache gcc'": "-ccbin=gcc",
    "-ccbin /opt/gcc-9/bin/g++": "-ccbin=/opt/gcc-9/bin/g++",
    "-ccbin clang++": "-ccbin=clang++",
    "": "",
}


@pytest.mark.parametrize("options", COMPILERS)
def test_the_host_compiler_is_the_wrapper_of_its_name(options: str) -> None:
    found = run(f"-c a.cu {options}", cuda(mode=Archs.KEEP))
    assert found.words == ("-c", "a.cu", *COMPILERS[options].split(), *OURS)


# for a compiler cache, which must know an object with mapped lines from another
LINES = ("-lineinfo", "-Xcompiler=-DVBUILD_MAPPED_LINES")


def test_the_recipes_options_take_the_place_of_the_projects() -> None:
    settings = cuda(mode=Archs.KEEP, append=("--compress-mode=size", "-lineinfo"))
    found = run("-c a.cu --no-compress -compress-mode speed -Xfatbin -compress-all -Xfatbin=-a,-compress-all", settings)
    assert found.words == ("-c", "a.cu", "-Xfatbin=-a", "--compress-mode=size", *LINES, *OURS)
    assert run("-c -G a.cu", settings).words == ("-c", "-G", "a.cu", "--compress-mode=size", *LINES[1:], *OURS)
    assert run("-dlink a.o", settings).words == ("-dlink", "a.o", "--compress-mode=size")
    assert run("-ptx a.cu", settings).words == ("-ptx", "a.cu", *LINES, *OURS)
    assert run("-E a.cu", settings).words == ("-E", "a.cu", *OURS)
    only_lines = cuda(mode=Archs.KEEP, append=("-lineinfo",))
    assert run("-c a.cu --no-compress", only_lines).words == ("-c", "a.cu", "--no-compress", *LINES, *OURS)
    own = run("-c a.cu --generate-line-info", cuda(mode=Archs.KEEP))
    assert own.words == ("-c", "a.cu", "--generate-line-info", *LINES[1:], *OURS)


def test_a_mapping_that_nvcc_would_split_is_left_to_the_wrapper_of_the_host_compiler() -> None:
    for mapping, words in (("-fx=/a=.", ("-Xcompiler", "-fx=/a=.")), ("-fx=/a b=.", ()), ("-fx=/a,b=.", ())):
        host = HostCompiler(rules("v3"), {}, (mapping,))
        assert rewritten_nvcc(("-c", "a.cu"), cuda(mode=Archs.KEEP), host).words == ("-c", "a.cu", *OURS, *words)


def test_a_line_of_the_log_gives_the_command_back() -> None:
    command = run("-c a.cu -gencode arch=compute_80,code=sm_80").command
    assert command
    assert Command.parse(json.dumps(command.data())) == command
    assert not command.is_changed
    replaced = run("-c a.cu -arch=sm_70", cuda(mode=Archs.REPLACE)).command
    assert replaced
    assert replaced.is_changed
    assert str(run("-dlink a.o -o b.o").command) == f"{Path.cwd()}/b.o: no list -> sm_80,sm_90"


def test_rules_survive_the_way_to_the_wrapper() -> None:
    files = (FileRule("a*.cu", Archs.KEEP), FileRule("b.cu", GpuList.parse("90a,120+ptx")))
    settings = cuda("80,90+ptx,100-virtual", files=files, aliases=(("sm_80",),), append=("-lineinfo",), host="g++")
    assert CudaRules.of_data(settings.data()) == settings
