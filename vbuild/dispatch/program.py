"""The files of a wheel, which use each other's functions and variables by name, in one space of addresses.

What functions of the C and C++ libraries do, which are in none of them, stands at the end.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

from vbuild.dispatch.machine_state import CALLS, Operation, convention_of
from vbuild.dispatch.module import ENDS, MODULE_ENTRIES, Module, Piece
from vbuild.elf.code import CodeFile
from vbuild.elf.iced import FlowControl

# spaces of addresses that no file has: what __x86_get_cpuid_feature_leaf points at, libgcc's variables, and arguments
LEAVES, MODEL, MODEL_FEATURES = 1 << 91, 3 << 90, 1 << 92
PARAMETERS = 1 << 200
LEAF_SIZE = 32
_LIBGCC = {"__cpu_model": MODEL, "__cpu_features2": MODEL_FEATURES}
_JUMPS = frozenset({FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH})


class Program:
    """The files of a wheel, which use each other's functions and variables by name."""

    def __init__(self, files: Iterable[tuple[str, CodeFile]], module: type[Module] = Module) -> None:
        self.modules = [module(elf, number, path) for number, (path, elf) in enumerate(files)]
        first = next(iter(self.modules), None)
        self.convention = convention_of(first.elf.machine, first.elf.system) if first else convention_of("", "")
        # by address and register: whether the code there never reads what the register has
        self.dead: dict[tuple[int, int], bool] = {}
        self.operations: dict[int, Operation] = {}
        self._orders: dict[int, tuple[dict[int, int], frozenset[int]]] = {}

    @cached_property
    def size(self) -> int:
        """How much code there is, in bytes."""
        return sum(len(code.data) for module in self.modules for code in module.elf.code)

    @cached_property
    def _exports(self) -> dict[str, int]:
        exports: dict[str, int] = {}
        for module in self.modules:
            for name, address in module.exports.items():
                # of several, nobody knows which the loader takes
                exports[name] = -1 if name in exports and not name.startswith(MODULE_ENTRIES) else address
        return exports

    @cached_property
    def _importers(self) -> dict[str, list[tuple[Module, int]]]:
        importers: dict[str, list[tuple[Module, int]]] = {}
        for module in self.modules:
            for slot, name in module.imports.items():
                importers.setdefault(name, []).append((module, slot))
        return importers

    def importers(self, module: Module, addresses: range) -> list[tuple[Module, int]]:
        """Where the loader puts what other files use of *addresses* of *module*, with these files."""
        slots = (importing for name in module.exported_names(addresses) for importing in self._importers.get(name, ()))
        return [(other, slot) for other, slot in slots if other is not module]

    def module(self, address: int) -> Module:
        return self.modules[(address >> 64) - 1]

    def resolved(self, name: str) -> int | None:
        """The address of what another file exports as *name*; None if no file or several do."""
        resolved = self._exports.get(name)
        return resolved if resolved is not None and resolved >= 0 else None

    def behind(self, module: Module, slot: int) -> int | str | None:
        """What the loader puts in *slot*: an address, the name of an import from outside, or None for nothing."""
        if slot in module.pointers:
            return module.base + module.pointers[slot]
        if name := module.imports.get(slot):
            return _LIBGCC.get(name) or self.resolved(name) or name
        return None

    def order(self, address: int) -> tuple[int, bool]:
        """The number of the block that starts at *address*, as `_ordered` has it, and whether a jump leads there."""
        module = self.module(address)
        piece = module.piece(address)
        if piece is None:
            return 0, False
        if piece.address not in self._orders:
            self._orders[piece.address] = _ordered(module, piece)
        numbers, joined = self._orders[piece.address]
        return numbers.get(address, 0), address in joined

    def destination(self, address: int) -> int | str | None:
        module = self.module(address)
        slot = module.slot_of_stub(address - module.base)
        return address if slot is None else self.behind(module, slot)


def _ordered(module: Module, piece: Piece) -> tuple[dict[int, int], frozenset[int]]:
    """The blocks of *piece*, in topological order but for loops, and the addresses that jumps lead to.

    A compiler moves what seldom runs to the end, and jumps back from there: in order of address, what follows would run
    again for each such jump.
    """
    targets: dict[int, tuple[int, ...]] = {}
    starts, joined = {piece.address}, set[int]()
    for instruction in module.instructions(piece):
        address, following = module.base + instruction.ip, module.base + instruction.next_ip
        flow = instruction.flow_control
        if flow in _JUMPS:
            target = module.base + instruction.near_branch_target
            joined.add(target)
            starts |= {following, target}
            targets[address] = (target,) if flow in ENDS else (following, target)
        elif flow in ENDS - CALLS:
            starts.add(following)
            targets[address] = ()
    blocks = sorted(start for start in starts if piece.address <= start < piece.end)
    branches, index = sorted(targets), 0
    after: dict[int, tuple[int, ...]] = {}
    for start, stop in zip(blocks, [*blocks[1:], piece.end], strict=True):
        while index < len(branches) and branches[index] < start:
            index += 1
        is_ended = index < len(branches) and branches[index] < stop
        after[start] = targets[branches[index]] if is_ended else (stop,)
    numbers: dict[int, int] = {}
    seen = set[int]()
    for root in blocks:
        waiting = [(root, False)]
        while waiting:
            start, is_left = waiting.pop()
            if is_left:
                numbers[start] = -len(numbers)
            elif start not in seen and start in after:
                seen.add(start)
                waiting.append((start, True))
                waiting += ((target, False) for target in after[start])
    return numbers, frozenset(joined)


