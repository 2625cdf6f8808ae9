"""Code chosen at run time, as compilers and people write it, against code that merely needs too much."""

import re
from collections.abc import Callable, Mapping

import pytest

from tests.factories.elf import MODULE, SUM, shared_object, stripped
from vbuild.elf.code import Elf
from vbuild.elf.dispatch import Baseline, DispatchEvidence, Reason, asks_processor, judged, named_rank
from vbuild.elf.isa import Isa

VECTOR = '__asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2")'
ZMM = '__asm__ volatile("vpaddd %zmm0, %zmm1, %zmm2")'
ASKS = 'int asks(void) { int a = 0, b, c, d; __asm__("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(d)); return d; }'
NOINLINE = "__attribute__((noinline, noclone))"


def verdicts(
    data: bytes, *, level: int = 0, path: str = "demo.so", baseline: bytes | None = None, allow: str | None = None
) -> Mapping[str, Reason | None]:
    """Why each function above the level of that rank is accepted, by name."""
    elf = Elf.parse(data)
    isa = Isa.scan(elf)
    evidence = DispatchEvidence(
        path,
        asks_processor(elf, isa),
        Baseline(Elf.parse(baseline)) if baseline else None,
        (re.compile(allow),) if allow else (),
    )
    return {str(one.isa.region): one.reason for one in judged(elf, isa, level, evidence=evidence)}


def test_clones_made_by_the_compiler_are_accepted() -> None:
    source = """
    __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
    void add(float *restrict a, const float *restrict b) { for (int i = 0; i < 1024; i++) a[i] += b[i]; }
    """
    found = verdicts(shared_object(source))
    assert found["add.avx2"] is Reason.NAMED
    assert found["add.arch_x86_64_v4"] is Reason.NAMED
    assert all(found.values())


@pytest.mark.parametrize("finish", [lambda data: data, stripped])
def test_what_an_ifunc_resolver_chooses_is_accepted_even_without_names(finish: Callable[[bytes], bytes]) -> None:
    source = f"""
    {NOINLINE} static int fast(int x) {{ {VECTOR}; return x; }}
    static int slow(int x) {{ return x; }}
    static int (*choose(void))(int) {{ __builtin_cpu_init(); return __builtin_cpu_supports("avx2") ? fast : slow; }}
    int work(int x) __attribute__((ifunc("choose")));
    """
    assert list(verdicts(finish(shared_object(source))).values()) == [Reason.UNREACHED]


@pytest.mark.parametrize("finish", [lambda data: data, stripped])
def test_what_is_called_after_asking_the_processor_is_accepted(finish: Callable[[bytes], bytes]) -> None:
    source = f"""
    {NOINLINE} static int helper(int x) {{ {VECTOR}; return x; }}
    {NOINLINE} static int fast(int x) {{ {VECTOR}; return helper(x) + helper(x + 1); }}
    int work(int x) {{ return __builtin_cpu_supports("avx2") ? fast(x) : x; }}
    """
    assert list(verdicts(finish(shared_object(source))).values()) == [Reason.UNREACHED, Reason.UNREACHED]


def test_a_helper_that_other_code_calls_as_well_is_a_violation() -> None:
    source = f"""
    {ASKS}
    {NOINLINE} static int helper(int x) {{ {VECTOR}; return x; }}
    int work_avx2(int x) {{ {VECTOR}; return helper(x); }}
    int work(int x) {{ return helper(x) + 1; }}
    """
    assert verdicts(shared_object(source)) == {"helper": None, "work_avx2": Reason.NAMED}


def test_a_table_that_only_a_dispatcher_uses_is_followed() -> None:
    source = f"""
    {ASKS}
    static void fast(void) {{ {VECTOR}; }}
    static void faster(void) {{ {VECTOR}; __asm__("nop"); }}
    static void (*const table[])(void) = {{fast, faster}};
    void open_haswell(int i) {{ table[i](); }}
    """
    assert set(verdicts(shared_object(source)).values()) == {Reason.UNREACHED}
    assert set(verdicts(shared_object(source.replace("open_haswell", "open_any"))).values()) == {None}


