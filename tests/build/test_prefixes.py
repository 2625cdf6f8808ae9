"""What leads a build to native dependencies, and what keeps these out of the compilers and out of the wheels."""

import os
from pathlib import Path

from vbuild.build.prefixes import Prefix, left_to_compilers, prefix_libraries, prefix_maps, prefix_variables
from vbuild.hardware.cpu import Cpu

V3 = Cpu.parse("x86-64-v3")
GMP, FLINT = (Prefix(name, "0" * 64, Path("/cache") / name, V3, f"{name} 1.0 by cmake") for name in ("gmp", "flint"))


def test_without_prefixes_nothing_is_said() -> None:
    assert prefix_variables((), {"PATH": "/bin", "LDFLAGS": "-s"}, runs=True) == {}
    assert prefix_libraries((), {"LD_LIBRARY_PATH": "/lib"}) == {}
    assert left_to_compilers((), {"LD_LIBRARY_PATH": "/lib"}) == {}
    assert prefix_maps(()) == ()


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


def test_programs_here_load_no_library_that_this_machine_cannot_run() -> None:
    assert "LD_LIBRARY_PATH" not in prefix_variables((GMP,), {}, runs=False)
    assert prefix_libraries((GMP,), {"LD_LIBRARY_PATH": "/own"}) == {
        "LD_LIBRARY_PATH": "/cache/gmp/lib:/cache/gmp/lib64:/own"
    }


def test_zig_is_told_by_flags() -> None:
    assert prefix_variables((GMP,), {}, runs=True, is_zig=True)["LDFLAGS"] == "-L/cache/gmp/lib -L/cache/gmp/lib64"


def test_without_a_path_the_systems_own_stays() -> None:
    assert prefix_variables((GMP,), {}, runs=True)["PATH"] == f"/cache/gmp/bin:{os.defpath}"


def test_compilers_load_what_they_would_without() -> None:
    for own in ({"LD_LIBRARY_PATH": "/own:/other"}, {}):
        found = prefix_variables((GMP, FLINT), own, runs=True)
        assert left_to_compilers((GMP, FLINT), found) == {"LD_LIBRARY_PATH": own.get("LD_LIBRARY_PATH", "")}


def test_paths_in_binaries_say_the_name_alone() -> None:
    assert prefix_maps((GMP,)) == ("-ffile-prefix-map=/cache/gmp=native/gmp",)


def test_a_prefix_says_what_it_is() -> None:
    assert str(GMP) == "gmp for x86-64-v3: gmp 1.0 by cmake"
    assert GMP.data() == {
        "name": "gmp",
        "cpu": "x86-64-v3",
        "about": "gmp 1.0 by cmake",
        "key": "0" * 64,
        "prefix": "/cache/gmp",
    }
