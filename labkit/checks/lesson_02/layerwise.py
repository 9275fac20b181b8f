"""A model whose layers live on several devices: what its check does with it, and how that is judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from labkit import devices
from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.exercise import Property
from labkit.checks.lesson_02.small_layers import (
    SMALL,
    Specs,
    activation_bytes,
    build_layers,
    draw_layer_inputs,
    reference,
    tensor_bytes,
    train,
)
from labkit.checks.old_form import Exercise, Finding
from labkit.checks.rank import Rank

BYTES_EACH = 2**20
Copy = tuple[str, str, int]  # from, to, bytes


def use_layerwise_model(rank: Rank) -> None:
    """Build the student's model on stand-in devices, run it both ways, train it, and report."""
    names: list[str] = rank.params["devices"]
    with devices.stand_in(max(_index(name) for name in names) + 1, BYTES_EACH) as gpus:
        layers = build_layers(rank.case, rank.inputs)
        if rank.params["kind"] == "refusal":
            with rank.expect_error("refusal"):
                rank.student.LayerwiseModel(layers, [torch.device(name) for name in names])
            return
        model = rank.student.LayerwiseModel(layers, [torch.device(name) for name in names])
        if rank.params["kind"] in ("values", "buffers"):
            _report_places(rank, model, gpus)
        _run_both_ways(rank, model, gpus)
        with rank.attempt(_property_of(rank.case, "trained-weights")):
            train(model, rank.inputs)
            _report(rank, "trained", list(model.parameters()))


def train_with_an_earlier_optimizer(rank: Rank) -> None:
    """The optimizer is made before the model is: its parameters must be the model's."""
    names: list[str] = rank.params["devices"]
    with devices.stand_in(max(_index(name) for name in names) + 1, BYTES_EACH):
        layers = build_layers(rank.case, rank.inputs)
        optimizer = torch.optim.SGD(nn.Sequential(*layers).parameters(), lr=0.05)
        model = rank.student.LayerwiseModel(layers, [torch.device(name) for name in names])
        train(model, rank.inputs, optimizer)
        _report(rank, "trained", list(model.parameters()))


def _report_places(rank: Rank, model: nn.Module, gpus: devices.StandIns) -> None:
    rank.fact("parameters", [str(p.device) for p in model.parameters()])
    rank.fact("buffers", [str(b.device) for b in model.buffers()])
    rank.fact("allocated", [gpus.allocated(k) for k in range(len(gpus.devices))])


def _run_both_ways(rank: Rank, model: nn.Module, gpus: devices.StandIns) -> None:
    x = rank.inputs["x"].clone().requires_grad_()
    with gpus.recording() as forward:
        out = model(x)
    rank.fact("forward", _copies(forward))
    rank.fact("output device", str(out.device))
    rank.answer("output", out)
    _report(rank, "buffer", list(model.buffers()))
    grad = rank.inputs["grad_output"].to(out.device)
    with rank.attempt(_property_of(rank.case, "gradients")), gpus.recording() as backward:
        out.backward(grad)
    rank.fact("backward", _copies(backward))
    rank.answer("input_grad", x.grad)
    _report(rank, "grad", [p.grad for p in model.parameters()])


def _property_of(case: Case, name: str) -> str:
    """The property that part of a case is about: `name`, or the case's only one."""
    return name if name in case.properties else case.properties[0]


def _report(rank: Rank, kind: str, tensors: list[Tensor | None] | list[Any]) -> None:
    for number, tensor in enumerate(tensors):
        rank.answer(f"{kind}.{number}", tensor)


def _copies(transfers: list[devices.Transfer]) -> list[JSON]:
    return [[t.source, t.destination, t.num_bytes] for t in transfers]


