"""Which code needs which CPU features, and whether it runs only after a test of the processor (run-time dispatch).

`judge` is the door: ``Dispatch(files).judged(path, level)``. It asks `isa`, the disassembly, what code needs, and
`reach` by which ways it is reached.

    reach         ways from where other code enters to code above a level
    conditions    what decides whether code runs, as far as that has nothing to do with the processor
    answers       which code is run, what it is called with, and what it tells its callers
    variables     what variables hold of answers
    interpreter   runs one piece by its `instructions` (and `vectors`), on a `machine` with a state at each place
    questions, references, writers    who asks, who calls, and who writes: what is seen without running anything
    program       the files, each a `module`

Each of these has those below it as parts. `answers.Architecture` says which of them are others for aarch64 (``arm_*``).
"""
