"""The module that a base wheel gets, which loads what differs from the plugins that are installed beside it.

    demo/__init__.py          from . import _vbuild_backend, before anything else it does
    demo/_vbuild_backend.py   finds the plugin, refuses one of another build, and puts a finder in front of Python's
    demo_cu12_plugin/_c.so    is loaded as demo._c, so PyInit__c, imports in the package and pickles stay as they were

A plugin for x86-64 levels that the CPU does not have is refused, as the flags in /proc/cpuinfo say: an ImportError is
better than SIGILL. What GPU or Arm version a machine has is not looked at: who installed the plugin chose it.
https://docs.python.org/3/reference/import.html#the-meta-path
"""

import functools
import json
from collections.abc import Sequence

import archspec.cpu
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.errors import LayoutError, SplitError
from vbuild.hardware.cpu import Cpu
from vbuild.splitting.preload import hooked
from vbuild.variants.model import Property
from vbuild.wheel.name import escaped

MODULE = "_vbuild_backend"
PLAIN = "plain"

_TEMPLATE = "loader.py.jinja"
_X86_64 = "x86_64"
_OF_ALL = {"mmx", "sse", "sse2"}
# as archspec calls what Linux has another word for
_FLAGS = {"sse3": "pni"}


class PluginBackend(Struct, frozen=True):
    """A variant as an extra of *project*: its label, and the properties of machines that it is for."""

    project: str
    label: str
    properties: tuple[Property, ...]

    @property
    def extra(self) -> str:
        """What installers and the loader call it: ``x86-64-v3`` for the label ``x86_64_v3`` (PEP 685)."""
        return canonicalize_name(self.label)

    @property
    def plugin(self) -> str:
        """The plugin's name, as package indexes spell it."""
        return f"{self.project}-{self.extra}-plugin"

    @property
    def package(self) -> str:
        """The plugin's import package."""
        return escaped(self.plugin)

    @property
    def cpu(self) -> Cpu | None:
        """The x86-64 level that it needs, if it names one: a loader can ask for no other property."""
        found = (Cpu.of_property(str(one)) for one in self.properties)
        return next((cpu for cpu in found if cpu and cpu.machine == _X86_64), None)

    @property
    def flags(self) -> str:
        """The flags of /proc/cpuinfo that it needs beyond those of every x86-64 CPU."""
        if self.cpu is None:
            return ""
        names = archspec.cpu.TARGETS[self.cpu.label].features if self.cpu.rank else ()
        return " ".join(sorted(_FLAGS.get(name, name) for name in names if name not in _OF_ALL))

    @property
    def rest(self) -> str:
        """What it needs beside an x86-64 level: of backends that are alike in this, the higher level is better."""
        return ", ".join(str(one) for one in self.properties if Cpu.of_property(str(one)) != self.cpu or not self.cpu)


def in_order(backends: Sequence[PluginBackend]) -> tuple[PluginBackend, ...]:
    """The *backends*, higher CPU levels first."""
    return tuple(sorted(backends, key=lambda one: (-(one.cpu.rank if one.cpu else 0), one.extra)))


def variable(project: str) -> str:
    """The variable of the environment that names a backend of *project*: ``DEMO_BACKEND``, ``_3D_BACKEND``."""
    name = f"{escaped(project).upper()}_BACKEND"
    return name if name.isidentifier() else f"_{name}"  # shells take none that begins with a digit


def group(project: str) -> str:
    """The entry-point group of the plugins of *project*: ``demo.backends``."""
    return f"{escaped(project)}.backends"


def loader(root: str, backends: Sequence[PluginBackend], *, version: str, build: str, folder: str) -> bytes:
    """The module for the package in the folder *root*, whose files plugins have in *folder* of theirs.

    *build* names the plain wheel that the plugins were made for.
    """
    project = backends[0].project
    values = {
        "package": root.replace("/", "."),
        "project": project,
        "backends": in_order(backends),
        "version": version,
        "build": build,
        "variable": variable(project),
        "folder": folder,
    }
    return _environment().get_template(_TEMPLATE).render(values).encode()


def with_loader(init: bytes) -> bytes:
    """The ``__init__.py`` *init* importing the loader first; `LayoutError` where this Python cannot read it."""
    try:
        return hooked(init, MODULE, option="--layout extras")
    except SplitError as error:
        raise LayoutError(str(error)) from error


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vbuild.publishing", "."),
        autoescape=False,  # noqa: S701 - Python, whose texts the filter quotes
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["python"] = _quoted
    return environment


def _quoted(value: str | tuple[str, ...]) -> str:
    """*value* as Python, in double quotes as formatters have it; a tuple without its brackets."""
    return ", ".join(map(json.dumps, (value,) if isinstance(value, str) else value))
