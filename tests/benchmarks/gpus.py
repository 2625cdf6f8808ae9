"""A release for four groups of GPUs: fat and then slimmed, against one fat build and against four builds.

    python -m tests.benchmarks.gpus [RECIPE]

RECIPE, lightgbm's where none is given, is built for one toolkit and four groups, without a compiler cache:

- its plain wheel alone, which is the fat build;
- then the four variants, for which that build is taken from the store, so that both together are the whole release;
- then again with nothing changed;
- then each of the four by a build of its own.

The last line is of a small project with the toolkit in the cache: how long until its first compiler starts.
"""

import os
import re
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path

from platformdirs import user_cache_path

from tests.benchmarks.ratio import Run, timed

RECIPES = Path(__file__).parents[2] / "recipes"
PROJECT = Path(__file__).parents[1] / "projects" / "setuptools-cuda"
GROUPS = {"sm75": "75", "sm80": "80", "sm90": "90", "sm120": "120"}
KEPT = ("sdists", "commits", "toolkits", "zig")  # what is fetched is no part of it

FAT_REACH = 1.10
AGAIN_REACH = 2.0  # seconds
SIZE_REACH = 1.02
START_REACH = 1.0  # seconds


def main() -> None:
    vbuild = shutil.which("vbuild", path=Path(sys.executable).parent)
    if vbuild is None:
        sys.exit("vbuild is not installed beside this Python")
    recipe = Path(sys.argv[1]) if len(sys.argv) > 1 else RECIPES / "lightgbm.toml"
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(_cache(here / "cache"))
        reached = [*_release(vbuild, recipe, here), _start(vbuild, here)]
    sys.exit(not all(reached))


def _release(vbuild: str, recipe: Path, here: Path) -> list[bool]:
    fat, separate = (_recipe(recipe, here / f"{strategy}.toml", strategy) for strategy in ("fat", "separate"))

    def matrix(file: Path, *only: str) -> Run:
        chosen = [f"--only={label}" for label in only]
        return timed(lambda _: [vbuild, "matrix", file, "-o", here / file.stem, "--jobs", "2", *chosen])

    plain = matrix(fat, "plain")
    rest = matrix(fat)
    again = matrix(fat)
    alone = matrix(separate, *GROUPS)
    whole = plain.seconds + rest.seconds
    ratio, sizes = whole / plain.seconds, _sizes(here)
    print(f"four groups, fat and slimmed, to the fat build: {ratio:.3f} ({whole:.1f} s to {plain.seconds:.1f} s)")
    print(f"the same to four builds: {whole / alone.seconds:.3f} ({whole:.1f} s to {alone.seconds:.1f} s)")
    print(f"again with nothing changed: {again.seconds:.2f} s")
    print(
        "a slimmed wheel to one built for its GPU:", ", ".join(f"{label} {size:.4f}" for label, size in sizes.items())
    )
    return [ratio <= FAT_REACH, again.seconds <= AGAIN_REACH, max(sizes.values()) <= SIZE_REACH]


def _start(vbuild: str, here: Path) -> bool:
    """Whether the first compiler starts soon enough; of two runs the second counts, as the first asks what gcc is."""
    log = here / "started"
    real = shutil.which("gcc")
    wrapper = here / "bin" / "gcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\ndate +%s.%N >> {log}\nexec {real} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    path = f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"
    for _ in range(2):
        log.unlink(missing_ok=True)
        begun = time.time()
        timed(lambda _: [vbuild, "matrix", PROJECT, "-o", here / "small", "--fresh"], env={"PATH": path})
    seconds = float(log.read_text().split()[0]) - begun
    print(f"until the first compiler starts, the toolkit kept: {seconds:.2f} s")
    return seconds <= START_REACH


def _cache(folder: Path) -> Path:
    """A user's cache with what was fetched before, and no finished work."""
    real, mine = user_cache_path(), folder / "vbuild"
    mine.mkdir(parents=True)
    for name in KEPT:
        (real / "vbuild" / name).mkdir(parents=True, exist_ok=True)
        (mine / name).symlink_to(real / "vbuild" / name)
    if (real / "uv").is_dir():
        (folder / "uv").symlink_to(real / "uv")
    return folder


def _recipe(recipe: Path, file: Path, strategy: str) -> Path:
    """*recipe* in *file* for the four groups, by *strategy*, its plain wheel the fat build."""
    groups = ", ".join(f'{label} = "{gpus}"' for label, gpus in GROUPS.items())
    text = recipe.read_text(encoding="utf-8")
    text = re.sub(r"^plain = .*$", "", text, flags=re.MULTILINE)
    text, count = re.subn(r"^gpus = .*$", f'gpus = {{ {groups} }}\nstrategy = "{strategy}"', text, flags=re.MULTILINE)
    if count != 1:
        sys.exit(f"{recipe}: expected one line that begins with gpus")
    text, count = re.subn(r"^\[build\].*$", '[build]\ncache = "none"', text, flags=re.MULTILINE)
    text += "" if count else '\n[build]\ncache = "none"\n'
    file.write_text(text, encoding="utf-8")
    for patch in recipe.parent.glob("*.patch"):
        shutil.copy(patch, file.parent)
    return file


def _sizes(here: Path) -> dict[str, float]:
    """The size of each slimmed wheel to that of the one which was built for its group alone."""
    sizes = {}
    for label in GROUPS:
        slimmed, built = (next((here / name).glob(f"*-{label}.whl")).stat().st_size for name in ("fat", "separate"))
        sizes[label] = slimmed / built
    return sizes


if __name__ == "__main__":
    main()
