"""From a source to one repaired wheel: what a build is given, the PEP 517 hooks, and auditwheel after them.

Only this room knows how flags reach the compilers of each build backend. Start with `plan`, the flag plan of one
build, which is a value and needs no compiler; `frontend` runs a build, `wrappers` has the programs that stand in for
the compilers meanwhile, and `identity` says on what a finished build depends, which is its key in the cache.
"""
