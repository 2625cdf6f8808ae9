"""A Slurm cluster of this one machine, up for as long as a test: its two daemons, and nothing that outlives them."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerParameters=batch_sched_delay=1,sched_interval=2
ReturnToService=2
MaxArraySize={most}
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def needs_slurm() -> pytest.MarkDecorator:
    """Skips a test where Slurm's daemons are missing, or cannot be started as no root is at work."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch") if not shutil.which(name)]
    return pytest.mark.skipif(bool(missing) or os.geteuid() != 0, reason=f"{missing or 'no root'}: no Slurm here")


@contextlib.contextmanager
def cluster(folder: Path, *, most: int = 1001) -> Iterator[dict[str, str]]:
    """The variables by which Slurm's commands find a cluster, in *folder*, whose arrays have *most* tasks."""
    host = socket.gethostname().partition(".")[0]
    (folder / "state").mkdir(parents=True)
    (folder / "spool").mkdir()
    configuration = folder / "slurm.conf"
    configuration.write_text(_CONFIGURATION.format(host=host, folder=folder, most=most, ports=_free_ports()))
    found = {"SLURM_CONF": str(configuration)}
    with contextlib.ExitStack() as stack:
        for daemon in (["slurmctld", "-D", "-i"], ["slurmd", "-D", "-N", host]):
            log = stack.enter_context((folder / f"{daemon[0]}.out").open("wb"))
            process = subprocess.Popen(daemon, env={**os.environ, **found}, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        _wait(folder, found)
        yield found


def _wait(folder: Path, found: dict[str, str]) -> None:
    """Wait until the node is idle; `AssertionError` with the daemons' output if it never is."""
    for _ in range(60):
        shown = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env={**os.environ, **found}, capture_output=True, text=True, check=False
        )
        if shown.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    raise AssertionError("\n".join(log.read_text()[-2000:] for log in folder.glob("*.log")))


def _free_ports() -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
