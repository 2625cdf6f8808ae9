"""Which code above a level runs without a test of the processor that says it may.

    answers     code that asks the processor, and what uses what it has found (`answers`)
    backwards   from code above the level to what uses it (`uses`), as long as a use is not behind a test
    forwards    from where other code enters to that code again, which gives the way that leads there

The interpreter runs only the pieces on these ways that have an answer; in all others each reference is a use.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import chain, islice

from msgspec import Struct
from msgspec.structs import replace

from vbuild.dispatch.answers import Answers, Architecture
from vbuild.dispatch.conditions import Conditions, Needs
from vbuild.dispatch.facts import ASKED, EVERY, facts_of, features, names_of, unmasked
from vbuild.dispatch.interpreter import Interpreter
from vbuild.dispatch.module import Module, Piece
from vbuild.dispatch.program import LEAVES, Program
from vbuild.dispatch.values import tag
from vbuild.elf.iced import Instruction

# users of code above the level that are looked at: so many and one for some bytes of code, as far as that is less
_FEWEST_USERS, _BYTES_A_USER, _MOST_USERS = 500, 250, 40000
# pieces above the level from which is looked backwards; with more, all code is followed from where others enter
_MOST_BACKWARDS = 2000
_LONGEST_WAY = 16
# users that are looked at for one way by conditions that were understood, pieces of which these are kept, and
# instructions of one that are looked at
_MOST_CLEAR, _MOST_DECIDED, _FEW = 200, 256, 8
_Uses = Callable[[int], Mapping[int, int]]


class Uses:
    """The graph of a program: a node is the address of a piece of code or of a table, each use has the facts there.

    a piece that has to do with answers    what the interpreter saw it use when it ran it
    any other piece                        all that it refers to, and what follows it, with no facts
    a table                                what the loader puts into it
    """

    def __init__(self, answers: Answers) -> None:
        self.program, self._questions, self._answers = answers.program, answers.questions, answers
        self._table_users: dict[tuple[int, int], tuple[Piece, ...]] = {}
        self._most = min(_FEWEST_USERS + answers.program.size // _BYTES_A_USER, _MOST_USERS)

    def _node(self, address: int) -> int:
        module = self.program.module(address)
        if piece := module.piece(address):
            return piece.address
        return module.base + module.table(address - module.base).start

    def _uses(self, piece: Piece) -> dict[int, int]:
        known = self._answers.uses
        if piece.address not in known:
            known[piece.address] = self._found_uses(piece)
        return known[piece.address]

    def _found_uses(self, piece: Piece) -> dict[int, int]:
        if self._answers.is_aware(piece) and (result := self._answers.result(piece)) is not None:
            return self._uses_when_run(piece, result)
        uses = {self._node(target): 0 for target in self._questions.targets(piece)}
        module = self.program.module(piece.address)
        if module.shape(piece).falls_through and (after := module.piece(piece.end)):
            uses[after.address] = 0
        return uses

    def _uses_when_run(self, piece: Piece, result: Interpreter) -> dict[int, int]:
        uses: dict[int, int] = {}
        for (_, target), facts in result.uses.items():
            node = self._node(target)
            if node != piece.address:
                uses[node] = uses.get(node, EVERY) & facts
        # code of others that was followed
        for address, facts in result.ran.items():
            module = self.program.module(address)
            if piece.address <= address < piece.end:
                continue
            instruction = module.instruction(address)
            if (instruction is None or module.needs(instruction)) and (other := module.piece(address)):
                uses[other.address] = uses.get(other.address, EVERY) & facts
        handlers = self.program.module(piece.address).handlers_of(piece)
        uses.update((self._node(handler), 0) for handler in handlers)
        return uses

    def all_leading(self, above: Iterable[Piece]) -> set[int] | None:
        """The pieces from which calls and jumps seem to lead to those *above*; None for too many."""
        waiting = [piece.address for piece in above]
        leading = set(waiting)
        most = len(leading) + self._most
        while waiting:
            module = self.program.module(waiting[-1])
            piece = module.piece(waiting.pop())
            if piece is None:
                continue
            users = self._questions.users(module, range(piece.address - module.base, piece.end - module.base))
            near = (
                other
                for other in module.pieces_near(piece)
                if piece.address in self._questions.targets(other)
                or (other.end == piece.address and module.shape(other).falls_through)
            )
            for user in chain(users, near):
                if user.address not in leading:
                    leading.add(user.address)
                    waiting.append(user.address)
                if len(leading) > most:
                    return None
        return leading

    def uses_of(self, node: int) -> Mapping[int, int]:
        module = self.program.module(node)
        if piece := module.piece(node):
            return self._uses(piece)
        table = module.table(node - module.base)
        pointers = (self.program.behind(module, slot) for slot in module.slots_in(table))
        return {self._node(pointer): 0 for pointer in pointers if isinstance(pointer, int) and pointer < LEAVES}

    def all_roots(self) -> list[int]:
        """Where other code enters: all files' entries, and data that no code seems to point at."""
        roots: dict[int, None] = {}
        for module in self.program.modules:
            roots.update(dict.fromkeys(self._node(address) for address in module.entries))
            tables = dict.fromkeys(module.base + module.table(slot).start for slot in module.pointers)
            roots.update(dict.fromkeys(table for table in tables if self._is_root(table)))
        return list(roots)

    def cone(self, start: Iterable[int]) -> tuple[dict[int, dict[int, int]], list[int], list[int]]:
        """All from which the code *start* is reached: each user's uses with their facts; entries; and the rest.

        The rest was not followed: it gets too much.
        """
        nodes = set(start)
        roots = [node for node in nodes if self._is_root(node)]
        most = len(nodes) + self._most
        users: dict[int, dict[int, int]] = {}
        # what uses other things than those known so far: code that it follows may be found to be a user
        others: dict[int, dict[int, dict[int, int]]] = {}
        waiting = deque(nodes)
        while waiting and len(nodes) < most:
            node = waiting.popleft()
            for user, uses in chain(self._users_of_node(node), others.pop(node, {}).items()):
                if len(nodes) >= most:
                    waiting.append(node)
                    break
                if uses.keys().isdisjoint(nodes):
                    for target in uses:
                        others.setdefault(target, {})[user] = uses
                    continue
                users.setdefault(user, {}).update(uses)
                if user not in nodes:
                    nodes.add(user)
                    waiting.append(user)
                    if self._is_root(user):
                        roots.append(user)
        within = {user: {to: facts for to, facts in uses.items() if to in nodes} for user, uses in users.items()}
        return within, roots, list(waiting)

    def _is_root(self, node: int) -> bool:
        module = self.program.module(node)
        start = node - module.base
        if node in module.entries or module.is_start_or_end(start):
            return True
        if module.piece(node) is not None:
            return False
        # data that no code seems to point at, such as .init_array, is used in a way that is not seen here
        if module.object_at(start) is not None:
            return False
        table = module.table(start)
        return not module.is_referred(table.start - 4, table.stop) and not module.slots_to(table.start, table.stop)

    def _users_of_table(self, module: Module, table: range) -> tuple[Piece, ...]:
        """The pieces that seem to refer to the *table* of *module*, which is asked for once for each address in it."""
        key = (module.base + table.start, table.stop)
        if key not in self._table_users:
            self._table_users[key] = tuple(self._questions.users(module, table))
        return self._table_users[key]

    def _users_of_node(self, node: int) -> Iterator[tuple[int, dict[int, int]]]:
        module = self.program.module(node)
        piece = module.piece(node)
        addresses = range(node - module.base, piece.end - module.base) if piece else module.table(node - module.base)
        users = {user.address: user for user in self._questions.users(module, addresses)}
        if piece:
            users.update((user.address, user) for user in module.pieces_near(piece))
        tables: dict[range, None] = {}
        for slot in module.slots_to(addresses.start, addresses.stop):
            if slot not in module.stubs_of:
                yield self._node(module.base + slot), {node: 0}
            tables[module.table(slot)] = None
        for table in tables:
            # code that is followed through a table uses what stands in it
            users.update((user.address, user) for user in self._users_of_table(module, table))
        for user in users.values():
            if user.address == node:
                continue
            uses = self._uses(user)
            # what code uses that is not run is all in it: it is found from there
            if node in uses or self._answers.is_aware(user):
                yield user.address, uses


