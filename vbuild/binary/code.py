"""What the code of a compiled file of any format is judged by: functions, pointers, and what others use of it."""

from collections.abc import Mapping

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


class CodeImage(Struct, frozen=True, kw_only=True):
    """A PE file, or one of the files in a Mach-O file, as its code is judged, with the addresses it was linked for.

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
