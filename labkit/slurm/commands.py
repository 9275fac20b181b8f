"""What Slurm's commands say and do, as Python values. Nothing here knows of ranks or of Jupyter."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

_LATER = "try again in a few minutes, and tell the operator if that does not help"
_SECONDS = 30.0  # for any one command; a controller under load takes its time
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}
_DOUBTFUL = {
    *("PartitionConfig", "PartitionDown", "PartitionInactive", "ReqNodeNotAvail", "Reservation"),
    *("JobHeldUser", "JobHeldAdmin", "NodeDown", "Nodes required for job are DOWN"),
}
_DOUBT = 30.0  # seconds: jobs that do start have some of these reasons for a moment
_NEVER = {
    *("PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS"),
    *("AccountNotAllowed", "QOSNotAllowed", "AssociationNodeLimit", "MaxMemPerLimit"),
}
# The most a QOS or an account gives one job, and the least a QOS asks of it: QOSMaxGRESPerJob, QOSMinGRES,
# AssocMaxCpuPerJobLimit, QOSMaxMemoryPerNode. What all jobs of somebody have together (PerUser, Grp) passes.
_NEVER_FOR_ACCOUNTS = re.compile(r"(QOS|Assoc)(Max\w+Per(Job|Node)(Limit)?|Min\w+)")


# What Slurm's commands read of the environment that is of no job. Of the rest, sbatch hands on to a new job
# what that one does not have itself, and there srun takes it for what it is asked for.
_OF_NO_JOB = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")


class SlurmError(RuntimeError):
    """Slurm refused something, or does not answer; the text is for the person who asked."""


def command(
    *words: str,
    stdin: str | None = None,
    seconds: float = _SECONDS,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What a command of Slurm's prints. SlurmError when it is not here, fails, or takes longer."""
    must_be_here(words[0])
    try:
        done = _run(words, stdin, seconds, environment)
    except subprocess.TimeoutExpired:
        heard = "; `squeue --me` shows whether it was heard" if words[0] == "sbatch" else ""
        raise SlurmError(f"{words[0]} did not answer within {seconds:g} s; {_LATER}{heard}") from None
    if "Unable to contact slurm controller" in done.stderr:
        raise SlurmError(f"Slurm's controller does not answer ({words[0]} tried to reach it); {_LATER}")
    if "Could not establish a configuration source" in done.stderr:
        known = (
            f"{words[0]} is here, but no configuration of Slurm's: this machine is in no cluster it knows of"
        )
        raise SlurmError(
            f"{known}. Use one whose jobs Slurm runs, or ask the operator what SLURM_CONF to set"
        )
    if done.returncode:
        raise SlurmError(_plain(done.stderr) or f"{words[0]} ended with exit status {done.returncode}")
    return done.stdout.strip()


def must_be_here(name: str) -> None:
    """SlurmError when this machine has no such command."""
    if shutil.which(name) is None:
        raise SlurmError(f"no {name} here: this needs a machine whose jobs Slurm runs")


