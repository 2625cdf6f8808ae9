"""What logs of cibuildwheel say, in pieces of real ones."""

import pytest

from vbuild.cibw.journal import Journal

BUILT = """
  test_command: {test}
  test_environment:

Building cp311-manylinux_x86_64 wheel
CPython 3.11 manylinux x86_64

Testing wheel...

    + pip install virtualenv

✓ cp311-manylinux_x86_64 finished in 3.02 seconds

Building cp312-manylinux_x86_64 wheel

Found previously built wheel demo-1.0-cp311-abi3-manylinux1_x86_64.whl, that's compatible with cp312-manylinux_x86_64.

✓ cp312-manylinux_x86_64 finished in 10 milliseconds
"""
BEGUN = """
\x1b[1m\x1b[34mBuilding pp311-manylinux_x86_64 wheel\x1b[0m
::group::Testing wheel...
"""


def test_identifiers_are_told_with_their_tests() -> None:
    journal = Journal.parse(BUILT.format(test="python -c 'import demo'") + BEGUN)
    assert (journal.tested, journal.at_work) == (frozenset({"cp311-manylinux_x86_64"}), "pp311-manylinux_x86_64")
    assert (journal.has_test, journal.reason) == (True, "")


@pytest.mark.parametrize(
    ("test", "has_test"), [("", False), ("pytest", True), ("\n    python -m pytest \\\n    -x", True)]
)
def test_a_project_has_a_test_or_none(test: str, has_test: bool) -> None:  # noqa: FBT001 - a table's column
    assert Journal.parse(BUILT.format(test=test)).has_test is has_test
    assert Journal.parse(BUILT.format(test=test)).at_work == ""


TWO = """
Build failed because the repair step completed successfully but
produced multiple wheels: ['a.whl', 'b.whl']

Your `repair-wheel-command` must place exactly one repaired
wheel in the {dest_dir} directory.
"""
REASON = (
    "Build failed because the repair step completed successfully but produced multiple wheels: ['a.whl', 'b.whl']; "
    "vbuild makes the variants of that one; let the command leave one in {dest_dir}"
)


NO_SPACE = """
docker: Error response from daemon: no space
cibuildwheel: error: Command ['docker', 'create', '-q'] failed with code 125.
"""
OLD_AUDITWHEEL = """
auditwheel: error: unrecognized arguments: --disable-isa-ext-check
cibuildwheel: error: Command ['sh', '-c', 'repair'] failed with code 2.
"""
TOO_OLD = "auditwheel of the image is too old: choose a newer image"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", ""),
        ("cibuildwheel: warning: something\n", ""),
        (f"cibuildwheel: error: {TWO}", REASON),
        (f"cibuildwheel: \x1b[91merror\x1b[0m: {TWO}", REASON),
        (f"::error::cibuildwheel: {TWO}", REASON),
        (
            "vbuild: gcc 10 is old\ncibuildwheel: error: Command ['sh', '-c', 'trap'] failed with code 1. \n",
            "gcc 10 is old",
        ),
        (
            "Error: no such image\ncibuildwheel: error: Command ['podman', 'create', '-q'] failed with code 125. \n",
            "podman create: no such image",
        ),
        (NO_SPACE, "docker create: Error response from daemon: no space"),
        (OLD_AUDITWHEEL, f"Command ['sh', '-c', 'repair'] failed with code 2; {TOO_OLD}"),
        (f"cibuildwheel: error: {'x' * 400}", f"{'x' * 300} …"),
    ],
    ids=range(10),
)
def test_the_reason_is_one_line_with_what_to_do(log: str, reason: str) -> None:
    assert Journal.parse(log).reason == reason
