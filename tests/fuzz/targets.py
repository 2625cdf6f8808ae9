"""All targets by name, in the order in which they are fuzzed."""

from tests.fuzz import answers, archives, containers, documents, libraries, other_systems, streams

TARGETS = {
    target.name: target
    for target in (
        *containers.TARGETS,
        *libraries.TARGETS,
        *other_systems.TARGETS,
        *streams.TARGETS,
        *archives.TARGETS,
        *documents.TARGETS,
        *answers.TARGETS,
    )
}
