"""What logs of cibuildwheel say, in pieces of real ones."""

import pytest

from vbuild.build.cibuildwheel.program import Journal, explained_failure
from vbuild.errors import BuildError

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

TOO_OLD_DOCKER = "Build failed because docker is too old or is not working properly"
NO_DAEMON = "is its daemon running? or name another: CIBW_CONTAINER_ENGINE=podman"
BUILDING = "Command ['python', '-m', 'build', PurePosixPath('/project'), '--wheel'] failed with code 1. "
NOT_THERE = "cp: cannot stat 'target/release/libdemo.so': No such file or directory\n"
RUST = "vbuild sets CARGO_BUILD_TARGET, with which cargo's results are in target/<target>/release"
TRACEBACK = """
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/venv/lib/cibuildwheel/bashlex_eval.py", line 71, in evaluate_node
    raise ValueError(msg)
ValueError: Unsupported bash construct: 'assignment'
"""


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
        (OLD_AUDITWHEEL, f"sh -c repair failed with code 2; {TOO_OLD}"),
        (f"cibuildwheel: error: {'x' * 400}", f"{'x' * 300} …"),
        (f"cibuildwheel: error: {TOO_OLD_DOCKER}", f"{TOO_OLD_DOCKER}; {NO_DAEMON}"),
        (f"cibuildwheel: error: {BUILDING}", "python -m build /project --wheel failed with code 1"),
        (TRACEBACK, "cibuildwheel: ValueError: Unsupported bash construct: 'assignment'"),
        (TRACEBACK.replace("cibuildwheel", "theirs"), ""),
        (
            f"{NOT_THERE}cibuildwheel: error: Command ['sh', '-c', 'cp'] failed with code 1. \n",
            f"sh -c cp failed with code 1; {RUST}",
        ),
        ("cibuildwheel: error: Command [what] failed with code 1. ", "Command [what] failed with code 1"),
    ],
    ids=range(16),
)
def test_the_reason_is_one_line_with_what_to_do(log: str, reason: str) -> None:
    assert Journal.parse(log).reason == reason


def test_an_engine_is_the_reason_only_where_its_own_command_failed() -> None:
    log = "Error: connection refused\ncibuildwheel: error: Command ['{}', 'create'] failed with code 125. "
    assert Journal.parse(log.format("podman")).reason == "podman create: connection refused"
    assert Journal.parse(log.format("sh")).reason == "sh create failed with code 125"


@pytest.mark.parametrize("step", ["Running before_all", "Building wheel"])
def test_only_before_build_is_ended_by_the_program_in_the_container(step: str) -> None:
    error = "cibuildwheel: error: Command ['sh', '-c', 'exit 3'] failed with code 3. \n"
    assert Journal.parse(f"{step}...\n\nvbuild: hello\n{error}").reason == "sh -c 'exit 3' failed with code 3"
    assert Journal.parse(f"Running before_build...\n\nvbuild: hello\n{error}").reason == "hello"


def test_the_end_of_a_log_is_told_only_where_the_reason_is_not_all_there_is_to_know() -> None:
    log = "Building wheel...\n\n    + python -m build\nno memory\ncibuildwheel: error: {} failed with code 1. \n"
    error = BuildError(f"cibuildwheel failed with status 1; its log is a.log, which ends:\n{log}")
    assert str(explained_failure(error, Journal.parse(log.format("Command ['python']")))) == (
        "python failed with code 1; its last output:\nno memory"
    )
    assert str(explained_failure(error, Journal.parse(log.format("All of it")))) == "All of it failed with code 1"
    assert str(
        explained_failure(BuildError("cibuildwheel was ended by SIGKILL; its log is a.log, which is empty"), Journal())
    ) == ("cibuildwheel was ended by SIGKILL")
