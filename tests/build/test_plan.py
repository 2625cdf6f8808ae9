"""The plan for each backend and compiler, as values: no compiler is needed."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.factories.plans import GCC, PYTHON, plan
from vbuild.build.plan import BuildBackend, flag_plan, level_rules
from vbuild.errors import BuildError
from vbuild.hardware.cpu import Cpu
from vbuild.toolchain.compilers import CompilerFamily, Rust, zig_cpu

V3 = "-march=x86-64-v3 -mtune=generic"


@pytest.mark.parametrize(
    ("build_backend", "backend"),
    [
        ("setuptools.build_meta", BuildBackend.SETUPTOOLS),
        ("setuptools.build_meta:__legacy__", BuildBackend.SETUPTOOLS),
        ("scikit_build_core.build", BuildBackend.SCIKIT_BUILD_CORE),
        ("scikit_build_core.setuptools.build_meta", BuildBackend.OTHER),
        ("mesonpy", BuildBackend.MESON_PYTHON),
        ("maturin", BuildBackend.MATURIN),
        ("hatchling.build", BuildBackend.OTHER),
        ("poetry.core.masonry.api", BuildBackend.OTHER),
        ("backend:mesonpy", BuildBackend.OTHER),
    ],
)
def test_backends_are_known_by_the_module_they_name(build_backend: str, backend: BuildBackend) -> None:
    assert BuildBackend.named(build_backend) is backend


def test_the_recipes_flags_stay_and_ours_come_behind_them() -> None:
    env = dict(plan("v3", environment={"CFLAGS": "-DX -O2", "RUSTFLAGS": "-g"}).environment)
    assert env["CFLAGS"] == f"-DNDEBUG -O3 -fwrapv -DX -O2 {V3}"
    assert env["CXXFLAGS"] == f"-DNDEBUG -O3 -fwrapv {V3}"
    assert "RUSTFLAGS" not in env
    env = dict(plan("v3", BuildBackend.MESON_PYTHON, environment={"RUSTFLAGS": "-g"}).environment)
    assert env["RUSTFLAGS"] == "-g -C target-cpu=x86-64-v3"


def test_extras_are_added_to_the_level_in_each_compilers_words() -> None:
    cpu = Cpu.parse("x86-64-v4+avx512_bf16+pclmulqdq")
    rules = level_rules(cpu)
    assert rules.compile == ("-march=x86-64-v4", "-mavx512bf16", "-mpclmul", "-mtune=generic")
    assert rules.link == ("-Wl,-z,x86-64-v4",)
    assert rules.rust == ("-C", "target-cpu=x86-64-v4", "-C", "target-feature=+avx512bf16,+pclmulqdq")
    assert {"-mavx512bf16", "-mavx2"} <= set(rules.implied)
    assert zig_cpu(cpu) == "x86_64_v4+avx512bf16+pclmul"


def test_arm_has_versions_and_features() -> None:
    compilers = replace(GCC, machine="aarch64", rust=Rust(PYTHON.path, "aarch64-unknown-linux-gnu"))
    rules = [
        flag_plan(
            Cpu.known("aarch64", level), BuildBackend.MATURIN, compilers=compilers, interpreter=PYTHON, environment={}
        ).wrapper_rules
        for level in ("8a", "8.2a")
    ]
    assert [rule.compile for rule in rules] == [
        ("-march=armv8-a", "-mtune=generic"),
        ("-march=armv8.2-a", "-mtune=generic"),
    ]
    assert [rule.rust for rule in rules] == [(), ("-C", "target-feature=+v8.2a")]
    assert [(rule.link, rule.implied) for rule in rules] == [((), ()), ((), ())]


REFUSALS = [
    (
        lambda: replace(GCC, version=(10, 2)).check(Cpu.parse("x86-64-v3")),
        "gcc 10.2 does not know -march=x86-64-v3; expected gcc 11 or clang 12, or newer: set CC to one",
    ),
    (
        lambda: replace(GCC, family=CompilerFamily.CLANG, version=(11, 0)).check(Cpu.parse("x86-64-v2")),
        "clang 11.0 does not know -march=x86-64-v2; expected gcc 11 or clang 12, or newer: set CC to one",
    ),
    (
        lambda: GCC.check(Cpu.parse("armv8.2-a")),
        (
            "gcc -pthread compiles for x86_64, expected a compiler for aarch64: set CC to one, "
            "or build.host = 'zig' takes one from the package index"
        ),
    ),
    (
        lambda: replace(GCC, rust=None).check(Cpu.parse("x86-64"), rust=True),
        "no Rust (cargo and rustc) on PATH; install it with rustup, or apt-get install cargo",
    ),
]


@pytest.mark.parametrize(("act", "message"), REFUSALS)
def test_what_cannot_be_compiled_is_refused(act: Callable[[], object], message: str) -> None:
    with pytest.raises(BuildError) as caught:
        act()
    assert str(caught.value) == message
