"""The command line as a user meets it: what it prints, where, and its exit status."""

import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.factories.commands import vbuild
from tests.factories.linked_libraries import DEEP, NAME, files
from tests.factories.variants import document, machine, metadata, tiny_wheel, variant, variant_wheel
from tests.factories.virtual_environments import serving_folder
from tests.factories.wheels import wheel
from vbuild.cli import options
from vbuild.cli.main import SECTIONS, main
from vbuild.cli.render import release_lines
from vbuild.errors import VariantError, VbuildError
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.target import Target
from vbuild.release.model import Failure, ReleaseResult
from vbuild.variants.index import index

WIDTH = 80


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder of a plain wheel and two variants of it."""
    plain = wheel(tmp_path / "dist")
    for level in ("v2", "v3"):
        stamp = ["-l", f"x86_64_{level}", "-p", f"x86_64 :: level :: {level}"]
        assert vbuild("stamp", plain, "-o", tmp_path / "dist", *stamp).returncode == 0
    return tmp_path / "dist"


def test_help_lists_every_command_under_what_it_is_for() -> None:
    said = subprocess.run([sys.executable, "-m", "vbuild", "--help"], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^(\w+):$|^  (\w+)  ", said, re.MULTILINE)[1:] == [
        item for title, names in SECTIONS.items() for item in ((title, ""), *(("", name) for name in names))
    ]
    assert max(map(len, said.splitlines())) <= WIDTH


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_has_help_that_fits_a_terminal_and_ends_in_an_example(command: str) -> None:
    said = CliRunner().invoke(main, [command, "--help"], prog_name="vbuild").output
    assert max(map(len, said.splitlines())) <= WIDTH
    assert f"  vbuild {command} " in said


def test_a_command_imports_those_of_its_section_alone() -> None:
    program = (
        "import sys; from vbuild.cli.main import main; main(['stamp', '-h'], standalone_mode=False); "
        "print([name for name in sys.modules if name in sys.argv[1:]])"
    )
    modules = [f"vbuild.cli.{title.lower()}" for title in SECTIONS]
    ran = subprocess.run([sys.executable, "-c", program, *modules], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "['vbuild.cli.repackage']"


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_option_with_a_value_has_a_parser(command: str) -> None:
    values = [option.type for option in main.commands[command].params if isinstance(option.type, options.Value)]
    assert all(callable(pkgutil.resolve_name(value.parser)) for value in values)


def test_help_loads_no_library_but_click() -> None:
    program = (
        "import sys; from vbuild.cli.main import main; main(['--help'], standalone_mode=False); "
        "print(sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    for heavy in ("rich", "packaging", "filelock", "iced_x86", "elftools", "archspec", "unearth", "build", "uv"):
        assert repr(heavy) not in loaded


def test_compiled_code_that_is_cut_short_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vbuild", "--help"]
    where = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    subprocess.run(command, env=where, capture_output=True, check=True)
    (damaged,) = tmp_path.rglob("vbuild/cli/look.*.pyc")
    damaged.write_bytes(damaged.read_bytes()[:100])
    ran = subprocess.run(command, env=where, capture_output=True, text=True, check=False)
    (line,) = ran.stderr.splitlines()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert re.fullmatch(
        rf"vbuild: {re.escape(str(damaged))}: compiled code that ends too early: .*; delete the file, .*", line
    )


def test_a_release_is_stamped_indexed_and_selected_from(release: Path, tmp_path: Path) -> None:
    indexed = vbuild("index", release, "--simple", tmp_path / "simple")
    assert indexed.stdout.splitlines() == ["demo-1.0-variants.json: x86_64_v2, x86_64_v3", f"{tmp_path}/simple"]
    assert "demo-1.0-py3-none-any-x86_64_v3.whl#sha256=" in (tmp_path / "simple/demo/index.html").read_text()
    described = tmp_path / "machine.toml"
    described.write_text(str(machine("x86-64-v2", tags=("py3-none-any",))))
    chosen = vbuild("select", "demo", "-f", release, "--machine", described, "--json")
    selection = json.loads(chosen.stdout)
    assert (selection["wheel"], selection["label"]) == ("demo-1.0-py3-none-any-x86_64_v2.whl", "x86_64_v2")
    assert [item["label"] for item in selection["ranking"]] == ["x86_64_v2", None, "x86_64_v3"]
    assert (
        "demo-1.0-py3-none-any-x86_64_v2.whl"
        in vbuild("select", "demo", "-f", release, "--machine", described).stdout.splitlines()[0]
    )


def test_verify_reports_each_wheel_and_fails_if_one_fails(tmp_path: Path) -> None:
    good = wheel(tmp_path)
    bad = wheel(tmp_path, "demo-2.0-py3-none-any.whl", record="demo/__init__.py\n")
    assert vbuild("verify", good).returncode == 0
    result = vbuild("verify", good, bad)
    assert result.returncode == 1
    what = "demo-2.0.dist-info/RECORD: line 1: 1 columns, expected path, hash and size"
    assert result.stderr == f"vbuild: demo-2.0-py3-none-any.whl: {what}\n"


def test_the_end_of_a_failed_targets_log_is_shown_line_by_line() -> None:
    target = Target("v3", "3.12", Cpu.parse("x86-64-v3"))
    failure = Failure(target, "make failed with status 2:\n\tg++ -c demo.cpp\n", None)
    lines = list(release_lines(ReleaseResult("demo", "project", (), (failure,), ())))
    assert lines == ["v3 failed: make failed with status 2:", "        g++ -c demo.cpp"]


def walked(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Words that no command takes: one for each command, each option with a value that is none, and each lack."""
    if isinstance(command, click.Group):
        yield (*path, "nonsens")
        for name in command.list_commands(click.Context(command)):
            yield from walked(command.commands[name], (*path, name))
        return
    yield (*path, "--nonsense")
    words = [one for one in command.params if isinstance(one, click.Argument)]
    needed = tuple("missing-1.0-py3-none-any.whl" for word in words if word.required)
    given = [one for one in command.params if isinstance(one, click.Option) and not one.is_flag]
    needed += tuple(word for one in given if one.required for word in (one.opts[0], "out"))
    if needed:
        yield path
    if not any(word.nargs == -1 for word in words):
        yield (*path, *needed, "more", "than", "it", "takes")
    for one in given:
        if isinstance(one.type, click.IntRange | click.FloatRange | click.Choice | options.Value):
            yield (*path, *needed, one.opts[0], "!!no(such")


