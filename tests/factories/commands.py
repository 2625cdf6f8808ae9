"""What commands of vbuild print, and how they end: run in this process, where a new Python costs half a second each."""

import contextlib
import subprocess
from pathlib import Path

from click.testing import CliRunner

from vbuild.cli.main import main


def vbuild(
    *arguments: object, folder: Path | None = None, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """What ``vbuild ARGUMENTS`` says in *folder*; variables that are None are not in its *environment*.

    Raises what the command raised, which a user would see as a traceback.
    """
    words = [str(argument) for argument in arguments]
    with contextlib.chdir(folder or "."):
        ended = CliRunner(env=environment).invoke(main, words, prog_name="vbuild")
    if ended.exception and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return subprocess.CompletedProcess(words, ended.exit_code, ended.stdout, ended.stderr)
