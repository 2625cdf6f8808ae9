"""Python source without what it does on other systems than Linux, which does not count for a Linux wheel.

    if sys.platform == "win32":          if sys.platform == "win32":
        ctypes.CDLL("demo.dll")              0
    else:                                else:
        ctypes.CDLL("libdemo.so")            ctypes.CDLL("libdemo.so")

A condition counts if it compares ``sys.platform``, ``os.name`` or ``platform.system()`` with a text; ``not``, ``and``
and ``or`` combine such. What is not understood may be true on Linux.
https://docs.python.org/3/library/sys.html#sys.platform
"""

import ast
import re
from collections.abc import Iterator

# what each of them is on Linux
_FACTS = {"sys.platform": "linux", "os.name": "posix", "platform.system()": "Linux"}
_ASKS = re.compile(rb"\b(?:sys\s*\.\s*platform|os\s*\.\s*name|platform\s*\.\s*system)\b")
_TEXTS = (ast.Tuple, ast.List, ast.Set)
_ENCODING = re.compile(rb"\A[^\n]*\n?[^\n]*coding[:=]\s*(?!utf-?8\b)", re.IGNORECASE)
_OTHER = b"0"


def asks_for_system(source: bytes) -> bool:
    """Whether *source* may have something in it that depends on the system."""
    return bool(_ASKS.search(source)) and not _ENCODING.match(source) and not source.startswith(b"\xef\xbb\xbf")


def for_linux(source: bytes, tree: ast.Module) -> bytes:
    """Return *source*, whose *tree* counts columns in its bytes, with ``0`` and blanks where Linux never comes."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    text = bytearray(source)
    for first, last in _unreached(tree):
        if last.end_lineno is None or last.end_col_offset is None:
            continue
        # of a decorated function, the line of its first decorator
        line = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", ()))])
        start = starts[line - 1] + first.col_offset
        stop = starts[last.end_lineno - 1] + last.end_col_offset
        blank = re.sub(rb"[^\r\n]", b" ", text[start:stop])
        text[start:stop] = _OTHER + blank[len(_OTHER) :]
    return bytes(text)


def _unreached(tree: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, ast.stmt | ast.expr]]:
    """Yield the first and the last node of each piece that is never run on Linux, the outer ones only."""
    queue: list[ast.AST] = [tree]
    while queue:
        node = queue.pop()
        if isinstance(node, (ast.If, ast.IfExp)) and (truth := _truth(node.test)) is not None:
            branches = [[*branch] if isinstance(branch, list) else [branch] for branch in (node.body, node.orelse)]
            taken, dead = branches if truth else reversed(branches)
            if truth and isinstance(node, ast.If) and _is_elif(node):
                # "elif" begins like the statement that it stands for: it stays, without its bodies
                yield from _bodies(node.orelse[0])
            elif dead:
                yield dead[0], dead[-1]
            queue += taken
        elif not isinstance(node, ast.JoinedStr):  # before Python 3.12, what is inserted has no places of its own
            queue += ast.iter_child_nodes(node)


def _is_elif(node: ast.If) -> bool:
    other = node.orelse
    return len(other) == 1 and isinstance(other[0], ast.If) and other[0].col_offset == node.col_offset


def _bodies(node: ast.stmt) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """Yield the bodies of an ``elif`` and of all that follows it."""
    while isinstance(node, ast.If):
        yield node.body[0], node.body[-1]
        if not node.orelse:
            return
        if not _is_elif(node):
            yield node.orelse[0], node.orelse[-1]
            return
        node = node.orelse[0]


def _truth(test: ast.expr) -> bool | None:
    """Return what *test* is on Linux, or None if that depends on something else, or is not understood."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            truth = _truth(operand)
            return None if truth is None else not truth
        case ast.BoolOp(op=op, values=values):
            truths = [_truth(value) for value in values]
            decisive = isinstance(op, ast.Or)
            if decisive in truths:
                return decisive
            return None if None in truths else not decisive
        case ast.Compare(left=left, ops=[op], comparators=[right]) if fact := _FACTS.get(ast.unparse(left)):
            return _compared(fact, op, right)
        case ast.Call(func=ast.Attribute(value=value, attr="startswith"), args=[ast.Constant(value=str() as start)]):
            fact = _FACTS.get(ast.unparse(value))
            return None if fact is None else fact.startswith(start)
        case _:
            return None


def _compared(fact: str, op: ast.cmpop, right: ast.expr) -> bool | None:
    if isinstance(op, (ast.Eq, ast.NotEq)) and isinstance(right, ast.Constant) and isinstance(right.value, str):
        return (fact == right.value) == isinstance(op, ast.Eq)
    if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, _TEXTS):
        values = [each.value if isinstance(each, ast.Constant) else None for each in right.elts]
        if all(isinstance(value, str) for value in values):
            return (fact in values) == isinstance(op, ast.In)
    return None
