"""What a build looks for, there or not, is known; and nothing that it does not look for counts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.projects import tree
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.build import watching
from vbuild.build.watching import Looked, Watch
from vbuild.process.threads import OncePerKey
from vbuild.toolchain.compilers import Compilers
from vbuild.toolchain.interpreter import Interpreter

pytestmark = needs("gcc")

PATH = os.environ["PATH"]
COMPILERS = Compilers.of(Interpreter.at(Path(sys.executable), os.environ), os.environ)

# ways of looking for something in the folder $SYSTEM; each finds a/there.h and lib/libthere.so
WAYS = {
    "include": "gcc -I$SYSTEM/z -I$SYSTEM/a -fsyntax-only main.c",
    "has_include": "gcc -I$SYSTEM/z -I$SYSTEM/a -fsyntax-only asks.c",
    "library": "gcc -L$SYSTEM/other -L$SYSTEM/lib main.c -I$SYSTEM/a -lthere -o a.out; true",
    "python": f"""{sys.executable} -c "import os; os.path.exists(os.environ['SYSTEM'] + '/a/there.h')" """,
    "shell": "test -f $SYSTEM/a/there.h || cat $SYSTEM/a/there.h",
    "deep": "cd / && test -f .$SYSTEM/a/there.h",
    "beside": "cd $SYSTEM/lib && cat ../a/there.h",
    "script": "python3 -c \"import subprocess; subprocess.run(['cat', '$SYSTEM/a/there.h'])\"",
}
NEEDED = {"library": "lib/libthere.so"}


class Place:
    """A folder of a system, a project, and a watch over commands in it."""

    def __init__(self, folder: Path) -> None:
        self.system = tree(folder / "system", {"a/there.h": "int a;", "a/unread.h": "", "bin/tool": "#!/bin/sh\n"})
        for name in ("lib", "z"):
            (self.system / name).mkdir()
        library = ["gcc", "-shared", "-x", "c", os.devnull, "-o", f"{self.system}/lib/libthere.so"]
        subprocess.run(library, check=True)
        (self.system / "bin" / "tool").chmod(0o755)
        main = "#include <there.h>\nint main(void) { return 0; }\n"
        asks = "#if __has_include(<nowhere.h>)\n#include <nowhere.h>\n#endif\n#include <there.h>\n"
        self.project = tree(
            folder / "stage" / "project", {"main.c": main, "asks.c": asks, "setup.py": "a = 'spoken'\n"}
        )
        self.path = f"{self.system}/bin:{PATH}"
        watch = Watch.over(folder / "stage" / "watch", COMPILERS)
        assert watch
        self.watch = watch

    def looked(self, command: str) -> Looked | None:
        variables = {**os.environ, "PATH": self.path, "SYSTEM": str(self.system)}
        variables |= self.watch.variables(variables)
        subprocess.run(["sh", "-c", command], cwd=self.project, env=variables, check=True, capture_output=True)
        return self.watch.looked(self.path, [str(self.system)], stage=self.project.parent, project=self.project)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_counts_and_what_is_beside_it_does_not(way: str, place: Place) -> None:
    looked = place.looked(WAYS[way])
    assert looked
    tree(place.system, {"a/unread.h": "int b;", "a/new.h": "", "lib/libnew.so": "", "z/new.h": "", "bin/new": ""})
    assert looked.now(place.path) == looked
    needed = place.system / NEEDED.get(way, "a/there.h")
    content = needed.read_bytes()
    needed.write_bytes(content)
    os.utime(needed, (1, 1))
    assert looked.now(place.path) == looked  # the same bytes, at another time
    needed.write_bytes(content + b" ")
    assert looked.now(place.path) != looked
    needed.unlink()
    assert looked.now(place.path) != looked


@pytest.mark.parametrize(
    ("way", "new"),
    [
        ("include", "z/there.h"),
        ("has_include", "z/nowhere.h"),
        ("has_include", "a/nowhere.h"),
        ("library", "other/libthere.a"),
    ],
)
def test_what_was_looked_for_in_vain_counts_once_it_is_there(way: str, new: str, place: Place) -> None:
    looked = place.looked(WAYS[way])
    assert looked
    tree(place.system, {new: ""})
    assert looked.now(place.path) != looked


def test_programs_and_libraries_that_are_nowhere_were_looked_for_in_vain(place: Place) -> None:
    tree(place.system, {"lib/there.pc": ""})
    which = f"{sys.executable} -c \"import shutil; shutil.which('absent'); shutil.which('tool')\""
    place.looked(
        f"{which}; for name in there mine; do test -f z/$name.pc || test -f $SYSTEM/lib/$name.pc || true; done"
    )
    names, libraries = place.watch.in_vain()
    assert {"absent", "tool"} & {*names} == {"absent"}
    assert libraries == ("mine",)


def test_a_name_on_path_counts_by_its_programs_wherever_they_are(place: Place, tmp_path: Path) -> None:
    looked = place.looked("tool; absent || true")
    assert looked
    (tmp_path / "link").symlink_to(place.system / "bin")
    assert looked.now(f"{tmp_path}/link:{PATH}") == looked
    assert looked.now(f"{PATH}:{place.system}/bin/") == looked
    other = tree(tmp_path / "other", {"tool": "#!/bin/sh\n# another\n"})
    assert looked.now(f"{other}:{place.path}") != looked
    tree(place.system, {"bin/absent": "#!/bin/sh\n"})
    assert looked.now(place.path) != looked


def test_of_a_folder_that_is_listed_names_count_that_the_project_speaks_of(place: Place) -> None:
    looked = place.looked("ls $SYSTEM/lib")
    assert looked
    assert looked.words == ("a", "spoken")
    tree(place.system, {"lib/libcaca.so": "", "lib/libspoken.so.1": "", "lib/spoken-caca": ""})
    assert looked.now(place.path) == looked
    tree(place.system, {"lib/libspoken.so": ""})
    assert looked.now(place.path) != looked


@pytest.mark.parametrize(
    ("command", "past"),
    [
        ("$GCC main.c -o x.so", {"x.so": ("main.c",)}),
        ("$GCC -s main.c -o x.so", {"x.so": ("main.c",)}),
        ("sh -c '$GCC ./main.c -c -o m.o && VBUILD_WRAPPED=1 $GCC wrapped.c m.o -o x.so'", {"x.so": ("main.c",)}),
        ("env -u LD_PRELOAD $GCC main.c -o x.so", {"x.so": ("main.c",)}),
        ("mkdir there; cd there; $GCC -c ../main.c; VBUILD_WRAPPED=1 $GCC -s main.o -o ../x.so", {"x.so": ("main.c",)}),
        ("mkdir b; cd b; $GCC ../main.c -o x.so; strip x.so -o ../x.so", {"x.so": ("main.c",)}),
        ("$GCC -s -MD -MF d main.c -o x.so", {"x.so": ("main.c",)}),
        ("$GCC -M main.c; VBUILD_WRAPPED=1 $GCC wrapped.c -o x.so", {}),
        ("$GCC -march=x86-64-v3 -MD -MF d main.c -o x.so", {}),
        ("$GCC main.c -o helper && VBUILD_WRAPPED=1 $GCC wrapped.c -o x.so", {}),
        ("VBUILD_WRAPPED=1 $GCC -s main.c -o x.so", {}),
        (
            "$GCC -E main.c; cp main.c gone.c; $GCC -c gone.c; rm gone.c; VBUILD_WRAPPED=1 $GCC wrapped.c -o x.so",
            {},
        ),
    ],
    ids=[
        *("by its path", "stripped", "an object", "where it is not seen"),
        *("from another folder", "stripped when it is installed"),
        *("with a list of its headers", "nothing but a list of its headers", "for a level"),
        *("a program that the build runs", "by the wrapper", "nothing compiled that stays"),
    ],
)
def test_a_compiler_that_no_wrapper_started_is_seen(
    command: str, past: dict[str, tuple[str, ...]], place: Place, tmp_path: Path
) -> None:
    tree(place.project, {"wrapped.c": "int wrapped;\n", "x.so": ""})
    place.looked(command.replace("$GCC", "$(command -v gcc) -I$SYSTEM/a -shared -fPIC"))
    made = wheel(tmp_path, files={"x.so": (place.project / "x.so").read_bytes()})
    assert place.watch.bypassing(place.project, made, ["/elsewhere/wrapped.c"]) == past


# one object by the wrapper, and one that is not, in a library whose symbols are gone; $LINK is the wrapper's
MIXED = {
    "an object": "$GCC -c main.c -o m.o && $LINK m.o w.o -o x.so",
    "by a pipe": "$GCC -pipe -c main.c -o m.o && $LINK m.o w.o -o x.so",
    "assembled apart": "$GCC -S main.c && as main.s -o m.o && $LINK m.o w.o -o x.so",
    "an archive": "$GCC -c main.c -o m.o && ar rcs libmine.a m.o && $LINK w.o -umain -L. -lmine -o x.so",
    "by a list": "$GCC -c main.c -o m.o && echo m.o w.o >list && $LINK @list -o x.so",
    "put together": "$GCC -c main.c -o m.o && ld -r m.o w.o -o both.o && $LINK both.o -o x.so",
    "an archive in two steps": (
        "$GCC -c main.c -o m.o && ar rc libm.a m.o && ar q libm.a w.o && $LINK -umain libm.a -o x.so"
    ),
    "by llvm-ar": (
        "$GCC -c main.c -o m.o && ln -s $(command -v ar) llvm-ar-14 && "
        "./llvm-ar-14 rcs libm.a m.o && $LINK w.o -umain libm.a -o x.so"
    ),
    "with an odd argument": "$GCC -DODD=\"$(printf 'a\\014b\\rc')\" -c main.c -o m.o && $LINK m.o w.o -o x.so",
    "headers beside its code": (
        "$GCC -c main.c -o m.o && $LINK -Wl,-z,noseparate-code m.o w.o -o y.so && strip -R .comment y.so -o x.so"
    ),
    "renamed": "$GCC -c main.c -o m.o && $LINK m.o w.o -o y.so && strip -R .comment y.so && cp y.so x.so",
    "where it is not seen": "env -u LD_PRELOAD $GCC -c main.c -o m.o && $LINK m.o w.o -o x.so",
    "by clang": "/usr/bin/clang -I$SYSTEM/a -fPIC -c main.c && $LINK main.o w.o -o x.so",
    "by clang at once": "/usr/bin/clang -I$SYSTEM/a -fPIC -shared -s main.c w.o -o x.so",
}


@pytest.mark.parametrize("way", [pytest.param(way, marks=needs("clang") if "clang" in way else ()) for way in MIXED])
def test_a_stripped_library_is_named_for_one_object_that_no_wrapper_compiled(
    way: str, place: Place, tmp_path: Path
) -> None:
    tree(place.project, {"wrapped.c": "int wrapped;\n", "x.so": "", "other.c": "int other;\n"})
    wrapper = "VBUILD_WRAPPED=1 $GCC"
    script = f"{wrapper} -c wrapped.c -o w.o && {wrapper} -s w.o -o other.so && {MIXED[way]}".replace(
        "$LINK", f"{wrapper} -s"
    )
    place.looked(script.replace("$GCC", "$(command -v gcc) -I$SYSTEM/a -shared -fPIC"))
    made = wheel(tmp_path, files={name: (place.project / name).read_bytes() for name in ("x.so", "other.so")})
    assert place.watch.bypassing(place.project, made, ["/elsewhere/wrapped.c"]) == {"x.so": ("main.c",)}


@pytest.mark.parametrize(
    "command",
    [
        "env -i /bin/sh -c 'cat $SYSTEM/a/there.h; true'",
        "unset LD_PRELOAD; cat $SYSTEM/a/there.h",
        "echo 'int main(void) { return 0; }' > s.c && gcc -static s.c -o s && ./s",
        "sleep 0.01; cat $SYSTEM/a/there.h; touch $SYSTEM/a/there.h",
    ],
    ids=["cleared", "unset", "static", "changed meanwhile"],
)
def test_where_something_is_not_seen_nothing_is_known(command: str, place: Place) -> None:
    assert place.looked(command) is None


@needs("strace")
@pytest.mark.nightly
def test_strace_sees_no_file_that_the_watch_does_not(place: Place, tmp_path: Path) -> None:
    commands = ["g++ -xc++ -O2 -shared -fPIC main.c -I$SYSTEM/a -o x.so -lm", "pkg-config --exists nothing || true"]
    commands += [*WAYS.values(), "perl -e 'use POSIX;'", "cmake --help-module FindZLIB >/dev/null 2>&1 || true"]
    script = "\n".join(commands)
    looked = place.looked(script)
    assert looked
    trace = tmp_path / "trace"
    calls = "trace=open,openat,stat,lstat,newfstatat,access,faccessat,faccessat2,statx,execve"
    variables = {**os.environ, "PATH": place.path, "SYSTEM": str(place.system)}
    command = ["strace", "-f", "-o", str(trace), "-e", calls, "sh", "-c", script]
    subprocess.run(command, cwd=place.project, env=variables, check=True, capture_output=True)
    found = re.findall(r'\w+\((?:AT_FDCWD, )?"(/usr/(?:include|lib/gcc|share)/[^"]+)"', trace.read_text())
    # folders on the way to a file that realpath() resolves, and the texts of messages, are the C library's business
    seen = {path for path in map(os.path.normpath, found) if "/locale/" not in path and not Path(path).is_dir()}
    absent = tuple(f"{path}/" for path, state in looked.files.items() if not state)
    assert len(seen) > 100
    assert not {path for path in seen - looked.files.keys() if not path.startswith(absent)}


@needs("musl-gcc")
@pytest.mark.skipif(os.confstr("CS_GNU_LIBC_VERSION") is None, reason="a compiler of this machine's own C library")
def test_a_library_for_another_c_library_is_not_put_into_programs(tmp_path: Path) -> None:
    variables = {**os.environ, "CC": "musl-gcc"}
    compilers = Compilers.of(Interpreter.at(Path(sys.executable), variables), variables)
    assert compilers.c == "musl-gcc"
    assert Watch.over(tmp_path / "watch", compilers) is None


def test_the_library_of_a_watch_is_compiled_once_for_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, log = tmp_path / "gcc", tmp_path / "log"
    compiler.write_text(f'#!/bin/sh\necho one >> {log}\nexec gcc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compilers = replace(COMPILERS, c="gcc", programs=(("gcc", (str(compiler),)),))
    made = []
    for _ in range(2):
        monkeypatch.setattr(watching, "_LIBRARIES", OncePerKey())  # another process has none
        made.append(watching.library_of(compilers))
    assert made[0].startswith(b"\x7fELF")
    assert made[0] == made[1]
    assert log.read_text() == "one\n"
