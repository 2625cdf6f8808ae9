"""The command line: options in, one library call, a report out.

Every command imports the verb it calls when it runs, so that ``vbuild --help`` loads click and nothing else.
"""

import click

from vbuild import DISTRIBUTION, __version__
from vbuild.cli.building import cibuildwheel, collect, lock, matrix, toolkit
from vbuild.cli.cache import cache
from vbuild.cli.group import Commands
from vbuild.cli.publishing import publish
from vbuild.cli.repackaging import repair, slim, split, stamp
from vbuild.cli.telling import check, index, inspect, select, verify


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message=f"{DISTRIBUTION} %(version)s")
def main() -> None:
    """Build wheels as families of hardware variants, prove them, and index them."""


# in the order of a wheel's way
ORDER = (
    *(lock, matrix, cibuildwheel, collect, repair, slim, split, inspect, verify),
    *(stamp, index, select, check, publish, toolkit, cache),
)
for command in ORDER:
    main.add_command(command)

if __name__ == "__main__":
    main()
