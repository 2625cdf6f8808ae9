"""What a recipe may not say of CUDA and of the host compiler, and the words it is refused with."""

from pathlib import Path

import pytest

from tests.factories.recipes import recipe
from vbuild.errors import VbuildError

CPU = '[matrix]\ncpu = ["x86-64"]\n'
CUDA = '[matrix]\ncuda = [{ toolkit = "13.0", gpus = { sm90 = "90" } }]\n'


def _cuda(*entries: str) -> str:
    return f"[matrix]\ncuda = [{', '.join(f'{{ {entry} }}' for entry in entries)}]\n"


def _gpus(gpus: str, toolkit: str = "13.0") -> str:
    return _cuda(f'toolkit = "{toolkit}", gpus = {gpus}')


ENTRIES = [
    ("[matrix]\ncuda = []", "matrix.cuda: empty; name a toolkit, or leave the key out"),
    ('[matrix]\ncuda = "13.0"', "matrix.cuda: expected an array, got '13.0'"),
    ('[matrix]\ncuda = ["13.0"]', "matrix.cuda[0]: expected a table, got '13.0'"),
    (_cuda("gpus = { sm90 = '90' }"), "matrix.cuda[0].toolkit: missing; expected a string"),
    (_gpus("{ sm90 = '90' }").replace('"13.0"', "13.0"), "matrix.cuda[0].toolkit: expected a string, got 13.0"),
    (
        _gpus("{ sm90 = '90' }", "13"),
        "matrix.cuda[0].toolkit: '13' is not a version of CUDA; expected two numbers with a dot, as in '13.0'",
    ),
    (
        _gpus("{ sm90 = '90' }", "13.0.1"),
        "matrix.cuda[0].toolkit: '13.0.1' is not a version of CUDA; expected two numbers with a dot, as in '13.0'",
    ),
    (
        _cuda("toolkit = { version = '12.4' }, gpus = { sm90 = '90' }"),
        "matrix.cuda[0].toolkit.path: missing; expected a string",
    ),
    (
        _cuda("toolkit = { path = '.' }, gpus = { sm90 = '90' }"),
        "matrix.cuda[0].toolkit.version: missing; expected a string",
    ),
    (
        _cuda("toolkit = { path = 'cuda-12.4', version = '12.4' }, gpus = { sm90 = '90' }"),
        "matrix.cuda[0].toolkit.path: no folder 'cuda-12.4'; paths start where the recipe stands",
    ),
    (
        _cuda("toolkit = { path = '.', version = '12.4', nvcc = '' }, gpus = { sm90 = '90' }"),
        "matrix.cuda[0].toolkit.nvcc: no such key; known here: path, version",
    ),
    (
        _cuda("toolkit = '13.0', gpus = { sm90 = '90' }, sm = '90'"),
        "matrix.cuda[0].sm: no such key; known here: config-settings, env, gpus, libraries, strategy, toolkit",
    ),
    (
        _cuda("toolkit = '13.0', gpus = { sm90 = '90' }, strategy = 'thin'"),
        "matrix.cuda[0].strategy: found 'thin'; expected 'fat' or 'separate'",
    ),
    (
        _cuda("toolkit = '13.0', gpus = { sm90 = '90' }, libraries = ['nccl>=2']"),
        (
            "matrix.cuda[0].libraries[0]: 'nccl>=2' is not a library of CUDA; "
            "expected as in cublas, nccl==2.28.9, or nccl==2.28.9 sha256:…"
        ),
    ),
    (
        _cuda("toolkit = '13.0', gpus = { sm90 = '90' }, libraries = ['nccl==new']"),
        "matrix.cuda[0].libraries[0]: 'nccl==new': 'new' is not a version (PEP 440)",
    ),
    (
        _cuda("toolkit = '13.0', gpus = { sm90 = '90' }, libraries = ['nvidia_cudnn==9', 'nvidia-cudnn']"),
        "matrix.cuda[0].libraries[1]: 'nvidia-cudnn' is there twice",
    ),
    (
        _cuda(
            "toolkit = { path = '.', version = '12.4' }, gpus = { sm90 = '90' }, "
            f"libraries = ['cublas', 'nccl==2.28.9 sha256:{'0' * 64}']"
        ),
        (
            "matrix.cuda[0].libraries[1]: a hash is of a wheel of the package index, and this toolkit is an installed "
            "one; expected nccl==2.28.9"
        ),
    ),
    (
        _cuda("toolkit = '13.0', gpus = { a = '80' }", "toolkit = '13.0', gpus = { b = '90' }"),
        "matrix.cuda[1]: has the toolkit and the libraries of matrix.cuda[0]; expected its groups there",
    ),
    (
        _cuda("toolkit = '13.0', gpus = { sm90 = '90' }, env = { 'A=' = '' }"),
        "matrix.cuda[0].env: 'A=' with '' cannot be an environment variable",
    ),
]
GROUPS = [
    (
        "[matrix]\ncuda = [{ toolkit = '13.0' }, { toolkit = '13.2' }]\n",
        "matrix.cuda[1]: matrix.cuda[0] is for CUDA 13, too, with the same drivers; expected one of each major version",
    ),
    (_gpus("{}"), "matrix.cuda[0].gpus: has no groups; expected labels with their GPUs, as in sm90 = '90'"),
    (
        _gpus("{ sm90 = '' }"),
        "matrix.cuda[0].gpus.sm90: no GPU in the list; expected at least one, as in sm_90 or 8.0,9.0+PTX",
    ),
    (
        _gpus("{ sm90 = [] }"),
        "matrix.cuda[0].gpus.sm90: no GPU in the list; expected at least one, as in sm_90 or 8.0,9.0+PTX",
    ),
    (
        _gpus("{ sm90 = 90 }"),
        "matrix.cuda[0].gpus.sm90: expected a string or an array of strings, got 90",
    ),
    (
        _gpus("{ sm85 = '85' }"),
        "matrix.cuda[0].gpus.sm85: there is no GPU architecture '85'; did you mean sm_86, sm_87, sm_88 or sm_89?",
    ),
    (
        _gpus("{ sm70 = '70' }"),
        "matrix.cuda[0].gpus.sm70: sm_70: CUDA 13.0 cannot compile for it; 9.0 to 12.9 can",
    ),
    (
        _gpus("{ sm120 = '90,120' }", "12.6"),
        "matrix.cuda[0].gpus.sm120: sm_120: CUDA 12.6 cannot compile for it; 12.8 and newer can",
    ),
    (
        _gpus("{ sm100 = '100f' }", "12.8"),
        "matrix.cuda[0].gpus.sm100: sm_100f: CUDA 12.8 cannot compile for it; 12.9 and newer can",
    ),
    (
        _gpus("{ sm90 = '90a+ptx' }"),
        (
            "matrix.cuda[0].gpus.sm90: sm_90a+PTX: PTX for sm_90a alone runs on no later GPU; "
            "expected sm_90a, sm_90+PTX, or both"
        ),
    ),
    (
        _gpus("{ sm90 = [80, 90] }"),
        "matrix.cuda[0].gpus.sm90[0]: expected a string, got 80",
    ),
    (
        _gpus("{ blackwell = '100,100f' }"),
        (
            "matrix.cuda[0].gpus.blackwell: sm_100 and sm_100f: nvcc does not compile for both in one build; "
            "expected sm_100f alone, whose code runs on sm_100 too"
        ),
    ),
    (
        _gpus("{ sm100 = '103f', sm103 = '103,120' }"),
        (
            "matrix.cuda[0]: sm_103 and sm_103f: nvcc does not compile for both in one build; "
            "expected sm_103f alone, whose code runs on sm_103 too"
        ),
    ),
    (
        _gpus("{ sm90 = ['80', 'compute_90a'] }"),
        (
            "matrix.cuda[0].gpus.sm90: compute_90a: PTX for sm_90a alone runs on no later GPU; "
            "expected sm_90a, sm_90+PTX, or both"
        ),
    ),
    (
        _gpus("{ sm89 = 'compute_89' }"),
        (
            "matrix.cuda[0].gpus.sm89: compute_89 is PTX alone, and GPUs ask for PTX of M.0 only, as in 80_virtual; "
            "expected machine code too, as in sm_89"
        ),
    ),
    (
        _gpus("{ SM90 = '90' }"),
        ("matrix.cuda[0].gpus.SM90: 'SM90' cannot be in a variant label; expected a-z, 0-9, _ and ., and not 'null'"),
    ),
    (
        _gpus("{ none = '90' }"),
        "matrix.cuda[0].gpus.none: 'none' stands for builds without CUDA; expected another label",
    ),
    (
        _cuda("toolkit = '13.0', gpus = { a = '80' }", "toolkit = '12.8', gpus = { b = '70', a = '90' }"),
        "matrix.cuda[1].gpus.a: matrix.cuda[0].gpus.a is a group of this label; expected another",
    ),
    (
        _gpus("{ sm90 = '90', h100 = '9.0' }"),
        (
            "matrix.cuda[0].gpus.h100: has the properties of sm90, nvidia :: sm_arch :: 90_real, "
            "nvidia :: cuda_version_lower_bound :: 13.0; expected other GPUs, or one group"
        ),
    ),
    (
        _gpus("{ sm90 = '90', sm90a = '90a' }"),
        (
            "matrix.cuda[0].gpus.sm90a: has the properties of sm90, nvidia :: sm_arch :: 90_real, "
            "nvidia :: cuda_version_lower_bound :: 13.0; expected other GPUs, or one group"
        ),
    ),
    (
        _cuda("toolkit = '12.8', gpus = { a = '80' }", "toolkit = '12.9', gpus = { b = '80' }"),
        (
            "matrix.cuda[1].gpus.b: has the properties of a, nvidia :: sm_arch :: 80_real, "
            "nvidia :: cuda_version_lower_bound :: 12.0; expected other GPUs, or one group"
        ),
    ),
    (
        _gpus("{ x86_64_v3 = '90' }") + 'python = ["3.12"]\ncpu = ["x86-64", "x86-64-v3"]\nplain = "cpu"',
        "matrix: two wheels of Python 3.12 are labelled x86_64_v3; rename a value",
    ),
]
AROUND = [
    (CPU + 'plain = "cpu"', "matrix.plain: 'cpu' would have no effect without matrix.cuda: remove it"),
    (
        CPU + 'plain = ["x86-64-v2", "hwcaps"]',
        "matrix.plain: expected 'cuda', 'cpu', 'hwcaps', or a CPU level as in 'x86-64-v2', got an array",
    ),
    (
        CUDA + 'plain = "none"',
        "matrix.plain: found 'none'; expected 'cuda', 'cpu', 'hwcaps', or a CPU level as in 'x86-64-v2'",
    ),
    (CUDA + 'exclude = [{ cuda = "none" }]', "matrix.exclude[0].cuda: no value 'none'; there are sm90"),
    (
        CUDA + "[matrix.axes.cuda.x]",
        "matrix.axes.cuda: no name for a free axis; expected a-z, 0-9 and _, and none of cpu, cuda, python, label",
    ),
    (CPU + "[build.cuda]\nlineinfo = true", "build.cuda: would have no effect without matrix.cuda"),
    (CUDA + "[build]\ncuda = true", "build.cuda: expected a table, got True"),
    (CUDA + "[build.cuda]\nptx = true", "build.cuda.ptx: no such key; known here: archs, compress, files, lineinfo"),
    (
        CUDA + '[build.cuda]\narchs = "drop"',
        "build.cuda.archs: found 'drop'; expected 'intersect', 'complete', 'replace' or 'keep'",
    ),
    (
        CUDA + '[build.cuda]\ncompress = "zstd"',
        "build.cuda.compress: found 'zstd'; expected 'default', 'none', 'speed', 'balance' or 'size'",
    ),
    (
        CUDA.replace("13.0", "12.6") + '[build.cuda]\ncompress = "size"',
        (
            "build.cuda.compress: 'size' is known to nvcc from CUDA 12.8 on, and the matrix has 12.6; "
            "expected 'default' or 'none'"
        ),
    ),
    (CUDA + "[build.cuda]\nlineinfo = 1", "build.cuda.lineinfo: expected true or false, got 1"),
    (
        CUDA + '[build.cuda.files]\n"a" = "drop"',
        "build.cuda.files.a: found 'drop'; expected 'intersect', 'complete', 'replace', 'keep', or GPUs as in '80,90a'",
    ),
    (
        CUDA + '[build.cuda.files]\n"*.cu" = "70"',
        'build.cuda.files."*.cu": sm_70: CUDA 13.0 cannot compile for it; 9.0 to 12.9 can',
    ),
    (
        CUDA + '[build.cuda.files]\n"*.cu" = true',
        'build.cuda.files."*.cu": expected a string or an array of strings, got True',
    ),
    (CPU + '[build]\nhost = "icc"', "build.host: found 'icc'; expected 'auto', 'system' or 'zig'"),
    (
        CUDA + '[build]\nhost = "zig"',
        "build.host: nvcc does not take zig as its host compiler; expected 'system' with matrix.cuda",
    ),
    (CPU + '[build]\nglibc = "2.28"', "build.glibc: can be chosen only with host = 'zig'"),
    (
        CPU + '[build]\nhost = "zig"\nglibc = "2.5"',
        "build.glibc: '2.5' is not a glibc to build for; expected 2.17 to 2.44",
    ),
    (
        CPU + '[build]\nhost = "zig"\nglibc = "musl"',
        "build.glibc: 'musl' is not a glibc to build for; expected 2.17 to 2.44",
    ),
    (CPU + "[build]\ncache = true", "build.cache: expected a string, got True"),
    (
        CPU + '[build]\ncache = "fscache"',
        "build.cache: found 'fscache'; expected 'auto', 'ccache' or 'none'; did you mean 'ccache'?",
    ),
]


@pytest.mark.parametrize(("text", "message"), [*ENTRIES, *GROUPS, *AROUND])
def test_it_is_refused_before_anything_is_fetched(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(VbuildError) as refused:
        recipe(tmp_path, text)
    assert str(refused.value) == f"{tmp_path}/demo.toml: {message}"
