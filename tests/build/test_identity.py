"""The content key of a build: any one input changed changes it, and nothing else does."""

import functools
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from tests.factories.plans import PYTHON
from tests.factories.projects import tree
from tests.factories.recipes import HASH
from vbuild.build import identity
from vbuild.build.identity import BuildKeys, Searched, build_keys, canonical, searched_files
from vbuild.build.job import Job
from vbuild.build.plan import BuildBackend, FlagPlan, WrapperRules
from vbuild.build.source import source_digest, unpacked
from vbuild.build.watching import Looked
from vbuild.errors import BuildError
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.compiling import CudaBuild, CudaSettings, ToolkitSpec
from vbuild.recipe.lock import Lock, LockedRequirement
from vbuild.recipe.model import BuildSettings, Repair
from vbuild.recipe.source import Folder, Git, Sdist
from vbuild.recipe.target import Target
from vbuild.toolchain.compilers import CompilerFamily, Compilers, Rust
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.toolkit import Toolkit

V3 = Cpu.parse("x86-64-v3")
SEARCHED = functools.cache(searched_files)


class Inputs(Struct, frozen=True):
    """All that a key is made of."""

    target: Target
    plan: FlagPlan
    source: str
    settings: BuildSettings
    compilers: Compilers
    interpreter: Interpreter
    repair: Repair
    toolkit: str | None
    environment: dict[str, str]

    def key(self, searched: Searched = SEARCHED) -> str:
        return self.keys(searched).whole

    def keys(self, searched: Searched = SEARCHED) -> BuildKeys:
        toolkit = Toolkit(Dotted(13, 0), Path(), self.toolkit) if self.toolkit else None
        job = Job(self.target, self.settings, self.plan, self.compilers, self.interpreter, toolkit)
        source, environment = self.source, self.environment
        return build_keys(job, source=source, repair=self.repair, environment=environment, searched=searched)


def inputs(folder: Path) -> Inputs:
    """A build with a compiler, a Python and a patch that are in *folder*."""
    folder.mkdir(exist_ok=True)
    toolchain = folder / "home/.rustup/toolchains/stable/bin/rustc"
    toolchain.parent.mkdir(parents=True, exist_ok=True)
    for file in (*(folder / name for name in ("gcc", "python", "ld", "rustc")), toolchain):
        file.write_text(file.name)
        file.chmod(0o755)
        os.utime(file, (1, 1))
    tree(folder, {"home/.cargo/config.toml": "[build]\n"})
    (folder / "a.patch").write_text("--- a\n+++ b\n")
    return Inputs(
        target=Target("x86_64_v3", "3.12", V3, env=(("BLAS", "1"),)),
        plan=FlagPlan(
            V3, BuildBackend.SETUPTOOLS, (("CFLAGS", "-O3"),), (("x", "1"),), WrapperRules(compile=("-march=v3",))
        ),
        source="sdist 1",
        settings=BuildSettings(patches=(folder / "a.patch",), requires=("numpy",), before_build=("make",)),
        compilers=Compilers(
            CompilerFamily.GCC,
            (12, 2),
            "x86_64",
            "gcc",
            programs=(("gcc", (str(folder / "gcc"),)),),
            rust=rust(folder, "1"),
        ),
        interpreter=replace(PYTHON, path=folder / "python"),
        repair=Repair(),
        toolkit=None,
        environment={"PATH": str(folder), "LANG": "C", "HOME": str(folder / "home")},
    )


def rust(folder: Path, commit: str) -> Rust:
    return Rust(folder / "rustc", "x86_64-unknown-linux-gnu", f"rustc 1.95.0\ncommit-hash: {commit}\n")


def _patched(one: Inputs) -> Inputs:
    one.settings.patches[0].write_text("--- a\n+++ c\n")
    return one


def _file(name: str) -> Callable[[Inputs], Inputs]:
    def changed(one: Inputs) -> Inputs:
        os.utime(one.interpreter.path.parent / name, (2, 2))
        return one

    return changed