def _run(
    words: Sequence[str], stdin: str | None, seconds: float, environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    """Names of users, jobs and partitions are bytes to Slurm, and not always UTF-8."""
    return subprocess.run(
        words,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=seconds,
        env=environment,
    )


def _plain(stderr: str) -> str:
    """'sbatch: error: Batch job submission failed: X' -> 'X', of the last line that says something."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    return re.sub(r"^(\w+: )?(error: )?(Batch job submission failed: )?", "", lines[-1]) if lines else ""


@dataclass(frozen=True)
class Allocation:
    """The job that this process runs in. cpus: the fewest that it has on any of its nodes."""

    job: str
    nodes: tuple[str, ...]
    cpus: int


def allocation(environment: Mapping[str, str] = os.environ) -> Allocation | None:
    """The Slurm job around this process; None outside of one."""
    job, nodes = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_NODELIST")
    if not job or not nodes:
        return None
    cpus = [
        int(count)
        for count in re.findall(r"(\d+)(?:\(x\d+\))?", environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    ]
    return Allocation(job, tuple(expand(nodes)), min(cpus, default=1))


def expand(nodes: str) -> list[str]:
    """'n[1-2]' -> ['n1', 'n2']."""
    return command("scontrol", "show", "hostnames", nodes).split()


def gpus_of(job: str) -> int:
    """GPUs that a job has on each of its nodes: the fewest, however they were asked for."""
    told = command("scontrol", "-o", "--details", "show", "job", job)
    nodes = re.findall(r"\sGRES=(\S*)", told)  # as gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:2)
    return min((sum(map(int, re.findall(r"\bgpu:(?:[^:(,]+:)?(\d+)", one))) for one in nodes), default=0)


@cache
def node_address(name: str) -> str:
    """How the other nodes reach a node: its NodeAddr, as its name may not resolve, or to another network."""
    return field(command("scontrol", "-o", "show", "node", name), "NodeAddr") or name


def field(text: str, name: str) -> str:
    """The value of Name=value in a line of scontrol's; "" when it is not there."""
    found = re.search(rf"(?:^|\s){re.escape(name)}=(\S*)", text)
    return found[1] if found and found[1] not in ("(null)", "N/A") else ""


@dataclass(frozen=True)
class JobState:
    """A job as the controller sees it.

    state: PENDING, RUNNING, COMPLETED, CANCELLED, ...; "" when Slurm has forgotten it. reason: why it waits
    or ended, in Slurm's word. position: its place among the waiting jobs of its partition, 0 when it does not
    wait. nodes: where it runs. stays: whether it has had a reason for long that does not go by itself.
    overdue: seconds after which it was to start, where that time is over. unanswered: why Slurm does not tell
    a newer state.
    """

    state: str
    reason: str = ""
    position: int = 0
    nodes: str = ""
    stays: bool = False
    overdue: float = 0.0
    unanswered: str = ""

    @property
    def ended(self) -> bool:
        """Whether the job will not run any more."""
        return not self.state or self.state in _ENDED

    @property
    def hopeless(self) -> bool:
        """Whether to wait no longer: it asks for what nobody would give it, or it is overdue."""
        return self.state == "PENDING" and (self._never or self.overdue > 0)

    @property
    def _never(self) -> bool:
        return self.reason in _NEVER or bool(_NEVER_FOR_ACCOUNTS.fullmatch(self.reason))

    def why_hopeless(self) -> str:
        """The sentence for it, with what there is."""
        if self.reason in _NEVER:
            return f"Slurm would never start the job ({self.reason}){_there_is()}"
        if self._never:
            return (
                f"Slurm would never start the job ({self.reason}): its account or QOS gives no job that much,"
                " or wants it to ask for more. `sacctmgr show qos` and `sacctmgr show assoc user=$USER` list"
                " the limits"
            )
        late = f"Slurm did not start the job within {self.overdue:g} s ({self.reason or 'no reason given'})"
        if not self.unanswered:
            return late
        return (
            f"{late}, and does not say how it stands now: {self.unanswered}. `squeue --me` shows whether it"
            " waits on, `scancel` ends it"
        )

    def __str__(self) -> str:
        silence = f"; Slurm does not say how it stands now: {self.unanswered}" if self.unanswered else ""
        return self._as_known() + silence

    def _as_known(self) -> str:
        if self.state == "PENDING":
            place = f", place {self.position} in the queue" if self.position else ""
            doubt = (
                f" for {_DOUBT:g} s now: it may never start as asked, look with sinfo" if self.stays else ""
            )
            return f"waiting{place} ({self.reason or 'no reason given yet'}{doubt})"
        if self.state in ("RUNNING", "CONFIGURING", "COMPLETING"):
            return f"{self.state.lower()} on {self.nodes}"
        return self.state.lower() or "not known to Slurm any more"


def job_state(job: str) -> JobState:
    """The state of a job now. SlurmError when the controller does not answer."""
    try:
        told = command("scontrol", "-o", "show", "job", job)
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return JobState("")
        raise
    state = field(told, "JobState")
    reason = field(told, "Reason").replace("_", " ")  # "Nodes_required_for_job_are_DOWN,_DRAINED_or_..."
    position = _position(job, field(told, "Partition")) if state == "PENDING" else 0
    return JobState(state, "" if reason == "None" else reason, position, field(told, "NodeList"))


_SUBMITTED = JobState("PENDING")


class JobWatch:
    """The state of one job, asked for less and less often: the controller serves everybody.

    queue: seconds from now it may wait for its turn; 0 for as long as it takes. known: how it stands now.
    """

    def __init__(self, job: str, queue: float = 0.0, known: JobState = _SUBMITTED) -> None:
        self.job, self._queue = job, queue
        self._begun, self._ask_at = time.monotonic(), 0.0
        self._reason_since = self._begun
        self._last = known

    def state(self, fresh: bool = False) -> JobState:
        """As it was up to half a second ago for a young job, up to five seconds ago for an old one."""
        now = time.monotonic()
        if fresh or now >= self._ask_at:
            try:
                found = job_state(self.job)
            except SlurmError as error:  # a controller that is restarted, or worse: ask again later
                found = replace(self._last, unanswered=str(error))
            self._last = self._judged(found, time.monotonic())
            self._ask_at = now + min(5.0, max(0.5, (now - self._begun) / 4))
        return self._last

    def _judged(self, found: JobState, now: float) -> JobState:
        """With what only time tells."""
        if found.state != "PENDING":
            return found
        if found.reason != self._last.reason:
            self._reason_since = now
        cause = found.reason.split(",")[0]  # ReqNodeNotAvail, UnavailableNodes:n[1-2]
        stays = cause in _DOUBTFUL and now - self._reason_since >= _DOUBT
        overdue = self._queue if 0 < self._queue < now - self._begun else 0.0
        return replace(found, stays=stays, overdue=overdue)


def _position(job: str, partition: str) -> int:
    """The place of a waiting job: highest priority first, then the older one. 0 where that is not told."""
    try:
        if "jobs" in configured("PrivateData"):
            return 0  # squeue shows one's own alone
        told = command(
            "squeue", "--noheader", "--states=PENDING", f"--partition={partition}", "--format=%Q %A"
        )
    except SlurmError:
        return 0  # how the job stands is known
    waiting = sorted({(-int(line.split()[0]), int(line.split()[1])) for line in told.splitlines()})
    return next((place for place, (_, number) in enumerate(waiting, 1) if str(number) == job), 0)


@cache
def configured(name: str) -> str:
    """What slurm.conf says of a name, as the controller has it; "" when it says nothing."""
    found = re.search(rf"^{re.escape(name)}\s*= (.*)$", command("scontrol", "show", "config"), re.MULTILINE)
    return found[1].strip() if found else ""


def submit(options: Sequence[str], script: str) -> str:
    """Hand a script's text to sbatch; the job's number. SlurmError says what there is if that is less.

    The job has this process's environment, whatever SBATCH_EXPORT says: what we tell it is there. Of a job
    around us it is told nothing.
    """
    options = ["--export=ALL", *options]
    try:
        _check_that_it_can_start(options, script)
        told = command("sbatch", "--parsable", *options, stdin=script, environment=_of_no_job(os.environ))
        return told.split(";")[0]
    except SlurmError as error:
        if not any(
            sign in str(error) for sign in ("not available", "limit", "can not be satisfied", "Invalid")
        ):
            raise
        asked = " ".join(
            option for option in options if re.match(r"--(nodes|gpus|cpus|time|part|acc|mem)", option)
        )
        raise SlurmError(f"Slurm refused the job: {error}. Asked: {asked}{_there_is()}") from None


def _of_no_job(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what Slurm has said of the job around it."""
    return {
        name: value
        for name, value in environment.items()
        if name in _OF_NO_JOB or not name.startswith(("SLURM_", "SLURMD_"))
    }


def _check_that_it_can_start(options: Sequence[str], script: str) -> None:
    """SlurmError when too few nodes are large enough: sbatch takes such a job, and it waits for ever.

    Where nodes are drained or down it may be these that are missed, and they come back: then nothing is said.
    """
    try:
        command("sbatch", "--test-only", *options, stdin=script)
    except SlurmError as error:
        if "node configuration is not available" in str(error) and not _absent_nodes():
            raise


def _absent_nodes() -> list[str]:
    """States of nodes that do not take jobs at present."""
    told = command("sinfo", "--noheader", "--Node", "--format=%T").split()
    return [s for s in told if re.search(r"down|drain|fail|maint|reboot|power|unknown|[*#!~%$@^-]", s)]


def cancel(job: str, signal: str = "") -> None:
    """End a job or step; with a signal, only send it that. Nothing happens when it has ended."""
    try:
        command("scancel", *([f"--signal={signal}"] if signal else []), job)
    except SlurmError as error:
        if "Invalid job id" not in str(error) and "already complet" not in str(error):
            raise


def cancelled(job: str, ends_it: str) -> str:
    """Cancel a job, and say so; or why it may run on, and which command `ends_it`."""
    try:
        cancel(job)
    except SlurmError as error:
        return f"job {job} may run on: {error}; `{ends_it}` ends it"
    return f"job {job} is cancelled"


def unwell(nodes: Sequence[str]) -> list[str]:
    """Those of the nodes that Slurm knows to be down, or not to answer. Empty when Slurm does not say."""
    with contextlib.suppress(SlurmError):
        told = command("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N %T")
        states = [line.split() for line in told.splitlines()]
        return sorted({name for name, state in states if "down" in state or "fail" in state or "*" in state})
    return []


def _there_is() -> str:
    """The end of a sentence; nothing where Slurm does not say what there is: why it is asked comes first."""
    with contextlib.suppress(SlurmError):
        return f". There is: {offers()}"
    return ""


def offers(partition: str = "") -> str:
    """What the partitions have, for someone who asked for too much: 'all: 2 nodes with 16 CPUs and gpu:8'."""
    chosen = [f"--partition={partition}"] if partition else []
    told = command("sinfo", "--noheader", *chosen, "--format=%R|%D|%c|%G|%l")
    lines = []
    for line in told.splitlines():
        name, nodes, cpus, gres, limit = (part.strip() for part in line.split("|"))
        gpus = "no GPUs" if gres == "(null)" else gres
        lines.append(f"{name}: {nodes} nodes with {cpus} CPUs and {gpus} each, at most {limit}")
    return "; ".join(lines)
