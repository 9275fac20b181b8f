"""A model whose layers wait on the host: what its check does with it, and how that is judged."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from labkit import devices
from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Exercise, Finding, Property, Run, every
from labkit.checks.lesson_02.device_time import (
    HOST_LINK,
    give_kernels,
    on_a_clock_of_their_own,
    seconds_beside_work,
)
from labkit.checks.lesson_02.failing import fail, fail_in_backward
from labkit.checks.lesson_02.fetching import (
    Watched,
    answer_gradients,
    answer_large_batch,
    computes,
    fetches_ahead,
    fetches_ahead_too,
    fetches_aside_or_ahead,
    fetches_once,
    finite,
    stays_in_bounds,
    travels_aside,
    waits_in_pinned_memory,
)
from labkit.checks.lesson_02.layerwise import OnDevices
from labkit.checks.lesson_02.offload_cases import offload_cases
from labkit.checks.lesson_02.plain_model import (
    INFERENCE,
    BesideTwoBatches,
    BesideTwoModels,
    add_two_batches,
    compare,
    equals,
    learn_side_by_side,
    same_random_numbers,
)
from labkit.checks.lesson_02.small_layers import (
    Log,
    build_layers,
    build_others,
    draw_layer_inputs,
    named,
    to_hand_over,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import is_refused

BYTES_EACH = 2**26
IN_EVALUATION = ("evaluated", "evaluated_grad")  # where their values are another property's
WATCHED = ("watched", "watched-frozen", "watched-buffers", "watched-language")
A_STEP = ("inferred", "output", "grad")  # what is answered of the passes whose copies are watched


@contextlib.contextmanager
def _model_on_device(
    rank: Rank, late: bool = False, host_link: float | None = None
) -> Iterator[tuple[nn.Module, Sequence[nn.Module], devices.StandIns]]:
    """The student's model on a stand-in device, its layers, and the devices."""
    with devices.stand_in(1 + _gpu(rank.case), BYTES_EACH, late, host_link) as gpu:
        layers = build_layers(rank.case, rank.inputs)
        handed = list(nn.Sequential(*layers).parameters())
        model = _made(rank, layers)
        kept = {id(parameter) for parameter in model.parameters()}
        rank.fact("replaced", sum(id(parameter) not in kept for parameter in handed))
        yield model, layers, gpu


def _made(rank: Rank, layers: list[nn.Module]) -> nn.Module:
    handed = to_hand_over(rank.case, layers)
    return rank.student.OffloadedModel(handed, torch.device(_device(rank.case)), rank.params["resident"])


def _device(case: Case) -> str:
    return f"cuda:{_gpu(case)}"


def _gpu(case: Case) -> int:
    return int(case.params.get("gpu", 0))


def use_offloaded_model(rank: Rank, late: bool = False) -> None:
    """Report every value the plain model has too. late: copies arrive some time after they are asked for."""
    with _model_on_device(rank, late) as (model, _, gpu):
        seat, params = OnDevices(rank, gpu), rank.params
        thawed, asks = params.get("thawed", ()), params.get("x_asks", True)
        compare(seat, model, rank.inputs, params.get("x_on", "cpu"), thawed, asks)


def use_after_a_failure(rank: Rank) -> None:
    """Let a pass fail in a layer, and then report every value the plain model has too."""
    with _model_on_device(rank) as (model, layers, gpu):
        failing = fail_in_backward if rank.params.get("in_backward", False) else fail
        failing(model, layers[rank.params["fails"]], rank.inputs["x"])
        compare(OnDevices(rank, gpu), model, rank.inputs)


def use_two_batches(rank: Rank) -> None:
    """Two forward passes, and one backward through both or one for each. Answers: grad.N, output."""
    with _model_on_device(rank) as (model, _, _):
        add_two_batches(rank, model, rank.inputs)


def use_two_models(rank: Rank) -> None:
    """Two models, and one backward through both. Answers: grad.N of the first."""
    with _model_on_device(rank) as (model, _, _):
        learn_side_by_side(rank, model, _made(rank, build_others(rank.case, rank.inputs)), rank.inputs)


def ask_for_impossible_residents(rank: Rank) -> None:
    """A number of resident layers that cannot be. Fact: refusal."""
    with devices.stand_in(1, BYTES_EACH), rank.expect_error("refusal"):
        _made(rank, build_layers(rank.case, rank.inputs))


