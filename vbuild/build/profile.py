"""Profiles: what runs of a project's code say about it, for the compiler that compiles it again; and link-time
optimisation.

    job -> instrumented job -> its wheel in an environment of its own -> the command of the recipe -> counts -> Profile
    job, Profile -> the same job, whose compilers know how often each branch is taken

gcc counts by object file, clang and rustc by function, each in the form of its LLVM. The counts are of the code before
it is made for a CPU level, so that the profile of one level serves all. No instrumented wheel leaves the stage.
https://gcc.gnu.org/onlinedocs/gcc/Optimize-Options.html https://clang.llvm.org/docs/UsersManual.html
https://doc.rust-lang.org/rustc/profile-guided-optimization.html
"""

import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.build.cibuildwheel.container import FIRST_GCC
from vbuild.build.plan import BuildBackend, FlagPlan
from vbuild.config.table import Env
from vbuild.errors import BuildError, at
from vbuild.files.hashing import key_of, sha256_of
from vbuild.process.run import run
from vbuild.recipe.flags import ProfileSettings
from vbuild.toolchain.compiler_program import RUST_PROFILE
from vbuild.toolchain.compilers import CompilerFamily, Compilers, Rust

_KEY = "build.profile"
_GCC, _CLANG = CompilerFamily.GCC, CompilerFamily.CLANG

# the first releases with all the flags below
_FIRST = {_GCC: FIRST_GCC, _CLANG: 11}