class Doubt(StrEnum):
    """Why code that seems to be reached without a test may be guarded all the same."""

    ASKED = "the CPU is asked on each way that leads there, in a way that was not understood"
    KEPT = (
        "a field, argument or pointer decides, and an answer of the CPU is put where it was not followed: "
        "test.emulate, or verify --run, tries it"
    )
    UNCLEAR = (
        "no test that suffices was seen on the ways that lead there, but not each condition on these was understood"
    )
    UNFOLLOWED = "the ways that lead there were not followed to the end"
    MASKED = "only where a hypervisor or the system masks what the processor has"


class Unguarded(Struct, frozen=True):
    """How code is reached without a test of features that are *missing*; no *doubt* if that is shown.

    The *way* names what leads there, the code itself last; *first* is the first instruction that needs each feature.
    """

    missing: int
    way: tuple[str, ...]
    first: dict[str, Instruction]
    doubt: Doubt | None


class Reach:
    """Finds the code above the level of rank *level*, with *extras*, that is reached without a test."""

    def __init__(self, program: Program, level: int, architecture: Architecture, *, extras: Iterable[str] = ()) -> None:
        self.program = program
        self._architecture = architecture
        self._answers = Answers(program, architecture.of_level(level) | features(extras), architecture)
        self._uses = Uses(self._answers)
        self._questions = self._answers.questions
        # all that some way seems to lead to, or that tests for itself
        self._reached: set[int] = set()
        # what uses a piece or table, with the facts there; and what decides whether instructions of a piece run
        self._using: dict[int, dict[int, int]] = {}
        self._decided: dict[int, Conditions] = {}

    @property
    def is_asking(self) -> bool:
        return self._questions.is_asking

    def own_need(self, piece: Piece) -> int:
        """The features above the level that instructions of *piece* need without asking."""
        if self._questions.is_known(piece):
            return 0
        if not self._answers.is_aware(piece):
            return self._answers.above(piece)
        need, most = 0, self._answers.above(piece)
        for _, needed in self._needs(piece):
            need |= needed
            if need == most:
                break
        return need

    def questions_in(self, module: Module) -> list[Piece]:
        pieces = (piece for piece in self._questions.asking.values() if self.program.module(piece.address) is module)
        return [piece for piece in pieces if self._answers.above(piece) and not self._questions.is_known(piece)]

    def _half_shown(self, address: int, missing: int, known: int) -> Doubt | None:
        """Why the features that are *missing* may be there, where *known* facts lead to the piece at *address*."""
        piece, base = self.program.module(address).piece(address), self.program.module(address).base
        result = self._answers.result(piece) if piece and self._answers.is_aware(piece) else None
        masked_only = asked_only = True
        for instruction, needed in self._needs(piece) if piece else ():
            facts = known | (result.ran.get(base + instruction.ip, 0) if result else 0)
            masked_only &= not needed & missing & ~unmasked(facts)
            asked_only &= not needed & missing or bool(facts & ASKED)
        return Doubt.MASKED if masked_only else Doubt.ASKED if asked_only else None

    def _needs(self, piece: Piece) -> Iterator[tuple[Instruction, int]]:
        module = self.program.module(piece.address)
        ran: dict[int, int] = {}
        if self._answers.is_aware(piece) and (result := self._answers.result(piece)) is not None:
            ran = result.ran
        for instruction in module.needing(piece):
            if (
                needed := module.needs(instruction)
                & ~self._answers.features
                & ~ran.get(module.base + instruction.ip, 0)
            ):
                yield instruction, needed

    def violations(self, above: Iterable[Piece]) -> dict[int, Unguarded]:
        """Those of the pieces *above* the level that are reached: features nothing asked for, and the way."""
        pieces = tuple(above)
        self._answers.leading = self._uses.all_leading(pieces)
        before = -1
        # a variable that became known later may change what was found before
        while before != self._answers.runs:
            self._answers.settle()
            before = self._answers.runs
            violations = self._violations(pieces)
        return {
            address: replace(violation, doubt=violation.doubt or self._doubt(address, violation))
            for address, violation in violations.items()
        }

    def _doubt(self, address: int, violation: Unguarded) -> Doubt | None:
        if self._architecture.is_understood:
            seen = {address}
            if self._is_clear(address, violation, seen):
                return None
            reads_memory = any(self._decided[node].reads_memory for node in seen & self._decided.keys())
            is_asked = not violation.missing & ~unmasked(self._answers.variables.unfollowed)
            return Doubt.KEPT if reads_memory and is_asked else Doubt.UNCLEAR
        return Doubt.UNFOLLOWED if tag(address) in self._questions.asking_modules else None

    def _is_clear(self, address: int, violation: Unguarded, seen: set[int]) -> bool:
        """Whether the code at *address* runs without a test wherever some conditions, all understood, hold.

        What was looked at for that is added to *seen*.
        """
        if not self._questions.is_asking:
            return True
        needs = self._needs_first(address, violation.missing)
        # a piece or table, the arguments that decide whether it is used, and the features that are missing there
        waiting = [] if needs is None else [(address, needs, violation.missing)]
        while waiting and len(seen) < _MOST_CLEAR:
            node, needs, missing = waiting.pop()
            module = self.program.module(node)
            if node in module.entries or module.is_start_or_end(node - module.base):
                return True
            for user, facts in self._using.get(node, {}).items():
                left = missing & ~facts
                if user in seen or not left:
                    continue
                seen.add(user)
                more = self._needs_of_use(user, node, needs)
                if more is not None:
                    waiting.append((user, more, left))
        return False

    def _needs_first(self, address: int, missing: int) -> Needs:
        """What decides whether an instruction runs for which features are *missing*, as in `Conditions.of`."""
        piece = self.program.module(address).piece(address)
        conditions = self._conditions(piece) if piece else None
        for instruction, needed in islice(self._needs(piece) if piece and conditions else (), _FEW):
            number = conditions.numbers.get(instruction.ip) if conditions and needed & missing else None
            needs = conditions.of(number) if conditions and number is not None else None
            if needs is not None:
                return needs
        return None

    def _needs_of_use(self, user: int, node: int, arguments: Iterable[int]) -> Needs:
        """What decides whether *user* leads to *node* with *arguments* that are plain, as in `Conditions.of`."""
        module = self.program.module(user)
        piece = module.piece(user)
        if piece is None:
            # what is in a table that others have is called by them
            return frozenset()
        other = self.program.module(node)
        target = other.piece(node)
        conditions = self._conditions(piece)
        stop = target.end if target else other.base + other.table(node - other.base).stop
        sites = [*conditions.sites(node, stop)]
        conditions.reads_memory |= not sites
        for number, is_call in sites:
            needs = conditions.of_leading(number)
            for register in arguments if is_call else ():
                # a number that is handed over may be the one with which it does not run
                more = conditions.source(number, register)
                needs = needs | more if needs is not None and more else None
            if needs is not None:
                return needs
        return None

    def _violations(self, above: Iterable[Piece]) -> dict[int, Unguarded]:
        needs = {piece.address: self.own_need(piece) for piece in above}
        own = {address: need for address, need in needs.items() if need}
        # what tests for itself: what it was run with may be forgotten when fields are looked at
        self._reached |= needs.keys() - own.keys()
        if len(own) > _MOST_BACKWARDS:
            uses: _Uses = self._uses.uses_of
            roots, unfollowed = self._uses.all_roots(), list[int]()
        else:
            users, roots, unfollowed = self._uses.cone(own)
            uses = defaultdict(dict, users).__getitem__
        violations: dict[int, Unguarded] = {}
        given_up = self._answers.work.given_up
        for is_followed, doubt in (True, None), (False, Doubt.UNFOLLOWED):
            if doubt and (not (unfollowed or given_up) or violations.keys() == own.keys()):
                continue
            hidden = given_up if is_followed else frozenset()
            starts = roots if is_followed else [*roots, *unfollowed]
            reached, parents = self._forwards(uses, starts, hidden)
            self._reached |= reached.keys()
            if is_followed:
                self._using = {}
                for user in reached.keys() - hidden:
                    for used, facts in uses(user).items():
                        self._using.setdefault(used, {})[user] = facts
            for address, need in own.items():
                if address in violations or address not in reached or address in hidden:
                    continue
                if missing := need & ~reached[address]:
                    half = self._half_shown(address, missing, reached[address])
                    violations[address] = self._unguarded(address, missing, parents, half or doubt)
        return violations

    def _conditions(self, piece: Piece) -> Conditions:
        if piece.address not in self._decided:
            if len(self._decided) >= _MOST_DECIDED:
                self._decided.clear()
            result = self._answers.results.get(piece.address)
            understood = result.understood if result else ()
            self._decided[piece.address] = Conditions(self.program, piece, self._answers.references, understood)
        return self._decided[piece.address]

    def _forwards(
        self, uses: _Uses, starts: Iterable[int], hidden: Collection[int]
    ) -> tuple[dict[int, int], dict[int, int]]:
        """What is reached from *starts* with the facts known there, and from where; what *hidden* nodes use is not."""
        reached: dict[int, int] = dict.fromkeys(starts, facts_of(self._answers.features))
        parents: dict[int, int] = {}
        waiting = deque(reached)
        while waiting:
            node = waiting.popleft()
            for target, facts in uses(node).items() if node not in hidden else ():
                known = facts | reached[node]
                if target not in reached or reached[target] & known != reached[target]:
                    # the way that is shown is the one on which least is known
                    parents[target] = node
                    reached[target] = reached.get(target, EVERY) & known
                    waiting.append(target)
        return reached, parents

    def _unguarded(self, address: int, missing: int, parents: dict[int, int], doubt: Doubt | None) -> Unguarded:
        module = self.program.module(address)
        piece = module.piece(address)
        first: dict[str, Instruction] = {}
        left = missing
        for instruction, needed in self._needs(piece) if piece else ():
            if new := needed & left:
                first.update(dict.fromkeys(names_of(new), instruction))
                left &= ~new
                if not left:
                    break
        return Unguarded(missing, self._way(address, parents), first, doubt)

    def is_tested(self, piece: Piece) -> bool:
        """Whether *piece*, which is no violation, is reached, and only behind tests, or tests for itself."""
        return self._questions.is_asking and (piece.address in self._reached or not self.own_need(piece))

    def _way(self, address: int, parents: dict[int, int]) -> tuple[str, ...]:
        nodes = [address]
        while (before := parents.get(nodes[-1])) is not None and before not in nodes and len(nodes) < _LONGEST_WAY:
            nodes.append(before)
        return tuple(self._name(node) for node in reversed(nodes))

    def _name(self, node: int) -> str:
        module = self.program.module(node)
        if piece := module.piece(node):
            return str(piece)
        symbol = module.object_at(node - module.base)
        return symbol.names[0] if symbol and symbol.names else f"table at {node - module.base:#x}"
