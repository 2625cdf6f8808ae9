"""`python -m vbuild`."""

from vbuild.cli.main import main

main(prog_name="vbuild")
