"""What `10.slow-program-2` must show: a loop in which the host never waits for the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from labkit import devices
from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_10.again import leave_gradients
from labkit.checks.lesson_10.losses import are_floats, send_losses
from labkit.checks.lesson_10.pinned import WatchfulMachine
from labkit.checks.lesson_10.plain_sgd import OTHER_RATE, USUAL_RATE, sgd_step
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import nbytes, same

BYTES_EACH = 2**22
LINK = 1e9  # bytes a second between host and device
SLOW_COPIES = 1.2  # seconds that all copies take on a slow link: far longer than the host needs for the steps
SMALL: dict[str, Any] = {"rows": 4, "width": 2}
KERNELS = 0.002  # seconds that the layers' kernels take forward


def waits_case(
    name: str,
    kind: str,
    seed: int,
    steps: int,
    rows: int = 8,
    width: int = 6,
    learning_rate: float = USUAL_RATE,
    device: int = 0,
    last_rows: int | None = None,
    dtype: str = "float64",
) -> Case:
    """A small net on one stand-in device of two, `steps` batches from the host. last_rows: of the last batch,
    where it has fewer than the others. dtype: of weights and batches.
    """
    params = {"steps": steps, "rows": rows, "width": width, "learning_rate": learning_rate, "device": device}
    more = {"last_rows": rows if last_rows is None else last_rows, "dtype": dtype}
    return Case(name, 1, params | more, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    return [
        waits_case("six steps", "steps", seed, 6),
        waits_case("ten steps of odd sizes", "steps", seed, 10, rows=5, width=3, learning_rate=OTHER_RATE),
        waits_case("one step", "few", seed, 1),
        waits_case("no step", "few", seed, 0),
        waits_case("on cuda:1, batches one by one", "given", seed, 3, device=1),
        waits_case("a slow link", "under-way", seed, 5, **SMALL),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """x: [steps, rows, width]; y: [steps, rows, 1]."""
    steps, rows, width = (case.params[name] for name in ("steps", "rows", "width"))
    return {
        "x": torch.randn(steps, rows, width, generator=generator, dtype=dtype_of(case)),
        "y": torch.randn(steps, rows, 1, generator=generator, dtype=dtype_of(case)),
    }


def dtype_of(case: Case) -> torch.dtype:
    """Of weights and batches."""
    return {"float64": torch.float64, "float32": torch.float32}[case.params["dtype"]]


def _batches(case: Case, inputs: Inputs) -> list[tuple[Tensor, Tensor]]:
    """x and y of each step."""
    batches = list(zip(inputs["x"], inputs["y"], strict=True))
    if batches:
        x, y = batches.pop()
        batches.append((x[: case.params["last_rows"]], y[: case.params["last_rows"]]))
    return batches


def _bytes_of(batches: Sequence[tuple[Tensor, Tensor]]) -> int:
    return sum(nbytes(part) for batch in batches for part in batch)


def net_of(case: Case) -> nn.Sequential:
    """The same weights everywhere."""
    torch.manual_seed(case.seed + 3)
    width = case.params["width"]
    layers = [nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, 1)]
    return nn.Sequential(*layers).to(dtype_of(case))


def _train(rank: Rank) -> None:
    """Answers: trained.NAME, losses. Facts: is_list; host_waits; blocking, how many copies to the device
    block; copied_bytes, of those to the device; written_over, how many copies' pinned memory was not left
    alone.
    """
    net = net_of(rank.case)
    device = torch.device("cuda", rank.params["device"])
    gpus = devices.stand_in(2, BYTES_EACH)
    gpus.machine = machine = WatchfulMachine(gpus, BYTES_EACH, LINK)
    with gpus:
        model = nn.Sequential(net, devices.FixedTime(KERNELS)).to(device)
        batches = _batches(rank.case, rank.inputs)
        if rank.case.kind == "given":
            leave_gradients(model)
        gpus.transfers.clear()
        before = gpus.host_waits
        machine.host_link = _bytes_of(batches) / SLOW_COPIES if rank.case.kind == "under-way" else LINK
        learning_rate = rank.params["learning_rate"]
        one_by_one = iter(batches) if rank.case.kind == "given" else batches
        losses = rank.student.program_2(model, one_by_one, device, learning_rate)
        rank.fact("host_waits", gpus.host_waits - before)
        copies = [t for t in gpus.transfers if t.destination.startswith("cuda")]
        rank.fact("blocking", sum(not (t.non_blocking and t.pinned) for t in copies))
        rank.fact("copied_bytes", sum(t.num_bytes for t in copies))
        rank.fact("written_over", machine.written_over)
        gpus.synchronize()
        for name, parameter in net.named_parameters():
            rank.answer(f"trained.{name}", parameter.cpu())
    send_losses(rank, losses, dtype_of(rank.case))


@dataclass(frozen=True)
class OnTheHost(Evidence):
    """The same training without a device."""

    @cached_property
    def outcome(self) -> tuple[dict[str, Tensor], Tensor]:
        """Weights by name, and the losses [steps]."""
        net, losses = net_of(self.case), []
        for x, y in _batches(self.case, self.inputs):
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
    told, seen = "pinned memory as it was until its copy is done", evidence.answers[0].facts["written_over"]
    yield Finding(seen == 0, told, f"{seen} copies whose memory was written over before", 0)


def _never_waits(evidence: Evidence) -> Iterator[Finding]:
    facts = evidence.answers[0].facts
    told = "the host waits once, at the end, for all losses together"
    seen = f"it waits {facts['host_waits']} times in {evidence.case.params['steps']} steps"
    yield Finding(facts["host_waits"] <= 1, told, seen)


def _copies_do_not_block(evidence: Evidence) -> Iterator[Finding]:
    facts = evidence.answers[0].facts
    told = "every batch copied with non_blocking=True, from pinned memory"
    yield Finding(facts["blocking"] == 0, told, f"{facts['blocking']} copies that block")
    whole = _bytes_of(_batches(evidence.case, evidence.inputs))
    seen = f"{facts['copied_bytes']:,} bytes"
    yield Finding(facts["copied_bytes"] == whole, f"the batches' {whole:,} bytes copied once", seen)


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
            {"steps": _numbers, "under-way": every(_numbers, _left_alone)},
        ),
        Property(
            "no-waiting",
            "mechanism",
            3,
            "The host does not wait for the device in the loop.",
            ".item(), float(), print or .cpu() of a tensor on the device, or a copy that blocks",
            {"steps": _never_waits, "under-way": _never_waits},
            also={"given": _never_waits},
        ),
        Property(
            "copies",
            "mechanism",
            2,
            "Batches are copied once, and no copy blocks.",
            "non_blocking=True from memory that is not pinned blocks all the same",
            {"steps": _copies_do_not_block},
            also={"given": _copies_do_not_block},
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
            "It works on the device it is given, with batches that can be gone through once, the last of them"
            " smaller than the others, on a model that comes with gradients.",
            'copies went to "cuda:0", the batches were counted before the first step, memory had the size of'
            " the first of them, or gradients were added to those that were there",
            {"given": _numbers},
        ),
    ),
)
