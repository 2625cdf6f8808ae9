"""Declare a little-endian record of a file format field by field; get its size, a parser and a packer.

@dataclass(frozen=True, slots=True)
class Wrapper(Packed):
magic: U32
version: U32
data: U64
"""

from struct import Struct
from typing import Annotated, ClassVar, Self, get_type_hints

from vbuild.errors import VbuildError

Buffer = bytes | bytearray | memoryview

U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
I64 = Annotated[int, "q"]
Ident = Annotated[bytes, "16s"]


class Packed:
    """A fixed-size piece of a file format: a frozen dataclass whose fields are of the types above.

    A room derives its own base from it, to say with *REFUSAL* which error a record that is cut short raises.
    """

    __slots__: tuple[str, ...] = ()
    layout: ClassVar[Struct]
    REFUSAL: ClassVar[type[VbuildError]] = VbuildError

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        codes = [hint.__metadata__[0] for field in cls.__annotations__ if hasattr(hint := hints[field], "__metadata__")]
        cls.layout = Struct("<" + "".join(codes))

    @classmethod
    def parse(cls, data: Buffer, offset: int = 0) -> Self:
        """Read the record at *offset*; the room's error where it runs past the end."""
        if not 0 <= offset <= len(data) - cls.layout.size:
            raise cls.REFUSAL(f"{cls.__name__} at {offset:#x} runs past the end, {len(data):#x}")
        return cls(*cls.layout.unpack_from(data, offset))

    def pack(self) -> bytes:
        return self.layout.pack(*(getattr(self, field) for field in self.__slots__))
