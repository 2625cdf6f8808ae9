"""Which code is run: pieces that ask, that use answers, or that write to variables with answers."""

from collections.abc import Iterable, Mapping

from vbuild.dispatch.module import Piece
from vbuild.dispatch.program import Program


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
        # what takes too much: whether that counts as not followed, or as what does not ask at all
        self.given_up: set[int] = set()
        self.discarded: set[int] = set()
        # whether all calls of a function are known
        self.closed: dict[int, bool] = {}

    @property
    def current(self) -> int:
        """The address of the piece that runs; 0 for none."""
        return self.running[-1].address if self.running else 0

    def again(self, addresses: Iterable[int]) -> None:
        """Run the pieces at *addresses*, of which some may have been run before."""
        for address in addresses:
            if piece := self.program.module(address).piece(address):
                self.queue[address] = piece

    def can_run(self, address: int) -> bool:
        return address not in self.given_up and address not in self.discarded

    def add(self, pieces: Mapping[int, Piece]) -> None:
        """Run those of *pieces* that are not run yet."""
        self.queue.update((address, piece) for address, piece in pieces.items() if address not in self.aware)
        self.aware |= pieces.keys()
