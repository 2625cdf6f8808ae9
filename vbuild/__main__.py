"""`python -m vbuild`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, which -m puts there: a stranger's files may be in it

from vbuild.cli.main import main

main(prog_name="vbuild")
