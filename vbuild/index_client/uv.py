"""The commands of uv with which vbuild makes environments and finds Pythons.

None reads the user's uv.toml: what matters of the configuration is pip's, see `vbuild.index_client.configuration`.
"""

from pathlib import Path

from uv import find_uv_bin

_QUIET = ("--no-config", "--no-progress")


def venv_command(python: Path | str, folder: Path, *options: str) -> list[str]:
    """The command that makes *folder* an environment of *python*."""
    own = ("--no-project", "--no-python-downloads", "--python", str(python))
    return [find_uv_bin(), "venv", *_QUIET, *own, *options, str(folder)]


def install_command(python: Path | str, *words: str) -> list[str]:
    """The command that installs into the environment of *python* what *words*, options and packages, say."""
    return [find_uv_bin(), "pip", "install", *_QUIET, "--python", str(python), *words]


def compile_command(python: Path | str, requirements: Path, output: Path, *options: str) -> list[str]:
    """The command that writes to *output* which packages the file *requirements* comes to for *python*."""
    files = ("--python", str(python), "--output-file", str(output), str(requirements))
    return [find_uv_bin(), "pip", "compile", *_QUIET, *options, *files]


def find_command(version: str) -> list[str]:
    """The command that prints the path of an installed Python *version*."""
    return [find_uv_bin(), "python", "find", "--no-project", "--no-config", "--no-python-downloads", version]