def _bytes(name: str) -> Callable[[Inputs], Inputs]:
    def changed(one: Inputs) -> Inputs:
        file = one.interpreter.path.parent / name
        file.write_text(f"{name} of another release")
        os.utime(file, (1, 1))
        return one

    return changed


def _configured(one: Inputs) -> Inputs:
    (one.interpreter.path.parent / "home/.cargo/config.toml").write_text("[profile.release]\nlto = true\n")
    return one


def _settings(**changes: object) -> Callable[[Inputs], Inputs]:
    return lambda one: replace(one, settings=replace(one.settings, **changes))


def _compilers(**changes: object) -> Callable[[Inputs], Inputs]:
    return lambda one: replace(one, compilers=replace(one.compilers, **changes))


def _plan(**changes: object) -> Callable[[Inputs], Inputs]:
    return lambda one: replace(one, plan=replace(one.plan, **changes))


def _target(**changes: object) -> Callable[[Inputs], Inputs]:
    return lambda one: replace(one, target=replace(one.target, **changes))


def _python(**changes: object) -> Callable[[Inputs], Inputs]:
    return lambda one: replace(one, interpreter=replace(one.interpreter, **changes))


def _variables(**changes: str) -> Callable[[Inputs], Inputs]:
    return lambda one: replace(one, environment=one.environment | changes)


CUDA = CudaBuild(ToolkitSpec(Dotted(13, 0)), GpuList.parse("80"))

CHANGES: dict[str, Callable[[Inputs], Inputs]] = {
    "source": lambda one: replace(one, source="sdist 2"),
    "patch": _patched,
    "no patch": _settings(patches=()),
    "target's variables": _target(env=(("BLAS", "2"),)),
    "cuda": _target(cuda=CUDA),
    "architectures": _target(cuda=CudaBuild(CUDA.toolkit, GpuList.parse("80,90"))),
    "plan's variables": _plan(environment=(("CFLAGS", "-O2"),)),
    "config settings": _plan(config_settings=()),
    "wrapper rules": _plan(wrapper_rules=WrapperRules(compile=("-march=v4",))),
    "keep": _plan(wrapper_rules=WrapperRules(compile=("-march=v3",), keep=("a.c",))),
    "backend": _plan(backend=BuildBackend.OTHER),
    "level": _plan(cpu=Cpu.parse("x86-64")),
    "before build": _settings(before_build=()),
    "requires": _settings(requires=("numpy", "cython")),
    "cuda settings": _settings(cuda=CudaSettings(lineinfo=True)),
    "repair": lambda one: replace(one, repair=Repair(exclude=("libcuda.so.1",))),
    "toolkit": lambda one: replace(one, toolkit=HASH),
    "compiler's family": _compilers(family=CompilerFamily.CLANG),
    "compiler's version": _compilers(version=(12, 3)),
    "compiler's machine": _compilers(machine="aarch64"),
    "C++": _compilers(cxx="g++"),
    "marks": _compilers(marks_levels=True),
    "rustup's update": lambda one: _compilers(rust=rust(one.interpreter.path.parent, "2"))(one),
    "a toolchain of rustup": _file("home/.rustup/toolchains/stable/bin/rustc"),
    "cargo's configuration": _configured,
    "no Rust": _compilers(rust=None),
    "compiler's file": _bytes("gcc"),
    "linker": _bytes("ld"),
    "Python's file": _file("python"),
    "Python's version": _python(version=(3, 12, 99)),
    "Python's implementation": _python(implementation="pypy"),
    "Python's flags": _python(cflags="-O0"),
    "a variable": _variables(LANG="de_DE.UTF-8"),
    "a new variable": _variables(CMAKE_GENERATOR="Ninja"),
    "no text": _variables(LDFLAGS="\udc80"),
}


