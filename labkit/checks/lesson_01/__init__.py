"""What the exercises of lesson 01 must show: the arithmetic of memory and operations, to the last byte."""

from __future__ import annotations

import inspect
from types import ModuleType

from labkit import model
from labkit.checks.exercise import Exercise, Property, Run
from labkit.checks.lesson_01.recorded_calls import call_student, recorded_cases, returns_the_values
from labkit.theory import (
    activations,
    batches,
    flops,
    inference,
    memory,
    parameters,
    pipeline,
    recipes,
)

ANSWERS = tuple(
    f"theory/{name}.py"
    for name in ("activations", "batches", "flops", "inference", "memory", "parameters", "pipeline")
)


def _functions(module: ModuleType) -> list[str]:
    """Dotted names of what a module offers, also under the names it imported."""
    public = inspect.getmembers(module, inspect.isfunction)
    return [
        f"{module.__name__}.{name}" for name, value in public if value.__module__.startswith("labkit.theory")
    ]


def _answers_given_away() -> tuple[str, ...]:
    """The library's own versions of this lesson's functions, wherever they can be reached from."""
    import labkit.theory

    modules = (labkit.theory, activations, batches, flops, inference, memory, parameters, pipeline, recipes)
    shapes = {"gpt", "llama", "preset", "bytes_text", "recipe"}  # what an answer may use
    found = [name for module in modules for name in _functions(module)]
    counted = (*_parts_of_the_model(), "torch.utils.flop_counter.FlopCounterMode")  # instead of a formula
    return (*counted, *(n for n in found if n.rsplit(".", 1)[1] not in shapes))


def _parts_of_the_model() -> list[str]:
    """All that the library's own Transformer is built of, and what builds it: of these torch could count."""
    public = inspect.getmembers(model, lambda value: inspect.isclass(value) or inspect.isfunction(value))
    return [f"{model.__name__}.{name}" for name, value in public if value.__module__ == model.__name__]


def numbers(name: str, points: int, says: str, usual_cause: str = "") -> Property:
    """A property that is shown by calls of its own: the cases whose kind is its name."""
    return Property(name, "numbers", points, says, usual_cause, {name: returns_the_values})


def robustness(name: str, points: int, says: str, usual_cause: str = "") -> Property:
    """The same, of unusual and wrong arguments."""
    return Property(name, "robustness", points, says, usual_cause, {name: returns_the_values})


def _exercise(
    exercise_id: str,
    title: str,
    names: tuple[str, ...],
    *properties: Property,
    builds_on: tuple[str, ...] = (),
) -> Exercise:
    return Exercise(
        exercise_id,
        title,
        names,
        {p.name: Run(call_student) for p in properties},
        lambda seed: recorded_cases(exercise_id),
        properties,
        builds_on=builds_on,
        forbids=_answers_given_away(),
        hides=ANSWERS,
    )


