"""A Dask cluster: its workers, and where jobs run, which is on them or here. Start with `executor`."""