def judge_layerwise_model(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Hold the report against the plain model."""
    answer = answers[0]
    match case.params["kind"]:
        case "values":
            yield from equal("forward-values", case, inputs, answer, "output")
            yield from equal("gradients", case, inputs, answer, "input_grad", "grad")
            yield from equal("trained-weights", case, inputs, answer, "trained")
            yield _on_own_devices("placement", "parameters", case, inputs, answer)
            yield from _shares(case, inputs, answer)
            yield from _crossings(case, inputs, answer)
        case "buffers":
            yield from equal("buffers-move", case, inputs, answer, "output", "buffer")
            yield _on_own_devices("buffers-move", "buffers", case, inputs, answer)
        case "tied":
            kinds = ("output", "input_grad", "grad", "trained")
            yield from equal("tied-parameters", case, inputs, answer, *kinds)
        case "optimizer-before":
            yield from equal("earlier-optimizer", case, inputs, answer, "trained")
        case "refusal":
            yield refusal("wrong-arguments", answer.facts["refusal"], case.params["names"])


def equal(name: str, case: Case, inputs: Inputs, answer: RankAnswer, *kinds: str) -> Iterator[Finding]:
    """Each of the plain model's tensors of these kinds ("output", "grad", ...) came back with its values."""
    for key, expected in reference(case, inputs).items():
        kind, _, number = key.partition(".")
        if kind not in kinds:
            continue
        wrong = difference(expected, answer.tensors.get(key))
        told = TOLD[kind].format(number=number)
        yield Finding(name, wrong is None, f"{told}, as the model on one device has it", f"{told}: {wrong}")


TOLD = {
    "output": "the output",
    "input_grad": "the gradient of x",
    "grad": "the gradient of parameter {number}",
    "buffer": "buffer {number} after one forward pass",
    "trained": "parameter {number} after two steps of SGD",
}


def refusal(name: str, fact: JSON, words: list[str]) -> Finding:
    """Whether the refusal was a ValueError whose message has all of these words."""
    clear = "ValueError" in (fact.get("kinds") or []) and all(word in fact["message"] for word in words)
    said = f"{fact['raised']}: {fact['message']}" if fact["raised"] else "no error"
    return Finding(name, clear, f"a ValueError that names {' and '.join(words)}", said)


def _on_own_devices(name: str, kind: str, case: Case, inputs: Inputs, answer: RankAnswer) -> Finding:
    """Whether the tensors of a kind ("parameters" or "buffers") are where their layers should be."""
    placed = zip(build_layers(case, inputs), case.params["devices"], strict=True)
    expected = [device for layer, device in placed for _ in getattr(layer, kind)()]
    wanted, seen = f"{kind} on {', '.join(expected)}", f"{kind} on {', '.join(answer.facts[kind])}"
    return Finding(name, answer.facts[kind] == expected, wanted, seen)


def _shares(case: Case, inputs: Inputs, answer: RankAnswer) -> Iterator[Finding]:
    layers, names = build_layers(case, inputs), case.params["devices"]
    for index, held in enumerate(answer.facts["allocated"]):
        sizes = [
            tensor_bytes(layer) for layer, name in zip(layers, names, strict=True) if _index(name) == index
        ]
        share = sum(devices.rounded(size) for layer_sizes in sizes for size in layer_sizes)
        wanted = f"cuda:{index} holds its layers and nothing more: {share:,} bytes"
        yield Finding("placement", held == share, wanted, f"{held:,} bytes")


def _crossings(case: Case, inputs: Inputs, answer: RankAnswer) -> Iterator[Finding]:
    stops = ["cpu", *case.params["devices"]]
    sizes = activation_bytes(case, inputs)
    forward: list[Copy] = [
        (a, b, size) for a, b, size in zip(stops, stops[1:], sizes, strict=False) if a != b
    ]
    backward = [(b, a, size) for a, b, size in reversed(forward)]
    for phase, expected in (("forward", forward), ("backward", backward)):
        seen = [tuple(copy) for copy in answer.facts[phase]]
        told, was = f"{phase}: {_in_words(expected)}", f"{phase}: {_in_words(seen)}"
        yield Finding("boundary-crossings", seen == expected, told, was)
    last = case.params["devices"][-1]
    seen_device = answer.facts["output device"]
    yield Finding("boundary-crossings", seen_device == last, f"the output on {last}", f"on {seen_device}")


def _in_words(copies: list[Any]) -> str:
    return ", ".join(f"{a} to {b} ({size:,} bytes)" for a, b, size in copies) or "no copies"


def _index(name: str) -> int:
    return int(name.partition(":")[2])


# ---- the exercise

BUFFERED: Specs = [["scaled", 5, 4], ["counting", 4], ["dense", 4, 6], ["scaled", 6, 3], ["counting", 3]]
TIED: Specs = [["dense", 6, 4], ["dense", 4, 4], ["tied", 0]]


def layerwise_case(
    name: str, kind: str, layers: Specs, places: list[int], lead: list[int], seed: int, **params: Any
) -> Case:
    """`layers` on devices cuda:places[i]; x is [*lead, inputs of the first layer]."""
    about = {
        "values": ("forward-values", "placement", "boundary-crossings", "gradients", "trained-weights"),
        "buffers": ("buffers-move",),
        "tied": ("tied-parameters",),
        "optimizer-before": ("earlier-optimizer",),
        "refusal": ("wrong-arguments",),
    }[kind]
    given = {"kind": kind, "layers": layers, "devices": [f"cuda:{k}" for k in places], "lead": lead, **params}
    return Case(name, 1, given, seed, about)


def _layerwise_on_rank(rank: Rank) -> None:
    if rank.params["kind"] == "optimizer-before":
        train_with_an_earlier_optimizer(rank)
    else:
        use_layerwise_model(rank)


def _layerwise_cases(seed: int) -> list[Case]:
    return [
        layerwise_case("2 devices", "values", SMALL, [0, 0, 0, 1, 1], [3], seed),
        layerwise_case("3 devices", "values", SMALL, [0, 1, 1, 1, 2], [2, 3], seed),
        layerwise_case("1 device", "values", SMALL[:2], [0, 0], [4], seed),
        layerwise_case("running means", "buffers", BUFFERED, [0, 0, 0, 1, 1], [3], seed),
        layerwise_case("tied, 2 devices", "tied", TIED, [0, 0, 1], [3], seed),
        layerwise_case("tied, 1 device", "tied", TIED, [0, 0, 0], [3], seed),
        layerwise_case("optimizer made first", "optimizer-before", SMALL, [0, 0, 1, 1, 2], [3], seed),
        layerwise_case("2 devices for 5 layers", "refusal", SMALL, [0, 1], [3], seed, names=["5", "2"]),
    ]


LAYERWISE = Exercise(
    "02.layerwise-model",
    "A model over several devices",
    ("LayerwiseModel",),
    (
        Property(
            "forward-values",
            "numbers",
            2,
            "The output is that of the same layers on one device.",
            "a layer left out or run twice, or activations that were changed on the way",
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "The gradients of the input and of every parameter are those of one device.",
            "an activation moved with .detach(), .data or through NumPy: the gradient stops there",
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            "After two steps of SGD every weight is what it would be on one device.",
            "parameters that model.parameters() does not list: layers kept in a plain Python list",
        ),
        Property(
            "placement",
            "mechanism",
            2,
            "Each device holds its own layers, parameters and buffers, and not a byte more.",
            "all layers on the first device, or a second copy kept on another",
        ),
        Property(
            "boundary-crossings",
            "mechanism",
            3,
            "Activations cross once where the device changes, and nowhere else; gradients the same way back.",
            "going through the CPU, or back to the first device after every layer",
        ),
        Property(
            "buffers-move",
            "robustness",
            1,
            "Buffers are on their layer's device, and what a layer writes into them is kept.",
            "moving only layer.parameters()",
        ),
        Property(
            "tied-parameters",
            "robustness",
            2,
            "A parameter that two layers on different devices share stays one parameter, with one gradient.",
            ".to() moves the shared parameter to the later layer's device, or a copy of it goes its own way",
        ),
        Property(
            "earlier-optimizer",
            "robustness",
            1,
            "An optimizer made before the model was moved still trains it.",
            "new nn.Parameter objects, or copies of the layers: the optimizer has the old ones",
        ),
        Property(
            "wrong-arguments",
            "robustness",
            1,
            "Another number of devices than layers is refused with a ValueError that names both.",
            "zip() stops at the shorter of the two without a word",
        ),
    ),
    _layerwise_cases,
    draw_layer_inputs,
    _layerwise_on_rank,
    judge_layerwise_model,
)
