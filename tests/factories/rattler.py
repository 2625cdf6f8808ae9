"""py-rattler, the library under pixi, as a judge of channels; run as a program of its own, for it aborts at its exit.

python rattlers.py < questions.json > answers.json, one answer a question, each [kind, {keys}]:

    solve      channels, specs, virtual           -> ["demo 1.0 py311_0", ...] sorted, or null where nothing fits
    install    the same, and prefix               -> the same
    matches    specs, versions                    -> [[true, ...], ...]: which version each spec allows
    index      folder                             -> what it writes as repodata, by subdir
"""

import asyncio
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

Question = tuple[str, dict[str, Any]]


def rattler_answers(questions: list[Question]) -> list[Any]:
    """What py-rattler answers to *questions*, asked in one process."""
    if not find_spec("rattler"):
        pytest.skip("py-rattler not in this environment")
    command = [sys.executable, "-P", "-W", "ignore", __file__]  # -P: this file has the name of its library
    with TemporaryDirectory() as cache:
        run = subprocess.run(
            command,
            input=json.dumps(questions),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "RATTLER_CACHE_DIR": cache, "XDG_CACHE_HOME": cache},
        )
    assert not run.returncode, run.stderr
    return list(json.loads(run.stdout))


def rattler_answer(kind: str, **keys: Any) -> Any:
    """The same for one question."""
    return rattler_answers([(kind, keys)])[0]


async def _records(channels: list[str], specs: list[str], virtual: list[list[str]]) -> Any:
    from rattler import BuildString, GenericVirtualPackage, PackageName, Version, solve  # noqa: PLC0415 - see above
    from rattler.exceptions import SolverError  # noqa: PLC0415

    packages = [
        GenericVirtualPackage(PackageName(name), Version(version), BuildString(build))
        for name, version, build in virtual
    ]
    try:
        return await solve(channels, specs, virtual_packages=packages, platforms=["linux-64", "noarch"])
    except SolverError as error:
        print(error, file=sys.stderr)
        return None


def _named(records: Any) -> list[str] | None:
    if records is None:
        return None
    return sorted(f"{record.name.normalized} {record.version} {record.build}" for record in records)


def _repodata(folder: Path) -> dict[str, Any]:
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/repodata.json")}


async def _answered(kind: str, keys: dict[str, Any]) -> Any:
    import rattler  # noqa: PLC0415
    from rattler.index import index_fs  # noqa: PLC0415

    match kind:
        case "solve":
            return _named(await _records(**keys))
        case "install":
            prefix = keys.pop("prefix")
            records = await _records(**keys)
            await rattler.install(records, prefix, cache_dir=Path(f"{prefix}.cache"), show_progress=False)
            return _named(records)
        case "matches":
            specs = [rattler.VersionSpec(spec) for spec in keys["specs"]]
            versions = [rattler.Version(version) for version in keys["versions"]]
            return [[spec.matches(version) for version in versions] for spec in specs]
        case "index":
            await index_fs(Path(keys["folder"]), force=True)
            return _repodata(Path(keys["folder"]))
        case _:
            raise ValueError(kind)


async def _all(questions: list[list[Any]]) -> list[Any]:
    return [await _answered(kind, keys) for kind, keys in questions]


if __name__ == "__main__":
    json.dump(asyncio.run(_all(json.load(sys.stdin))), sys.stdout)
    sys.stdout.flush()
    os._exit(0)
