"""Which code needs which CPU features, and whether it runs only after a test of the processor (run-time dispatch).

`judge` is the door: ``Dispatch(files).judged(path, level)``. It asks `isa`, the disassembly, what code needs, and
`reach` by which ways it is reached.

    reach         ways from where other code enters to code above a level
    uses          who uses what: what the code says that is not run, and what was seen where it is
    answers       which code is run (`work`), what it is called with, and what it tells its callers
    variables     what variables and fields hold of answers; `objects` on the heap
    interpreter   runs one piece by its `instructions` and `imports`, on a `machine` with a state at each place
    questions, references, writers    who asks, who calls, and who writes: what is seen without running anything
    program       the files, each a `module`

Each of these has those below it as parts. `architecture` says which of them are others for aarch64 (``arm_*``).
"""
