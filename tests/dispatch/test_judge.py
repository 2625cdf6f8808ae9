"""Code chosen at run time, as compilers and people write it, against code that merely needs too much."""

import re
from collections.abc import Callable, Mapping

import pytest

from tests.factories.elf import MODULE, SUM, shared_object, stripped
from vbuild.dispatch.isa import Isa
from vbuild.dispatch.judge import Baseline, Dispatch, Judged, Reason, named_rank
from vbuild.dispatch.reach import Doubt
from vbuild.elf.code import Elf

VECTOR = '__asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2")'
ZMM = '__asm__ volatile("vpaddd %zmm0, %zmm1, %zmm2")'
ASKS = 'int asks(void) { int a = 0, b, c, d; __asm__("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(d)); return d; }'
NOINLINE = "__attribute__((noinline, noclone))"

# as OpenSSL's: the low word is returned, the others are written behind a pointer, which is cleared as a whole first
WORDS = f"""
#include <stdlib.h>
{NOINLINE} unsigned ask(unsigned *words) {{
    unsigned a = 7, b, c = 0, d;
    __asm__ volatile("movq $0, (%0)" :: "r"(words + 1) : "memory");
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    words[1] = b;
    words[2] = c;
    a = 1, c = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if (!(c >> 27 & 1)) words[1] &= ~(1 << 5);
    return c;
}}
unsigned words[10] __attribute__((visibility("hidden")));
{NOINLINE} static int fast(int x) {{ {VECTOR}; return x; }}
int work(int x) {{ return words[1] & 1 << 5 ? fast(x) : x; }}
int more(int x) {{ unsigned long both; __builtin_memcpy(&both, words + 1, 8); return both & 1 << 5 ? fast(x) : x; }}
"""
# a number for each word, with colons between them
WALKED = """
    unsigned *to = words;
    for (; *text; to += 2) {
        unsigned long number = strtoul(text, &text, 0);
        *(unsigned long *)to = *text == '~' ? *(unsigned long *)to & ~number : number;
        text += *text == ':';
        if (to == words + 8) break;
    }
"""


def judged(data: bytes, *, level: int = 0, path: str = "demo.so", allow: str | None = None) -> tuple[Judged, ...]:
    """Every function above the level of that rank."""
    elf = Elf.parse(data)
    dispatch = Dispatch({path: (elf, Isa.scan(elf))})
    return dispatch.judged(path, level, allow=(re.compile(allow),) if allow else ())


def verdicts(
    data: bytes, *, level: int = 0, path: str = "demo.so", allow: str | None = None
) -> Mapping[str, Reason | None]:
    """Why each function above the level of that rank is accepted, by name."""
    return {str(one.isa.region): one.reason for one in judged(data, level=level, path=path, allow=allow)}


def test_clones_made_by_the_compiler_are_accepted() -> None:
    source = """
    __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
    void add(float *restrict a, const float *restrict b) { for (int i = 0; i < 1024; i++) a[i] += b[i]; }
    """
    found = verdicts(shared_object(source))
    assert found == {"add.avx2": Reason.TESTED, "add.arch_x86_64_v4": Reason.TESTED}


@pytest.mark.parametrize("finish", [lambda data: data, stripped])
def test_what_is_called_after_asking_the_processor_is_accepted(finish: Callable[[bytes], bytes]) -> None:
    source = f"""
    {NOINLINE} static int helper(int x) {{ {VECTOR}; return x; }}
    {NOINLINE} static int fast(int x) {{ {VECTOR}; return helper(x) + helper(x + 1); }}
    int work(int x) {{ return __builtin_cpu_supports("avx2") ? fast(x) : x; }}
    """
    assert list(verdicts(finish(shared_object(source))).values()) == [Reason.TESTED, Reason.TESTED]


def test_a_helper_that_other_code_calls_as_well_is_a_violation() -> None:
    source = f"""
    {NOINLINE} static int helper(int x) {{ {VECTOR}; return x; }}
    {NOINLINE} static int fast(int x) {{ {VECTOR}; return helper(x); }}
    int work(int x) {{ return __builtin_cpu_supports("avx2") ? fast(x) : x; }}
    int other(int x) {{ return helper(x) + 1; }}
    """
    assert verdicts(shared_object(source)) == {"helper": None, "fast": Reason.TESTED}


