"""Code that is written to take long to follow: each kind for any size, with AVX2 behind what has to be followed."""

from collections.abc import Callable, Mapping

from tests.factories.elf import shared_object

_HEAD = """.text
fast: vpaddd %ymm0, %ymm1, %ymm2
ret
.globl work
work: push %rbx
mov %edi, %r8d
mov $7, %eax
xor %ecx, %ecx
cpuid
mov %ebx, %edi
"""
_TAIL = """bt $5, %edi
jnc 1f
call fast
1: pop %rbx
ret
.section .note.GNU-stack,"",@progbits
"""


def _stores_and_branches(count: int) -> str:
    """One function that puts the answer to ever more places on the stack, each time on one of two paths."""
    frame = 8 * count + 8
    body = "".join(f"bt ${number % 32}, %r8d\njc 1f\nmov %rdi, {8 * number}(%rsp)\n1:\n" for number in range(count))
    return f"{_HEAD}sub ${frame}, %rsp\n{body}mov {8 * (count // 2)}(%rsp), %rdi\nadd ${frame}, %rsp\n{_TAIL}"


def _ring_of_calls(count: int) -> str:
    """Functions that call the next one with the answer, the last the first."""
    functions = "".join(
        f"f{number}: push %rdi\nadd $1, %esi\ncall f{(number + 1) % count}\npop %rdi\n"
        f"bt ${number % 32}, %edi\njnc 1f\ncall fast\n1: mov %edi, %eax\nret\n"
        for number in range(count)
    )
    return f"{_HEAD}call f0\nmov %eax, %edi\n{_TAIL}.text\n{functions}"


def _tree_of_calls(count: int) -> str:
    """Functions that call two others each with the answer, until those call the code above the level."""
    functions = "".join(
        f"f{number}: push %rdi\ncall f{2 * number + 1}\nmov (%rsp), %rdi\n"
        f"xor %eax, %edi\ncall f{2 * number + 2}\npop %rdi\n"
        "xor %edi, %eax\nret\n"
        if 2 * number + 2 < count
        else f"f{number}: bt ${number % 32}, %edi\njnc 1f\ncall fast\n1: mov %edi, %eax\nret\n"
        for number in range(count)
    )
    return f"{_HEAD}call f0\nmov %eax, %edi\n{_TAIL}.text\n{functions}"


def _jump_tables(count: int) -> str:
    """One function that jumps by tables, again and again, and keeps the answer in another place on each way."""
    ways = 16
    body, tables = "", ""
    for number in range(count):
        cases = "".join(
            f"c{number}_{way}: mov %rdi, {8 * ((number + way) % 200)}(%rsp)\njmp e{number}\n" for way in range(ways)
        )
        body += f"mov %r8d, %eax\nand ${ways - 1}, %eax\nlea t{number}(%rip), %rcx\n"
        body += f"jmp *(%rcx,%rax,8)\n{cases}e{number}:\n"
        tables += f"t{number}: .quad " + ", ".join(f"c{number}_{way}" for way in range(ways)) + "\n"
    frame = 8 * 200 + 8
    return f"{_HEAD}sub ${frame}, %rsp\n{body}add ${frame}, %rsp\n{_TAIL}.section .data.rel.ro\n{tables}"


KINDS: Mapping[str, tuple[Callable[[int], str], int]] = {
    "stores and branches": (_stores_and_branches, 15),
    "a ring of calls": (_ring_of_calls, 22),
    "a tree of calls": (_tree_of_calls, 22),
    "jump tables": (_jump_tables, 190),
}
"""By name: the source for a count, and about how many bytes of code each of these takes."""


def hostile_library(kind: str, size: int) -> bytes:
    """A shared object with about *size* bytes of code of that *kind*."""
    source, each = KINDS[kind]
    return shared_object(source(max(size // each, 2)), language="assembler")
