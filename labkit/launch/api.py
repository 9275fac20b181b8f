"""`launch`: a function on ranks, from a notebook cell."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.launch import place
from labkit.launch.failure.errors import Diagnosis, RankError
from labkit.launch.handover.pickling import dumps, find_unsendable
from labkit.launch.handover.request import Wanted, is_whole
from labkit.launch.here import Here
from labkit.launch.job import Job
from labkit.launch.live import watcher


def launch(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int | None = None,
    nodes: int = 1,
    timeout: float = 60,
    backend: str | None = None,
    env: Mapping[str, str] | None = None,
    record: bool = True,
    wait: bool = True,
    seed: int | None = None,
    queue: float | None = None,
    **kwargs: Any,
) -> Job:
    """Run `fn(*args, **kwargs)` on every rank of a fresh torchrun job, and wait for it.

    fn may be defined in the notebook, with everything it refers to. The default process group is initialised
    when it starts; a parameter of it named `group` that is not given receives that group.

    ranks: how many; None takes one a GPU, or 4 where there is none. nodes: over how many machines of a Slurm
    cluster they are spread evenly: those of the job that the notebook is in, or else of a job that is
    submitted (see cluster/README.md). timeout: seconds until the job is ended, from when it runs.
    backend: "gloo" or "nccl"; None chooses. env: more environment variables for the ranks. record: whether to
    record communication and spans. wait: False returns at once, with the job running (`job.wait()`,
    `job.cancel()`). seed: rank r begins as after `torch.manual_seed(seed + r)`, and so for numpy and random;
    None: every rank of every launch draws other numbers, as under torchrun. queue: seconds a job that is
    submitted may wait for its turn; None: as long as Slurm lets it.

    Raises a LaunchError that says which rank failed, where and why.
    """
    _check_options(fn, kwargs)
    wanted = Wanted(ranks, backend, timeout, env or {}, record, seed=seed, queue=queue)
    job = start(fn, args, kwargs, wanted=wanted, nodes=nodes)
    if not wait:
        return job
    try:
        return job.wait(watcher())
    except BaseException:  # also where its output cannot be shown: nobody else has the job to end it
        job.cancel()
        raise


def start(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    wanted: Wanted,
    nodes: int = 1,
) -> Job:
    """As `launch`, without waiting and without showing anything."""
    if not callable(fn):
        raise TypeError(f"launch expects a function to run on the ranks, found {type(fn).__name__}: {fn!r}")
    if inspect.iscoroutinefunction(fn):
        told = "a rank does not wait for what it returns; call asyncio.run(...) in a function"
        name = getattr(fn, "__name__", repr(fn))
        raise TypeError(f"launch expects a plain function, found an async one, {name}: {told}")
    chosen = place_for(nodes)
    request, notes = chosen.plan(wanted)
    run = chosen.start(request, pickle_call(fn, args, kwargs or {}), place.nothing)
    return Job(run, notes)


def _check_options(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """TypeError for what is an option of `launch` but for its spelling, and nothing that `fn` takes."""
    try:
        takes = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a function of C, or nothing that can be called
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        return
    options = inspect.signature(launch).parameters.keys() - {"fn", "args", "kwargs"}
    for name in kwargs.keys() - takes.keys():
        meant = difflib.get_close_matches(name, options, n=1)
        if meant:
            function = getattr(fn, "__name__", repr(fn))
            raise TypeError(f"{function}() takes no argument {name!r}; did you mean {meant[0]}=, of launch?")


def place_for(nodes: int) -> place.Place:
    """This machine, or several of a cluster. ValueError when `nodes` is no number of nodes."""
    if not is_whole(nodes) or nodes < 1:
        raise ValueError(f"nodes must be a whole number from 1, found {nodes!r}")
    if nodes == 1:
        return Here()
    from labkit.launch.nodes.place import Nodes  # what is needed for Slurm, and by few notebooks

    return Nodes(nodes)


def pickle_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """A call as the ranks unpickle it. RankError names the part that cannot be sent."""
    try:
        return dumps((fn, tuple(args), dict(kwargs)))
    except Exception as error:
        where, part = find_unsendable(fn, args, kwargs)
        kind = f"{type(part).__module__}.{type(part).__qualname__}"
        summary = f"{where} cannot be sent to the ranks: it is a {kind} ({error})"
        hint = "create it inside the function, on each rank, instead of outside"
        raise RankError(Diagnosis("error", summary, hint=hint)) from None
