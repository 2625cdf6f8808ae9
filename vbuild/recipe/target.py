"""A target: the recipe evaluated at one point of its axes, which is one wheel to build.

The variants that a project lists by itself: ``[variant.variants.<label>]`` of the Building draft (pre-PEP "9998").

``[variant]`` holds the metadata that all variant wheels of the project share; that part is another reader's.
"""

from collections.abc import Iterator
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from vbuild.config.table import Setting, Table
from vbuild.errors import at
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.cuda import CudaBuild
from vbuild.recipe.spelling import label, level_of, variant_property

Env = tuple[tuple[str, str], ...]
Settings = tuple[tuple[str, Setting], ...]


class Target(Struct, frozen=True):
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


class Draft(Struct, frozen=True):
    """A variant listed by the project: its label, its properties, and the CPU they promise to run on."""

    label: str
    properties: tuple[str, ...]
    cpu: Cpu | None


def read_drafts(variant: Table) -> tuple[Draft, ...]:
    """The variants that a ``[variant]`` table lists, in the order written, or none if it has no ``variants``."""
    with variant.optional("variants") as variants:
        return tuple(_draft(variants, name) for name in variants)


def read_priority(variant: Table) -> tuple[str, ...]:
    """The namespaces of a ``[variant]`` table, best first, or none if it does not say."""
    if "default-priorities" not in variant:
        return ()
    return variant.handed("default-priorities").texts("namespace", ())


def _draft(variants: Table, name: str) -> Draft:
    with variants.table(name) as namespaces:
        if name != "null":
            with at(variants.place(name)):
                label(name)
        properties = tuple(text for namespace in namespaces for text in _properties(namespaces, namespace))
        if (name == "null") == bool(properties):
            what = "has properties; the null variant has none" if properties else "has no properties; only 'null' may"
            raise namespaces.wrong(what)
        levels = [cpu for text in properties if (cpu := level_of(text))]
        # several values of one feature: a machine that has any of them may get the wheel, so the lowest counts
        return Draft(name, properties, min(levels, key=attrgetter("rank"), default=None))


def _properties(namespaces: Table, namespace: str) -> Iterator[str]:
    with namespaces.table(namespace) as features:
        for feature in features:
            for value in features.texts(feature):
                with at(features.place(feature)):
                    yield variant_property(f"{namespace} :: {feature} :: {value}")
