"""A file that is not there is no project, in any command whose argument may be a file or the name of a project."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.factories.ranges import serving
from vbuild.cli.main import main
from vbuild.config.requirements import asked_project, checked_project, is_path
from vbuild.errors import VariantError

_FILES = [
    *("requirements.txt", "requirements.in", "demo.TOML", "pylock.toml", "uv.lock", "machine.json"),
    *("demo-1.0-py3-none-any.whl", "demo-1.0.tar.gz", "demo.zip", "demo.tgz", "demo-1.0-0.conda"),
    *("./demo", "../demo", "dist/demo", "dist\\demo", "~/demo", "~demo", ".", "..", ".demo", "/srv/demo"),
]
_PROJECTS = [
    *("demo", "Demo_2", "zope.interface", "ruamel.yaml", "web.py", "backports.zip==1.0", "demo.txt>=2", "demo.in[all]"),
    *("demo @ https://example.org/demo.zip", "demo@https://example.org/demo-1.0.tar.gz", "demo; os_name == 'posix'"),
]


def test_a_file_is_known_by_its_place_or_by_what_its_name_ends_in() -> None:
    assert [text for text in (*_FILES, *_PROJECTS) if is_path(text)] == _FILES


def test_the_name_of_a_project_is_one_as_pep_508_has_it() -> None:
    for name in ("demo", "Zope.Interface", "a"):
        assert asked_project(name, VariantError) == name
    for text in ("", "a b", "demo\n", "-demo", "demo==1.0", "${{ demo }}", "démo", "demo\\"):
        with pytest.raises(VariantError):
            checked_project(text, VariantError)
    with pytest.raises(VariantError, match=r"'demo\.txt' is the name of a file; expected that of a project, as in "):
        asked_project("demo.txt", VariantError)


_CUT = ("--gpu", "90", "--dry-run")
_OUT = ("--gpu", "90", "--dry-run")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("matrix", "requirments.txt"), "requirments.txt: no such file or folder"),
        (("matrix", "demo.tar.gz", "--dry-run"), "demo.tar.gz: no such file or folder"),
        (("matrix", "recipe.toml"), "recipe.toml: cannot be read: No such file or directory"),
        (("init", "demo.json"), "demo.json: no such file or folder"),
        (("init", "src/demo", "--check"), "src/demo: no such file or folder"),
        (("mirror", "requirments.txt", *_OUT), "requirments.txt: no such file, and no requirement; expected "),
        (("mirror", "reqs/base", *_OUT), "reqs/base: no such file, and no requirement; expected "),
        (("mirror", "demo.lock", *_OUT), "demo.lock: no such file, and no requirement; expected "),
        (("slim", "demo.txt", *_CUT), "demo.txt: cannot be read: No such file or directory"),
        (("slim", "demo.Whl", *_CUT), "demo.Whl: cannot be read: No such file or directory"),
        (("slim", "oci:demo.json", *_CUT), "demo.json: no "),
        (("select", "demo.txt", "-f", "{index}"), "'demo.txt' is the name of a file; expected that of a project"),
        (("select", "demo.txt", "-f", "{index}"), "'demo.txt' is the name of a file; expected that of a"),
        (
            ("lock", "demo.txt", "-f", "{index}", "--machine", "m.toml", "-o", "o"),
            "'demo.txt' is the name of a file; expected that of a project",
        ),
        (
            ("lock", "demo", "-f", "{index}", "--machine", "m.toml", "-o", "o", "--with", "requirements.txt"),
            "'requirements.txt' is the name of a file; expected a requirement",
        ),
        (("bench", "demo.txt", "b.whl", "--script", "b.py"), "demo.txt"),
        (("inspect", "demo.txt"), "demo.txt"),
        (("verify", "demo.txt"), "demo.txt"),
        (("publish", "demo.txt", "--layout", "local", "-o", "o"), "demo.txt"),
        (("doctor", "demo.txt", "--gpu", "90"), "demo.txt"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, tuple) else "",
)
def test_no_index_is_asked_for_a_file_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.toml").write_text('python = "3.12"\ncpu = "x86-64-v3"\nglibc = "2.28"\n')
    (tmp_path / "b.py").write_text("")
    with serving(tmp_path) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        ran = CliRunner().invoke(main, [word.format(index=server.url) for word in words])
        assert why in ran.stderr
        assert ran.exit_code in {1, 2}
        assert "Traceback" not in ran.output
        assert server.asked == []


@pytest.mark.parametrize(
    ("words", "project"),
    [
        (("matrix", "ruamel.yaml"), "ruamel-yaml"),
        (("init", "demo.zip==1.0"), "demo-zip"),
        (("mirror", "web.py", *_OUT), "web-py"),
        (("slim", "zope.interface", *_CUT), "zope-interface"),
        (("slim", "demo.txt>=1", *_CUT), "demo-txt"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_a_name_with_a_dot_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], project: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        assert CliRunner().invoke(main, list(words)).exit_code == 1
        assert {path.rstrip("/") for path, _ in server.asked} == {f"/{project}"}
