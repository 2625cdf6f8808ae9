"""Commands, threads and signals: nothing that a run starts outlives it, and an interrupt leaves nothing half-done.

Start with `run`; `python` is how Python is started.
"""
