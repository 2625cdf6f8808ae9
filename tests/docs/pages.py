"""The pages that people read, and what their code blocks do when they are run in order in one folder.

```console              a command and what it prints; one command a block
```sh                   lines that begin with "pip download" are run, other lines are only shown
<!-- file: NAME -->     the code block that follows is the content of the file NAME
<!-- run: COMMAND -->   COMMAND is run before what follows, and not shown
<!-- lines only -->     the output of the command that follows depends on the machine: only its length is compared
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
# run with each change; the other pages are run by night, README too: .ci/run runs its longest command
QUICK = (DOCS / "explanation" / "order.md",)

_STEP = re.compile(
    r"^<!-- run: (?P<hidden>.*) -->$"
    r"|^<!-- file: (?P<file>\S+) -->\n```\w+\n(?P<content>(?:.*\n)*?)```$"
    r"|^(?P<lines><!-- lines only -->\n)?```console\n\$ (?P<command>.*)\n(?P<shown>(?:.*\n)*?)```$"
    r"|^```sh\n(?P<shell>(?:.*\n)*?)```$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Example:
    """A command of a page, and what the page shows of its output, which stands from *start* to *end* in the text."""

    command: str
    shown: str
    start: int
    end: int
    is_machines: bool


def pages() -> list[Path]:
    """README and every page of docs/."""
    return [README, *sorted(DOCS.rglob("*.md"))]


def examples(text: str) -> list[Example]:
    """The commands whose output the page *text* shows."""
    return [_example(match) for match in _STEP.finditer(text) if match["command"]]


def runs(text: str, folder: Path, prepared: Path) -> Iterator[tuple[Example, int, str]]:
    """Run the page *text* below *folder*: each example, with its exit status and all that it prints.

    Examples have an empty cache, so that they show what a first run prints. What prepares them uses the cache
    *prepared*, which pages can share.
    Raises `subprocess.CalledProcessError` if a command fails that prepares an example.
    """
    cache, folder = folder / "cache", folder / "work"
    shutil.copytree(ROOT / "recipes", folder / "recipes")  # locks are written next to recipes
    (folder / "tests").symlink_to(ROOT / "tests")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(cache)}
    before = {**environment, "XDG_CACHE_HOME": str(prepared)}
    for match in _STEP.finditer(text):
        if match["command"]:
            ran = subprocess.run(
                ["sh", "-c", match["command"]],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            said = ran.stdout.replace(str(cache), "/home/me/.cache").replace(str(folder), "/home/me")
            yield _example(match), ran.returncode, said
        elif match["file"]:
            (folder / match["file"]).parent.mkdir(parents=True, exist_ok=True)
            (folder / match["file"]).write_text(match["content"], encoding="utf-8")
        else:
            for line in [match["hidden"]] if match["hidden"] else _downloads(match["shell"]):
                subprocess.run(["sh", "-c", line], cwd=folder, env=before, check=True, stdout=subprocess.DEVNULL)


def differences(page: Path, folder: Path, prepared: Path) -> list[str]:
    """What is wrong with the examples of *page*, run below *folder*; each with what the command prints."""
    wrong = []
    for example, status, said in runs(page.read_text(encoding="utf-8"), folder, prepared):
        is_refused = "\nvbuild: " in f"\n{example.shown}"
        if example.is_machines:  # a choice is that of the machine it is made on
            is_same = len(said.splitlines()) == len(example.shown.splitlines())
        else:
            is_same = comparable(said) == comparable(example.shown)
        if not is_same or bool(status) != is_refused:
            wrong.append(
                f"{page.name}: $ {example.command}\nexit status {status}; if this is right, run "
                f"`python -m tests.docs.show {page.relative_to(ROOT)}`:\n{said}"
            )
    return wrong


def comparable(text: str) -> str:
    """*text* without what differs between machines: figures, versions, the Python, the platform."""
    text = re.sub(r"^CUDA .* licence agreement .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\[ *\d+ s\] .*\n", "", text, flags=re.MULTILINE)  # a busy machine takes long
    text = re.sub(r"imported as v\d$", "no test", text, flags=re.MULTILINE)  # if there is an emulator
    # of a test, if there is an emulator; if not, that is said
    text = re.sub(r", as v\d$|^not emulated: .*\n(?:  .*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"cp3\d+|cpython-3\.?\d+", "cp3", text)
    text = re.sub(r"==\d[\w.]*", "==N", text)
    text = re.sub(r"sha256:[0-9a-f]{64}", "sha256:N", text)
    text = re.sub(r"(manylinux\w*|linux)(\.manylinux\w*)*_x86_64", "platform", text)
    return re.sub(r" +\d+\.\d+ ", " N ", text)


def options_of_vbuild(command: str) -> set[str]:
    """The long options that the shell line *command* gives vbuild; those after ``--`` are another program's."""
    words = shlex.split(command)
    if "vbuild" not in words:
        return set()
    ours = words[words.index("vbuild") :]
    ours = ours[: ours.index("--")] if "--" in ours else ours
    return {word.partition("=")[0] for word in ours if word.startswith("--")}


def _example(match: re.Match[str]) -> Example:
    return Example(match["command"], match["shown"], match.start("shown"), match.end("shown"), bool(match["lines"]))


def _downloads(shell: str) -> list[str]:
    return [f"python -m {line} --quiet" for line in shell.splitlines() if line.startswith("pip download ")]
