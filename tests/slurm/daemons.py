"""A Slurm of two nodes on the loopback, from Debian's packages: munged, slurmctld, two slurmd.

    apt-get install munge slurmctld slurmd slurm-client

Every daemon stays in the foreground as a child of this process, has its configuration, keys and
state in one folder, listens on 127.0.0.1 alone, and ends with the ``with`` block.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "srun", "sinfo")
NODES = ("n1", "n2")
START_SECONDS = 60
PATIENCE_SECONDS = 900
POLL_SECONDS = 0.2
CONFIGURATION = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=10
SchedulerParameters=sched_min_interval=0,batch_sched_delay=1
{nodes}
PartitionName=cells Nodes={names} Default=YES MaxTime=60 State=UP
"""


def why_not() -> str:
    """The reason why no Slurm can be started here; empty where it can."""
    path = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    return "" if os.getuid() == 0 else "slurmd needs root"


def why_no_other_clock() -> str:
    """The reason why no process here can have a monotonic clock of its own; empty where one can."""
    asked = (
        subprocess.run(
            [*_with_clock_ahead(1000), "cat", "/proc/self/timens_offsets"],
            capture_output=True,
            text=True,
            check=False,
        )
        if shutil.which("unshare")
        else None
    )
    if asked is None:
        return "unshare is not installed"
    is_ahead = re.search(r"monotonic\s+1000\b", asked.stdout) is not None
    return "" if is_ahead else f"no time namespaces: {asked.stderr.strip() or asked.stdout}"


def _with_clock_ahead(seconds: int) -> list[str]:
    return ["unshare", "--time", "--monotonic", str(seconds), "--fork"]


@contextmanager
def running(folder: Path, ahead: Mapping[str, int] = {}) -> Iterator[dict[str, str]]:
    """A Slurm with two idle nodes; the variables under which its commands find it.

    Args:
        folder: Empty, with a short path: a socket lies in it.
        ahead: Seconds by which the monotonic clock of a node is ahead, by its name.

    Raises:
        RuntimeError: A daemon ended, or the nodes did not come up; with the ends of the logs.
    """
    ports = _free_ports(1 + len(NODES))
    host = socket.gethostname().partition(".")[0]
    for name in ("munge", "state", "log", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    (folder / "munge").chmod(0o711)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    configuration = folder / "slurm.conf"
    nodes = "\n".join(
        f"NodeName={node} NodeHostName=localhost NodeAddr=127.0.0.1 Port={port} CPUs=1 "
        "RealMemory=2000 State=UNKNOWN"
        for node, port in zip(NODES, ports[1:], strict=True)
    )
    configuration.write_text(
        CONFIGURATION.format(
            host=host, folder=folder, ports=ports, nodes=nodes, names=",".join(NODES)
        )
    )
    environment = {
        **os.environ,
        "SLURM_CONF": str(configuration),
        "PATH": os.environ.get("PATH", "") + os.pathsep + "/usr/sbin",
    }
    munge = [
        *("munged", "--foreground", "--force", f"--socket={folder}/munge/socket"),
        *(f"--key-file={key}", f"--pid-file={folder}/munge/pid"),
        *(f"--log-file={folder}/log/munged.txt", f"--seed-file={folder}/munge/seed"),
    ]
    with ExitStack() as stack:
        daemons = [stack.enter_context(_daemon(folder, "munged", munge, environment))]
        _wait(lambda: (folder / "munge" / "socket").exists(), daemons, folder)
        controller = ["slurmctld", "-D", "-c"]
        daemons.append(stack.enter_context(_daemon(folder, "slurmctld", controller, environment)))
        for node in NODES:
            clock = _with_clock_ahead(ahead[node]) if node in ahead else []
            command = [*clock, "slurmd", "-D", "-N", node]
            daemons.append(stack.enter_context(_daemon(folder, node, command, environment)))

        def is_up() -> bool:
            asked = subprocess.run(
                ["sinfo", "-h", "-N", "-o", "%t"], env=environment, capture_output=True, check=False
            )
            return asked.stdout.split() == [b"idle"] * len(NODES)

        _wait(is_up, daemons, folder)
        yield environment


@contextmanager
def _daemon(
    folder: Path, name: str, command: list[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log" / f"{name}.out").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        # It leads a session: unshare would keep the signal from its child.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(
    is_there: Callable[[], bool], daemons: list[subprocess.Popen[bytes]], folder: Path
) -> None:
    until = time.monotonic() + START_SECONDS
    while not is_there():
        if time.monotonic() > until or any(daemon.poll() is not None for daemon in daemons):
            logs = sorted((folder / "log").iterdir())
            ends = (f"{log.name}: {log.read_text(errors='replace')[-600:]}" for log in logs)
            raise RuntimeError("Slurm did not start\n" + "\n".join(ends))
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_for(is_so: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> Any:
    """The first true answer while the process lives."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not (answer := is_so()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(POLL_SECONDS)
    return answer


def queue(environment: dict[str, str], state: str = "R") -> list[str]:
    """The jobs in that state, as ``17_3``."""
    asked = ["squeue", "-h", "-r", "-o", "%i", "-t", state]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()