def watch_offloaded_model(rank: Rank) -> None:
    """Report memory, copies and when they were made: after a step, of a forward pass for inference, of a
    training step, and of one for a batch whose activations are larger than a layer. Answers: inferred,
    output, grad.N, and of the last one large, large.N.
    """
    with on_a_clock_of_their_own(), _model_on_device(rank, host_link=HOST_LINK) as (model, layers, gpu):
        rank.fact("held at rest", gpu.allocated(_gpu(rank.case)))
        model.train(not rank.params.get("evaluating", False))
        rank.fact("pinned", [all(p.is_pinned() for p in layer.parameters()) for layer in layers])
        model(rank.inputs["x"].clone()).sum().backward()
        model.zero_grad()
        log = Log()
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(_note(log, gpu, index))
            give_kernels(layer)
        gpu.reset_peaks()
        with torch.no_grad():
            out = _watch_forward(rank, model, gpu, log, "inference")
        rank.fact("inference peak", gpu.peak(_gpu(rank.case)))
        rank.answer("inferred", out)
        del out
        rank.fact("held after inference", gpu.allocated(_gpu(rank.case)))
        gpu.reset_peaks()
        _watch_training(rank, model, gpu, log)
        answer_large_batch(rank, model, rank.inputs)
        rank.fact("held after a large batch", gpu.allocated(_gpu(rank.case)))
        answer_gradients(rank, model, "large")


def _watch_forward(rank: Rank, model: nn.Module, gpu: devices.StandIns, log: Log, name: str) -> Tensor:
    """A forward pass. Facts: its copies under its name, "NAME starts", how many there had been when each
    layer started, and "NAME beside".
    """
    log.entries.clear()
    start = len(gpu.transfers)
    with _timing(rank, gpu, name), same_random_numbers():
        out = model(rank.inputs["x"].clone())
    rank.fact(f"{name} starts", [[index, count - start] for index, count in log.entries])
    rank.fact(name, _copies(gpu.transfers[start:]))
    return out


def _watch_training(rank: Rank, model: nn.Module, gpu: devices.StandIns, log: Log) -> None:
    """A training step; with the case's `between`, a pass without gradients comes before its backward."""
    out = _watch_forward(rank, model, gpu, log, "forward")
    if rank.params.get("between", False):
        with torch.no_grad():
            model(rank.inputs["x"].clone())
    grad = rank.inputs["grad_output"].to(out.device)
    with gpu.recording() as backward, _timing(rank, gpu, "backward"):
        out.backward(grad)
    rank.fact("training peak", gpu.peak(_gpu(rank.case)))
    rank.fact("backward", _copies(backward))
    rank.answer("output", out)
    del out, grad
    rank.fact("held after training", gpu.allocated(_gpu(rank.case)))
    answer_gradients(rank, model, "grad")


@contextlib.contextmanager
def _timing(rank: Rank, gpu: devices.StandIns, name: str) -> Iterator[None]:
    """Fact "NAME beside": the seconds in which weights came while the device worked."""
    start = len(gpu.timeline)
    yield
    rank.fact(f"{name} beside", seconds_beside_work(gpu.timeline[start:]))


def _note(log: Log, gpu: devices.StandIns, index: int) -> Callable[..., None]:
    return lambda *_: log.entries.append((index, len(gpu.transfers)))


def _copies(transfers: Sequence[devices.Transfer]) -> list[JSON]:
    return [[t.source, t.destination, t.num_bytes, t.stream, t.non_blocking, t.pinned] for t in transfers]


def _run(on_rank: Callable[[Rank], None]) -> Run:
    return Run(on_rank, draw_layer_inputs, evidence=Watched)


RUNS = {
    **dict.fromkeys(("values", "ids", "types", "buffers", "dropout", "extreme"), _run(use_offloaded_model)),
    "two-batches": Run(use_two_batches, draw_layer_inputs, evidence=BesideTwoBatches),
    "two-models": Run(use_two_models, draw_layer_inputs, evidence=BesideTwoModels),
    "failed": _run(use_after_a_failure),
    "late": _run(partial(use_offloaded_model, late=True)),
    "late-buffers": _run(partial(use_offloaded_model, late=True)),
    **dict.fromkeys(WATCHED, _run(watch_offloaded_model)),
    "refusal": _run(ask_for_impossible_residents),
}


# -- judges


def on_the_device(evidence: Watched) -> Iterator[Finding]:
    """The output is where the layers work."""
    device, expected = evidence.answers[0].facts["output device"], _device(evidence.case)
    yield Finding(device == expected, f"the output on {expected}", f"on {device}")


def parameters_stay(evidence: Watched) -> Iterator[Finding]:
    """The model has the very parameters that it was handed."""
    replaced = evidence.answers[0].facts["replaced"]
    told = "every parameter the object it was, as an optimizer has it"
    yield Finding(replaced == 0, told, f"{replaced} replaced by others")