def test_words_that_no_command_takes_are_status_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = [*walked(main)]
    assert len(wrong) > 80
    assert [words for words in wrong if CliRunner().invoke(main, list(words)).exit_code != 2] == []
    assert not [*tmp_path.iterdir()]


# a command for each verb that finds nothing where it should be
NOTHING_THERE = [
    *(("init",), ("matrix", "nowhere.toml"), ("lock", "nowhere.toml"), ("collect", "nowhere", "-o", "out")),
    ("cibuildwheel", "-o", "out", "--", "nowhere"),
    *(("slim", "x.whl", "--gpu", "90", "-o", "out"), ("split", "x.whl", "-o", "out")),
    *(("stamp", "x.whl", "-l", "x", "-p", "x :: y :: z", "-o", "out"), ("repair", "x.whl", "out")),
    *(("inspect", "x.whl"), ("verify", "x.whl"), ("bench", "x.whl", "y.whl", "--script", "z.py")),
    *(("select", "demo", "-f", "nowhere"), ("select", "oci:nowhere"), ("select", "demo", "-f", "http://127.0.0.1:9")),
    *(("index", "nowhere"), ("check", "nowhere"), ("publish", "nowhere", "--layout", "local", "-o", "out")),
    *(("inspect", "http://127.0.0.1:9/x.whl"), ("verify", "https://"), ("inspect", "http://[x/y.whl")),
]


@pytest.mark.parametrize("words", NOTHING_THERE, ids=" ".join)
def test_what_is_not_there_is_status_1_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(main, list(words))
    assert (told.exit_code, told.stderr.count("\n")) == (1, 1), told.stderr
    assert told.stderr.startswith("vbuild: ")
    assert not [*tmp_path.iterdir()]


def test_a_wheel_on_a_server_is_taken_where_one_of_this_machine_is(release: Path) -> None:
    plain = next(path for path in release.iterdir() if path.suffix == ".whl")
    there = CliRunner().invoke(main, ["inspect", str(plain)])
    with serving_folder(release) as url:
        assert CliRunner().invoke(main, ["inspect", f"{url}/{plain.name}"]).output == there.output
        wrong = CliRunner().invoke(main, ["inspect", f"{url}/{plain.name}#sha256={'0' * 64}"])
        missing = CliRunner().invoke(main, ["inspect", f"{url}/missing-1.0-py3-none-any.whl"])
    assert (wrong.exit_code, missing.exit_code) == (1, 1)
    assert f"expected {'0' * 64}" in wrong.stderr
    assert missing.stderr == f"vbuild: {url}/missing-1.0-py3-none-any.whl: 404 File not found\n"


