"""Finished runs of cibuildwheel in the user's cache, by what their wheels depend on.

    builds/runs/<key>/wheels/         the wheels as cibuildwheel made them
    builds/runs/<key>/logs/<...>      what the compiler wrappers recorded, by identifier
    builds/runs/<key>/run.log         what cibuildwheel printed
    builds/runs/<key>/entry.json      hashes of the wheels, the images by name and content, when it began and ended

The key holds the project's files, the words and variables for cibuildwheel, the identifiers, the rules of the wrappers,
the toolkit, and vbuild and cibuildwheel themselves. An image is compared by its content: one that is not on the machine
is pulled, as cibuildwheel would. It does not hold what before-all and the package index bring; ``--fresh`` is for that.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from vbuild.build.cibuildwheel.program import Arguments, Cibuildwheel
from vbuild.build.cibuildwheel.runs import CibuildwheelRun
from vbuild.build.identity import file_digest, ourselves
from vbuild.build.source import digest
from vbuild.files.atomic import linked
from vbuild.files.cache import Cache, Part
from vbuild.files.hashing import key_of, sealed, sha256_of, unsealed
from vbuild.recipe.source import Folder

_KIND = "runs"
_ENTRY, _WHEELS, _LOGS, _LOG = "entry.json", "wheels", "logs", "run.log"
_IMAGE = re.compile(r"^(?:\S{1,10})?Starting container image (\S+?)\.\.\.$", re.MULTILINE)
_GIVEN = "environment-pass"
_PASSED = ("CIBW_ENVIRONMENT_PASS", "CIBW_ENVIRONMENT_PASS_LINUX")


class RunFiles(Struct, frozen=True):
    """Where a run has its wheels, the folder of the wrappers' logs, and the log of cibuildwheel."""

    output: Path
    logs: Path
    log: Path


def passed_on(arguments: Arguments, environment: Mapping[str, str]) -> set[str]:
    """The names of the variables in *environment* that cibuildwheel with *arguments* passes on into its containers."""
    asked = {*_named(arguments.configuration), *(environment.get(name, "") for name in _PASSED)}
    return {name for text in asked for name in text.split()}


class KeptRuns(Struct, frozen=True):
    """The runs that are kept, in the user's cache. With *fresh*, those that are there are passed over and replaced.

    *engine* is the program of the containers. *without* is a folder that is not part of the project, nor is *setup*,
    whose name is another each time.
    """

    program: Cibuildwheel
    arguments: Arguments
    environment: Mapping[str, str]
    engine: str
    setup: str
    without: Path | None = None
    fresh: bool = False

    def key(self, run: CibuildwheelRun) -> str | None:
        """The key of *run*. `BuildError` if a file of the project cannot be read."""
        config = self.arguments.options
        passed = passed_on(self.arguments, self.environment)
        variables = {
            name: text
            for name, text in self.environment.items()
            if name.startswith("CIBW_") or name in passed or name == "SOURCE_DATE_EPOCH"
        }
        found = {
            "source": digest(Folder(Path.cwd()), without=self.without),
            "options": file_digest(config) if config.is_file() else None,
            "words": self.arguments.words,
            "variables": {**variables, **dict(run.variables)},
            "identifiers": run.identifiers,
            "settings": run.settings(),
            "toolkit": run.toolkit.identity if run.toolkit else None,
            "by": [str(self.program.version), Path(self.engine).name, ourselves()],
        }
        return key_of(json.loads(json.dumps(found).replace(self.setup, "")))

    def taken(self, key: str, files: RunFiles) -> tuple[float, float] | None:
        """When the run kept under *key* began and ended, its *files* put there; None if there is none, or not whole."""
        entry = self._cache.folder / _KIND / key
        if self.fresh or not entry.is_dir():
            return None
        try:
            about = json.loads(unsealed((entry / _ENTRY).read_bytes()))
            if any(self._image(name) != content for name, content in about["images"].items()):
                return None
            for name, sha256 in about["wheels"].items():
                if sha256_of(linked(entry / _WHEELS / name, files.output / name)) != sha256:
                    raise ValueError(name)  # noqa: TRY301 - as if the entry could not be read
            if (entry / _LOGS).is_dir():
                shutil.copytree(entry / _LOGS, files.logs, dirs_exist_ok=True)
            files.log.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(entry / _LOG, files.log)
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):  # damaged, or being removed
            for wheel in files.output.glob("*.whl"):
                wheel.unlink()
            with suppress(OSError):
                self._cache.drop(entry)
            return None
        self._cache.mark(entry)
        return about["times"][0], about["times"][1]

    def keep(self, key: str, files: RunFiles, times: tuple[float, float]) -> None:
        """Keep the *files* of a run under *key*, if that can be; no wheel may be written to any more."""
        text = files.log.read_text(encoding="utf-8", errors="replace")
        images = {name: self._image(name) for name in _IMAGE.findall(text)}
        if not images or None in images.values():
            return  # nobody can say later whether they are the same
        wheels = sorted(files.output.glob("*.whl"))
        with suppress(OSError), self._cache.locked(f"{_KIND}/{key}"), self._cache.replacing(f"{_KIND}/{key}") as new:
            (new / _WHEELS).mkdir(parents=True)
            for wheel in wheels:
                linked(wheel, new / _WHEELS / wheel.name)
            if files.logs.is_dir():
                shutil.copytree(files.logs, new / _LOGS)
            shutil.copy2(files.log, new / _LOG)
            about = {"images": images, "wheels": {wheel.name: sha256_of(wheel) for wheel in wheels}, "times": times}
            (new / _ENTRY).write_text(sealed(json.dumps(about)), encoding="utf-8")

    def _image(self, name: str) -> str | None:
        """The content of the image called *name*, pulled if it is not here; None if it cannot be had."""
        for command in (["pull", "--quiet", name], []):
            asked = [self.engine, "image", "inspect", "--format", "{{.Id}}", name]
            ran = subprocess.run(asked, env=self.environment, capture_output=True, text=True, check=False)
            if not ran.returncode:
                return ran.stdout.strip()
            if command:
                subprocess.run([self.engine, *command], env=self.environment, capture_output=True, check=False)
        return None

    @property
    def _cache(self) -> Cache:
        return Cache.of(Part.BUILDS)


def _named(options: Any) -> Iterator[str]:  # noqa: ANN401 - whatever TOML holds
    """The variables that *options* of cibuildwheel pass on, in overrides, too."""
    if isinstance(options, Mapping):
        for key, value in options.items():
            if key == _GIVEN:
                yield value if isinstance(value, str) else " ".join(map(str, value)) if value else ""
            else:
                yield from _named(value)
    elif isinstance(options, list):
        for value in options:
            yield from _named(value)
