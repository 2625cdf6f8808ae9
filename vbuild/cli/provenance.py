"""What `vbuild slim` and `vbuild split` write next to each wheel with --provenance."""

from collections.abc import Sequence
from pathlib import Path

import click

# options that say where and how, not what
_PLACES = frozenset({"wheels", "folder", "executor", "as_json", "dry_run", "provenance", "check"})


def state(made: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Write next to each wheel of *made* a statement of what it was made from, *inputs*, and with which options."""
    from vbuild.sbom.statement import state_each

    context = click.get_current_context()
    given = {name: value for name, value in context.params.items() if name not in _PLACES and value not in {None, ()}}
    texts = {name: [*map(str, value)] if isinstance(value, tuple) else str(value) for name, value in given.items()}
    verb = str(context.info_name)
    state_each(made, inputs=inputs, verb=verb, asked={"command": f"vbuild {verb}", "options": texts})
