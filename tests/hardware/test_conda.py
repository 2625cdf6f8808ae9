"""The CPUs that conda, mamba and pixi know, and the levels that they reach."""

from vbuild.publishing.conda.package import x86_64_cpus


def test_every_level_has_the_cpus_of_that_name() -> None:
    known = {name: level for level, name in x86_64_cpus()}
    assert [known[name] for name in ("x86_64", "x86_64_v2", "x86_64_v3", "x86_64_v4")] == [1, 2, 3, 4]
    assert (known["zen4"], known["haswell"], known["core2"]) == (4, 3, 1)
