"""What `10.slow-program-2` must show: a loop in which the host never waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from labkit import devices
from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_10.again import leave_gradients
from labkit.checks.lesson_10.losses import are_floats, send_all_losses
from labkit.checks.lesson_10.pinned import WatchfulMachine
from labkit.checks.lesson_10.plain_sgd import OTHER_RATE, USUAL_RATE, sgd_step
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import nbytes, same

BYTES_EACH = 2**22
LINK = 1e9  # bytes a second between host and device
SLOW_COPIES = 1.2  # seconds that all copies take on a slow link: far longer than the host needs for the steps
LESS_SLOW = 0.6  # where that is not what the case is about
SMALL: dict[str, Any] = {"rows": 4, "width": 2}
WATCHED = ("host_waits", "blocking", "copied_bytes", "written_over")
KERNELS = 0.002  # seconds that the layers' kernels take forward
Batches = list[tuple[Tensor, Tensor]]


def waits_case(
    name: str,
    kind: str,
    seed: int,
    steps: int | list[int],
    rows: int = 8,
    width: int = 6,
    learning_rate: float = USUAL_RATE,
    device: int = 0,
    last_rows: int | None = None,
    dtype: str = "float64",
    slow: bool = False,
    columns: int = 1,
    tokens: int | None = None,
) -> Case:
    """A small net on one stand-in device of two, trained with `steps` batches from the host, or so many in
    each of several calls. last_rows: of the last batch, where it has fewer than the others. dtype: of weights
    and batches. slow: whether copies are long under way. columns: of the targets. tokens: of each row, where
    it has several.
    """
    calls = [steps] if isinstance(steps, int) else steps
    params = {"calls": calls, "rows": rows, "width": width, "learning_rate": learning_rate, "device": device}
    more = {"last_rows": rows if last_rows is None else last_rows, "dtype": dtype, "slow": slow}
    shape = {"columns": columns, "tokens": [] if tokens is None else [tokens]}
    return Case(name, 1, params | more | shape, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    draw = Random(f"10/visible-waits/{seed}")
    odd: dict[str, Any] = {"rows": 5, "width": 3, "learning_rate": OTHER_RATE}
    given: dict[str, Any] = {"device": 1, "columns": draw.randint(2, 4)}
    return [
        waits_case("six steps", "steps", seed, [6, draw.randint(3, 5)], slow=True),
        waits_case("ten steps of odd sizes", "steps", seed, drawn_calls(draw, 10), **odd),
        waits_case("one step", "few", seed, [1, draw.randint(1, 2)], slow=draw.random() < 0.5),
        waits_case("no step", "few", seed, 0),
        waits_case("on cuda:1, batches one by one", "given", seed, drawn_calls(draw, 3), **given),
        waits_case("a slow link", "under-way", seed, drawn_calls(draw, 5), **SMALL),
    ]


def drawn_calls(draw: Random, steps: int) -> list[int]:
    """The steps of each of one to three calls, `steps` of them in one."""
    calls = [draw.randint(2, 4) for _ in range(draw.randint(0, 2))]
    calls.insert(draw.randint(0, len(calls)), steps)
    return calls


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """x: [steps of all calls, rows, width]; y: [steps of all calls, rows, columns]; of several tokens both
    [..., rows, tokens, ...].
    """
    p = case.params
    shape = (sum(p["calls"]), p["rows"], *p["tokens"])
    return {
        name: torch.randn(*shape, p[last], generator=generator, dtype=dtype_of(case))
        for name, last in (("x", "width"), ("y", "columns"))
    }


def dtype_of(case: Case) -> torch.dtype:
    """Of weights and batches."""
    return {"float64": torch.float64, "float32": torch.float32}[case.params["dtype"]]


def _batches(case: Case, inputs: Inputs) -> list[Batches]:
    """x and y of each step of each call."""
    every = zip(inputs["x"], inputs["y"], strict=True)
    calls = [list(islice(every, steps)) for steps in case.params["calls"]]
    for batches in filter(None, calls):
        x, y = batches.pop()
        batches.append((x[: case.params["last_rows"]], y[: case.params["last_rows"]]))
    return calls


def _bytes_of(batches: Batches) -> int:
    return sum(nbytes(part) for batch in batches for part in batch)


def net_of(case: Case) -> nn.Sequential:
    """The same weights everywhere."""
    torch.manual_seed(case.seed + 3)
    width, columns = case.params["width"], case.params["columns"]
    layers = [nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, columns)]
    return nn.Sequential(*layers).to(dtype_of(case))


def _train(rank: Rank) -> None:
    """Answers: trained.NAME and losses, after all calls. Facts: is_list; for each call host_waits; blocking,
    how many copies to the device block; copied_bytes, of those to the device; written_over, how many copies'
    pinned memory was not left alone.
    """
    found: dict[str, list[int]] = {name: [] for name in WATCHED}
    losses: list[Any] = []
    net = net_of(rank.case)
    device = torch.device("cuda", rank.params["device"])
    gpus = devices.stand_in(2, BYTES_EACH)
    gpus.machine = machine = WatchfulMachine(gpus, BYTES_EACH, LINK)
    with gpus:
        model = nn.Sequential(net, devices.FixedTime(KERNELS)).to(device)
        for batches in _batches(rank.case, rank.inputs):
            _gradients_before(rank.case, model)
            machine.host_link = _link(rank.case, batches)
            before = _watched(gpus, machine)
            one_by_one = iter(batches) if rank.case.kind == "given" else batches
            losses.append(rank.student.program_2(model, one_by_one, device, rank.params["learning_rate"]))
            for name, value in _watched(gpus, machine).items():
                found[name].append(value - before[name])
            gpus.synchronize()
        for name, parameter in net.named_parameters():
            rank.answer(f"trained.{name}", parameter.cpu())
    for name, values in found.items():
        rank.fact(name, values)
    send_all_losses(rank, losses, dtype_of(rank.case))


def _gradients_before(case: Case, model: nn.Module) -> None:
    """Ones where the case is about that, and none otherwise, whatever an earlier call has left."""
    model.zero_grad()
    if case.kind == "given":
        leave_gradients(model)


def _link(case: Case, batches: Batches) -> float:
    """Bytes a second between host and device while these batches are copied."""
    seconds = SLOW_COPIES if case.kind == "under-way" else LESS_SLOW if case.params["slow"] else 0
    return _bytes_of(batches) / seconds if seconds and batches else LINK


def _watched(gpus: devices.StandIns, machine: WatchfulMachine) -> dict[str, int]:
    """What is counted of a program, until now."""
    copies = [t for t in gpus.transfers if t.destination.startswith("cuda")]
    blocking = sum(not (t.non_blocking and t.pinned) for t in copies)
    copied = sum(t.num_bytes for t in copies)
    return dict(zip(WATCHED, (gpus.host_waits, blocking, copied, machine.written_over), strict=True))


@dataclass(frozen=True)
class OnTheHost(Evidence):
    """The same training without a device."""

    @cached_property
    def outcome(self) -> tuple[dict[str, Tensor], Tensor]:
        """Weights by name, and the losses [steps of all calls]."""
        net, losses = net_of(self.case), []
        for x, y in chain.from_iterable(_batches(self.case, self.inputs)):
            loss = nn.functional.mse_loss(net(x), y)
            sgd_step(net, loss, self.case.params["learning_rate"])
            losses.append(loss.item())
        weights = {name: parameter.detach() for name, parameter in net.named_parameters()}
        return weights, torch.tensor(losses, dtype=dtype_of(self.case))


def _numbers(evidence: OnTheHost) -> Iterator[Finding]:
    weights, losses = evidence.outcome
    (answer,) = evidence.answers
    yield same("the loss of each step", losses, answer, "losses")
    yield are_floats(answer)
    for name, expected in weights.items():
        yield same(f"{name} after training", expected, answer, f"trained.{name}")


def _left_alone(evidence: Evidence) -> Iterator[Finding]:
    told = "pinned memory as it was until its copy is done"
    for seen in evidence.answers[0].facts["written_over"]:
        yield Finding(seen == 0, told, f"{seen} copies whose memory was written over before", 0)


def _never_waits(evidence: Evidence) -> Iterator[Finding]:
    told = "the host waits once in a call, at the end, for all losses together"
    calls = zip(evidence.case.params["calls"], evidence.answers[0].facts["host_waits"], strict=True)
    for number, (steps, waits) in enumerate(calls):
        yield Finding(waits <= 1, told, f"it waits {waits} times in the {steps} steps of call {number}")


def _copies_do_not_block(evidence: Evidence) -> Iterator[Finding]:
    facts = evidence.answers[0].facts
    told = "every batch copied with non_blocking=True, from pinned memory"
    calls = zip(
        _batches(evidence.case, evidence.inputs), facts["blocking"], facts["copied_bytes"], strict=True
    )
    for number, (batches, blocking, copied) in enumerate(calls):
        yield Finding(blocking == 0, told, f"{blocking} copies that block in call {number}")
        whole = _bytes_of(batches)
        seen = f"{copied:,} bytes in call {number}"
        yield Finding(copied == whole, f"the batches' {whole:,} bytes copied once", seen)


TRAIN = Run(_train, _inputs, evidence=OnTheHost)

EXERCISE = Exercise(
    "10.slow-program-2",
    "Slow program 2",
    ("program_2",),
    {"steps": TRAIN, "few": TRAIN, "given": TRAIN, "under-way": TRAIN},
    _cases,
    (
        Property(
            "numbers-kept",
            "numbers",
            2,
            "The losses and the weights are the slow program's.",
            "a loss was read before its copy had arrived, one tensor was kept and written over, or pinned"
            " memory got the next batch while it was still being copied",
            {"steps": every(_numbers, _left_alone), "under-way": every(_numbers, _left_alone)},
            also={"few": _left_alone, "given": _left_alone},
        ),
        Property(
            "no-waiting",
            "mechanism",
            3,
            "The host does not wait for the device in the loop.",
            ".item(), float(), print or .cpu() of a tensor on the device, or a copy that blocks",
            {"steps": _never_waits, "under-way": _never_waits},
            also={"given": _never_waits, "few": _never_waits},
        ),
        Property(
            "copies",
            "mechanism",
            2,
            "Batches are copied once, and no copy blocks.",
            "non_blocking=True from memory that is not pinned blocks all the same",
            {"steps": _copies_do_not_block},
            also=dict.fromkeys(("given", "few", "under-way"), _copies_do_not_block),
        ),
        Property(
            "few-steps",
            "robustness",
            1,
            "One step, or none, works as well.",
            "torch.stack of an empty list",
            {"few": _numbers},
        ),
        Property(
            "as-given",
            "robustness",
            1,
            "It works on the device it is given, with batches of any shape that can be gone through once, the"
            " last of them smaller than the others, on a model that comes with gradients.",
            'copies went to "cuda:0", the batches were counted before the first step, memory had the size of'
            " the first of them, targets were taken to be one column, or gradients were added to those that"
            " were there",
            {"given": _numbers},
        ),
    ),
)