def test_a_violation_says_what_leads_to_it_and_which_instruction_it_is() -> None:
    source = f"""
    {NOINLINE} static int fast(int x) {{ {VECTOR}; return x * 3; }}
    {NOINLINE} static int middle(int x) {{ return fast(x) + 1; }}
    int work(int x) {{ return middle(x) + 2; }}
    """
    (one,) = judged(shared_object(source))
    assert (one.way, one.doubt) == (("work", "middle", "fast"), None)
    assert [(use.feature, use.instruction) for use in one.uses] == [("AVX2", "vpaddd ymm2,ymm1,ymm0")]


@pytest.mark.parametrize(
    ("condition", "doubt"),
    [
        ("x > 3", None),
        ("getpid() > 1", None),
        ("x == 1 || getpid() * x > 7", None),
        ("given", Doubt.UNCLEAR),
        ("*place > 3", Doubt.UNCLEAR),
        ("sysconf(84) > 1", Doubt.UNCLEAR),
        ("found()", Doubt.UNCLEAR),
        ('__builtin_cpu_supports("sse4.2")', None),
    ],
)
def test_code_is_shown_to_be_unguarded_where_conditions_have_nothing_to_do_with_the_cpu(
    condition: str, doubt: Doubt | None
) -> None:
    source = f"""
    {ASKS}
    int given, getpid(void); long sysconf(int); int *volatile place;
    {NOINLINE} static int found(void) {{ return given >> 3; }}
    {NOINLINE} static int fast(int x) {{ {VECTOR}; return x; }}
    {NOINLINE} static int middle(int x, int y) {{ if (y > 2) return fast(x) + 1; return x; }}
    int work(int x) {{ int r = 0; for (int i = 0; i < 3; i++) {{ if ({condition}) r += middle(x, i + x); r ^= x; }}
    return r; }}
    """
    (one,) = judged(shared_object(source, "-O1"))
    assert (one.reason, one.doubt) == (None, doubt)


def test_a_table_is_code_s_own_where_the_index_comes_from_a_test() -> None:
    source = f"""
    {NOINLINE} static void slow(void) {{}}
    {NOINLINE} static void fast(void) {{ {VECTOR}; }}
    static void (*const table[])(void) = {{slow, fast}};
    void work(void) {{ table[__builtin_cpu_supports("avx2") != 0](); }}
    """
    assert verdicts(shared_object(source)) == {"fast": Reason.TESTED}
    wrong = source.replace('__builtin_cpu_supports("avx2") != 0', '__builtin_cpu_supports("avx2") == 0')
    assert verdicts(shared_object(wrong)) == {"fast": None}


def test_a_test_explains_no_more_than_it_shows() -> None:
    source = f"""
    {NOINLINE} static int wide(int x) {{ {ZMM}; return x; }}
    {NOINLINE} static int fast(int x) {{ {VECTOR}; return x + 1; }}
    int work(int x) {{ return __builtin_cpu_supports("avx2") ? wide(x) + fast(x) : x; }}
    """
    assert verdicts(shared_object(source)) == {"wide": None, "fast": Reason.TESTED}


def test_a_guard_in_another_library_counts() -> None:
    guard = 'int has_avx2(void) { return __builtin_cpu_supports("avx2"); }'
    source = f"""
    {NOINLINE} static int fast(int x) {{ {VECTOR}; return x; }}
    int has_avx2(void); int work(int x) {{ return has_avx2() ? fast(x) : x; }}
    """
    files = {"demo.so": Elf.parse(shared_object(source)), "guard.so": Elf.parse(shared_object(guard))}
    dispatch = Dispatch({path: (elf, Isa.scan(elf)) for path, elf in files.items()})
    assert [one.reason for one in dispatch.judged("demo.so", 0)] == [Reason.TESTED]
    alone = Dispatch({"demo.so": (files["demo.so"], Isa.scan(files["demo.so"]))})
    assert [one.reason for one in alone.judged("demo.so", 0)] == [None]


