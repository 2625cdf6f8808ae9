"""The README of a layout's folder: what is there, and the commands that its consumers copy."""

from collections.abc import Iterator

from vbuild.layout.model import Plan

README = "README.md"


def readme(plan: Plan) -> str:
    """The README of what *plan* makes, as Markdown."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    yield f"# Layout `{plan.layout}`"
    for use in plan.uses:
        yield from ("", use.what, "", f"```{use.language}", use.text.rstrip("\n"), "```")
    if plan.notes:
        yield from ("", "Good to know:", "")
        yield from (f"- {note}" for note in plan.notes)
    yield ""
