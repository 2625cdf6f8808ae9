"""What the code of a compiled file of any format is judged by: functions, pointers, and what others use of it.

CodeFile    what the rules of evidence ask of a file; an ELF file answers by itself
CodeImage   the same facts as a value, which the readers of PE and Mach-O files make
"""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct


class Symbol(Struct, frozen=True):
    """A function or an object: where it is, and every name it has; no name if only the unwind table knows it.

    It is weak if every name it has for other files is: many files may have it, as those of inline functions.
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
    """A piece of the file that is mapped as executable."""

    name: str
    address: int
    data: bytes

    @property
    def end(self) -> int:
        return self.address + len(self.data)


class CodeFile(Protocol):
    """A compiled file as its code is judged: all addresses are those that it was linked for.

    *pointers* are the places in data that the loader fills with an address of this file, and that address;
    *import_places* those that it fills with the address of an import, by name. *stubs* are the parts of the code that
    do nothing but jump through such a place, and *slots* places for code alone. *writable* are the addresses of data
    that code can change, *relro* those that only the loader changes, *starts* tables of functions that it calls, and
    *resolvers* functions that it calls to fill places. *handlers* are the functions that the system calls when one
    throws; it *has_strange_handlers* if some may be missing there. *dispatchers* are the places through which code
    calls what RAX points at, and *image_base* the address from which it counts tables that it reads and writes by an
    index, or 0. What is *called* are functions that the loader calls when it loads or unloads the file, and that are
    in no table. *system* says how calls are made: ``linux``, ``windows``, ``macos``; *given* are the features above
    the machine's baseline of all processors that the system runs on.
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
    """A PE file, or one of the files in a Mach-O file, as its code is judged (`CodeFile`)."""

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
        """Bytes of code."""
        return sum(len(code.data) for code in self.code)