EXERCISE = Exercise(
    "02.offloaded-model",
    "Weights that come just in time",
    ("OffloadedModel",),
    RUNS,
    offload_cases,
    (
        Property(
            "forward-values",
            "numbers",
            1,
            "The output is that of the plain model, on the device, after eval() and under no_grad too; x"
            " stays as it is.",
            "an offloaded layer was left out, or run with the wrong layer's weights",
            {kind: every(equals("output", *INFERENCE), on_the_device) for kind in ("values", "ids", "types")},
        ),
        Property(
            "gradients",
            "numbers",
            2,
            "Every parameter, on the host or on the device, gets the plain model's gradient, after eval()"
            " too.",
            "the copy on the device has the gradient, and the parameter on the host never hears of it; or a"
            " layer is cut off because nothing before it is trained",
            {
                "values": equals("input_grad", "grad", "evaluated_grad"),
                "ids": equals("grad", "evaluated_grad"),
            },
            {"extreme": equals("input_grad")},
        ),
        Property(
            "trained-weights",
            "numbers",
            1,
            "After two steps of SGD every weight is what it would be in the plain model; what a pass that"
            " failed has fetched is not used.",
            "copies fetched before the optimizer's step, or by a pass that raised an error, were used"
            " after it",
            {"values": every(equals("trained"), parameters_stay), "failed": equals("output")},
        ),
        Property(
            "peak-memory",
            "mechanism",
            6,
            "The device never holds more than the resident layers, the layer at work and the one on its way;"
            " a pass leaves no activations. Frozen layers and eval() change nothing in it.",
            "autograd keeps every layer's weights for backward, or the copies are never dropped",
            {
                **dict.fromkeys(
                    ("watched", "watched-frozen"), every(stays_in_bounds, computes(*A_STEP, "large"))
                ),
                "watched-language": every(stays_in_bounds, computes("inferred", "output")),
            },
            {"watched-buffers": stays_in_bounds},
        ),
        Property(
            "weights-fetched",
            "mechanism",
            2,
            "Offloaded weights come to the device once a pass, and their gradients leave it once.",
            "the layers run on the CPU, or all layers are fetched whether they are resident or not",
            {
                "watched": every(waits_in_pinned_memory, fetches_once, computes(*A_STEP)),
                "watched-frozen": every(waits_in_pinned_memory, fetches_once),
            },
            {"watched-language": every(waits_in_pinned_memory, fetches_once)},
        ),
        Property(
            "prefetch",
            "mechanism",
            6,
            "While a layer works, the weights of the next are on their way, on a stream of their own; in"
            " backward those of the layer before.",
            "each layer fetches its own weights when it starts, the last resident one fetches nothing, the"
            " copy is not non_blocking or not from pinned memory, or a layer waits for the next one's weights"
            " too",
            {"watched": every(fetches_ahead, computes(*A_STEP))},
            {
                **dict.fromkeys(("watched-frozen", "watched-buffers"), fetches_ahead_too),
                "watched-language": fetches_aside_or_ahead,
            },
        ),
        Property(
            "waits-for-copies",
            "mechanism",
            6,
            "A layer starts when its weights have arrived, and not before.",
            "no wait_stream or wait_event between the stream of the copies and the one that computes",
            {"late": every(equals("output", "grad", "trained"), finite(*IN_EVALUATION), on_the_device)},
        ),
        Property(
            "buffers",
            "robustness",
            1,
            "Constant buffers of offloaded layers are on the device when their layer works; those that travel"
            " do so as weights do.",
            "only parameters are fetched, or buffers are on another device than the layers compute on, they"
            " are not pinned, or a layer does not wait for its own",
            {
                "buffers": equals("output", "grad", "trained"),
                "late-buffers": every(equals("output", "grad", "trained"), finite(*IN_EVALUATION)),
                "watched-buffers": every(fetches_once, travels_aside, computes(*A_STEP)),
            },
        ),
        Property(
            "dropout",
            "robustness",
            1,
            "Dropout strikes in backward where it struck in forward.",
            "a layer that runs again draws other random numbers: checkpoint(..., preserve_rng_state=False),"
            " for all layers or for those without an nn.Dropout",
            {"dropout": equals("output", "input_grad", "grad", "trained")},
        ),
        Property(
            "two-batches",
            "robustness",
            1,
            "Several forward passes, of two models too, may come before their backwards, which come in any"
            " order, with dropout too.",
            "what a forward leaves in the model for its backward is overwritten by the next one, or the"
            " copies of all models are in one dictionary of the class",
            {"two-batches": equals("grad", "output"), "two-models": equals("grad")},
        ),
        Property(
            "all-or-none",
            "robustness",
            1,
            "No layer resident, and all of them resident, work too.",
            "an index that assumes there is a layer to prefetch",
            {"extreme": equals("output", "grad", "trained")},
        ),
        Property(
            "wrong-arguments",
            "robustness",
            1,
            "A number of resident layers that cannot be is refused with a ValueError that names it.",
            "a negative number is a slice from the end",
            {"refusal": is_refused("refusal", "ValueError", names=named)},
        ),
    ),
)