def test_a_name_explains_no_more_than_it_says() -> None:
    source = f"{ASKS} void dot_avx2(void) {{ {ZMM}; }} void dot_avx512(void) {{ {ZMM}; }}"
    assert verdicts(shared_object(source)) == {"dot_avx2": None, "dot_avx512": Reason.NAMED}


def test_names_count_for_nothing_where_nothing_asks_the_processor() -> None:
    source = f"void dot_avx2(void) {{ {VECTOR}; }}"
    assert verdicts(shared_object(source)) == {"dot_avx2": None}
    assert verdicts(shared_object(source), path="demo_avx2.so") == {"dot_avx2": None}


def test_a_library_is_accepted_by_its_own_name() -> None:
    source = f"{ASKS} void dot(void) {{ {VECTOR}; }}"
    assert verdicts(shared_object(source), path="demo/fuzz_avx2.so") == {"dot": Reason.LIBRARY}


def test_what_the_baseline_build_has_too_is_accepted_named_or_not() -> None:
    source = f"{ASKS} void dot(int *a) {{ {VECTOR}; }} void add(int *a) {{ if (*a) {ZMM}; }}"
    clean = shared_object(source.replace(ZMM, "*a = 1"), "-march=x86-64-v2")
    assert verdicts(shared_object(source), baseline=clean) == {"dot": Reason.BASELINE, "add": None}
    found = verdicts(stripped(shared_object(f"static {source}{MODULE}", "-g0")), baseline=stripped(clean))
    assert set(found.values()) <= {Reason.BASELINE, None}


def test_a_pattern_allows_a_function_or_a_library() -> None:
    data = shared_object(f"void dot(void) {{ {VECTOR}; }}")
    assert verdicts(data, allow="^dot$") == {"dot": Reason.ALLOWED}
    assert verdicts(data, allow=r"demo\.so") == {"dot": Reason.ALLOWED}
    assert verdicts(data, allow="other") == {"dot": None}


def test_of_an_extension_module_only_what_python_calls_is_an_entry() -> None:
    source = f"{ASKS} void dot(void) {{ {VECTOR}; }}"
    assert verdicts(shared_object(source)) == {"dot": None}
    assert verdicts(shared_object(source + MODULE)) == {"dot": Reason.UNREACHED}
    called = "void *PyInit_demo(void) { void dot(void); dot(); return 0; }"
    assert verdicts(shared_object(source + called)) == {"dot": None}


def test_flags_that_leaked_are_violations_in_every_function() -> None:
    found = verdicts(shared_object(SUM, "-march=x86-64-v3"), level=1)
    assert found == {"sum": None, "scale": None}


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("dot_avx2", "v3"),
        ("DOUBLE_add_AVX512_SKX", "v4"),
        ("FLOAT_add_X86_V3", "v3"),
        ("sgemm_kernel_ZEN", "v3"),
        ("_ZN6memchr4arch6x86_644avx26memchr3One3new17h0123456789abcdefE", "v3"),
        ("_RNvNtNtCs1_6demo4simd6sse4_13dot", "v2"),
        ("add.arch_haswell", "v3"),
        ("dot.fma", "v3"),
        ("aesni_cbc_encrypt", "v2"),
        ("sort<zmm_vector>", "v4"),
        ("fmax", None),
        ("frozen", None),
        ("atomic_add", None),
        ("citizen_nanoseconds", None),
        ("sgemv_kernel_4x8", None),
        ("dot_sse2", None),
    ],
)
def test_names_say_a_level_where_they_mean_one(name: str, level: str | None) -> None:
    assert named_rank(name) == {None: 0, "v2": 1, "v3": 2, "v4": 3}[level]
