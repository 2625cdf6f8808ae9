"""The few git commands that sources need; every other git feature is the user's own business."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from vbuild.errors import BuildError

# set inside hooks and by some tools, and then they mean another repository than the folder git is run in
_MISLEADING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")

# what the configuration of a checkout, or its hooks, would run with our variables
_RUNS_NOTHING = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")


# as `vbuild.index_client.bounds` has it for a file: git may write 16 GB into each, in six hours, with 4 GB of memory
_SHELL = ("sh", "-c", 'ulimit -f 31250000 && ulimit -d 4000000 && exec "$@"', "git")  # blocks of 512 bytes, KB
_LONGEST = 6 * 3600
# bytes a second over two minutes, fewer than for files: a server sends next to nothing while it counts objects
_BOUNDS = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=120")


def checkout(url: str, commit: str, *, folder: Path) -> None:
    """Fill the empty *folder* with *commit* and its submodules; `BuildError` with git's last line if it fails."""
    _git(folder, "init", "--quiet")
    try:
        _fetched(folder, "fetch", "--quiet", "--depth", "1", "--no-tags", "--", url, commit)
    except BuildError:
        # not every server gives out a commit by its hash alone
        _fetched(folder, "fetch", "--quiet", "--", url, "+refs/*:refs/remotes/origin/*")
    _git(folder, "checkout", "--quiet", "--detach", commit)
    _fetched(folder, "submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1")


def is_clean(folder: Path, commit: str) -> bool:
    """Whether *folder* is a checkout of exactly *commit*, with nothing changed, added or damaged."""
    try:
        head = _git(folder, "rev-parse", "--verify", "HEAD").strip()
        # a project may ask for its submodules to be passed over
        if head != commit or _git(folder, "status", "--porcelain", "--ignored", "--ignore-submodules=none"):
            return False
        _git(folder, "fsck", "--no-progress", "--no-dangling")  # each build gets the history, too
    except BuildError:
        return False
    return True


def listed(folder: Path) -> list[str] | None:
    """The files below *folder* that git tracks or would offer to add, or None if it is no git checkout."""
    try:
        tracked = _git(folder, "ls-files", "-z", "--cached", "--recurse-submodules").split("\0")
        added = _git(folder, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    except BuildError:
        return None
    # an ignored folder inside a checkout is not part of it, nor of anything git could list
    return sorted({path for path in tracked + added if path}) or None


def clone_history(folder: Path, target: Path) -> None:
    """Give the empty folder *target* the history of the checkout *folder*, and no files.

    Projects that take their version from tags need it. A folder below the top of its checkout has none of its own.
    """
    if (folder / ".git").exists() and _has_commit(folder):
        _git(folder, "clone", "--quiet", "--no-checkout", "--no-recurse-submodules", "--", str(folder), str(target))
        _git(target, "reset", "--quiet")


def history(folder: Path) -> tuple[str, ...]:
    """What `clone_history` gives of the checkout *folder*: the commit it is at, and where branches and tags are."""
    if not (folder / ".git").exists() or not _has_commit(folder):
        return ()
    refs = _git(folder, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags")
    return (_git(folder, "rev-parse", "HEAD", "--symbolic-full-name", "HEAD"), refs)


def _has_commit(folder: Path) -> bool:
    try:
        _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    except BuildError:
        return False
    return True


def apply(patch: Path, folder: Path) -> None:
    """Apply *patch* (paths ``a/…``, ``b/…``) to the tree in *folder*, exactly or not at all."""
    # an enclosing checkout would make git take the paths as starting at its top, and skip them all
    _git(folder, "apply", "--whitespace=nowarn", str(patch), ceiling=folder.parent)


def _fetched(folder: Path, *arguments: str) -> None:
    """What `_git` does, for a command that asks servers, within bounds."""
    _git(folder, *_BOUNDS, *arguments, around=_SHELL, seconds=_LONGEST)


def _git(
    folder: Path, *arguments: str, ceiling: Path | None = None, around: Iterable[str] = (), seconds: int | None = None
) -> str:
    env = {name: text for name, text in os.environ.items() if name not in _MISLEADING}
    env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    if ceiling:
        env["GIT_CEILING_DIRECTORIES"] = str(ceiling)
    command = [*around, "git", *_RUNS_NOTHING, *arguments]
    verb = next(word for word in arguments if not word.startswith("-") and "=" not in word)
    try:
        ran = subprocess.run(
            command,
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"git {verb}: not at its end after {seconds} seconds") from error
    except FileNotFoundError as error:
        raise BuildError(
            "git is not installed, and a git source or a patch needs it; install it: apt-get install git"
        ) from error
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"])[-1]
        raise BuildError(f"git {verb}: {last}")
    return ran.stdout
