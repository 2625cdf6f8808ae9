"""A target: the recipe evaluated at one point of its axes, which is one wheel to build."""

from dataclasses import dataclass, replace

from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.cuda import CudaBuild
from vbuild.table import Setting

Env = tuple[tuple[str, str], ...]
Settings = tuple[tuple[str, Setting], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """One wheel: for one Python, running on *cpu* and all above it, under *label*, or plain where that is None.

    It is what a build with *cuda*, None for one without, leaves for *gpus*, None for all of it.
    """

    label: str | None
    python: str
    cpu: Cpu
    properties: tuple[str, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()
    env: Env = ()
    config_settings: Settings = ()
    cuda: CudaBuild | None = None
    gpus: GpuList | None = None

    def __str__(self) -> str:
        return self.label or "plain"

    def is_level_of(self, plain: "Target") -> bool:
        """Whether it differs from *plain*, of the same Python, in a higher CPU level and nothing else."""
        code, other = (replace(one, label=None, cpu=plain.cpu, properties=()) for one in (self, plain))
        return code == other and self.cpu.rank > plain.cpu.rank and self.cpu.machine == plain.cpu.machine

    @property
    def build_key(self) -> tuple[str, ...]:
        """What the compiled code depends on: targets with the same key are one build under several names."""
        cuda = (self.cuda.key,) if self.cuda else ()
        return (self.python, str(self.cpu), *(f"{axis}={value}" for axis, value in self.choices), *cuda)