def test_any_input_changed_changes_the_key_and_no_two_give_the_same(tmp_path: Path) -> None:
    keys = {"nothing": inputs(tmp_path / "one").key()}
    keys |= {name: change(inputs(tmp_path / "one")).key() for name, change in CHANGES.items()}
    same = {name for name, key in keys.items() if [*keys.values()].count(key) > 1}
    assert same == set()


@pytest.mark.parametrize(
    "change",
    [_compilers(rust=None), _configured, _plan(environment=(("CFLAGS", "-O3"), ("CARGO_BUILD_TARGET", "other")))],
    ids=["no Rust", "cargo's configuration", "cargo's variables"],
)
def test_a_build_that_has_not_looked_for_rust_is_the_same_with_another(
    change: Callable[[Inputs], Inputs], tmp_path: Path
) -> None:
    one = inputs(tmp_path / "one")
    looks, not_looks = Looked({}, {"cargo": ()}, {}), Looked({}, {"make": ()}, {})
    before = one.keys()
    kept = looks.now("", before.rust)
    after = change(one).keys()
    assert after.bare == before.bare
    assert not_looks.now("", after.rust) == not_looks.now("", before.rust)
    assert looks.now("", after.rust) != kept
    maturin = _plan(backend=BuildBackend.MATURIN)(inputs(tmp_path / "two"))
    before = maturin.keys()
    assert change(maturin).keys().bare != before.bare


@pytest.mark.parametrize(
    "change",
    [
        _target(label="fast", properties=("blas :: library :: mkl",)),
        _settings(cache="none"),
        _variables(OLDPWD="/elsewhere", TERM="dumb", SSH_CLIENT="::1", TMPDIR="/other"),
        _variables(AWS_PROFILE="mine", MY_PROJECT_USES_BLAS="1", HTTPS_PROXY="https://me:word@proxy"),
        _settings(pass_env=("NOT_THERE_*",)),
        _file("gcc"),
    ],
    ids=["label", "compiler cache", "session", "held back", "asked for in vain", "time of a compiler"],
)
def test_what_no_build_depends_on_is_no_part_of_it(change: Callable[[Inputs], Inputs], tmp_path: Path) -> None:
    one = inputs(tmp_path / "one")
    assert change(one).key() == one.key()


def test_what_is_asked_for_counts_though_it_is_noise_elsewhere(tmp_path: Path) -> None:
    one = _variables(CI_COMMIT="1", TERM="dumb")(inputs(tmp_path))
    asked = _settings(pass_env=("CI_*",))(one)
    assert asked.key() != one.key()
    assert _variables(CI_COMMIT="2")(asked).key() != asked.key()
    assert _variables(TERM="vt100")(asked).key() == asked.key()


def test_the_packages_of_a_lock_count_and_nothing_else_of_it(tmp_path: Path) -> None:
    one = inputs(tmp_path)
    kind = one.interpreter.kind

    def locked(*packages: str, python: str = kind, is_binding: bool = False) -> str:
        lock = Lock("1", "2", "3", requirements=(LockedRequirement(python, ("a",), packages),), is_binding=is_binding)
        return _settings(lock=lock)(one).key()

    assert len({one.key(), locked("a==1"), locked("a==2"), locked()}) == 4
    # one that binds lets in no other package: what was built where any other could come is no such build
    assert locked("a==1", is_binding=True) not in {one.key(), locked("a==1")}
    assert locked("a==1", python="another") == locked("a==2", python="another")


def test_another_vbuild_has_other_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = inputs(tmp_path)
    before = one.key()
    identity.ourselves.cache_clear()
    monkeypatch.setattr("vbuild.__version__", "99")
    assert one.key() != before
    identity.ourselves.cache_clear()


