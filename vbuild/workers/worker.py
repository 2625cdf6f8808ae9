"""The resources that a Dask worker declares, so that Dask knows which jobs may go there.

    dask worker tcp://host:8786 --preload vbuild.workers.worker

With the preload a worker declares these resources:

    x86-64, x86-64-v2, x86-64-v3    the CPU levels that its machine runs; one for each thread, so never used up
    container                       docker or podman is there; one for each thread
    gpu                             one for each NVIDIA GPU

A worker without the preload builds, and gets no test that needs one of these while other workers declare it.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine
from vbuild.workers.executor import GPU

if TYPE_CHECKING:
    from distributed import Worker

CONTAINER = "container"

_ENGINES = ("docker", "podman")
_GPUS = Path("/proc/driver/nvidia/gpus")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def dask_setup(worker: "Worker") -> None:
    """Declare the resources; Dask calls this before *worker* joins its scheduler."""
    for name, amount in resources(worker.state.nthreads).items():
        # the user's --resources win
        worker.state.total_resources.setdefault(name, amount)
        worker.state.available_resources.setdefault(name, amount)


def resources(threads: int) -> Mapping[str, float]:
    """The resources of this machine for a worker with *threads*."""
    cpu = Machine.here().cpu
    levels = [str(Cpu.known(cpu.machine, level)) for level in cpu.supported_levels] if cpu else []
    engines = [CONTAINER] if any(map(shutil.which, _ENGINES)) else []
    declared = dict.fromkeys([*levels, *engines], float(threads))
    # the GPUs that this process may use
    if (visible := os.environ.get(_VISIBLE)) is not None:
        gpus = [name for name in visible.split(",") if name.strip() not in {"", "-1", "NoDevFiles"}]
    else:
        gpus = [path.name for path in _GPUS.iterdir()] if _GPUS.is_dir() else []
    return {**declared, GPU: float(len(gpus))} if gpus else declared
