"""Whether the results of a split work: installed as users install them, loaded as the loader does it, imported.

    thin wheel -> pip, uv -> fresh environment -> resolved, loaded, imported -> Checked

Wheels for another Python or another machine are installed and resolved; what is loaded needs a Python that runs here.
They may lack what else they require: for a Python to come, few wheels are published.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from vbuild.errors import SplitError, at
from vbuild.index_client.configuration import Indexes
from vbuild.verification.environments import Installer, installed, installers
from vbuild.verification.installation import InstalledWheel
from vbuild.verification.target import platforms_of
from vbuild.verification.trial import LoadFinding, LoadTrial, TrialStep
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.extract import gathered
from vbuild.wheel.metadata import is_companion
from vbuild.wheel.name import WheelName

OnProgress = Callable[[str], None]

_SHOWN = 12


class Checked(Struct, frozen=True):
    """What came of one wheel with one installer; no *installer* where none here can do anything with it.

    *resolved* counts the NEEDED entries that were found, *loaded* are paths from site-packages, *imported* are modules.
    """

    wheel: str
    installer: Installer | None
    resolved: int = 0
    loaded: tuple[str, ...] = ()
    imported: tuple[str, ...] = ()
    failures: tuple[LoadFinding, ...] = ()
    notes: tuple[LoadFinding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing failed; what could not be tried is in the notes."""
        return not self.failures

    @property
    def is_installed(self) -> bool:
        return not any(failure.step is TrialStep.INSTALL for failure in self.failures)

    def data(self) -> dict[str, Any]:
        """The result as JSON takes it."""
        return {
            "wheel": self.wheel,
            "installer": self.installer and self.installer.value,
            "ok": self.ok,
            "resolved": self.resolved,
            "loaded": list(self.loaded),
            "imported": list(self.imported),
            "failures": [finding.data() for finding in self.failures],
            "notes": [finding.data() for finding in self.notes],
        }

    def lines(self) -> Iterator[str]:
        """The result for a terminal: a line, and one for each failure and each note, the first of many."""
        yield f"{self.wheel}: {self._summary()}"
        yield from _some([f"    {finding.step} failed: {finding.what}" for finding in self.failures])
        yield from _some([f"    {finding.step}: {finding.what}" for finding in self.notes])

    def _summary(self) -> str:
        if self.installer is None:
            return "not checked"
        if not self.is_installed:
            return f"{self.installer} cannot install it"
        done = [f"{self.resolved} NEEDED resolved"]
        done += [_counted(len(self.loaded), "file") + " loaded"] if self.loaded else []
        done += [f"{', '.join(self.imported)} imported"] if self.imported else []
        verdict = _counted(len(self.failures), "failure") if self.failures else "works"
        return f"installed with {self.installer}, {verdict}: {', '.join(done)}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _some(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"    and {len(lines) - _SHOWN} more"


def check(
    paths: Sequence[Path],
    *,
    absent: Collection[str] = (),
    indexes: Callable[[], Indexes] = Indexes.configured,
    on_progress: OnProgress = lambda _: None,
) -> tuple[Checked, ...]:
    """What comes of installing the wheels at *paths*, files or folders of them, with pip and with uv.

    That no path leads to libraries that were *absent* before is no failure. `SplitError` where none can be installed.
    """
    with TemporaryDirectory(prefix="vbuild-check-") as folder:
        return checked(gathered(paths), indexes=indexes, folder=Path(folder), on_progress=on_progress, unreached=absent)


def checked(
    wheels: Sequence[Path],
    *,
    indexes: Callable[[], Indexes],
    folder: Path,
    on_progress: OnProgress = lambda _: None,
    unreached: Collection[str] = (),
    using: Collection[Installer] = tuple(Installer),
) -> tuple[Checked, ...]:
    """What comes of installing each of *wheels*, the results of one split; companions come with those that need them.

    Each environment is in *folder* for as long as it is looked at. *unreached* are SONAMEs that no RPATH led to before
    the split either: that none does is a note. *using* are the installers for wheels of this Python. `SplitError` where
    no wheel can be installed.
    """
    thin = [wheel for wheel in wheels if not _is_made_beside(wheel)]
    beside = frozenset(WheelName.parse(wheel.name).project for wheel in wheels if wheel not in thin)
    links = tuple(dict.fromkeys(wheel.parent for wheel in wheels))
    folder.mkdir(parents=True, exist_ok=True)
    results: list[Checked] = []
    for wheel in thin:
        name = WheelName.parse(wheel.name)
        if not (found := installers(name)):
            what = f"for {name.platform}, expected a Linux wheel"
            results.append(Checked(wheel.name, None, notes=(LoadFinding(TrialStep.INSTALL, what),)))
        for installer in (one for one in found if one in using or len(found) == 1):
            on_progress(f"{wheel.name}: installing it with {installer}, and trying it")
            with TemporaryDirectory(prefix="vbuild-check-", dir=folder) as place:
                result = _tried(
                    wheel,
                    installer,
                    links=links,
                    indexes=indexes(),
                    folder=Path(place).resolve(),
                    beside=beside,
                    unreached=frozenset(unreached),
                )
            results.append(result)
    tried = [result for result in results if result.installer]
    if tried and not any(result.is_installed for result in tried):
        raise SplitError(f"{tried[0].wheel}: cannot be installed: {tried[0].failures[0].what}")
    return tuple(results)


def _is_made_beside(wheel: Path) -> bool:
    with open_wheel(wheel) as source:
        return is_companion(source.metadata(), source.wheel_file())


def _tried(
    wheel: Path,
    installer: Installer,
    *,
    links: Sequence[Path],
    indexes: Indexes,
    folder: Path,
    beside: frozenset[str],
    unreached: frozenset[str],
) -> Checked:
    name = WheelName.parse(wheel.name)
    try:
        environment = installed(wheel, installer, links=links, indexes=indexes, folder=folder, beside=beside)
    except SplitError as error:
        return Checked(wheel.name, installer, failures=(LoadFinding(TrialStep.INSTALL, str(error)),))
    with at(wheel.name):
        trial = LoadTrial(
            environment, InstalledWheel.of(environment.packages, name.project), platforms_of(name), unreached
        )
    if environment.left_out:
        what = f"{', '.join(environment.left_out)} left out, which the loader does not need: {environment.reason}"
        trial.notes.append(LoadFinding(TrialStep.INSTALL, what))
    trial.resolve()
    return Checked(
        wheel.name,
        installer,
        resolved=sum(need.is_met for need in trial.needs),
        loaded=tuple(trial.load()),
        imported=tuple(trial.try_imports()),
        failures=tuple(trial.failures),
        notes=tuple(trial.notes),
    )
