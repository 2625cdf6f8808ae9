"""What leads a build to native dependencies, and what keeps these out of the compilers and out of the wheels."""

from pathlib import Path

from vbuild.build.prefixes import Prefix, left_to_compilers, prefix_variables
from vbuild.hardware.cpu import Cpu

V3 = Cpu.parse("x86-64-v3")
GMP, FLINT = (Prefix(name, "0" * 64, Path("/cache") / name, V3, f"{name} 1.0 by cmake") for name in ("gmp", "flint"))


def test_each_variable_has_the_prefixes_before_what_it_had() -> None:
    before = {"PATH": "/bin", "CPATH": "/own", "LDFLAGS": "-s"}
    assert prefix_variables((GMP, FLINT), before, runs=True) == {
        "PKG_CONFIG_PATH": ":".join(
            f"/cache/{name}/{folder}/pkgconfig" for name in ("gmp", "flint") for folder in ("lib", "lib64", "share")
        ),
        "CMAKE_PREFIX_PATH": "/cache/gmp:/cache/flint",
        "CPATH": "/cache/gmp/include:/cache/flint/include:/own",
        "LIBRARY_PATH": "/cache/gmp/lib:/cache/gmp/lib64:/cache/flint/lib:/cache/flint/lib64",
        "PATH": "/cache/gmp/bin:/cache/flint/bin:/bin",
        "LD_LIBRARY_PATH": "/cache/gmp/lib:/cache/gmp/lib64:/cache/flint/lib:/cache/flint/lib64",
        "LDFLAGS": "-Wl,-rpath-link,/cache/gmp/lib -Wl,-rpath-link,/cache/gmp/lib64 "
        "-Wl,-rpath-link,/cache/flint/lib -Wl,-rpath-link,/cache/flint/lib64 -s",
    }


def test_zig_is_told_by_flags() -> None:
    assert prefix_variables((GMP,), {}, runs=True, is_zig=True)["LDFLAGS"] == "-L/cache/gmp/lib -L/cache/gmp/lib64"


def test_compilers_load_what_they_would_without() -> None:
    for own in ({"LD_LIBRARY_PATH": "/own:/other"}, {}):
        found = prefix_variables((GMP, FLINT), own, runs=True)
        assert left_to_compilers((GMP, FLINT), found) == {"LD_LIBRARY_PATH": own.get("LD_LIBRARY_PATH", "")}