class Work:
    """The pieces of *program* that are run, by address, and which of them have to be run now."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # what runs, each piece inside the one before it
        self.running: list[Piece] = []
        # all that is run; what of that waits for it; and what uses an answer, and is run if it is short
        self.aware: set[int] = set()
        self.queue: dict[int, Piece] = {}
        self.spread: dict[int, Piece] = {}
        # functions that are called with something else than before: they wait until all that may call them has run
        self.called_anew: dict[int, Piece] = {}
        # what takes too much to be followed
        self.given_up: set[int] = set()
        # whether all calls of a function are known
        self.closed: dict[int, bool] = {}
        # steps that were taken, and how many may be
        self.spent, self.most = 0, 0

    @property
    def is_spent(self) -> bool:
        return self.spent >= self.most

    @property
    def current(self) -> int:
        """The address of the piece that runs; 0 for none."""
        return self.running[-1].address if self.running else 0

    def again(self, addresses: Iterable[int]) -> None:
        for address in addresses:
            if piece := self.program.module(address).piece(address):
                self.queue[address] = piece

    def add(self, pieces: Mapping[int, Piece]) -> None:
        self.queue.update((address, piece) for address, piece in pieces.items() if address not in self.aware)
        self.aware |= pieces.keys()


ALLOCATORS = frozenset({"malloc", "calloc", "_Znwm", "_Znam", "aligned_alloc"})
FREED = frozenset({"free", "_ZdlPv", "_ZdlPvm", "_ZdaPv"})
ENVIRONMENT_READERS = frozenset({"getenv", "secure_getenv", "__secure_getenv"})
COPIES = frozenset({"memcpy", "memmove", "__memcpy_chk", "__memmove_chk"})
FILLS = frozenset({"memset", "__memset_chk"})
# they keep nothing but a mark that something was done, in an object of their own
HARMLESS = frozenset({"pthread_once", "__cxa_guard_acquire", "__cxa_guard_release", "call_once"})
HARMLESS |= (
    FREED | ALLOCATORS | {"pthread_mutex_lock", "pthread_mutex_unlock", "__cxa_guard_abort", "__cxa_atexit", "atexit"}
)
# the numbers of the arguments that functions write to; others may write to all
WRITTEN: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys((*COPIES, *FILLS, "mempcpy", "__mempcpy_chk", "strncpy", "__strncpy_chk", "bzero", "fgets"), (0,)),
    **dict.fromkeys(("snprintf", "vsnprintf", "__snprintf_chk", "__vsnprintf_chk"), (0,)),
    **dict.fromkeys(("read", "recv", "pread", "pread64"), (1,)),
    **dict.fromkeys(("memcmp", "bcmp", "strcmp", "strncmp", "strcasecmp", "strncasecmp", "strlen", "strnlen"), ()),
    **dict.fromkeys(("printf", "__printf_chk", "fprintf", "__fprintf_chk", "vfprintf", "__vfprintf_chk", "puts"), ()),
    **dict.fromkeys(("fputs", "fwrite", "write", "atoi", "atol", "strdup", *ENVIRONMENT_READERS), ()),
}
# and those that return where that is
RETURNED = COPIES | FILLS | {"strncpy", "__strncpy_chk", "fgets"}
# with how many registers functions are called; of others it may be with all
TAKEN: Mapping[str, int] = {
    **dict.fromkeys(("abort", "__errno_location", "getpid", "pthread_self", "sched_yield", "dlerror"), 0),
    **dict.fromkeys(
        (*ENVIRONMENT_READERS, *FREED, *ALLOCATORS, "strlen", "strdup", "atoi", "atol", "puts", "time", "close"), 1
    ),
    **dict.fromkeys(
        ("fclose", "fflush", "sysconf", "getauxval", "dlclose", "atexit", "exit", "pthread_getspecific"), 1
    ),
    **dict.fromkeys((f"pthread_mutex_{verb}" for verb in ("lock", "trylock", "unlock", "destroy")), 1),
    **dict.fromkeys((f"pthread_rwlock_{verb}" for verb in ("rdlock", "wrlock", "unlock", "destroy")), 1),
    **dict.fromkeys(("pthread_cond_signal", "pthread_cond_broadcast", "pthread_cond_destroy", "pthread_key_delete"), 1),
    **dict.fromkeys(("pthread_mutex_init", "pthread_rwlock_init", "pthread_cond_init", "pthread_cond_wait"), 2),
    **dict.fromkeys(("pthread_key_create", "pthread_setspecific", "pthread_once", "pthread_join"), 2),
    **dict.fromkeys(("calloc", "realloc", "aligned_alloc", "_ZdlPvm", "strcmp", "strchr", "strrchr", "strstr"), 2),
    **dict.fromkeys(("strcpy", "strcat", "fopen", "fputs", "dlopen", "dlsym", "munmap", "clock_gettime"), 2),
    **dict.fromkeys(("memcpy", "memmove", "memset", "memcmp", "strncmp", "strncpy", "read", "write", "lseek"), 3),
    **dict.fromkeys(("fread", "fwrite", "qsort", "pthread_create"), 4),
}
