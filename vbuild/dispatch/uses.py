"""Who uses what: pieces of code and tables as nodes, each use with what is known of the processor there.

a piece that has to do with answers    what the interpreter saw it use when it ran it, with the facts at each use
any other piece                        all that it refers to, and what follows it, with no facts
a table                                what the loader puts into it
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from vbuild.dispatch.answers import Answers
from vbuild.dispatch.facts import EVERY
from vbuild.dispatch.interpreter import Interpreter
from vbuild.dispatch.module import Module, Piece
from vbuild.dispatch.program import LEAVES, Program
from vbuild.elf.iced import FlowControl

# users of code above the level that are looked at
_MOST_USERS = 40000


class Uses(Answers):
    """The graph of *program*: a node is the address of a piece of code or of a table."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # what a piece uses, with the facts there
        self._used: dict[int, dict[int, int]] = {}
        # which piece uses what as an address, and never by a call or a jump, in files that ask the processor
        self._pointers: set[tuple[int, int]] = set()
        self._table_users: dict[tuple[int, int], tuple[Piece, ...]] = {}
        self._leading: set[int] | None = None

    def _node(self, address: int) -> int:
        """The piece or table that *address* lies in."""
        module = self.program.module(address)
        if piece := module.piece(address):
            return piece.address
        return module.base + module.table(address - module.base).start

    def _uses(self, piece: Piece) -> dict[int, int]:
        """What *piece* uses, by node, and the facts known at each of these uses."""
        if piece.address not in self._used:
            self._used[piece.address] = self._found_uses(piece)
        return self._used[piece.address]

    def _found_uses(self, piece: Piece) -> dict[int, int]:
        if self._is_aware(piece) and (result := self._result(piece)) is not None:
            return self._uses_when_run(piece, result)
        found = {self._node(target): 0 for target in self._targets(piece)}
        self._note_pointers(piece, found)
        module = self.program.module(piece.address)
        if module.shape(piece).falls_through and (after := module.piece(piece.end)):
            found[after.address] = 0
        return found

    def _uses_when_run(self, piece: Piece, result: Interpreter) -> dict[int, int]:
        found: dict[int, int] = {}
        called: set[int] = set()
        for (site, target), facts in result.uses.items():
            node = self._node(target)
            if node != piece.address:
                found[node] = found.get(node, EVERY) & facts
                if self._is_branch(site, target):
                    called.add(node)
        # code of others that was followed
        for address, facts in result.ran.items():
            module = self.program.module(address)
            if piece.address <= address < piece.end:
                continue
            instruction = module.instruction(address)
            if (instruction is None or module.needs(instruction)) and (other := module.piece(address)):
                found[other.address] = found.get(other.address, EVERY) & facts
                called.add(other.address)
        handlers = self.program.module(piece.address).handlers_of(piece)
        found.update((self._node(handler), 0) for handler in handlers)
        called.update(map(self._node, handlers))
        if result.guesses and self._asks_in(self.program.module(piece.address)):
            self._pointers |= {(piece.address, node) for node in found.keys() - called}
        return found

    def _note_pointers(self, piece: Piece, found: Iterable[int]) -> None:
        """Note which of the nodes *found* to be used by *piece*, which is not run, it never calls or jumps to."""
        module = self.program.module(piece.address)
        if not self._asks_in(module):
            return
        called: set[int] = set()
        for target, flow, _, _ in module.shape(piece).outward:
            if flow == FlowControl.NEXT:
                continue
            places = (self.program.destination(target), self.program.behind(module, target - module.base))
            called.update(self._node(place) for place in places if isinstance(place, int) and place < LEAVES)
        self._pointers |= {(piece.address, node) for node in found if node not in called}

    def _forget_uses(self, piece: Piece) -> None:
        self._used.pop(piece.address, None)

    def _look_at_fields(self) -> None:
        super()._look_at_fields()
        for reader in self._field_readers:
            self._used.pop(reader, None)

    def _is_branch(self, site: int, target: int) -> bool:
        """Whether the instruction at *site* calls *target*, or jumps there; a call may also hand *target* over."""
        module = self.program.module(site)
        instruction = module.instruction(site)
        if instruction is None:
            return True
        if to := instruction.near_branch_target:
            return self.program.destination(module.base + to) == target
        # what is left in a register at a return is handed over, too
        return instruction.flow_control not in {FlowControl.NEXT, FlowControl.RETURN}

    def leads_above(self, address: int) -> bool:
        return self._leading is None or address in self._leading

    def _all_leading(self, above: Iterable[Piece]) -> set[int] | None:
        """The pieces from which calls and jumps seem to lead to those *above*; None for too many."""
        found = {piece.address for piece in above}
        waiting = [piece.address for piece in above]
        while waiting:
            module = self.program.module(waiting[-1])
            piece = module.piece(waiting.pop())
            if piece is None:
                continue
            users = self._users(module, range(piece.address - module.base, piece.end - module.base))
            near = (
                one
                for one in module.pieces_near(piece)
                if piece.address in self._targets(one) or (one.end == piece.address and module.shape(one).falls_through)
            )
            for user in (*users, *near):
                if user.address not in found:
                    found.add(user.address)
                    waiting.append(user.address)
            if len(found) > _MOST_USERS:
                return None
        return found

    def _uses_of(self, node: int) -> Mapping[int, int]:
        """What the piece or table *node* uses, with the facts known at each use."""
        module = self.program.module(node)
        if piece := module.piece(node):
            return self._uses(piece)
        table = module.table(node - module.base)
        places = (self.program.behind(module, place) for place in module.places_in(table))
        return {self._node(place): 0 for place in places if isinstance(place, int) and place < LEAVES}

    def _all_roots(self) -> list[int]:
        """Where other code enters: the entries of all files, and the data that no code seems to point at."""
        found: dict[int, None] = {}
        for module in self.program.modules:
            found.update(dict.fromkeys(self._node(address) for address in module.entries))
            tables = dict.fromkeys(module.base + module.table(place).start for place in module.pointers)
            found.update(dict.fromkeys(table for table in tables if self._is_root(table)))
        return list(found)

    def _cone(self, start: Iterable[int]) -> tuple[dict[int, dict[int, int]], list[int], list[int]]:
        """All from which code is reached that *start* lists: each user's uses with their facts; entries; and the rest.

        The rest is what was not followed, because it gets too much.
        """
        nodes = set(start)
        roots = [node for node in nodes if self._is_root(node)]
        most = len(nodes) + _MOST_USERS
        users: dict[int, dict[int, int]] = {}
        # what uses other things than those known so far: code that it follows may be found to be a user
        others: dict[int, dict[int, dict[int, int]]] = {}
        waiting = deque(nodes)
        while waiting and len(nodes) < most:
            node = waiting.popleft()
            for user, uses in (*self._users_of_node(node), *others.pop(node, {}).items()):
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
        place = node - module.base
        if node in module.entries or module.is_start_or_end(place):
            return True
        if module.piece(node) is not None:
            return False
        # data that no code seems to point at, such as .init_array, is used in a way that is not seen here
        if module.object_at(place) is not None:
            return False
        table = module.table(place)
        return not module.is_referred(table.start - 4, table.stop) and not module.places_of(table.start, table.stop)

    def _users_of_table(self, module: Module, table: range) -> tuple[Piece, ...]:
        """The pieces that seem to refer to the *table* of *module*, which is asked for once for each address in it."""
        key = (module.base + table.start, table.stop)
        if key not in self._table_users:
            self._table_users[key] = tuple(self._users(module, table))
        return self._table_users[key]

    def _users_of_node(self, node: int) -> Iterator[tuple[int, dict[int, int]]]:
        """What may use *node*: pieces and tables, with all that they use and the facts known there."""
        module = self.program.module(node)
        piece = module.piece(node)
        addresses = range(node - module.base, piece.end - module.base) if piece else module.table(node - module.base)
        users = {user.address: user for user in self._users(module, addresses)}
        if piece:
            users.update((user.address, user) for user in module.pieces_near(piece))
        tables: dict[range, None] = {}
        for place in module.places_of(addresses.start, addresses.stop):
            if place not in module.stubs_of:
                yield self._node(module.base + place), {node: 0}
            tables[module.table(place)] = None
        for table in tables:
            # code that is followed through a table uses what stands in it
            users.update((user.address, user) for user in self._users_of_table(module, table))
        for user in users.values():
            if user.address != node:
                yield user.address, self._uses(user)
