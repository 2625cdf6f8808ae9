"""The list of commands."""

import click

from vbuild import DISTRIBUTION, __version__
from vbuild.cli.group import Commands

SECTIONS = {
    "Build": ("init", "matrix", "lock", "cibuildwheel", "collect", "toolkit", "cache"),
    "Repackage": ("slim", "split", "stamp", "repair"),
    "Look": ("inspect", "verify", "bench", "select", "doctor"),
    "Ship": ("index", "check", "publish", "mirror"),
}
_COMPLETION = """\b
Completion in bash (zsh and fish alike; put the line into ~/.bashrc):
  eval "$(_VBUILD_COMPLETE=bash_source vbuild)"
"""


@click.group(
    cls=Commands, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_COMPLETION
)
@click.version_option(__version__, message=f"{DISTRIBUTION} %(version)s")
def main() -> None:
    """Build wheels for CPU levels and GPUs (wheel variants); repackage, check and publish wheels.

    Start with 'vbuild matrix' to build a project for several CPU levels and GPUs, 'vbuild slim' to make CUDA wheels
    smaller, or 'vbuild inspect' to see what is in a wheel. 'vbuild COMMAND -h' explains a command.
    """


if __name__ == "__main__":
    main()
