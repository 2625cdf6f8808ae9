"""iced-x86, which disassembles x86-64 code; if it is not installed, its names alone, each with its number.

Some machines have no wheel of it. aarch64 code is judged there, too, and uses its names for branches and conditions.
"""

__all__ = [
    "Code",
    "ConditionCode",
    "CpuidFeature",
    "Decoder",
    "EncodingKind",
    "FlowControl",
    "Formatter",
    "FormatterSyntax",
    "Instruction",
    "InstructionInfoFactory",
    "MemorySizeExt",
    "Mnemonic",
    "OpAccess",
    "OpKind",
    "Register",
    "RegisterExt",
    "is_installed",
]
# a condition stands next to its opposite, behind the name for none
_CONDITIONS = ("NONE", "O", "NO", "B", "AE", "E", "NE", "BE", "A", "S", "NS", "P", "NP", "L", "GE", "LE", "G")
_NUMBERS = {"ConditionCode": {name: number for number, name in enumerate(_CONDITIONS)}}


class _Names(type):
    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        numbers = _NUMBERS.setdefault(cls.__name__, {})
        return numbers.setdefault(name, len(numbers))


try:
    from iced_x86 import (
        Code,
        ConditionCode,
        CpuidFeature,
        Decoder,
        EncodingKind,
        FlowControl,
        Formatter,
        FormatterSyntax,
        Instruction,
        InstructionInfoFactory,
        MemorySizeExt,
        Mnemonic,
        OpAccess,
        OpKind,
        Register,
        RegisterExt,
    )

    is_installed = True
except ImportError:
    is_installed = False
    globals().update({name: _Names(name, (), {}) for name in __all__ if name != "is_installed"})