def test_another_spelling_of_path_with_the_same_programs_is_the_same_build(tmp_path: Path) -> None:
    one = inputs(tmp_path / "bin")
    (tmp_path / "link").symlink_to("bin")
    tree(tmp_path, {"other/README": "", "later/gcc": "another gcc"})
    spelled = ("bin/", "bin:{0}/bin", "link", "link:{0}/bin:{0}/nothere", "other:{0}/bin")
    paths = [f"{tmp_path}/{text}".format(tmp_path) for text in spelled]
    assert {_variables(PATH=path)(one).key() for path in paths} == {one.key()}
    elsewhere = _compilers(programs=(("gcc", (str(tmp_path / "link" / "gcc"),)),))(one)
    assert elsewhere.key() == one.key()
    # ccache's gcc starts the next one
    assert _variables(PATH=f"{tmp_path}/bin:{tmp_path}/later")(one).key() != one.key()


def test_headers_and_libraries_that_are_found_count_and_other_files_of_packages_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path / "root", {"include/a.h": "", "lib/libc.so": "", "lib/pkgconfig/a.pc": "", "bin/cowsay": ""})
    monkeypatch.setattr(identity, "_HEADERS", (str(root / "include")[1:],))
    monkeypatch.setattr(identity, "_LIBRARIES", (str(root / "lib")[1:],))
    before = searched_files()
    tree(root, {"bin/tree": "", "lib/libtree.so.1": "", "lib/tree/data": "", "share/doc/tree/README": ""})
    (root / "lib/gone.so").symlink_to("nowhere")
    assert searched_files() == before
    found = {before}
    for change in ({"include/a.h": "int a;"}, {"include/b/b.h": ""}, {"lib/libb.so": ""}, {"lib/pkgconfig/b.pc": ""}):
        tree(root, change)
        found.add(searched_files())
    assert len(found) == 5


@pytest.mark.parametrize("name", ["CPATH", "PKG_CONFIG_PATH", "LIBRARY_PATH"])
def test_what_is_in_folders_that_variables_lead_to_counts(name: str, tmp_path: Path) -> None:
    one = _variables(**{name: str(tmp_path / "more")})(inputs(tmp_path / "one"))
    before = one.key(searched_files)
    tree(tmp_path / "more", {"a.a": ""})
    assert one.key(searched_files) != before


def test_a_build_without_isolation_depends_on_what_is_installed(tmp_path: Path) -> None:
    python = Interpreter.at(Path(sys.executable), os.environ)
    one = replace(inputs(tmp_path), interpreter=python, settings=BuildSettings(isolation=False))
    assert one.key() == one.key()
    assert one.key() != replace(one, settings=BuildSettings()).key()


def test_a_patch_or_python_that_is_gone_is_one_line(tmp_path: Path) -> None:
    one = inputs(tmp_path)
    missing = tmp_path / "gone.patch"
    with pytest.raises(BuildError) as caught:
        replace(one, settings=BuildSettings(patches=(missing,))).key()
    assert str(caught.value) == f"{missing}: cannot be read: No such file or directory"
    with pytest.raises(BuildError, match=r"gone: its packages cannot be listed: "):
        replace(one, interpreter=replace(PYTHON, path=tmp_path / "gone"), settings=BuildSettings(isolation=False)).key()


def test_the_key_is_the_same_in_another_process_folder_and_order(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.build.test_identity import inputs;"
        "print(inputs(Path(sys.argv[1])).key())"
    )
    root = Path(__file__).parents[2]
    identity.ourselves.cache_clear()
    keys = {inputs(tmp_path / "one").key()}
    for seed, folder in (("0", tmp_path), ("12345", root)):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", code, str(tmp_path / "one")]
        ran = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
        keys.add(ran.stdout.strip())
    one = inputs(tmp_path / "one")
    shuffled = list(one.environment.items())
    random.Random(7).shuffle(shuffled)
    keys.add(replace(one, environment=dict(shuffled[::-1])).key())
    assert len(keys) == 1


def test_what_has_no_canonical_form_is_a_mistake_of_vbuild() -> None:
    assert canonical([frozenset({"b", "a"}), Path("c"), BuildBackend.OTHER]) == [["a", "b"], "c", "other"]
    with pytest.raises(TypeError, match=r"^object has no canonical form$"):
        canonical(object())


