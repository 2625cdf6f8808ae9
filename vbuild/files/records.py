"""Declare a little-endian record of a file format field by field; get its size, a parser and a packer.

`class Wrapper(Packed, frozen=True)` with the fields ``magic: U32`` and ``data: U64`` has 12 bytes.
"""

import struct
from typing import Annotated, ClassVar, Self

from msgspec import Struct
from msgspec.structs import astuple

from vbuild.errors import BinaryError

Buffer = bytes | bytearray | memoryview

U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
I64 = Annotated[int, "q"]
Ident = Annotated[bytes, "16s"]


class Packed(Struct, frozen=True):
    codes: ClassVar[dict[str, str]] = {}
    """How `struct` spells the type of each field."""
    layout: ClassVar[struct.Struct]

    def __init_subclass__(cls) -> None:
        cls.codes = {
            field: hint.__metadata__[0] for field, hint in cls.__annotations__.items() if hasattr(hint, "__metadata__")
        }
        cls.layout = struct.Struct("<" + "".join(cls.codes.values()))

    @classmethod
    def parse(cls, data: Buffer, offset: int = 0) -> Self:
        """`BinaryError` if it runs past the end."""
        if not 0 <= offset <= len(data) - cls.layout.size:
            raise BinaryError(f"{cls.__name__} at {offset:#x} runs past the end, {len(data):#x}")
        return cls(*cls.layout.unpack_from(data, offset))

    def pack(self) -> bytes:
        return self.layout.pack(*astuple(self))
