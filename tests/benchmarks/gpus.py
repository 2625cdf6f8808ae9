"""A release for four groups of GPUs: fat and then slimmed, against one fat build and against four builds.

The recipe, lightgbm's, is built for one toolkit and four groups, without a compiler cache:

- its plain wheel alone, which is the fat build;
- then the four variants, for which that build is taken from the store, so that both together are the whole release;
- then again with nothing changed;
- then each of the four by a build of its own.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from platformdirs import user_cache_path

from tests.benchmarks.figure import Broken, Figure, Installed, Made, Measure, Peer, Sample, Setting
from tests.benchmarks.measuring import ran
from tests.benchmarks.starting import RECIPES

RECIPE = RECIPES / "lightgbm.toml"
GROUPS = {"sm75": "75", "sm80": "80", "sm90": "90", "sm120": "120"}
KEPT = ("sdists", "commits", "toolkits", "zig")  # what is fetched is not part of it


def builds(folder: Path, vbuild: Installed) -> None:
    """Write to *folder*/seconds.json what each build takes, in seconds."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        here = Path(name)
        cache = _cache(here / "cache")
        fat, separate = (_recipe(RECIPE, here / f"{strategy}.toml", strategy) for strategy in ("fat", "separate"))

        def seconds(file: Path, *only: str) -> float:
            chosen = [f"--only={label}" for label in only]
            command: Sequence[str | Path] = [
                vbuild.vbuild,
                "matrix",
                file,
                "-o",
                here / file.stem,
                "--jobs",
                "2",
                *chosen,
            ]
            return ran(command, here, env={"XDG_CACHE_HOME": str(cache)})[0].value

        found = {"plain": seconds(fat, "plain"), "rest": seconds(fat), "again": seconds(fat)}
        found |= {"separate": seconds(separate, *GROUPS)}
    (folder / "seconds.json").write_text(json.dumps(found | {"whole": found["plain"] + found["rest"]}))


BUILDS = Made(builds, by_vbuild=True)


def figures() -> Iterator[Figure]:
    release = "lightgbm 4.7.0 for four groups of GPUs: one build, slimmed"
    for name, what, ours, peer, reach, limit in (
        ("fat", release, "whole", ("its build for all GPUs alone", "plain"), 1.10, None),
        ("separate", "the same", "whole", ("a build for each group", "separate"), None, None),
        ("again", "the same again, nothing changed", "again", None, None, 2.0),
    ):
        yield Figure(
            name=name,
            what=what,
            measure=_noted(ours),
            peer=Peer(peer[0], _noted(peer[1])) if peer else None,
            reach=reach,
            limit=limit,
            pairs=1,
            inputs=(BUILDS,),
            tools=("gcc", "g++"),
            repeatable=False,
        )


def _noted(what: str) -> Measure:
    def measured(setting: Setting) -> Sample:
        return Sample(json.loads((setting.inputs[BUILDS] / "seconds.json").read_text())[what])

    return measured


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
        raise Broken(f"{recipe}: expected one line that begins with gpus")
    text, count = re.subn(r"^\[build\].*$", '[build]\ncache = "none"', text, flags=re.MULTILINE)
    text += "" if count else '\n[build]\ncache = "none"\n'
    file.write_text(text, encoding="utf-8")
    for patch in recipe.parent.glob("*.patch"):
        shutil.copy(patch, file.parent)
    return file
