"""What README and docs/ say without being run: options that exist, links that lead somewhere, lists without gaps."""

import ast
import re
import tomllib
from pathlib import Path
from runpy import run_path
from typing import Any

import click
import pytest

from tests.docs.generate import generated
from tests.docs.pages import DOCS, QUICK, README, ROOT, examples, options_of_vbuild, pages
from vbuild.cli.group import DefaultCommand
from vbuild.cli.main import main
from vbuild.cli.options import LAYOUTS
from vbuild.publishing.model import PublishRule
from vbuild.verification.model import VerifyRule

TEXTS = {page: page.read_text(encoding="utf-8") for page in pages()}
# options of other programs that pages name
_OTHERS = {
    "--only-binary",
    "--no-binary",
    "--no-build",
    "--no-index",
    "--offline",
    "--exclude",
    "--plat",
    "--preview-features",
    "--threads",
}


def _commands(group: click.Group) -> list[click.Command]:
    return [
        one
        for command in group.commands.values()
        for one in (command, *(_commands(command) if isinstance(command, click.Group) else ()))
    ]


def test_generated_parts_are_what_the_code_says() -> None:
    stale = [str(page.relative_to(ROOT)) for page, text in generated().items() if TEXTS.get(page) != text]
    assert not stale, f"{', '.join(stale)}: not what the code says; run .ci/write-docs"


def test_every_room_says_what_it_knows_and_names_modules_that_are_there() -> None:
    for file in (ROOT / "vbuild").glob("*/**/__init__.py"):
        said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
        assert said, file
        named = {name for name in re.findall(r"(?<!`)`(\w+)`(?!`)", said) if not (ROOT / "vbuild" / name).is_dir()}
        assert named <= {path.stem for path in file.parent.iterdir()}, file


def test_no_page_is_about_a_command_that_is_gone() -> None:
    assert {page.stem for page in (DOCS / "commands").glob("vbuild-*.md")} == {
        f"vbuild-{name}" for name in main.commands
    }


def test_every_option_that_a_page_names_exists() -> None:
    known = {
        option
        for command in _commands(main)
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "--version"}
    for page, text in TEXTS.items():
        named = set(re.findall(r"`(--[a-z-]+)", text)) - _OTHERS
        for example in examples(text):
            named |= options_of_vbuild(example.command)
        assert named - known == set(), page


def test_every_option_of_a_vbuild_command_in_a_shell_block_exists() -> None:
    for page, text in TEXTS.items():
        for line in re.findall(r"^vbuild .*$", "\n".join(_shell(text)), re.MULTILINE):
            words = line.partition("#")[0].split()
            words = words[words.index("vbuild") + 1 :]
            command: Any = main
            while isinstance(command, click.Group):
                if isinstance(command, DefaultCommand) and words[0] not in command.commands:
                    words = [next(iter(command.commands)), *words]
                assert words[0] in command.commands, f"{page}: {line}"
                command = command.commands[words.pop(0)]
            known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
            ours = words[: words.index("--")] if "--" in words else words
            assert {word for word in ours if word.startswith("-")} <= known, f"{page}: {line}"


def _shell(text: str) -> list[str]:
    return re.findall(r"^```sh\n((?:.*\n)*?)```$", text, re.MULTILINE)


def test_every_command_is_in_readmes_table() -> None:
    assert set(re.findall(r"^\| \[`vbuild ([a-z]+)`\]", TEXTS[README], re.MULTILINE)) == set(main.commands)


def test_every_command_has_an_example_that_is_run() -> None:
    # what cibuildwheel prints is not vbuild's, and takes a container: tests/docs/test_ci_pages.py runs it
    shown = {
        match[1]
        for text in TEXTS.values()
        for example in examples(text)
        for match in [re.search(r"(?:^|&& )vbuild ([a-z]+)", example.command)]
        if match
    }
    assert shown | {"cibuildwheel"} >= set(main.commands)


def test_every_layout_has_a_page() -> None:
    assert {page.stem for page in (DOCS / "layouts").glob("*.md")} == {"index", *LAYOUTS}


def test_every_rule_of_verify_and_check_is_listed() -> None:
    text = TEXTS[DOCS / "reference" / "verify-rules.md"]
    verify, check = (
        {rule for row in re.findall(r"^\| (`.*?`) \|", part, re.MULTILINE) for rule in re.findall(r"`([a-z-]+)`", row)}
        for part in text.split("## vbuild check")
    )
    assert (verify, check) == ({*map(str, VerifyRule)}, {*map(str, PublishRule)})


def test_every_room_is_in_the_architecture_in_the_order_that_imports_run() -> None:
    table = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", TEXTS[DOCS / "architecture.md"], re.MULTILINE)
    rows = [re.findall(r"`([a-z_]+)`", row) for row in table]
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [re.findall(r"vbuild\.([a-z_]+)", layer) for layer in contract["contracts"][0]["layers"]]
    assert [sorted(row) for row in rows] == [sorted(layer) for layer in layers]


@pytest.mark.parametrize("page", [*TEXTS, ROOT / "CHANGELOG.md", ROOT / ".github" / "CONTRIBUTING.md"], ids=str)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = re.findall(r"([\w/-]+\.md)$", (ROOT / ".ci" / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(navigation) == sorted(str(page.relative_to(DOCS)) for page in TEXTS if page != README)


def test_security_names_tests_that_are_there() -> None:
    text = (ROOT / ".github" / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert len(named) > 10


@pytest.mark.parametrize("name", ["list-libraries", "pin-toolkits"])
def test_programs_that_write_files_find_what_they_import_and_the_file(name: str) -> None:
    program = run_path(str(ROOT / ".ci" / name))
    assert program["TARGET"].is_file()


def test_readme_is_short_enough_to_read() -> None:
    assert len(TEXTS[README].splitlines()) <= 150


def test_readmes_two_commands_are_its_first_and_one_line_each() -> None:
    # .ci/run takes them from there
    first, second = re.findall(r"^```sh\n((?:.*\n)*?)```$", TEXTS[README], re.MULTILINE)[:2]
    assert [len(block.splitlines()) for block in (first, second)] == [1, 1]
    assert first.startswith("python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/vbuild matrix ")
    assert second.startswith("python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest")


def test_the_pages_run_with_each_change_are_there() -> None:
    assert all(page in TEXTS for page in QUICK)