LTO = {_GCC: ("-flto=auto", "-ffat-lto-objects"), _CLANG: ("-flto=thin", "-fuse-ld=lld")}
CARGO_LTO = (("CARGO_PROFILE_RELEASE_LTO", "fat"), ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"))

INSTRUMENTING = {
    _GCC: ("-fprofile-generate", "-fprofile-update=prefer-atomic"),
    _CLANG: ("-fprofile-generate", "-mllvm", "-static-func-full-module-prefix=false"),
}
# code that training did not run is compiled as without a profile, not for size; what does not fit is passed over
TRAINED = {
    _GCC: ("-fprofile-use", "-fprofile-partial-training", "-Wno-missing-profile", "-Wno-coverage-mismatch"),
    _CLANG: (
        *("-Wno-profile-instr-out-of-date", "-Wno-profile-instr-unprofiled", "-Wno-backend-plugin"),
        *("-mllvm", "-static-func-full-module-prefix=false"),
    ),
}
_COUNTING_RUST = ("-C", "profile-generate")
_MERGED = "default.profdata"


class Profile(Struct, frozen=True):
    """What training left, in *folder*, unpacked; *sha256* is of its content, and *objects* are how many it counts."""

    folder: Path
    sha256: str
    objects: int

    @classmethod
    def of(cls, folder: Path) -> Self:
        """The profile in *folder*."""
        files = {str(file.relative_to(folder)): sha256_of(file) for file in _files(folder)}
        return cls(folder, key_of(files), len(files))

    @classmethod
    def unpacked(cls, archive: Path, folder: Path) -> Self:
        """The profile that `packed` put into *archive*, in *folder*."""
        with zipfile.ZipFile(archive) as source:
            source.extractall(folder)
        return cls.of(folder)

    def packed(self, archive: Path) -> Path:
        """*archive*, with the profile in it."""
        with zipfile.ZipFile(archive, "w") as target:
            for file in _files(self.folder):
                entry = zipfile.ZipInfo(str(file.relative_to(self.folder)))  # of 1980
                target.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
        return archive

    @property
    def place(self) -> Path:
        """What compilers are given: clang's one file, or the folder with gcc's."""
        return self.place_of("")

    def place_of(self, part: str) -> Path:
        """The same for another *part* than the project, which training gave a name."""
        merged = self.folder / _MERGED
        return merged if merged.exists() else self.folder / part


def check(settings: ProfileSettings, compilers: Compilers, backend: BuildBackend) -> None:
    """`BuildError` if what *settings* ask for cannot be done with these *compilers* and this *backend*."""
    if settings == ProfileSettings():
        return
    if compilers.zig_target or compilers.family not in _FIRST:
        what = "zig" if compilers.zig_target else compilers.family
        raise BuildError(f"{_KEY}: {what} takes neither profiles nor link-time optimisation; expected gcc or clang")
    if compilers.version[0] < _FIRST[compilers.family]:
        version = ".".join(map(str, compilers.version))
        expected = f"{compilers.family} {_FIRST[compilers.family]} or newer"
        raise BuildError(f"{_KEY}: {compilers.family} {version} is too old; expected {expected}")
    if settings.train and backend is BuildBackend.MATURIN and compilers.rust:
        _rust_merger(compilers.rust)
    if settings.lto and compilers.family is _CLANG and not shutil.which("ld.lld"):
        raise BuildError(
            f"{_KEY}.lto: clang links with lld, and there is no ld.lld on PATH; install it: apt-get install lld"
        )
    if settings.train and compilers.family is _CLANG:
        _merger(compilers)


def check_container(settings: ProfileSettings, backend: BuildBackend) -> None:
    """`BuildError` if what *settings* ask for cannot be done with this *backend* in cibuildwheel's containers."""
    if settings.train and backend is BuildBackend.MATURIN:
        raise BuildError(
            f"{_KEY}.train: maturin compiles Rust, of which vbuild takes no profile in cibuildwheel's containers; "
            f"lto = true works"
        )


def optimised(plan: FlagPlan, settings: ProfileSettings, compilers: Compilers) -> FlagPlan:
    """*plan* with link-time optimisation, if *settings* ask for it."""
    if not settings.lto:
        return plan
    environment = (*plan.environment, *(CARGO_LTO if compilers.rust else ()))
    if compilers.family is _CLANG:  # whose objects GNU ar cannot list; gcc's are ordinary ones as well
        tools = {"AR": "llvm-ar", "RANLIB": "llvm-ranlib"}
        environment += tuple((name, place) for name, tool in tools.items() if (place := _beside(compilers, tool)))
    rewriting = replace(plan.rewriting, everywhere=LTO[compilers.family])
    return replace(plan, environment=environment, rewriting=rewriting)


def instrumented(plan: FlagPlan, compilers: Compilers) -> FlagPlan:
    """*plan* for code that counts; C is not optimised when linking, which changes nothing in what is counted."""
    rules = replace(plan.rewriting, everywhere=INSTRUMENTING[compilers.family])
    if _counts_rust(compilers):
        rules = replace(rules, rust=(*rules.rust, *_COUNTING_RUST))
    return replace(plan, rewriting=rules)


def trained(plan: FlagPlan, family: CompilerFamily) -> FlagPlan:
    """*plan* for code of which there is a profile."""
    return replace(plan, rewriting=replace(plan.rewriting, trained=TRAINED[family]))


def counting(folder: Path) -> Env:
    """The variables with which instrumented code writes its counts into *folder*, be it gcc's or clang's."""
    # the order of sets and the like is part of what is counted
    where = (("GCOV_PREFIX", str(folder)), ("LLVM_PROFILE_FILE", str(folder / "%m-%p.profraw")))
    return (*where, ("PYTHONHASHSEED", "0"))


def collected(
    counts: Path, folder: Path, *, trees: Mapping[str, Path], stage: Path, compilers: Compilers | None, log: Path
) -> Profile:
    """The profile, in the empty *folder*, of what code has counted that was built in *trees*, by the names of parts.

    The project's own tree has no name. The code left the counts in the folder *counts*; all folders of this run are in
    *stage*. Without *compilers* it is gcc's. `BuildError` if there is nothing of a part.
    """
    raw = sorted(map(str, counts.rglob("*.profraw")))
    if compilers and compilers.rust and _counts_rust(compilers):
        _merge(_rust_merger(compilers.rust), raw, folder / RUST_PROFILE, log)
    if compilers and compilers.family is _CLANG:
        _merge(_merger(compilers), raw, folder / _MERGED, log)
    else:
        for part, tree in trees.items():
            found = _of_objects(counts, tree, stage)
            for name, file in found.items():
                (folder / part / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(file, folder / part / name)
            if part and not found:
                leave = "let it, or leave profile = true out there"
                with at(f"{_KEY}.train"):
                    raise BuildError(f"the command ran no compiled code of {part}; its log is {log}; {leave}")
    profile = Profile.of(folder)
    if not profile.objects:
        with at(f"{_KEY}.train"):
            raise BuildError(
                f"the command ran no compiled code of the project; its log is {log}; expected it to run C, C++, "
                f"Fortran, or, where there is rustup's llvm-tools, Rust"
            )
    return profile


def _merge(merger: str, raw: Sequence[str], target: Path, log: Path) -> None:
    """Merge into *target* those of the files *raw* that *merger* understands, which its own LLVM has written."""
    if raw:
        with suppress(BuildError):  # there is none
            run([merger, "merge", "--failure-mode=all", "-o", str(target), *raw], log=log)


def _of_objects(counts: Path, project: Path, stage: Path) -> Mapping[str, Path]:
    """Return gcc's files by their paths in the tree: the whole path of an object, as gcc saw it, is below *counts*.

    CMake gives the object of a source elsewhere that source's whole path. What lies beside the tree has another one in
    the next run, and would have no profile then, so it has none at all.
    """
    found: dict[str, Path] = {}
    for root in {project.absolute(), project.resolve()}:
        place = counts / root.relative_to(root.anchor)
        names = {str(file.relative_to(place)): file for file in place.rglob("*.gcda")}
        found |= {name: file for name, file in names.items() if str(stage) not in f"/{name}"}
    return found


def _merger(compilers: Compilers) -> str:
    """The llvm-profdata that fits clang; `BuildError` if there is none."""
    if found := _beside(compilers, "llvm-profdata"):
        return found
    major = compilers.version[0]
    raise BuildError(f"{_KEY}.train: no llvm-profdata {major} on PATH; install it: apt-get install llvm-{major}")


def _counts_rust(compilers: Compilers) -> bool:
    """Whether what rustc compiles can be profiled here."""
    with suppress(BuildError):
        return bool(compilers.rust and _rust_merger(compilers.rust))
    return False


@cache
def _rust_merger(rust: Rust) -> str:
    """The llvm-profdata that fits *rust*; `BuildError` if there is none, or its code cannot count."""
    asked = subprocess.run([rust.rustc, "--print", "sysroot"], capture_output=True, text=True, check=False)
    own = Path(asked.stdout.strip(), "lib", "rustlib", rust.host)
    if not any(own.glob("lib/libprofiler_builtins-*.rlib")):
        raise BuildError(f"{_KEY}.train: this Rust has no profiler_builtins in {own}; expected rustup's, which has it")
    if (beside := own / "bin" / "llvm-profdata").is_file():
        return str(beside)
    major = next((line.split()[-1].split(".")[0] for line in rust.about.splitlines() if "LLVM version" in line), "")
    if found := shutil.which(f"llvm-profdata-{major}"):
        return found
    raise BuildError(
        f"{_KEY}.train: Rust is trained with the llvm-profdata of LLVM {major}, and there is none; install it: rustup "
        f"component add llvm-tools, or apt-get install llvm-{major}"
    )


def _beside(compilers: Compilers, tool: str) -> str | None:
    """The *tool* of the same LLVM as clang, or one on PATH; None if there is none."""
    command = next((command for name, command in compilers.programs if name in compilers.c.split()), ("clang",))
    beside = Path(command[0]).resolve().with_name(tool)
    return str(beside) if beside.exists() else shutil.which(f"{tool}-{compilers.version[0]}") or shutil.which(tool)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