EXERCISES = [
    _exercise(
        "01.count-parameters",
        "Count the parameters",
        ("count_parameters",),
        numbers(
            "gpt",
            2,
            "GPT shapes are counted to the last parameter.",
            "a bias, a norm's shift, or the positions left out; or the tied head counted a second time",
        ),
        numbers(
            "llama",
            2,
            "Llama shapes are counted to the last parameter.",
            "12h^2 a layer: keys and values have num_kv_heads heads, and the MLP three matrices of width ffn",
        ),
        robustness(
            "in-between",
            1,
            "Each field counts for itself: tying, biases, head size, positions, norm.",
            "the family guessed from one field",
        ),
    ),
    _exercise(
        "01.inference-bytes",
        "Weights at rest",
        ("inference_bytes", "kv_cache_bytes"),
        numbers("weights", 1, "Weights take bits/8 bytes each, times the overhead.", "bits taken as bytes"),
        numbers(
            "kv-cache",
            2,
            "The cache holds a key and a value for each token, layer and key-value head.",
            "the factor 2 (a key and a value), or h where num_kv_heads x head_size is meant",
        ),
    ),
    _exercise(
        "01.training-state-bytes",
        "The training state",
        ("training_state_bytes",),
        numbers(
            "adamw-mixed",
            2,
            "AdamW in mixed precision keeps 12 bytes of optimizer state a parameter.",
            "the optimizer's bytes taken as a multiple of the 16-bit weights; or moments in 16 bits",
        ),
        numbers(
            "gradients",
            1,
            "Gradients are counted in each precision they are kept in.",
            "one 16-bit copy assumed throughout",
        ),
        numbers(
            "sgd", 1, "SGD keeps master weights, and momentum where there is some.", "1.5 times the weights"
        ),
        robustness(
            "unknown-recipe",
            1,
            "An unknown recipe is a ValueError that lists the known ones.",
            "a default for every other name, or the KeyError of a dict",
        ),
    ),
    _exercise(
        "01.zero-state-bytes",
        "The state, sharded",
        ("zero_state_bytes",),
        numbers(
            "stages",
            2,
            "Each stage shards one thing more: optimizer state, gradients, weights.",
            "stages 2 and 3 exchanged, or a stage that shards only what it adds",
        ),
        numbers(
            "working-set",
            1,
            "What is in use is whole: the largest layer's weights (stage 3) and gradients (stages 2 and 3).",
            "state that shrinks to nothing as ranks are added",
        ),
        robustness(
            "one-rank",
            1,
            "With one rank nothing is sharded, so nothing is gathered.",
            "the working set of many ranks, counted for one too",
        ),
        robustness(
            "own-parts",
            1,
            "It works with your own training_state_bytes too.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
        ),
        builds_on=("01.training-state-bytes",),
    ),
    _exercise(
        "01.activation-bytes",
        "What backward needs",
        ("activation_bytes",),
        numbers(
            "kept", 1, "sbhL(34 + 5as/h) bytes.", "the bracket is bytes already: it is not times two again"
        ),
        numbers(
            "tensor-parallel",
            2,
            "Tensor parallelism divides 24 of the 34, and the scores, by t.",
            "the 10 that stay whole (norms, dropouts, inputs of attention and MLP) divided too, or 5as/h"
            " times t",
        ),
        numbers(
            "sequence-parallel",
            2,
            "Sequence parallelism divides the rest too: everything by t.",
            "the 10 of norms, dropouts and inputs of attention and MLP left whole, or 2sbh of full"
            " recomputation divided",
        ),
        numbers(
            "recompute",
            2,
            "Selective recomputation drops the scores; full keeps 2sbh a layer, whole on every rank.",
            "full divided by t, or the 2 of 2sbh left out",
        ),
        numbers(
            "fused-attention",
            2,
            "Fused attention never keeps the scores.",
            "the term in s^2 kept although the kernel is fused, or dropped although it is not",
        ),
        robustness(
            "wrong-argument",
            1,
            "An unknown kind of recomputation is a ValueError.",
            'an else that takes all but "none" and "full" for "selective"',
        ),
    ),
    _exercise(
        "01.train-step-flops",
        "Operations of a step",
        ("train_step_flops",),
        numbers(
            "gpt",
            2,
            "72BLsh^2(1 + s/(6h) + V/(12hL)) for a GPT.",
            "the forward alone; a multiply-add counted once; the scores or the head left out",
        ),
        numbers(
            "llama",
            2,
            "Grouped keys and values and the three matrices of the gated MLP are counted as they are.",
            "the GPT's 24h^2 a token and layer",
        ),
        numbers(
            "recompute",
            2,
            "Recomputing adds one forward: of the scores (selective) or of all layers (full).",
            "a forward and a backward of the scores added, or the head recomputed",
        ),
        robustness(
            "own-parts",
            1,
            "It works with your own count_parameters too.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
        ),
        builds_on=("01.count-parameters",),
    ),
    _exercise(
        "01.model-flops-utilization",
        "How busy the GPUs are",
        ("model_flops_utilization",),
        numbers(
            "published",
            2,
            "The MFU of published runs comes out.",
            "the peak with sparsity, which is twice the dense one; or recomputed operations counted",
        ),
        numbers("all-gpus", 1, "The peak is that of all GPUs together.", "one GPU's peak for the work of n"),
        robustness(
            "own-parts",
            1,
            "It works with your own train_step_flops too.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
        ),
        builds_on=("01.train-step-flops",),
    ),
    _exercise(
        "01.largest-micro-batch",
        "What fits",
        ("largest_micro_batch",),
        numbers(
            "fits",
            2,
            "The largest micro-batch that leaves a tenth of the memory free.",
            "no headroom; or the training state forgotten",
        ),
        numbers(
            "logits",
            1,
            "The logits are counted, 10sbV bytes while the loss is made.",
            "they outgrow the layers when V is large, and there are three copies of them for a moment",
        ),
        robustness(
            "nothing-fits",
            1,
            "Where the state alone does not fit, the answer is 0.",
            "a search that begins at 1, or a negative rest divided by the bytes of a sequence",
        ),
        robustness(
            "own-parts",
            1,
            "It works with your own earlier functions too.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
        ),
        builds_on=("01.count-parameters", "01.training-state-bytes", "01.activation-bytes"),
    ),
    _exercise(
        "01.global-batch-size",
        "Batches in tokens",
        ("global_batch_size", "accumulation_steps"),
        numbers(
            "sequences", 1, "micro-batch x accumulation x data parallel.", "the data-parallel ranks forgotten"
        ),
        numbers(
            "accumulation",
            1,
            "The 4-million-token batch on 128 and on 512 GPUs.",
            "the tokens taken for sequences, or the micro-batch left out of the division",
        ),
        robustness(
            "does-not-divide",
            1,
            "A batch that does not divide is a ValueError, not a rounded number.",
            "// alone: look at both remainders, of the tokens by the sequence and of the sequences by b x d",
        ),
    ),
    _exercise(
        "01.predict-step",
        "Predict, then measure",
        ("predict_step",),
        numbers(
            "state",
            1,
            "Weights, gradients and moments of a real step, to 1%.",
            "a tied head counted twice, or master weights where there is one number type",
        ),
        numbers(
            "activations",
            2,
            "What autograd really keeps of a step, to 3%.",
            "dropout masks counted although nothing is dropped, or the final norm, head and logits left out",
        ),
        numbers(
            "scores", 1, "With explicit attention, the probabilities of every layer.", "the mask's bytes"
        ),
        robustness(
            "own-parts",
            1,
            "It works with your own count_parameters too.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
        ),
        builds_on=("01.count-parameters",),
    ),
    _exercise(
        "01.slide-mistakes",
        "Find the mistakes",
        ("corrected_slides",),
        numbers(
            "units",
            1,
            "GB are 10^9 bytes and GiB are 2^30.",
            "a GiB taken for 10^9 bytes, or GiB where GB are asked for",
        ),
        numbers(
            "state",
            2,
            "The bytes of the training state, done right.",
            "gradients or master weights left out, or 1.5 times the weights as the slide has it",
        ),
        numbers(
            "activations",
            1,
            "The activation lines, done right.",
            "numbers of 16 bits where bytes are asked for; or 5as/h times t, where it is divided by t",
        ),
        numbers(
            "rates",
            1,
            "The peak rate and the batch, done right.",
            "the peak with 2:4 sparsity, twice the dense one; or 2^22 tokens for 4 million",
        ),
    ),
]