def test_pinned_sources_are_their_pins(tmp_path: Path) -> None:
    sdist = Sdist("demo", Version("1.0"), HASH, "python")
    assert source_digest(sdist) == f"sdist {HASH} python"
    assert source_digest(Git(str(tmp_path), "a" * 40)) == f"git {'a' * 40} "


PROJECT = {"pyproject.toml": "[project]\n", "src/a.c": "int a;\n", "src/b.c": "int b;\n"}


def project(folder: Path, *, checkout: bool) -> Folder:
    tree(folder, PROJECT)
    if checkout:
        _git(folder, "init", "-q")
        _git(folder, "add", "-A")
        _git(folder, "commit", "-q", "-m", "first")
    return Folder(folder)


def _git(folder: Path, *arguments: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *name, *arguments], cwd=folder, check=True)


DIFFERENT: dict[str, Callable[[Path], object]] = {
    "contents": lambda folder: (folder / "src/a.c").write_text("int c;\n"),
    "new file": lambda folder: (folder / "src/c.c").write_text("int c;\n"),
    "removed": lambda folder: (folder / "src/a.c").unlink(),
    "renamed": lambda folder: (folder / "src/a.c").rename(folder / "src/z.c"),
    "executable": lambda folder: (folder / "src/a.c").chmod(0o755),
    "link": lambda folder: (folder / "src/l").symlink_to("a.c"),
    "moved text": lambda folder: tree(folder, {"src/a.c": "int a;\nint b;\n", "src/b.c": ""}),
}


@pytest.mark.parametrize("checkout", [False, True], ids=["folder", "checkout"])
@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_a_changed_folder_has_another_digest(change: Callable[[Path], object], checkout: bool, tmp_path: Path) -> None:  # noqa: FBT001 - pytest's
    source = project(tmp_path / "demo", checkout=checkout)
    before = source_digest(source)
    change(source.path)
    assert source_digest(source) != before


@pytest.mark.parametrize("checkout", [False, True], ids=["folder", "checkout"])
def test_times_caches_stages_and_results_do_not_count(checkout: bool, tmp_path: Path) -> None:  # noqa: FBT001 - pytest's
    source = project(tmp_path / "demo", checkout=checkout)
    dist = source.path / "dist"
    before = source_digest(source, without=dist)
    os.utime(source.path / "src/a.c", (1, 1))
    tree(source.path, {".vbuild-x1/a": "", "dist/demo-1.0-py3-none-any.whl": "x", "dist/logs/a.log": ""})
    if not checkout:
        tree(source.path, {".git/index": "x", "src/__pycache__/a.pyc": "x", "venv/pyvenv.cfg": "", "venv/a": ""})
    assert source_digest(source, without=dist) == before
    copy = unpacked(source.path, tmp_path / "copy", without=dist)
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if ".git" not in path.parts) == [
        "pyproject.toml",
        "src",
        "src/a.c",
        "src/b.c",
    ]


def test_history_that_a_version_may_come_from_counts(tmp_path: Path) -> None:
    source = project(tmp_path / "demo", checkout=True)
    before = source_digest(source)
    _git(source.path, "tag", "v2")
    tagged = source_digest(source)
    _git(source.path, "commit", "-q", "--allow-empty", "-m", "second")
    assert len({before, tagged, source_digest(source)}) == 3


def test_a_file_that_cannot_be_read_is_one_line() -> None:
    with tempfile.TemporaryDirectory() as folder:  # root can read everything, and others do not reach tmp_path
        Path(folder).chmod(0o755)
        source = project(Path(folder), checkout=False)
        (source.path / "src/a.c").chmod(0)
        user = os.geteuid()
        os.seteuid(user or 65534)
        try:
            with pytest.raises(BuildError, match=r"^/.*/src/a\.c: cannot be read: Permission denied$"):
                source_digest(source)
        finally:
            os.seteuid(user)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    source = project(tmp_path / "demo", checkout=False)
    before = source_digest(source)
    os.mkfifo(source.path / "pipe")
    assert source_digest(source) != before
