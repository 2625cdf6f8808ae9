"""Whether Python code loads a library only after it has asked what the processor has.

Such a library has no test of its own. Whether the question in Python is the right one is not shown: only that there is
one wherever the library is named.
"""

import ast
import re
from collections.abc import Iterable, Iterator

# words in the condition of an if that asks about the processor
_QUESTION = re.compile(r"cpu|simd|aes_?ni|clmul|avx|sse\d|sse_|neon", re.IGNORECASE)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def is_asked_for(library: str, sources: Iterable[str]) -> bool:
    """Whether *sources* name *library*, a module's name without its package, and each time behind a question."""
    name = re.compile(rf"(?:^|[./]){re.escape(library)}(?:$|[./])")
    found = [is_asked for text in sources if library in text for is_asked in _mentions(name, text)]
    return bool(found) and all(found)


def _mentions(name: re.Pattern[str], text: str) -> Iterator[bool]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    yield from _in_statements(tree.body, name, is_asked=False)


def _in_statements(body: Iterable[ast.stmt], name: re.Pattern[str], *, is_asked: bool) -> Iterator[bool]:
    for statement in body:
        is_question = isinstance(statement, ast.If) and _QUESTION.search(ast.unparse(statement.test)) is not None
        nested = [statement.body] if isinstance(statement, ast.If) else []
        for part in (*nested, *_blocks(statement)):
            yield from _in_statements(part, name, is_asked=is_asked or is_question)
        if any(_names(node, name) for node in _own_nodes(statement)):
            yield is_asked
        # what follows runs only if the question did not leave
        if is_question and isinstance(statement, ast.If) and statement.body and isinstance(statement.body[-1], _LEAVES):
            is_asked = True


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of *statement*, the first one of an if left out."""
    for field in ("body", "orelse", "finalbody"):
        if not (field == "body" and isinstance(statement, ast.If)) and isinstance(
            getattr(statement, field, None), list
        ):
            yield getattr(statement, field)
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of *statement* that are in none of its blocks."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        children = (
            child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt | ast.ExceptHandler)
        )
        waiting.extend(children)


def _names(node: ast.AST, name: re.Pattern[str]) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return name.search(text) is not None
        case ast.ImportFrom(module=module, names=names):
            return any(name.search(one.name) for one in names) or bool(module and name.search(module))
        case ast.Import(names=names):
            return any(name.search(one.name) for one in names)
    return False
