"""From a source to one repaired wheel: what a build is given, the PEP 517 hooks, and auditwheel after them.

Only this room knows how flags reach the compilers of each build backend. Start with `plan`, the flag plan of one build;
`frontend` runs a build, `wrappers` puts programs before the compilers, and `identity` computes the key in the cache.
"""
