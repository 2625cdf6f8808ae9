"""The features of a level, and which code needs more."""

from vbuild.dispatch.module import Piece
from vbuild.dispatch.program import Program


class Level:
    """The *features* that every processor has for which code of *program* is built."""

    def __init__(self, program: Program, features: int) -> None:
        self.program = program
        self.features = features
        self._needed: dict[int, int] = {}

    def above(self, piece: Piece) -> int:
        """The features above the level that instructions of *piece* need, whatever it asks."""
        if piece.address not in self._needed:
            self._needed[piece.address] = self.program.module(piece.address).needed_in(piece) & ~self.features
        return self._needed[piece.address]