@pytest.mark.parametrize(
    ("installed", "words", "taken"),
    [
        ("engine-1.4.2", [], "engine1.4"),
        ("engine-2.0", [], None),
        ("engine-2.0", ["--with", "engine==1.4"], "engine1.4"),
        (None, [], None),
    ],
)
def test_what_the_active_environment_has_decides_among_variants_built_against_it(
    installed: str | None, words: list[str], taken: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = variant("engine1.4", "abi_dependency :: engine :: 1.4")
    name = "demo-1.0-py3-none-any-engine1.4.whl"
    variant_wheel(tmp_path, name, document(built, metadata=metadata("abi_dependency")))
    tiny_wheel(tmp_path, "demo-1.0-py3-none-any.whl")
    index(tmp_path)
    if installed:
        info = tmp_path / f"venv/lib/python3.11/site-packages/{installed}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Name: {}\nVersion: {}\n".format(*installed.split("-")))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    told = CliRunner().invoke(main, ["select", "demo", "-f", str(tmp_path), *words])
    assert told.output.splitlines()[0] == (name if taken else "demo-1.0-py3-none-any.whl")


def test_several_machines_are_chosen_for_at_once(tmp_path: Path) -> None:
    variant_wheel(tmp_path, "demo-1.0-py3-none-any-x86_64_v3.whl")
    index(tmp_path)
    for name, cpu in (("new.toml", "x86-64-v4"), ("old.toml", "x86-64-v2")):
        (tmp_path / name).write_text(f'python = "3.12"\ncpu = "{cpu}"\nglibc = "2.28"\n')
    words = ["select", "demo", "-f", str(tmp_path)]
    for name in ("new.toml", "old.toml"):
        words += ["--machine", str(tmp_path / name)]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 1
    assert [line.split()[:2] for line in told.stdout.splitlines()[::2]] == [
        [str(tmp_path / "new.toml"), "demo-1.0-py3-none-any-x86_64_v3.whl"],
        [str(tmp_path / "old.toml"), "nothing"],
    ]
    assert told.stdout.endswith("none of 1 wheel fits this machine\n")
    data = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert [one["wheel"] for one in data] == ["demo-1.0-py3-none-any-x86_64_v3.whl", None]


USAGE = [
    (("stamp", "x.whl", "-o", "out"), "expected either --label or --remove"),
    (("stamp", "x.whl", "-o", "out", "-l", "x", "-p", "nonsense"), "not a variant property"),
    (("verify", "x.whl", "--cpu", "i386"), "no CPU level 'i386'"),
    (("select",), "expected NAME, oci:DIR, or --write-machine FILE"),
    (("select", "demo"), "expected --find-links FOLDER"),
    (("select", "oci:demo", "-f", "."), "--find-links is for wheels; expected the NAME of a project"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("arguments", "said"), USAGE)
def test_usage_mistakes_are_status_2(arguments: tuple[str, ...], said: str) -> None:
    result = vbuild(*arguments)
    assert result.returncode == 2
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("matrix", ""), "no source is named; expected a recipe"),
        (("init", " "), "no source is named; expected a recipe"),
        (("lock", ""), "no source is named; expected a recipe"),
        (("index", ""), "the path is empty; expected one, as in . for this folder"),
        (("inspect", ""), "the path is empty"),
        (("check", ""), "the path is empty"),
        (("slim", "x.whl", "--gpu", "90", "-o", ""), "the path is empty"),
    ],
)
def test_a_variable_of_a_script_that_is_not_set_is_a_usage_mistake(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_namespace_that_nobody_knows_is_refused_with_the_one_that_is_near(tmp_path: Path) -> None:
    variant_wheel(tmp_path, "demo-1.0-py3-none-any-x86_64_v3.whl")
    index(tmp_path)
    ran = CliRunner().invoke(main, ["select", "demo", "-f", str(tmp_path), "--cpu", "v3", "--without", "nvida"])
    assert (ran.exit_code, "did you mean 'nvidia'?" in ran.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("slim --undo b --gpu 90", "--gpu has no effect with --undo"),
        ("slim --environment e --drop *.a", "--drop has no effect on what is installed"),
        ("slim --environment e -o out", "--output-dir has no effect on what is installed"),
        ("slim oci:d --dry-run --under 1MB", "--under has no effect on images"),
        ("slim x.whl -o o --backup b", "--backup goes with --environment only"),
        ("split x.whl --check --keep a", "--keep has no effect without --output-dir"),
        ("init . --emit github --cpu v2", "--cpu has no effect with --emit"),
        ("init . --check -o x.toml", "--output has no effect with --check"),
        ("matrix . --emit json --hwcaps", "--hwcaps has no effect with --emit"),
        ("lock x --with y", "--with goes with --machine only"),
        ("lock x --machine y.toml", "--machine: expected --find-links with the wheels, and --output-dir for the locks"),
        ("select x --gpu 90", "--gpu goes with --cpu only"),
    ],
)
def test_an_option_without_effect_is_a_usage_mistake(words: str, message: str) -> None:
    ran = CliRunner().invoke(main, words.split())
    assert (ran.exit_code, message in ran.stderr) == (2, True), ran.stderr


