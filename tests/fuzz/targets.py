"""All targets by name, in the order in which they are fuzzed."""

from tests.fuzz import answers, archives, binaries, documents

TARGETS = {
    target.name: target for target in (*binaries.TARGETS, *archives.TARGETS, *documents.TARGETS, *answers.TARGETS)
}
