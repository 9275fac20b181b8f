"""What the arithmetic of experts must show: parameters in all and active, operations, bytes on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import is_refused
from labkit.checks.shared.plain_numbers import number_or_words, wrong_number
from labkit.theory import (
    experts,
    flops,
    parameters,
)  # empty files where this lesson is graded: for judges alone
from labkit.theory.models import MixtureOfExperts, ModelConfig, llama, preset

Setting = Sequence[Any]
Model = str | dict[str, int]  # a preset's name, or what `small_model` takes
HIDES = tuple(f"theory/{name}.py" for name in ("experts", "flops", "memory", "parameters"))
GIVEN = (
    "labkit.model.Mixture",
    "labkit.model.Transformer",
    "labkit.theory.count_parameters",
    "labkit.theory.forward_flops",
    "labkit.theory.experts.dispatch_sent",
    "labkit.theory.flops.forward_flops",
    "labkit.theory.parameters.count_parameters",
    "labkit.theory.parameters.layer_weights",
)
PUBLISHED = ("Mixtral 8x7B", "Mixtral 8x22B", "DeepSeek-V2 236B", "DeepSeek-V3 671B")


def small_model(layers: int, hidden: int, ffn: int, vocabulary: int, **mixture: int) -> ModelConfig:
    """A Llama with experts; mixture: the fields of `MixtureOfExperts`."""
    return llama(layers, hidden, 2, 1, ffn, vocabulary=vocabulary, mixture=MixtureOfExperts(**mixture))


def model_of(model: Model) -> ModelConfig:
    """The shape that a setting names."""
    return preset(model) if isinstance(model, str) else small_model(**model)


def settings_case(name: str, kind: str, settings: Sequence[Setting], seed: int) -> Case:
    """Arguments of as many calls as there are settings, the model first."""
    return Case(name, 1, {"settings": [list(s) for s in settings]}, seed, kind=kind)


def with_attention(model: Model, more: int = 0) -> Setting:
    """A setting for `count`: the model, and the parameters of its attention in a layer, or of another kind of
    attention that has `more`.
    """
    return model, parameters.attention_weights(model_of(model)).total + more


def shapes(**changes: int) -> dict[str, int]:
    """A small model's numbers, some of them changed."""
    usual = {"layers": 3, "hidden": 8, "ffn": 20, "vocabulary": 50}
    return usual | {"num_experts": 6, "active_experts": 2, "expert_ffn": 12} | changes


def _cases(seed: int) -> list[Case]:
    plain, shared = shapes(), shapes(shared_experts=2, active_experts=3)
    dense = shapes(layers=5, dense_layers=2, shared_experts=1)
    return [
        settings_case("four published models", "parameters", [with_attention(m) for m in PUBLISHED], seed),
        settings_case("small models", "fields", [with_attention(m) for m in (plain, shared, dense)], seed),
        settings_case("another attention", "fields", [with_attention(plain, 1_000)], seed),
        settings_case("operations", "flops", [(m, n) for m in (*PUBLISHED, shared) for n in (1, 4096)], seed),
        settings_case(
            "from rank to rank",
            "bytes",
            [
                (m, tokens, n, size)
                for m, tokens in zip(PUBLISHED[1:3], (4096, 37), strict=True)
                for n in (1, 2, 4)
                for size in (1, 2, 4)
            ]
            + [(plain, 5, 3, 2), (plain, 1, 3, 1)]  # not whole bytes: a third of the experts is here
            + [(PUBLISHED[0], 100, 4)],
            seed,
        ),
        settings_case("ranks that do not divide", "refused", [("Mixtral 8x7B", 128, 3, 2)], seed),
        settings_case("a model without experts", "refused", [("Llama 3 8B", 128, 2, 2)], seed),
        settings_case("a model without experts on one rank", "refused", [("Llama 3 8B", 128, 1)], seed),
    ]


# -- on a rank


def _asks(call: Callable[[Any, Setting], object]) -> Run:
    """Fact answers: of each setting, what the student's function gave."""

    def on_rank(rank: Rank) -> None:
        rank.fact("answers", [_plain(call(rank.student, setting)) for setting in rank.params["settings"]])

    return Run(on_rank)


def _plain(found: object) -> Any:
    if isinstance(found, tuple | list):
        return [number_or_words(part) for part in found]
    return number_or_words(found)


def _count(student: Any, setting: Setting) -> object:
    return student.count_parameters(model_of(setting[0]), setting[1])


def _flops(student: Any, setting: Setting) -> object:
    return student.expert_flops(model_of(setting[0]), setting[1])


