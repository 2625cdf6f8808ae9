"""Where builds get what a machine need not have: CUDA toolkits, and zig."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vbuild.recipe.cuda import ToolkitSpec
from vbuild.toolkit.model import Toolkit
from vbuild.toolkit.provision import foreseen, provided
from vbuild.toolkit.zig import foreseen_zig, provided_zig


class Provider(Protocol):
    """What gives a CUDA toolkit, and tells what it does for that."""

    def __call__(self, spec: ToolkitSpec, *, told: Callable[[str], None]) -> Toolkit: ...


@dataclass(frozen=True, slots=True)
class Supply:
    """What gives toolkits and zig; *writes* where they are fetched for a build, and not only named in its plan."""

    toolkit: Provider
    zig: Callable[[], Path]
    writes: bool


FETCHED = Supply(provided, provided_zig, writes=True)
FORESEEN = Supply(foreseen, foreseen_zig, writes=False)
