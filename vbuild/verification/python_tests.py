"""Whether Python code loads a library only after it has asked what the processor has.

Such a library has no test of its own. That the question is right is not shown: only that there is one wherever the
library is named. Of Cython, what is also Python counts.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath

_SOURCES = (".py", ".pyx")
_TESTS = frozenset({"test", "tests"})

# words in the condition of an if that asks about the processor
_QUESTION = re.compile(r"cpu|simd|(?:aes|sha)_?ni|clmul|avx|sse\d|sse_|neon|bmi\d|adx|popcnt|gfni|amx_", re.IGNORECASE)
_LONG_STRING = re.compile(r'''("""|\'\'\').*?\1''', re.DOTALL)
_COMMENT = re.compile(r"""(?:^|\s)#[^'"]*$""")
_CIMPORT = re.compile(r"\bcimport\b")
_SELF = frozenset({"self", "cls"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def is_python_code(path: PurePath) -> bool:
    """Whether the file at *path* is Python or Cython, and no test: tests name everything."""
    return path.suffix in _SOURCES and _TESTS.isdisjoint(path.parts)


def python_code(path: PurePath, text: str) -> str:
    return _of_cython(text) if path.suffix == ".pyx" else text


def is_asked_for(library: str, sources: Iterable[str]) -> bool:
    """Whether *sources* name *library*, a module without its package, only behind a question.

    It may be handed to a function that asks before using it.
    """
    name = re.compile(rf"(?:^|[./]){re.escape(library)}(?:$|[./])")
    texts = tuple(sources)

    def is_loader(call: ast.Call, argument: int | str) -> bool:
        return _is_loader(call.func, argument, texts)

    return _all_of_some(
        is_asked
        for text in texts
        if library in text and (tree := _parsed(text))
        for is_asked in _in_statements(tree.body, lambda node: _names(node, name), is_loader, is_asked=False)
    )


def _all_of_some(answers: Iterable[bool]) -> bool:
    """Whether there are *answers*, and all are yes; stops at the first no."""
    first = next(iterator := iter(answers), False)
    return first and all(iterator)


def _of_cython(text: str) -> str:
    """The statements of the Cython *text*; of those that are not Python, the names."""
    statements: list[tuple[int, str]] = []
    waiting = ""
    for line in _LONG_STRING.sub('""', text).splitlines():
        waiting += _COMMENT.sub("", line) if waiting else _COMMENT.sub("", line).expandtabs().rstrip()
        if (body := waiting.strip()) and sum(map(body.count, "([{")) <= sum(map(body.count, ")]}")):
            statements.append((len(waiting) - len(waiting.lstrip()), _CIMPORT.sub("import", body)))
            waiting = ""
    lines = []
    for (indent, body), (following, _) in zip(statements, [*statements[1:], (0, "")], strict=True):
        is_opener = body.endswith(":")
        # what is not Python stays as a text, because its names are looked for
        statement = body if is_opener or _parsed(body) else repr(body.replace("'", ".").replace('"', "."))
        lines.append(" " * indent + (_opener(body) if is_opener else statement))
        if is_opener and following <= indent:
            lines.append(f"{' ' * indent} pass")
    return "\n".join(lines)


def _opener(body: str) -> str:
    if body in {"else:", "try:", "finally:"} or body.startswith("except"):
        return body
    if body.startswith("elif "):
        return body if _parsed(f"{body[2:]}\n pass") else "elif 1:"
    return body if body.startswith(("if ", "while ", "for ")) and _parsed(f"{body}\n pass") else "if 1:"


def _parsed(text: str) -> ast.Module | None:
    with suppress(SyntaxError, ValueError, RecursionError):
        return ast.parse(text)
    return None


def _is_loader(called: ast.expr, argument: int | str, sources: Sequence[str]) -> bool:
    """Whether each function in *sources* that may be *called* uses the *argument* only behind a question."""
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    trees = (tree for text in sources if name and f"def {name}" in text and (tree := _parsed(text)))
    nodes = (node for tree in trees for node in ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, _FUNCTIONS) and node.name == name]
    if isinstance(called, ast.Name):  # no method is called so
        functions = [
            node for node in functions if not _SELF.intersection(parameter.arg for parameter in node.args.args[:1])
        ]
    return _all_of_some(_asks_before(function, argument) for function in functions)


def _asks_before(function: ast.FunctionDef | ast.AsyncFunctionDef, argument: int | str) -> bool:
    parameters = (*function.args.posonlyargs, *function.args.args)
    names = [parameter.arg for parameter in parameters if parameter.arg not in _SELF]
    if isinstance(argument, int):
        argument = names[argument] if argument < len(names) else ""
    uses = _in_statements(
        function.body,
        lambda node: isinstance(node, ast.Name) and node.id == argument,
        lambda _call, _argument: False,
        is_asked=False,
    )
    return _all_of_some(uses)


def _in_statements(
    body: Iterable[ast.stmt],
    is_named: Callable[[ast.AST], bool],
    is_loader: Callable[[ast.Call, int | str], bool],
    *,
    is_asked: bool,
) -> Iterator[bool]:
    for statement in body:
        is_question = isinstance(statement, ast.If) and _QUESTION.search(ast.unparse(statement.test)) is not None
        nested = [statement.body] if isinstance(statement, ast.If) else []
        for part in (*nested, *_blocks(statement)):
            yield from _in_statements(part, is_named, is_loader, is_asked=is_asked or is_question)
        nodes = list(_own_nodes(statement))
        words = {id(part) for node in nodes for part in _words(node)}
        nodes = [node for node in nodes if not (id(node) in words and isinstance(node, ast.Constant))]
        if named := [node for node in nodes if is_named(node)]:
            handed = {id(value) for node in nodes for value in _handed_over(node, is_loader)}
            yield is_asked or all(id(node) in handed for node in named)
        # what follows runs only if the question did not leave
        if is_question and isinstance(statement, ast.If) and statement.body and isinstance(statement.body[-1], _LEAVES):
            is_asked = True


def _words(node: ast.AST) -> Iterator[ast.AST | None]:
    if isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.Dict):
        yield from node.keys


def _handed_over(node: ast.AST, is_loader: Callable[[ast.Call, int | str], bool]) -> Iterator[ast.AST]:
    if not isinstance(node, ast.Call):
        return
    places: list[tuple[int | str, ast.expr]] = [*enumerate(node.args)]
    places += [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
    yield from (value for position, value in places if isinstance(value, ast.Constant) and is_loader(node, position))


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        if not (field == "body" and isinstance(statement, ast.If)) and isinstance(
            getattr(statement, field, None), list
        ):
            yield getattr(statement, field)
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
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
            return any(name.search(alias.name) for alias in names) or bool(module and name.search(module))
        case ast.Import(names=names):
            return any(name.search(alias.name) for alias in names)
    return False