def test_what_a_build_without_flags_has_too_is_known_named_or_not() -> None:
    source = f"void dot(int *a) {{ {VECTOR}; }} void add(int *a) {{ if (*a) {ZMM}; }}"
    baseline = Baseline(Elf.parse(shared_object(source.replace(ZMM, "*a = 1"), "-march=x86-64-v2")))
    found = {str(one.isa.region): baseline.has(one.isa, one.features) for one in judged(shared_object(source))}
    assert found == {"dot": True, "add": False}
    clean = stripped(shared_object(f"static {source}{MODULE}", "-g0"))
    assert all(Baseline(Elf.parse(clean)).has(one.isa, one.features) for one in judged(clean))


def test_a_function_of_rust_is_the_same_whatever_hash_its_flags_gave_it() -> None:
    name, other = (f"_ZN4demo3dot17h{end}" for end in ("0123456789abcdefE", "fedcba9876543210E.316"))
    source = f'void dot(void) __asm__("{name}"); void dot(void) {{ {VECTOR}; }}'
    baseline = Baseline(Elf.parse(shared_object(source.replace(name, other))))
    (one,) = judged(shared_object(source))
    assert baseline.has(one.isa, one.features)
    assert not Baseline(Elf.parse(shared_object(source.replace("3dot", "3add")))).has(one.isa, one.features)


def test_a_pattern_allows_a_function_or_a_library() -> None:
    data = shared_object(f"void dot(void) {{ {VECTOR}; }}")
    assert verdicts(data, allow="^dot$") == {"dot": Reason.ALLOWED}
    assert verdicts(data, allow=r"demo\.so") == {"dot": Reason.ALLOWED}
    assert verdicts(data, allow="other") == {"dot": None}


def test_flags_that_leaked_are_violations_in_every_function() -> None:
    found = verdicts(shared_object(SUM, "-march=x86-64-v3"), level=1)
    assert found == {"sum": None, "scale": None}


def chosen(source: str) -> set[Reason | None]:
    return set(verdicts(stripped(shared_object(WORDS + source, "-O2"))).values())


@pytest.mark.parametrize("written", [WALKED, "words[atoi(text)] = atoi(text + 1);", "words[atoi(text)] &= 2;"])
def test_what_the_environment_writes_is_somebody_s_choice(written: str) -> None:
    source = f"""
    __attribute__((constructor)) void start(void) {{
        char *text = getenv("DEMO_CAPABILITIES");
        if (text) {{ {written} }}
        else words[0] = ask(words);
    }}
    """
    assert chosen(source) == {Reason.TESTED}


def test_a_structure_that_is_filled_with_a_number_tells_nothing_any_more() -> None:
    source = f"""
    #include <stdlib.h>
    #include <string.h>
    static struct state {{ char name[300]; int has; }} *kept;
    {NOINLINE} static int fast(int x) {{ {VECTOR}; return x; }}
    __attribute__((constructor)) static void start(void) {{
        kept = calloc(1, sizeof *kept);
        kept->has = __builtin_cpu_supports("avx2");
    }}
    {NOINLINE} static int inner(struct state *state, int x) {{ return state->has ? fast(x) : x; }}
    int run(int x) {{ return inner(kept, x); }}
    int more(int x) {{ memset(kept, 1, sizeof *kept); return inner(kept, x); }}
    """
    assert set(verdicts(stripped(shared_object(source, "-O0"))).values()) == {None}


@pytest.mark.parametrize(
    ("flag", "doubt"), [('__builtin_cpu_supports("avx2")', Doubt.KEPT), ("atoi(text)", Doubt.UNCLEAR)]
)
def test_an_answer_in_a_structure_on_the_stack_may_be_what_others_find_there(flag: str, doubt: Doubt) -> None:
    source = f"""
    #include <stdlib.h>
    struct state {{ char name[300]; int has; int size; }};
    {NOINLINE} static int fast(int x) {{ {VECTOR}; return x; }}
    static int inner(struct state *state, int x) {{ return state->has ? fast(x) : x; }}
    static int other(struct state *state, int x) {{ return state->size + x; }}
    static int (*const ways[])(struct state *, int) = {{inner, other}};
    int run(int x, int way, char *text) {{
        struct state state;
        __builtin_cpu_init();
        state.name[0] = 0, state.size = x, state.has = !!{flag};
        return ways[way](&state, x) + __builtin_cpu_supports("sse2");
    }}
    """
    assert {one.doubt for one in judged(stripped(shared_object(source, "-O2")))} == {doubt}