def test_folders_stand_for_the_wheels_in_them_and_their_number_is_said(tmp_path: Path) -> None:
    for name in ("demo-1.0-py3-none-any.whl", "other-1.0-py3-none-any.whl"):
        wheel(tmp_path, name)
    (tmp_path / "variants.json").write_text("{}")
    for command, last in (("inspect", "2 wheels"), ("verify", "2 wheels, 0 of them failed")):
        ran = CliRunner().invoke(main, [command, str(tmp_path)])
        assert (ran.exit_code, ran.stdout.splitlines()[-1]) == (0, last)
    ran = CliRunner().invoke(main, ["inspect", str(tmp_path), "--html", str(tmp_path / "page.html")])
    assert (ran.exit_code, "not of demo; expected two wheels of one project" in ran.stderr) == (1, True)
    assert not (tmp_path / "page.html").exists()


def test_two_wheels_of_one_project_are_compared_in_words_json_and_a_page(tmp_path: Path) -> None:
    paths = [
        str(wheel(tmp_path, f"demo-{text}-py3-none-any.whl", {"demo/a.txt": text * 999})) for text in ("1.0", "22.0")
    ]
    page = tmp_path / "page.html"
    ran = CliRunner().invoke(main, ["inspect", *paths, "--html", str(page)])
    assert "demo 1.0 -> 22.0: 2 changes of size or GPU code" in ran.stdout.splitlines()
    assert "*.txt                                   3.0 kB     4.0 kB     +999 B" in ran.stdout
    assert "What changed" in page.read_text()
    _, new = json.loads(CliRunner().invoke(main, ["inspect", *paths, "--json"]).stdout)
    assert new["changes"][0] == {"path": "*.txt", "bytes_before": 2997, "bytes_after": 3996, "gained": [], "lost": []}
    ran = CliRunner().invoke(main, ["inspect", *paths, paths[0], "--html", str(page)])
    assert (ran.exit_code, "an old and a new one" in ran.stderr) == (2, True)


def test_an_option_without_a_value_names_the_help_of_its_own_command() -> None:
    for words, command in (("slim --gpu", "vbuild slim"), ("mirror make x --gpu", "vbuild mirror make")):
        ran = CliRunner().invoke(main, words.split(), prog_name="vbuild")
        assert ran.stderr.splitlines() == [
            f"{command}: Option '--gpu' requires an argument.",
            f"'{command} --help' explains its options.",
        ]


def test_one_library_of_the_closure_can_be_asked_for(tmp_path: Path) -> None:
    said = vbuild("inspect", wheel(tmp_path, NAME, files()), "--closure", "--library", "*deep*").stdout
    assert f"demo.libs/{DEEP}" in said
    assert "libidle" not in said
    assert said.count("  why  ") == 2


@pytest.mark.parametrize("kind", VbuildError.__subclasses__(), ids=lambda kind: kind.__name__)
def test_each_kind_of_error_ends_with_status_1_and_names_pages_that_exist(kind: type[VbuildError]) -> None:
    pages = re.findall(r"docs/[\w/.-]*\w", kind.advice)
    assert kind.exit_code == 1
    assert pages
    assert all((Path(__file__).parents[2] / page).exists() for page in pages)


def test_only_a_terminal_shows_the_advice_behind_a_refusal(tmp_path: Path) -> None:
    command = ["select", "demo", "--find-links", tmp_path]
    [line] = vbuild(*command).stderr.splitlines()
    reader, terminal = os.openpty()
    ended = subprocess.run([sys.executable, "-m", "vbuild", *map(str, command)], stderr=terminal, check=False)
    os.close(terminal)
    assert ended.returncode == 1
    assert os.read(reader, 4096).decode().splitlines() == [line, VariantError.advice]
    os.close(reader)
