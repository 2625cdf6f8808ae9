"""How consumers get local versions: commands for pip and uv, uv's tables of indexes and sources, and a page of all.

An exact ``==1.0+label`` is never found anywhere else: PyPI takes no local versions.
https://docs.astral.sh/uv/concepts/projects/dependencies/#index
"""

import html
from collections.abc import Iterator, Sequence

from vbuild.publishing.address import RIVALS, below, install
from vbuild.publishing.local_labels import PLAIN, local_part, local_version
from vbuild.publishing.model import ConsumerUse
from vbuild.publishing.offer import OfferedRelease
from vbuild.publishing.siblings import labelled, latest, required, variants_of

_PAGE = """<!DOCTYPE html>
<html>
  <head>
    <meta charset="utf-8">
    <title>{title}</title>
  </head>
  <body>
    <h1>{title}</h1>
    <p>An index for each; take one of them only.</p>
    <table>
      <tr><th>index</th><th>version</th><th>for machines with</th></tr>
{rows}
    </table>
  </body>
</html>
"""


def uses(offers: Sequence[OfferedRelease], labels: Sequence[str], *, url: str | None) -> Iterator[ConsumerUse]:
    """How to get each of *labels*, and the plain wheels; *url* is where the layout's folder will be served."""
    for label, variant in variants_of(offers, labels).items():
        yield ConsumerUse(
            f"{variant}, with pip and with uv; what else is required comes from the index that they have:",
            install(" ".join(_pins(offers, label)), folder=label, url=url),
        )
    if plain := " ".join(f"{offer.project}==={offer.version}" for offer in _latest(offers) if offer.plain):
        yield ConsumerUse(
            f"The plain wheel, for every machine{RIVALS}:", install(plain, folder=PLAIN, url=url, has_rivals=True)
        )
    yield ConsumerUse(
        f"In the pyproject.toml of a project{'' if url else ', here relative to it'}; then: "
        f"uv sync --extra {_extra(labels[-1])}",
        _tables(offers, labels, url=url),
        "toml",
    )


def page(offers: Sequence[OfferedRelease], labels: Sequence[str], *, has_plain: bool) -> str:
    """The page that says which index is for whom, with the properties of *offers* as variants."""
    rows = [(PLAIN, "", "anything")] if has_plain else []
    for label, variant in variants_of(offers, labels).items():
        said = ", ".join(map(str, variant.features)) or "anything"
        rows.append((label, f"+{local_part(label)}", said))
    title = ", ".join(map(str, offers))
    return _PAGE.format(title=html.escape(title), rows="\n".join(_row(*row) for row in rows))


def _row(label: str, version: str, machines: str) -> str:
    link = f'<a href="{label}/simple/">{label}</a>'
    return f"      <tr><td>{link}</td><td>{version}</td><td>{html.escape(machines)}</td></tr>"


def _tables(offers: Sequence[OfferedRelease], labels: Sequence[str], *, url: str | None) -> str:
    """What uv reads: an extra for each label, an index that is asked for nothing else, and who comes from where."""
    extras = {label: [*_pins(offers, label), *_companions(offers, label)] for label in labels}
    lines = ["[project.optional-dependencies]"]
    for label, wanted in extras.items():
        said = ", ".join(f'"{each}"' for each in wanted)
        lines.append(f"{_extra(label)} = [{said}]")
    if len(labels) > 1:
        said = ", ".join(f'{{ extra = "{_extra(label)}" }}' for label in labels)
        lines += ["", "[tool.uv]", f"conflicts = [[{said}]]"]
    for label in labels:
        there = below(url, f"{label}/simple")
        lines += ["", "[[tool.uv.index]]", f'name = "{_extra(label)}"', f'url = "{there}"', "explicit = true"]
    lines += ["", "[tool.uv.sources]"]
    projects = dict.fromkeys(each.partition("==")[0] for wanted in extras.values() for each in wanted)
    for project in projects:
        sources = [label for label, wanted in extras.items() if any(_is_of(each, project) for each in wanted)]
        lines += [f"{project} = [", *(f"    {_source(label)}," for label in sources), "]"]
    return "\n".join(lines) + "\n"


def _source(label: str) -> str:
    return f'{{ index = "{_extra(label)}", extra = "{_extra(label)}" }}'


def _is_of(requirement: str, project: str) -> bool:
    return requirement.partition("==")[0] == project


def _pins(offers: Sequence[OfferedRelease], label: str) -> Iterator[str]:
    """The exact requirements that get the wheels of *label*, and the plain ones of projects that have no such."""
    for offer in _latest(offers, label):
        if label in offer.labels:
            yield f"{offer.project}=={local_version(offer.version, label)}"
        elif offer.plain:
            yield f"{offer.project}=={offer.version}"


def _companions(offers: Sequence[OfferedRelease], label: str) -> Iterator[str]:
    """The companions that these require: an explicit index is asked only for what a project names."""
    wheels = [wheel for offer in _latest(offers, label) for wheel in labelled(offer, label) or offer.plain]
    known = [wheel for offer in offers if offer.is_companion for wheel in offer.wheels]
    found = {(wheel.name.project, wheel.name.normalised().version) for wheel in required(wheels, known)}
    yield from (f"{project}=={version}" for project, version in sorted(found))


def _latest(offers: Sequence[OfferedRelease], label: str | None = None) -> tuple[OfferedRelease, ...]:
    """The last releases of projects that are no companions."""
    return latest([offer for offer in offers if not offer.is_companion], label)


def _extra(label: str) -> str:
    """*label* as an extra is spelled, and as uv lets an index be called."""
    return local_part(label).replace(".", "-")