@pytest.mark.parametrize("written", [WALKED, "words[atoi(text)] = atoi(text + 1);"])
def test_what_a_caller_writes_is_not(written: str) -> None:
    source = f"""
    __attribute__((constructor)) void start(void) {{ words[0] = ask(words); }}
    void set(char *text) {{ {written} }}
    """
    assert chosen(source) == {None}


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


ASK = '__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));'
AVX2_BIT = f"unsigned a = 7, b, c = 0, d; {ASK}"
XGETBV = 'unsigned low, high; __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));'
FMA = '__asm__ volatile("vfmadd231ps %ymm0, %ymm1, %ymm2")'


@pytest.mark.parametrize(
    ("body", "doubt", "features"),
    [
        # one feature implies no other, but where the architecture says so
        ('return __builtin_cpu_supports("bmi2") ? fast(x) : x;', Doubt.MASKED, {"AVX2"}),
        ('return __builtin_cpu_supports("avx2") ? fused(x) : x;', Doubt.MASKED, {"FMA"}),
        ('return __builtin_cpu_supports("avx512f") ? fused(x) + fast(x) : x;', None, set()),
        # a Pentium of that generation has no AVX
        ('return __builtin_cpu_is("haswell") ? fast(x) : x;', Doubt.ASKED, {"AVX2"}),
        # the system has to save the registers, and XGETBV is there if it says so
        (f"{AVX2_BIT} return b & 1 << 5 ? fast(x) : x;", Doubt.MASKED, {"OSXSAVE"}),
        (f"{AVX2_BIT} {XGETBV} return (low & 6) == 6 && b & 1 << 5 ? fast(x) : x;", False, {"OSXSAVE"}),
        (
            (f"unsigned a = 1, b, c = 0, d; {ASK} if (!(c & 1 << 27)) return x; {XGETBV} if ((low & 6) != 6) return x;"
            f"a = 7, c = 0; {ASK} return b & 1 << 5 ? fast(x) : x;"),
            None,
            set(),
        ),
        ('__asm__ volatile("rdtscp" ::: "rax", "rcx", "rdx"); return x;', False, {"RDTSCP"}),
        # what is on the stack when setjmp returns for the second time was written after the first
        (
            ('volatile int has = __builtin_cpu_supports("avx2"); if (!setjmp(place)) { has = 1; longjmp(place, 1); }'
            "return has ? fast(x) : x;"),
            Doubt.UNCLEAR,
            {"AVX2"},
        ),
        # it tries an instruction
        (f"signal(4, caught); if (!setjmp(place)) {{ {VECTOR}; }} return x;", Doubt.ASKED, {"AVX2"}),
    ],
    ids=["bmi2", "fma", "avx512", "model", "saved", "xgetbv", "right", "rdtscp", "setjmp", "sigill"],
)  # fmt: skip
def test_a_question_shows_what_it_asks_for(body: str, doubt: Doubt | bool | None, features: set[str]) -> None:  # noqa: FBT001
    """A *doubt* of False stands for code that is shown to run without a test, of None for a right test."""
    source = f"""
    #include <setjmp.h>
    #include <signal.h>
    static jmp_buf place;
    static void caught(int number) {{ longjmp(place, number); }}
    {NOINLINE} static int fast(int x) {{ {VECTOR}; return x; }}
    {NOINLINE} static int fused(int x) {{ {FMA}; return x; }}
    void (*handler)(int) __attribute__((visibility("hidden"))) = caught;
    int work(int x) {{ {body} }}
    """
    wrong = [one for one in judged(shared_object(source, "-O1", "-w")) if one.reason is None]
    assert {one.doubt or False for one in wrong} == (set() if doubt is None else {doubt})
    assert set().union(*(one.features for one in wrong)) == features