def _bytes(student: Any, setting: Setting) -> object:
    return student.dispatch_bytes(model_of(setting[0]), *setting[1:])


def _refuse(rank: Rank) -> None:
    with rank.expect_error("refusal"):
        _bytes(rank.student, rank.params["settings"][0])


# -- in the judge


def _each(find: Callable[[Setting, Any], Iterator[Finding]]) -> Judge:
    def judge(evidence: Evidence) -> Iterator[Finding]:
        answers = evidence.answers[0].facts["answers"]
        for setting, seen in zip(evidence.case.params["settings"], answers, strict=True):
            yield from find(setting, seen)

    return judge


def _counted(which: int) -> Callable[[Setting, Any], Iterator[Finding]]:
    """Of the two numbers of `count_parameters`, the total (0) or the active ones (1)."""

    def find(setting: Setting, seen: Any) -> Iterator[Finding]:
        model, attention = model_of(setting[0]), setting[1]
        count = parameters.count_parameters(model)
        more = model.num_layers * (attention - parameters.attention_weights(model).total)
        expected = (count.total, count.active)[which] + more
        value = seen[which] if isinstance(seen, list) and len(seen) == 2 else seen
        words = f"{expected:,} {('in all', 'active')[which]} for {setting[0]}"
        yield Finding(value == expected, words, f"{value:,}" if isinstance(value, int) else str(value))

    return find


def _operations(setting: Setting, seen: Any) -> Iterator[Finding]:
    config, tokens = model_of(setting[0]), setting[1]
    assert config.mixture is not None
    mixture = MixtureOfExperts(
        config.mixture.num_experts,
        config.mixture.active_experts,
        config.mixture.expert_ffn,
        config.mixture.shared_experts,
    )
    expected = flops.forward_flops(config.but(num_layers=1, mixture=mixture), tokens).mlp
    wrong = wrong_number(expected, seen)
    yield Finding(wrong is None, f"{expected:,.0f} for {tokens} tokens in {setting[0]}", wrong or "")


def _sent(setting: Setting, seen: Any) -> Iterator[Finding]:
    """A setting without the bytes of a number is one with the default, 2."""
    config, tokens, ranks, *told = model_of(setting[0]), *setting[1:]
    expected = experts.dispatch_sent(config, tokens, ranks, *told or [2]).forward
    wrong = wrong_number(expected, seen)
    size = f"{told[0]} bytes a number" if told else "a number's bytes left out, which are 2 then"
    words = f"{expected:,.10g} bytes for {tokens} tokens of {setting[0]} on {ranks} ranks, {size}"
    yield Finding(wrong is None, words, wrong or "")


EXERCISE = Exercise(
    "12.expert-arithmetic",
    "Large and cheap: the numbers",
    ("count_parameters", "expert_flops", "dispatch_bytes"),
    {
        "parameters": _asks(_count),
        "fields": _asks(_count),
        "flops": _asks(_flops),
        "bytes": _asks(_bytes),
        "refused": Run(_refuse),
    },
    _cases,
    (
        Property(
            "total",
            "numbers",
            2,
            "Mixtral and DeepSeek are counted to the last parameter.",
            "the router, or the output matrix left out; or every layer has experts",
            {"parameters": _each(_counted(0))},
        ),
        Property(
            "active",
            "numbers",
            2,
            "Active are those that one token is multiplied with: 12.88 of Mixtral's 46.70 billion.",
            "attention, norms or embeddings divided along with the experts",
            {"parameters": _each(_counted(1))},
        ),
        Property(
            "fields",
            "robustness",
            1,
            "Shared experts and dense layers count where there are some, and attention as it is handed over.",
            "shared experts are not among those that a router chooses from, and always active",
            {"fields": lambda e: (f for which in (0, 1) for f in _each(_counted(which))(e))},
        ),
        Property(
            "operations",
            "numbers",
            2,
            "A layer's operations are those of the router, of k experts and of the shared ones.",
            "all experts; or a multiply-add counted once",
            {"flops": _each(_operations)},
        ),
        Property(
            "bytes",
            "numbers",
            2,
            "In forward a rank sends (n - 1)/n of its rows there, and as many back.",
            "the way back left out, or rows that stay counted as sent",
            {"bytes": _each(_sent)},
        ),
        Property(
            "refused",
            "robustness",
            1,
            "A model without experts, on one rank too, or ranks that do not divide them, is a ValueError.",
            "a division that leaves a fraction, or 0 experts taken for a dense model",
            {"refused": is_refused("refusal", "ValueError")},
        ),
    ),
    forbids=GIVEN,
    hides=HIDES,
)
