"""What the code of a compiled file of any format is judged by: functions, pointers, and what others use of it."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct


class Symbol(Struct, frozen=True):
    """A function or an object; without names if only the unwind table knows it.

    It is weak if every name for other files is: many files may have it, as of inline functions.
    """

    address: int
    size: int
    names: tuple[str, ...] = ()
    is_exported: bool = False
    is_resolver: bool = False
    is_weak: bool = False

    @property
    def end(self) -> int:
        return self.address + self.size

    def __str__(self) -> str:
        return self.names[0] if self.names else f"function at {self.address:#x}"


class CodeSection(Struct, frozen=True):
    """Bytes that are loaded at *address*, of code or of constants."""

    name: str
    address: int
    data: bytes

    @property
    def end(self) -> int:
        return self.address + len(self.data)


class CodeFile(Protocol):
    """A compiled file, an `Elf` or a `CodeImage`, as its code is judged; all addresses are those it was linked for.

    pointers              places in data that the loader fills with an address of this file, and that address
    import_places         places that it fills with the address of an import, by name
    stubs, slots          code that does nothing but jump through such a place; places for code alone
    writable, relro       addresses of data that code can change; those that only the loader changes
    starts, called        tables of functions that the loader calls; functions that it calls and no table has
    resolvers             functions that it calls to fill places
    handlers              functions that the system calls when one throws; *has_strange_handlers* if some are unknown
    dispatchers           places through which code calls what RAX points at
    image_base            the address from which code counts tables that it uses by an index, or 0
    system, given         linux, windows or macos; features of all its processors above the machine's baseline
    """

    @property
    def machine(self) -> str: ...
    @property
    def system(self) -> str: ...
    @property
    def given(self) -> frozenset[str]: ...
    @property
    def is_loadable(self) -> bool: ...
    @property
    def is_fixed(self) -> bool: ...
    @property
    def code(self) -> tuple[CodeSection, ...]: ...
    @property
    def code_size(self) -> int: ...
    @property
    def constants(self) -> tuple[CodeSection, ...]: ...
    @property
    def functions(self) -> tuple[Symbol, ...]: ...
    @property
    def objects(self) -> tuple[Symbol, ...]: ...
    @property
    def pointers(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def import_places(self) -> tuple[tuple[int, str], ...]: ...
    @property
    def resolvers(self) -> frozenset[int]: ...
    @property
    def writable(self) -> tuple[range, ...]: ...
    @property
    def relro(self) -> tuple[range, ...]: ...
    @property
    def entry(self) -> int: ...
    @property
    def called(self) -> tuple[int, ...]: ...
    @property
    def areas(self) -> tuple[range, ...]: ...
    @property
    def stubs(self) -> tuple[CodeSection, ...]: ...
    @property
    def slots(self) -> tuple[range, ...]: ...
    @property
    def starts(self) -> tuple[range, ...]: ...
    @property
    def has_handlers(self) -> bool: ...
    @property
    def handlers(self) -> Mapping[int, tuple[int, ...]]: ...
    @property
    def has_strange_handlers(self) -> bool: ...
    @property
    def dispatchers(self) -> frozenset[int]: ...
    @property
    def image_base(self) -> int: ...
    @property
    def soname(self) -> str | None: ...
    @property
    def needed(self) -> tuple[str, ...]: ...
    @property
    def isa_needed(self) -> tuple[str, ...]: ...


class CodeImage(Struct, frozen=True, kw_only=True):
    """A PE file, or one of the files in a Mach-O file, as a `CodeFile`."""

    machine: str
    system: str
    given: frozenset[str]
    soname: str | None
    needed: tuple[str, ...]
    code: tuple[CodeSection, ...]
    constants: tuple[CodeSection, ...]
    functions: tuple[Symbol, ...]
    objects: tuple[Symbol, ...] = ()
    pointers: tuple[tuple[int, int], ...]
    import_places: tuple[tuple[int, str], ...]
    writable: tuple[range, ...]
    relro: tuple[range, ...] = ()
    areas: tuple[range, ...]
    stubs: tuple[CodeSection, ...] = ()
    slots: tuple[range, ...] = ()
    starts: tuple[range, ...] = ()
    entry: int = 0
    called: tuple[int, ...] = ()
    is_fixed: bool = False
    has_handlers: bool = False
    handlers: Mapping[int, tuple[int, ...]] = {}
    has_strange_handlers: bool = False
    dispatchers: frozenset[int] = frozenset()
    image_base: int = 0
    resolvers: frozenset[int] = frozenset()
    isa_needed: tuple[str, ...] = ()
    is_loadable: bool = True

    @property
    def code_size(self) -> int:
        return sum(len(code.data) for code in self.code)
