"""Which requirements of a wheel matter to the loader: those that bring the libraries that its files are linked to.

demo-libs==0.5              kept: made beside the wheel
nvidia-cufft-cu12==11.2.*   kept: an official package of libraries
cuda-toolkit[cufft]==12.4.* kept: what brings such packages
numpy>=2                    left out
pytest; extra == "test"     not required
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from packaging.markers import UndefinedComparison
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from vbuild.linkage.catalogue import TOOLKIT, is_official


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a wheel's requirements is *kept*, and what is *left_out*; both as an installer takes them."""

    kept: tuple[str, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, lines: Iterable[str], *, beside: Collection[str], markers: Mapping[str, str]) -> Self:
        """The choice among Requires-Dist *lines*, *beside* being projects made with the wheel.

        *markers* are the values of environment markers that are others than here.
        """
        kept: dict[str, None] = {}
        left_out: dict[str, None] = {}
        for requirement in _applying(lines, markers):
            project = canonicalize_name(requirement.name)
            brings = project in beside or project == TOOLKIT or is_official(project)
            (kept if brings else left_out)[str(requirement)] = None
        return cls(tuple(kept), tuple(left_out))

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects that are left out."""
        return tuple(dict.fromkeys(canonicalize_name(Requirement(line).name) for line in self.left_out))


def _applying(lines: Iterable[str], markers: Mapping[str, str]) -> Iterator[Requirement]:
    """The *lines* that count where *markers* are so, without theirs; one that cannot be read is none of ours."""
    for line in lines:
        with suppress(InvalidRequirement, UndefinedComparison):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({**markers, "extra": ""}):
                requirement.marker = None
                yield requirement
