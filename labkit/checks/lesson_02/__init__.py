"""What the exercises of lesson 02 must show: layers over devices, on the host, and over processes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, Run, every
from labkit.checks.lesson_02 import layerwise, offloading, partitions, remote_stages
from labkit.checks.lesson_02.layerwise import (
    BUFFERED,
    TIED,
    crosses_once,
    holds_its_layers,
    layerwise_case,
    on_own_devices,
)
from labkit.checks.lesson_02.offloading import (
    fetches_ahead,
    fetches_once,
    offload_case,
    on_the_device,
    stays_in_bounds,
    wide_layers,
    with_buffers,
)
from labkit.checks.lesson_02.partitions import (
    cuts_sensibly,
    each_is_refused,
    each_layer_once,
    largest_is_least,
    model_costs,
    partition_case,
    partition_refusals,
)
from labkit.checks.lesson_02.remote_stages import (
    CHAIN,
    crosses_each_boundary_once,
    second_batch_equals,
    stage_case,
    stage_equals,
)
from labkit.checks.lesson_02.small_layers import SMALL, equals
from labkit.checks.lesson_02.step_timing import is_the_slowest_devices, time_steps, timing_case
from labkit.checks.shared.beside import is_refused


def _partition_cases(seed: int) -> list[Case]:
    draw = Random(f"02/partition/{seed}")
    random = [[[draw.randint(0, 20) for _ in range(n)], k] for n, k in ((5, 2), (7, 3), (10, 4), (9, 5))]
    models = [[model_costs(draw, n), k] for n, k in ((8, 3), (14, 4), (26, 8))]
    return [
        partition_case("worked example", "even", [[[1, 2, 3, 4, 5], 2], [[3, 1, 1, 1, 6], 3]], seed),
        partition_case("random costs", "even", random, seed),
        partition_case("language models", "even", models, seed),
        partition_case("300 layers", "many-layers", [[model_costs(draw, 300), 16]], seed),
        partition_case("few layers", "few-layers", [[[4, 2], 4], [[1.5], 1], [[0, 0, 0], 2]], seed),
        partition_refusals("refused", [[[1, 2], 0], [[1, -3, 2], 2]], ["0", "-3"], seed),
    ]


def _timing_cases(seed: int) -> list[Case]:
    return [
        timing_case("one device", "device-time", [40], seed),
        timing_case("the first is slower", "device-time", [60, 20], seed),
        timing_case("the last is slower", "device-time", [10, 20, 50], seed),
        timing_case("slow first step", "first-step", [40], seed, first_ms=250),
        timing_case("work before", "earlier-work", [40, 20], seed, earlier_ms=250),
    ]


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


def _offload_cases(seed: int) -> list[Case]:
    wide = wide_layers(64, 6)
    return [
        offload_case("2 of 5 resident", "values", SMALL, 2, [3], seed),
        offload_case("1 of 5 resident", "values", SMALL, 1, [2, 3], seed),
        offload_case("memory, 2 of 6 resident", "watched", wide, 2, [1], seed),
        offload_case("memory, none of 6 resident", "watched", wide, 0, [1], seed),
        offload_case("memory, 5 of 6 resident", "watched", wide, 5, [1], seed),
        offload_case("copies that take their time", "late", SMALL, 1, [3], seed),
        offload_case("constant buffers", "buffers", with_buffers(SMALL), 2, [3], seed),
        offload_case("none resident", "extreme", SMALL, 0, [3], seed),
        offload_case("all resident", "extreme", SMALL, 5, [3], seed),
        offload_case("9 of 5 resident", "refusal", SMALL, 9, [3], seed, names=["9", "5"]),
        offload_case("-1 of 5 resident", "refusal", SMALL, -1, [3], seed, names=["-1", "5"]),
    ]


def _stage_cases(seed: int) -> list[Case]:
    pairs = [[0, 3], [1, 2]]
    return [
        stage_case("2 processes", "values", 2, CHAIN, [0, 2, 5], [3], seed),
        stage_case("other shapes", "shapes", 2, CHAIN, [0, 3, 5], [2], seed),
        stage_case("inference", "no-grad", 2, CHAIN, [0, 2, 5], [3], seed),
        stage_case("4 processes", "values", 4, CHAIN, [0, 1, 2, 4, 5], [2, 3], seed),
        stage_case("pairs of 4", "subgroup", 4, CHAIN, [0, 3, 5], [3], seed, groups=pairs),
        stage_case("1 process", "values", 1, CHAIN, [0, 5], [3], seed),
    ]


BOTH_WAYS, PHASES = ("output", "input_grad", "grad"), ("forward", "backward")


def named(case: Case) -> Sequence[str]:
    """What a refusal must name."""
    return case.params["names"]


PARTITION = Exercise(
    "02.partition-layers",
    "Cut the layers where it is fair",
    ("partition_layers",),
    partitions.RUNS,
    _partition_cases,
    (
        Property(
            "smallest-maximum",
            "numbers",
            3,
            "No other contiguous cut has a smaller largest part.",
            "cutting by the number of layers, or as soon as the average is reached",
            {"even": largest_is_least},
        ),
        Property(
            "every-layer-once",
            "mechanism",
            1,
            "Every layer is in exactly one part, in order, and there is one part a device.",
            "len(costs) // num_devices layers a device: the remainder is nobody's",
            {"even": each_layer_once},
        ),
        Property(
            "many-layers",
            "mechanism",
            1,
            "300 layers on 16 devices take less than a few seconds.",
            "trying every combination of cuts: there are more than 10^25",
            {"many-layers": cuts_sensibly},
        ),
        Property(
            "few-layers",
            "robustness",
            1,
            "With fewer layers than devices some parts are empty; costs of 0 and one device work.",
            "a search that assumes at least one layer a device",
            {"few-layers": cuts_sensibly},
        ),
        Property(
            "wrong-arguments",
            "robustness",
            1,
            "No device, or a negative cost, is refused with a ValueError that names the number.",
            "nothing is checked before the search starts",
            {"refused": each_is_refused},
        ),
    ),
)


TIMING = Exercise(
    "02.step-seconds",
    "Time what the device does",
    ("seconds_per_step",),
    dict.fromkeys(("device-time", "first-step", "earlier-work"), Run(time_steps)),
    _timing_cases,
    (
        Property(
            "device-time",
            "numbers",
            2,
            "The time is that of the slowest device, not of the host that queued the work.",
            "the clock is read before every device was waited for with torch.cuda.synchronize(device)",
            {"device-time": is_the_slowest_devices},
        ),
        Property(
            "first-step",
            "mechanism",
            1,
            "A first step, with its one-time costs, is run and not counted.",
            "the clock starts before the first step",
            {"first-step": is_the_slowest_devices},
        ),
        Property(
            "earlier-work",
            "mechanism",
            1,
            "Work that was queued before is over when the clock starts.",
            "no synchronization between the first step and the start of the clock",
            {"earlier-work": is_the_slowest_devices},
        ),
    ),
)


LAYERWISE = Exercise(
    "02.layerwise-model",
    "A model over several devices",
    ("LayerwiseModel",),
    layerwise.RUNS,
    _layerwise_cases,
    (
        Property(
            "forward-values",
            "numbers",
            2,
            "The output is that of the same layers on one device.",
            "a layer left out or run twice, or activations that were changed on the way",
            {"values": equals("output")},
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "The gradients of the input and of every parameter are those of one device.",
            "an activation moved with .detach(), .data or through NumPy: the gradient stops there",
            {"values": equals("input_grad", "grad")},
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            "After two steps of SGD every weight is what it would be on one device.",
            "parameters that model.parameters() does not list: layers kept in a plain Python list",
            {"values": equals("trained")},
        ),
        Property(
            "placement",
            "mechanism",
            2,
            "Each device holds its own layers, parameters and buffers, and not a byte more.",
            "all layers on the first device, or a second copy kept on another",
            {"values": every(on_own_devices("parameters"), holds_its_layers)},
        ),
        Property(
            "boundary-crossings",
            "mechanism",
            3,
            "Activations cross once where the device changes, and nowhere else; gradients the same way back.",
            "going through the CPU, or back to the first device after every layer",
            {"values": crosses_once},
        ),
        Property(
            "buffers-move",
            "robustness",
            1,
            "Buffers are on their layer's device, and what a layer writes into them is kept.",
            "moving only layer.parameters()",
            {"buffers": every(equals("output", "buffer"), on_own_devices("buffers"))},
        ),
        Property(
            "tied-parameters",
            "robustness",
            2,
            "A parameter that two layers on different devices share stays one parameter, with one gradient.",
            ".to() moves the shared parameter to the later layer's device, or a copy of it goes its own way",
            {"tied": equals("output", "input_grad", "grad", "trained")},
        ),
        Property(
            "earlier-optimizer",
            "robustness",
            1,
            "An optimizer made before the model was moved still trains it.",
            "new nn.Parameter objects, or copies of the layers: the optimizer has the old ones",
            {"optimizer-before": equals("trained")},
        ),
        Property(
            "wrong-arguments",
            "robustness",
            1,
            "Another number of devices than layers is refused with a ValueError that names both.",
            "zip() stops at the shorter of the two without a word",
            {"refusal": is_refused("refusal", "ValueError", names=named)},
        ),
    ),
)


OFFLOADED = Exercise(
    "02.offloaded-model",
    "Weights that come just in time",
    ("OffloadedModel",),
    offloading.RUNS,
    _offload_cases,
    (
        Property(
            "forward-values",
            "numbers",
            2,
            "The output is that of the plain model, on the device.",
            "an offloaded layer was left out, or run with the wrong layer's weights",
            {"values": every(equals("output"), on_the_device)},
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "Every parameter, on the host or on the device, gets the plain model's gradient.",
            "the copy on the device has the gradient, and the parameter on the host never hears of it",
            {"values": equals("input_grad", "grad")},
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            "After two steps of SGD every weight is what it would be in the plain model.",
            "copies fetched before the optimizer's step were used after it",
            {"values": equals("trained")},
        ),
        Property(
            "peak-memory",
            "mechanism",
            3,
            "The device never holds more than the resident layers, the layer at work and the one on its way.",
            "autograd keeps every layer's weights for backward, or the copies are never dropped",
            {"watched": stays_in_bounds},
        ),
        Property(
            "weights-fetched",
            "mechanism",
            2,
            "Offloaded weights come to the device once a pass, and their gradients leave it once.",
            "the layers run on the CPU, or all layers are fetched whether they are resident or not",
            {"watched": fetches_once},
        ),
        Property(
            "prefetch",
            "mechanism",
            2,
            "While a layer works, the weights of the next are on their way, on a stream of their own.",
            "each layer fetches its own weights when it starts, or the copy is not non_blocking",
            {"watched": fetches_ahead},
        ),
        Property(
            "waits-for-copies",
            "mechanism",
            2,
            "A layer starts when its weights have arrived, and not before.",
            "no wait_stream or wait_event between the stream of the copies and the one that computes",
            {"late": equals("output", "grad", "trained")},
        ),
        Property(
            "buffers",
            "robustness",
            1,
            "Constant buffers of offloaded layers are on the device when their layer works.",
            "only parameters are fetched",
            {"buffers": equals("output", "grad", "trained")},
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


REMOTE = Exercise(
    "02.remote-stage",
    "A stage in each process",
    ("RemoteStage",),
    remote_stages.RUNS,
    _stage_cases,
    (
        Property(
            "forward-values",
            "numbers",
            2,
            "The last rank has the output of the whole model.",
            "a stage sends what it received, or its layers were not run",
            {"values": stage_equals("output")},
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "Every stage's parameters, and the input, get the whole model's gradients.",
            "the received activation does not require a gradient, or was sent on without a way back",
            {"values": stage_equals("input_grad", "grad")},
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            "After two steps of SGD every stage has the whole model's weights.",
            "state of the first step is used in the second",
            {"values": stage_equals("trained")},
        ),
        Property(
            "messages",
            "mechanism",
            3,
            "One activation crosses each boundary, one gradient comes back, and nothing else is sent.",
            "everything is sent to everyone, or the input goes along with the activation",
            {"values": crosses_each_boundary_once(*PHASES)},
        ),
        Property(
            "shapes-may-change",
            "robustness",
            1,
            "A second batch of another size goes through as well.",
            "the receiver remembers the first batch's shape",
            {
                "shapes": every(
                    stage_equals(*BOTH_WAYS),
                    second_batch_equals(*BOTH_WAYS),
                )
            },
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "Two chains of two ranks each work side by side.",
            "global ranks where ranks of the group are meant",
            {
                "subgroup": every(
                    stage_equals(*BOTH_WAYS, "trained"),
                    crosses_each_boundary_once(*PHASES),
                )
            },
        ),
        Property(
            "without-gradients",
            "robustness",
            1,
            "Under torch.no_grad() activations are sent, and nobody waits for a gradient.",
            "the send back is part of forward",
            {"no-grad": every(stage_equals("output"), crosses_each_boundary_once("forward"))},
        ),
    ),
)

EXERCISES = [PARTITION, TIMING, LAYERWISE, OFFLOADED, REMOTE]
