"""What finished files were made of and by whom, for a CI to sign: an in-toto statement with SLSA's provenance.

    subject                  each file with its SHA-256
    resolvedDependencies     what pins the inputs: recipe, sources, native dependencies, compilers, installed packages
    externalParameters       of each wheel: for which processor, with which flags; unpinned inputs, by name
    runDetails               the vbuild that did it, and the platform that ran it, if it says which it is

The same run gives the same bytes: no time, no path, no name of a machine. The statement is not signed:

    cosign attest-blob --statement provenance.json --bundle demo.sigstore.json     # cosign 3

or, with GitHub's attest action, ``predicate-type`` and the value of ``predicate`` as ``predicate-path``.
https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
https://github.com/in-toto/attestation/blob/main/spec/v1/resource_descriptor.md
https://slsa.dev/spec/v1.0/provenance
https://docs.github.com/en/actions/reference/workflows-and-actions/variables
https://docs.gitlab.com/ci/runners/configure_runners/#provenance-metadata-format
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vbuild import __version__
from vbuild.errors import WheelError
from vbuild.files.atomic import replacing
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import read_file
from vbuild.process.masking import without_logins
from vbuild.sbom.keeping import bill_of
from vbuild.sbom.model import MaterialRole, stated
from vbuild.wheel.archive import open_wheel

PROVENANCE = "provenance.json"

_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://slsa.dev/provenance/v1"
_BUILD = "urn:vbuild:{}:1"
_LARGEST = 1 << 26  # bytes; one of ten thousand wheels takes less
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, RecursionError)
_Json = dict[str, Any]


def statement(
    wheels: Sequence[Path],
    *,
    inputs: Sequence[Path] = (),
    earlier: Iterable[Mapping[str, Any]] = (),
    verb: str = "release",
    asked: Mapping[str, Any] | None = None,
    platform: str | None = None,
) -> bytes:
    """The statement on *wheels*, which *verb* made of the files *inputs* as *asked*.

    *earlier* are the dependencies that `dependencies_at` gives. *platform* is the URI of what did it, by default
    `build_platform`; empty if nobody knows.
    """
    dependencies = [dependency(path.name, sha256=sha256_of(path)) for path in inputs]
    subjects, about = [], []
    for wheel in sorted(wheels, key=lambda path: path.name):
        with open_wheel(wheel) as opened:
            bill = bill_of(opened)
        makings = bill.makings if bill else ()
        parts = dict.fromkeys(part for making in makings for part in making.materials)
        compilers = sorted(str(part) for part in parts if part.role is MaterialRole.COMPILER)
        taken = {
            part: dependency(
                f"{part.role}: {part}", uri=part.purl or part.url, sha256=part.sha256, gitCommit=part.commit
            )
            for part in parts
        }
        dependencies += filter(_is_dependency, taken.values())
        unpinned = {
            material["name"]
            for part, material in taken.items()
            if not (_is_dependency(material) or part.role is MaterialRole.COMPILER)
        }
        subjects.append({"name": wheel.name, "digest": {"sha256": sha256_of(wheel)}})
        about.append(
            {
                "name": wheel.name,
                "builds": [dict(making.settings) for making in makings],
                "compilers": compilers,
                "unpinned": sorted(unpinned),
            }
        )
    builder = build_platform() if platform is None else platform
    # each once, by name
    by_name = {
        (entry["name"], json.dumps(entry, sort_keys=True)): entry for entry in (*dependencies, *map(dict, earlier))
    }
    whole = {
        "_type": _STATEMENT,
        "subject": subjects,
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD.format(verb),
                "externalParameters": {**(asked or {}), "wheels": about},
                "resolvedDependencies": [by_name[key] for key in sorted(by_name)],
            },
            "runDetails": {"builder": stated(id=builder, version={"vbuild": __version__})},
        },
    }
    return (without_logins(json.dumps(whole, indent=2, ensure_ascii=False)) + "\n").encode()


def state_each(
    wheels: Iterable[Path], *, inputs: Sequence[Path], verb: str, asked: Mapping[str, Any]
) -> tuple[Path, ...]:
    """Write alongside each of *wheels* a statement on it alone, ``<wheel>.provenance.json``, and return their paths."""
    written = []
    for wheel in wheels:
        path = wheel.with_name(f"{wheel.name}.{PROVENANCE}")
        data = statement([wheel], inputs=inputs, verb=verb, asked=asked)
        try:
            with replacing(path) as part:
                part.write_bytes(data)
        except OSError as error:
            raise WheelError(f"{path}: cannot be written: {error.strerror}") from error
        written.append(path)
    return tuple(written)


def build_platform() -> str:
    """The URI of the platform that runs this, by the variables of GitHub's and GitLab's runners; empty for any other.

    SLSA has none for a machine of which nobody can say who runs it. npm's provenance has the same URIs.
    """
    kind = os.environ.get("RUNNER_ENVIRONMENT")
    if os.environ.get("GITHUB_ACTIONS") == "true" and kind in {"github-hosted", "self-hosted"}:
        return f"https://github.com/actions/runner/{kind}"
    project, runner = os.environ.get("CI_PROJECT_URL"), os.environ.get("CI_RUNNER_ID")
    return f"{project}/-/runners/{runner}" if os.environ.get("GITLAB_CI") == "true" and project and runner else ""


def platform_at(folder: Path) -> str:
    """The platform that the statement in *folder* names; empty if unreadable."""
    with suppress(*_UNREADABLE):
        return str(_predicate(folder)["runDetails"]["builder"]["id"])
    return ""


def dependencies_at(folder: Path) -> tuple[_Json, ...]:
    """The dependencies that the statement in *folder* names; none if unreadable."""
    with suppress(*_UNREADABLE):
        return tuple(filter(_is_dependency, _predicate(folder)["buildDefinition"]["resolvedDependencies"]))
    return ()


def _predicate(folder: Path) -> Any:  # noqa: ANN401 - whatever JSON holds
    path = folder / PROVENANCE
    if path.stat().st_size > _LARGEST:
        raise ValueError(path)
    return json.loads(read_file(path))["predicate"]


def dependency(name: str, *, uri: str | None = None, **digest: str | None) -> _Json:
    return {"name": name, **stated(uri=uri, digest=stated(**digest))}


def _is_dependency(entry: object) -> bool:
    """Whether *entry* is what `dependency` makes: nothing else of somebody's file is passed on.

    One of a name alone is none: in-toto wants a URI or a digest.
    """
    if not isinstance(entry, dict) or not {"name"} < {*entry} <= {"name", "uri", "digest"}:
        return False
    digest = entry.get("digest", {})
    texts = (entry.get("name"), entry.get("uri", ""), *(digest.values() if isinstance(digest, dict) else [None]))
    return all(isinstance(text, str) for text in texts)
