"""Each row of the table of promises broken once and kept once, by files of real compilers where they are here."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.factories.arm import arm_object
from tests.factories.clients import UV
from tests.factories.elf import MODULE, linked, object_file, shared_object
from tests.factories.macho_files import ARM64, X86_64, fat, macho
from tests.factories.pe_files import MINGW, pe_file
from tests.factories.tools import needs
from tests.factories.wheels import dist_info_of, wheel
from vbuild.elf.read import Outline, read_facts
from vbuild.publishing.check import check
from vbuild.verification.model import Severity, VerifyRule
from vbuild.verification.verify import verify, with_clashes

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
LINUX, MUSL = "manylinux_2_36_x86_64", "musllinux_1_2_x86_64"
GNU, MACHINE_OF_MUSL = "x86_64-linux-gnu", "x86_64-linux-musl"
AMD64, ARM64_PE, X86 = 0x8664, 0xAA64, 0x14C
THREADED = "static __thread char b[4000]; void *f(void) { return b; }"
ONE_CALL = "int {0}(void); int f(void) {{ return {0}(); }}"
ABSOLUTE = 'int k; int *where(void) { int *p; __asm__("movabs $k, %0" : "=r"(p)); return p; }'


def takes(symbol: str, needs: str | None = None) -> bytes:
    return shared_object(f"void *{symbol}(void); void *PyInit_demo(void) {{ return {symbol}(); }}", needs=needs)


def unstacked() -> bytes:
    """A library whose linker wrote no PT_GNU_STACK."""
    data = bytearray(shared_object(MODULE))
    place = data.index((0x6474E551).to_bytes(4, "little"))
    data[place : place + 4] = bytes(4)
    return bytes(data)


def module(tag: str) -> str:
    return f"demo/_demo.{tag}.so"


# tags and files that break it, what is said, and tags and files that keep it
Case = tuple[VerifyRule, Severity, str, Callable[[], Mapping[str, bytes]], str, str, Callable[[], Mapping[str, bytes]]]
HERE = f"cp311-cp311-{LINUX}"
OWN = module(f"cpython-311-{GNU}")
CASES: tuple[Case, ...] = (
    (
        VerifyRule.EXECUTABLE_STACK,
        ERROR,
        HERE,
        lambda: {OWN: shared_object(MODULE, "-Wl,-z,execstack")},
        "wants an executable stack: glibc 2.41 and newer do not dlopen it",
        f"cp311-cp311-{MUSL}",
        lambda: {module(f"cpython-311-{MACHINE_OF_MUSL}"): shared_object(MODULE, "-Wl,-z,execstack", "-nostdlib")},
    ),
    (
        VerifyRule.EXECUTABLE_STACK,
        ERROR,
        HERE,
        lambda: {OWN: unstacked()},
        "wants an executable stack",
        HERE,
        lambda: {OWN: shared_object(MODULE)},
    ),
    (
        VerifyRule.PAGES,
        WARNING,
        "py3-none-manylinux_2_17_aarch64",
        lambda: {"demo/a.so": arm_object("int f;", "-nostdlib", "-Wl,-z,max-page-size=4096")},
        "has segments aligned to 4K: aarch64 with larger pages, up to 64K, cannot load it",
        "py3-none-manylinux_2_17_aarch64",
        lambda: {"demo/a.so": arm_object("int f;", "-nostdlib", "-Wl,-z,max-page-size=65536")},
    ),
    (
        VerifyRule.TEXTREL,
        WARNING,
        HERE,
        lambda: {"demo/a.so": shared_object(ABSOLUTE, "-Wl,-z,notext")},
        "has relocations in its code (DT_TEXTREL)",
        HERE,
        lambda: {"demo/a.so": shared_object("int k; int *where(void) { return &k; }")},
    ),
    (
        VerifyRule.STATIC_TLS,
        NOTE,
        HERE,
        lambda: {"demo/a.so": shared_object(THREADED, "-ftls-model=initial-exec")},
        "takes 4000 bytes of the static TLS block",
        HERE,
        lambda: {"demo/a.so": shared_object(THREADED)},
    ),
    (
        VerifyRule.ABI,
        ERROR,
        f"cp37-abi3-{LINUX}",
        lambda: {"demo/_demo.abi3.so": takes("PyUnicode_AsUTF8AndSize")},
        "promises the stable ABI, and takes symbols newer than 3.7: PyUnicode_AsUTF8AndSize (3.10)",
        f"cp310-abi3-{LINUX}",
        lambda: {"demo/_demo.abi3.so": takes("PyUnicode_AsUTF8AndSize")},
    ),
    (
        VerifyRule.ABI,
        ERROR,
        f"cp37-abi3-{LINUX}",
        lambda: {"demo/_demo.abi3.so": takes("_PyObject_GetDictPtr")},
        "takes symbols outside of it: _PyObject_GetDictPtr",
        HERE,
        lambda: {OWN: takes("_PyObject_GetDictPtr")},
    ),
    (
        VerifyRule.ABI,
        ERROR,
        f"cp37-abi3-{LINUX}",
        lambda: {"demo/_demo.abi3.so": takes("PyDemo_Own")},
        "takes symbols outside of it: PyDemo_Own",
        f"cp37-abi3-{LINUX}",
        # another package's library may have it
        lambda: {"demo/_demo.abi3.so": takes("PyDemo_Own", needs="libcell.so.6")},
    ),
    (
        VerifyRule.ABI,
        ERROR,
        "cp39-abi3-macosx_11_0_arm64",
        lambda: {"demo/_demo.abi3.so": macho(exports=["PyInit__demo"], taken=["PyType_GetName"])},
        "newer than 3.9: PyType_GetName (3.11)",
        "cp311-abi3-macosx_11_0_arm64",
        lambda: {"demo/_demo.abi3.so": macho(exports=["PyInit__demo"], taken=["PyType_GetName"])},
    ),
    (
        VerifyRule.ABI,
        ERROR,
        "cp311-cp311-win_amd64",
        lambda: {"demo/_demo.pyd": pe_file(needed=["python312.dll"])},
        "needs python312.dll, which not every cp311-cp311 Python has",
        "cp312-cp312-win_amd64",
        lambda: {"demo/_demo.pyd": pe_file(needed=["python312.dll", "python3.dll"])},
    ),
    (
        VerifyRule.DRIVER,
        ERROR,
        f"py3-none-{LINUX}",
        lambda: {"demo.libs/libcuda-1234abcd.so.1": shared_object("int f;", "-Wl,-soname,libcuda-1234abcd.so.1")},
        "is part of the driver",
        f"py3-none-{LINUX}",
        lambda: {"demo/lib/stubs/libcuda.so": shared_object("int f;", "-Wl,-soname,libcuda.so.1")},
    ),
    (
        VerifyRule.MINIMUM_OS,
        ERROR,
        "cp311-cp311-macosx_11_0_arm64",
        lambda: {"demo/_demo.cpython-311-darwin.so": macho(oldest=(14, 0))},
        "is for macOS 14.0 and newer on arm64; the tag promises 11.0",
        "cp311-cp311-macosx_10_9_universal2",
        lambda: {"demo/a.so": fat((X86_64, macho(cpu=X86_64, oldest=(10, 9))), (ARM64, macho(oldest=(11, 0))))},
    ),
    (
        VerifyRule.MACHINE,
        ERROR,
        "cp311-cp311-macosx_11_0_arm64",
        lambda: {"demo/_demo.cpython-311-darwin.so": macho(cpu=X86_64, exports=["PyInit__demo"])},
        "code for x86_64 in a wheel for arm64",
        "cp311-cp311-macosx_11_0_arm64",
        lambda: {"demo/_demo.so": fat((X86_64, macho(cpu=X86_64)), (ARM64, macho()))},
    ),
    (
        VerifyRule.MACHINE,
        ERROR,
        "cp311-cp311-macosx_11_0_universal2",
        lambda: {"demo/_demo.cpython-311-darwin.so": macho(exports=["PyInit__demo"])},
        "code for arm64 in a wheel for arm64, x86_64",
        "cp311-cp311-macosx_11_0_universal2",
        lambda: {"demo/_demo.so": fat((X86_64, macho(cpu=X86_64)), (ARM64, macho()))},
    ),
    (
        VerifyRule.MACHINE,
        ERROR,
        "cp311-cp311-win_amd64",
        lambda: {"demo/_demo.pyd": pe_file(machine=ARM64_PE, exports=["PyInit__demo"])},
        "code for arm64 in a wheel for amd64",
        "cp311-cp311-win_amd64",
        lambda: {"demo/_demo.pyd": pe_file(exports=["PyInit__demo"])},
    ),
    (
        # what injects code into other processes has tools for each kind of them
        VerifyRule.MACHINE,
        WARNING,
        "py3-none-win_amd64",
        lambda: {"demo/a.dll": pe_file(), "demo/inject_x86.dll": pe_file(machine=X86)},
        "code for x86 in a wheel for amd64",
        "py3-none-win32",
        lambda: {"demo/a.dll": pe_file(machine=X86)},
    ),
    (
        VerifyRule.EXTENSION,
        ERROR,
        HERE,
        lambda: {module(f"cpython-311-{MACHINE_OF_MUSL}"): shared_object(MODULE)},
        f"is named for {MACHINE_OF_MUSL}: no CPython of {LINUX} looks for it",
        HERE,
        lambda: {module(f"cpython-311-{MACHINE_OF_MUSL}"): shared_object(MODULE), OWN: shared_object(MODULE)},
    ),
    (
        VerifyRule.EXTENSION,
        ERROR,
        f"cp311-cp311-{MUSL}",
        lambda: {OWN: shared_object(MODULE, "-nostdlib")},
        f"is named for {GNU}: no CPython of {MUSL} looks for it",
        f"cp310-none-{MUSL}",  # before 3.11, Python calls musl gnu
        lambda: {module(f"cpython-310-{GNU}"): shared_object(MODULE, "-nostdlib")},
    ),
    (
        VerifyRule.EXTENSION,
        ERROR,
        "cp311-cp311-win_arm64",
        lambda: {"demo/_demo.cp311-win_amd64.pyd": pe_file(machine=ARM64_PE)},
        "is named for win_amd64: no CPython of win_arm64 looks for it",
        "cp311-cp311-win_arm64",
        lambda: {"demo/_demo.cp311-win_arm64.pyd": pe_file(machine=ARM64_PE)},
    ),
    (
        VerifyRule.EXTENSION,
        ERROR,
        "cp39-abi3-win_amd64",
        lambda: {"demo/_demo.abi3.pyd": pe_file(exports=["PyInit__demo"])},
        "is named .abi3.pyd, for which no CPython looks",
        "cp39-abi3-win_amd64",
        lambda: {"demo/_demo.pyd": pe_file(exports=["PyInit__demo"])},
    ),
    (
        VerifyRule.MACHINE,
        WARNING,
        "py3-none-win_amd64",
        lambda: {"demo/a.so": shared_object(MODULE)},
        "none of its compiled files is for windows, which loads no other",
        "py3-none-win_amd64",
        lambda: {"demo/a.so": shared_object(MODULE), "demo/a.dll": pe_file()},
    ),
    (
        VerifyRule.SYMBOL_VERSION,
        ERROR,
        "py3-none-manylinux_2_17_x86_64",
        lambda: {"demo/a.so": shared_object(ONE_CALL.format("getrandom"))},
        "needs symbols that are newer than manylinux_2_17_x86_64: GLIBC_2.25 (getrandom)",
        "py3-none-manylinux_2_28_x86_64",
        lambda: {"demo/a.so": shared_object(ONE_CALL.format("getrandom"))},
    ),
    (
        VerifyRule.TAG,
        ERROR,
        f"cp315t-abi3t-{LINUX}",
        dict,
        f"no CPython has the tag cp315t-abi3t-{LINUX}: installers skip it",
        f"cp315-abi3t-{LINUX}",
        dict,
    ),
    (
        VerifyRule.TAG,
        ERROR,
        "cp311-cp311-macosx_11_3_arm64",  # from 11 on there are no minor versions
        dict,
        "no CPython has the tag",
        "cp37-cp37m-macosx_10_13_intel",
        dict,
    ),
    (
        VerifyRule.TAG,
        ERROR,
        f"cp3{'9' * 20}-abi3-{LINUX}",
        dict,
        "no CPython has the tag",
        f"py2.py3-none-{LINUX}",
        dict,
    ),
    (
        VerifyRule.UNDEFINED,
        ERROR,
        f"py3-none-{MUSL}",
        lambda: {"demo/a.so": shared_object(ONE_CALL.format("__cxa_thread_atexit_impl"), "-nostdlib")},
        "needs symbols that musl does not have: __cxa_thread_atexit_impl",
        f"py3-none-{MUSL}",
        lambda: {"demo/a.so": shared_object(ONE_CALL.format("__cxa_atexit"), "-nostdlib")},
    ),
    (
        VerifyRule.UNDEFINED,
        ERROR,
        f"py3-none-{MUSL}",
        lambda: {"demo/a.so": shared_object(ONE_CALL.format("malloc_trim"), "-nostdlib")},
        "needs symbols that musl does not have: malloc_trim",
        f"py3-none-{MUSL}",
        lambda: {
            "demo/a.so": shared_object(
                ONE_CALL.format("fopen64") + ONE_CALL.replace("int f", "int g").format("of_the_program"), "-nostdlib"
            )
        },
    ),
    (
        VerifyRule.UNDEFINED,
        ERROR,
        f"py3-none-{MUSL}",
        lambda: {"demo/a.so": shared_object(ONE_CALL.format("gnu_get_libc_version"))},
        "needs symbols that musl does not have: gnu_get_libc_version",
        f"py3-none-{MUSL}",
        lambda: {"demo/a.so": shared_object(ONE_CALL.format("getpid"))},
    ),
    (
        VerifyRule.FILE_NAME,
        ERROR,
        "py3-none-any",
        lambda: {"demo/aux.py": b"", "demo/a?.txt": b"", "demo/COM1.tar.gz": b""},
        "no file of Windows can have this name: it does not install there",
        f"py3-none-{LINUX}",
        lambda: {"demo/aux.py": b"", "demo/auxiliary.py": b"", "demo/com.py": b""},
    ),
)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=f"{case[0]}-{case[2]}",
            marks=[needs("aarch64-linux-gnu-gcc")] if case[2].endswith("aarch64") else [],
        )
        for case in CASES
    ],
)
def test_each_promise_is_found_broken_and_found_kept(tmp_path: Path, case: Case) -> None:
    rule, severity, tags, broken, what, kept_tags, kept = case
    made = wheel(tmp_path / "broken", f"demo-1.0-{tags}.whl", broken())
    findings = [finding for finding in verify(made).findings if finding.rule is rule]
    assert [(finding.severity, what in finding.what) for finding in findings] == [(severity, True)]
    fine = wheel(tmp_path / "kept", f"demo-1.0-{kept_tags}.whl", kept())
    assert not [finding for finding in verify(fine).findings if finding.rule is rule]
    problems = [problem for problem in check(tmp_path / "broken").problems if problem.rule == rule]
    assert [problem.severity for problem in problems] == ([] if severity is NOTE else [severity])


@needs(f"{MINGW}gcc", f"{MINGW}dlltool")
def test_the_stable_abi_of_windows_modules_is_compared_by_name(tmp_path: Path) -> None:
    symbols = ("PyUnicode_AsUTF8AndSize", "PyLong_FromLong")
    (tmp_path / "python3.def").write_text("\n".join(["LIBRARY python3.dll", "EXPORTS", *symbols]))
    (tmp_path / "a.c").write_text(
        "".join(f"void {symbol}(void);" for symbol in symbols)
        + "void PyInit_a(void) {"
        + "".join(f"{symbol}();" for symbol in symbols)
        + "}"
    )
    for command in (
        [f"{MINGW}dlltool", "-d", "python3.def", "-l", "libpython3.a"],
        [f"{MINGW}gcc", "-shared", "a.c", "-o", "a.pyd", "-L.", "-lpython3"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True)
    made = wheel(tmp_path, "demo-1.0-cp39-abi3-win_amd64.whl", {"demo/a.pyd": (tmp_path / "a.pyd").read_bytes()})
    (found,) = (finding for finding in verify(made).findings if finding.rule is VerifyRule.ABI)
    assert found.what.endswith("takes symbols newer than 3.9: PyUnicode_AsUTF8AndSize (3.10)")


@pytest.mark.parametrize(
    ("stated", "severity", "what"),
    [
        ("cp311-cp311-linux_x86_64.manylinux_2_17_x86_64", WARNING, "has cp311-cp311-linux_x86_64, which"),
        (
            "cp312-cp312-linux_x86_64",
            ERROR,
            "has cp312-cp312-linux_x86_64, which the file name has not: where these do not fit, uv",
        ),
        ("cp311-cp311-manylinux_2_17_x86_64", WARNING, "lacks cp311-cp311-manylinux2014_x86_64 of the file name"),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", None, ""),
        ("py3-none-any", WARNING, "has py3-none-any, which the file name has not"),
        ("cp311", ERROR, "its tags cannot be read: Tag 'cp311', expected python-abi-platform"),
    ],
)
def test_wheel_states_the_tags_of_its_file_name(
    tmp_path: Path, stated: str, severity: Severity | None, what: str
) -> None:
    name = "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    path = f"{dist_info_of(name)}/WHEEL"
    made = wheel(tmp_path, name, {path: f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {stated}\n"})
    findings = [finding for finding in verify(made).findings if finding.rule is VerifyRule.TAG]
    assert [(one.severity, one.places) for one in findings] == ([(severity, (path,))] if severity else [])
    assert all(what in one.what for one in findings)


def using(project: str, answer: int, name: str) -> dict[str, bytes]:
    library = shared_object(f"int answer(void) {{ return {answer}; }}", f"-Wl,-soname,{name}")
    consumer = linked("int answer(void); int PyInit_x(void) { return answer(); }", libraries=((name, library),))
    return {f"{project}/_{project}.so": consumer, f"{project}.libs/{name}": library}


def test_two_projects_that_bring_one_name_with_two_contents_are_named(tmp_path: Path) -> None:
    def made(project: str, answer: int, tags: str = HERE, name: str = "libldap.so.2") -> Path:
        return wheel(tmp_path, f"{project}-1.0-{tags}.whl", using(project, answer, name))

    wheels = [made("pa", 111), made("pb", 222), made("pc", 111), made("pd", 5, f"cp312-cp312-{LINUX}")]
    wheels += [made("pe", 1, name="libgrafted-1a2b3c4d.so.2"), made("pf", 2, name="libgrafted-1a2b3c4d.so.2")]
    wheels += [made("pg", 1, name="libcufft.so.11"), made("ph", 2, name="libcufft.so.11")]
    verdicts = with_clashes(map(verify, wheels))
    clashes = {
        (verdict.wheel.name[:2], finding.severity, finding.places)
        for verdict in verdicts
        for finding in verdict.findings
        if finding.rule is VerifyRule.CLASH
    }
    assert clashes == {
        *((project, ERROR, (f"{project}.libs/libldap.so.2",)) for project in ("pa", "pb", "pc")),
        # whose maker promises that one will do for all
        *((project, WARNING, (f"{project}.libs/libcufft.so.11",)) for project in ("pg", "ph")),
    }
    named = {(one.severity, one.places) for one in check(tmp_path).problems if one.rule == "soname-clash"}
    files = [path.name for path in wheels]
    assert named == {(ERROR, tuple(files[:3])), (WARNING, tuple(files[6:]))}


def test_what_cannot_be_read_is_not_checked(tmp_path: Path) -> None:
    made = wheel(tmp_path, "demo-1.0-cp311-cp311-win_amd64.whl", {"demo/_demo.pyd": b"MZ" + bytes(70)})
    (found,) = (one for one in verify(made).findings if one.rule is VerifyRule.UNREAD)
    assert (found.severity, found.what.startswith("what its tags promise is not checked: ")) == (WARNING, True)
    assert [problem.rule for problem in check(tmp_path).problems if problem.rule == "unread"] == ["unread"]


def test_symbols_are_found_as_loaders_find_them_also_without_sections() -> None:
    whole = shared_object(MODULE + "void *malloc(unsigned long); void *f(void) { return malloc(1); }")
    bare = bytearray(whole)
    bare[40:48], bare[58:64] = bytes(8), bytes(6)
    for data in (whole, bytes(bare)):
        (facts,) = read_facts(data)
        assert ("malloc", "GLIBC_2.2.5", "libc.so.6") in {(one.name, one.version, one.library) for one in facts.imports}
        assert (facts.modules, "f" in facts.exported) == (("demo",), True)


def test_what_is_linked_later_wants_no_stack(tmp_path: Path) -> None:
    objects = object_file("int f;", "-Wa,--execstack")
    made = wheel(tmp_path, f"demo-1.0-py3-none-{LINUX}.whl", {"demo/a.o": objects, "demo/a.so": shared_object(MODULE)})
    assert {finding.rule for finding in verify(made).findings} == {VerifyRule.PURE}


def test_a_note_that_runs_past_a_segment_ends_that_segment_alone() -> None:
    data = bytearray(shared_object(MODULE))
    outline = Outline.parse(bytes(data))
    assert outline.build_id
    place = data.index(b"GNU\0" + bytes.fromhex(outline.build_id)) - 12
    data[place + 4 : place + 8] = (1 << 20).to_bytes(4, "little")  # as patchelf left behind what it moved
    assert Outline.parse(bytes(data)).build_id is None


@pytest.mark.parametrize(
    ("stated", "severity"), [("cp36-cp36m-manylinux2010_x86_64", ERROR), ("py3-none-any", WARNING)]
)
def test_uv_installs_again_what_is_an_error(tmp_path: Path, stated: str, severity: Severity) -> None:
    name = "demo-1.0-py3-none-manylinux_2_17_x86_64.whl"
    path = f"{dist_info_of(name)}/WHEEL"
    made = wheel(tmp_path, name, {path: f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {stated}\n"})
    assert [one.severity for one in verify(made).findings if one.rule is VerifyRule.TAG] == [severity]
    project = '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["demo"]\n'
    (tmp_path / "pyproject.toml").write_text(f'{project}[tool.uv]\nfind-links = ["."]\nno-index = true\n')
    sync = [UV, "sync", "--offline", "--python", sys.executable]
    texts = [subprocess.run(sync, cwd=tmp_path, check=True, capture_output=True, text=True).stderr for _ in range(2)]
    assert ("Uninstalled 1 package" in texts[1]) is (severity is ERROR)
