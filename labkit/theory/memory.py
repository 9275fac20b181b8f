"""The memory of one GPU in training: one plan in, one breakdown out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from labkit.theory.activations import (
    PAPER,
    AttentionKernel,
    Counting,
    Kept,
    Recompute,
    embedding_kept,
    head_kept,
    kept_bytes,
    layer_activation_bytes,
    logits_kept,
)
from labkit.theory.models import ModelConfig
from labkit.theory.parameters import (
    Weights,
    embedding_weights,
    head_weights,
    layer_weights,
    routed_weights,
)
from labkit.theory.pipeline import Schedule, in_flight, layers_of_stages
from labkit.theory.recipes import ZERO_PAPER, Recipe, StateBytes, state_bytes
from labkit.theory.units import bytes_text


@dataclass(frozen=True)
class TrainingPlan:
    """How a model is trained: everything the memory of a GPU depends on.

    sequence, micro_batch: tokens and sequences one GPU works on at once.  data_parallel: d, ranks that share
    the state under ZeRO.  tensor_parallel: t.  pipeline_parallel: p.  context_parallel: c, cuts the sequence
    of activations.  expert_parallel: e, ranks out of the d c that share each layer's experts out, so that an
    expert's state is on d c / e of them; every expert is taken to be visited as often.  num_micro_batches:
    m a step, 0 for p.  num_chunks: v, for the interleaved schedule. layers_of_stage: layers each stage owns,
    default as equal as they go.  prefetch: layers ZeRO-3 gathers ahead of the one in use.
    """

    model: ModelConfig
    sequence: int
    micro_batch: int = 1
    recipe: Recipe = ZERO_PAPER
    recompute: Recompute = "none"
    attention: AttentionKernel = "fused"
    data_parallel: int = 1
    zero_stage: int = 0
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    context_parallel: int = 1
    expert_parallel: int = 1
    pipeline_parallel: int = 1
    schedule: Schedule = "1f1b"
    num_micro_batches: int = 0
    num_chunks: int = 1
    layers_of_stage: tuple[int, ...] = ()
    shard_checkpoints: bool = False
    prefetch: int = 1
    counting: Counting = field(default=PAPER)

    def __post_init__(self) -> None:
        least = {"sequence": 1, "micro_batch": 1, "data_parallel": 1, "expert_parallel": 1, "num_chunks": 1}
        for field_name, smallest in {**least, "num_micro_batches": 0, "prefetch": 0}.items():
            if getattr(self, field_name) < smallest:
                raise ValueError(f"{field_name} must be {smallest} or more, got {getattr(self, field_name)}")
        stages = self.layers_of_stage or layers_of_stages(self.model.num_layers, self.pipeline_parallel)
        if len(stages) != self.pipeline_parallel or sum(stages) != self.model.num_layers:
            raise ValueError(
                f"layers_of_stage must be {self.pipeline_parallel} numbers that add up to "
                f"{self.model.num_layers} layers, got {stages}"
            )
        object.__setattr__(self, "layers_of_stage", stages)
        object.__setattr__(self, "num_micro_batches", self.num_micro_batches or self.pipeline_parallel)
        self._check_divides("num_heads", self.model.num_heads, "tensor_parallel", self.tensor_parallel)
        self._check_divides("ffn", self.model.ffn, "tensor_parallel", self.tensor_parallel)
        self._check_divides("sequence", self.sequence, "context_parallel", self.context_parallel)
        self._check_heads()
        self._check_experts()
        local = self.sequence // self.context_parallel
        if self.sequence_parallel and local % self.tensor_parallel:
            raise ValueError(
                f"sequence_parallel cuts the {local} tokens of a sequence that one GPU works on into "
                f"tensor_parallel = {self.tensor_parallel} equal parts, and they do not divide: "
                f"change one of them, or turn sequence_parallel off"
            )
        if self.context_parallel > 1 and self.attention == "explicit" and self.recompute == "none":
            raise ValueError('context_parallel never stores the scores: use attention="fused"')

    @staticmethod
    def _check_divides(what: str, size: int, by: str, degree: int) -> None:
        if degree < 1 or size % degree:
            raise ValueError(f"{by} must divide {what} {size}, got {degree}")

    def _check_heads(self) -> None:
        """A key-value head is never cut: ranks share heads out, or several ranks keep the same one."""
        heads, t = self.model.num_kv_heads, self.tensor_parallel
        if heads % t and t % heads:
            raise ValueError(
                f"tensor_parallel {t} neither divides num_kv_heads {heads} nor is a multiple of it: "
                f"no rank may hold part of a key-value head"
            )

    def _check_experts(self) -> None:
        """Whole experts on each rank, and as many ranks for one as for another."""
        if self.expert_parallel == 1:
            return
        if self.model.mixture is None:
            raise ValueError(
                f"expert_parallel is {self.expert_parallel}, and {self.model.name} has no experts"
            )
        for what, size in (
            ("num_experts", self.model.mixture.num_experts),
            ("data_parallel x context_parallel", self.state_shards),
        ):
            self._check_divides(what, size, "expert_parallel", self.expert_parallel)

    @property
    def local_experts(self) -> int | None:
        """Experts of a layer that one rank holds, of those the router chooses among; None without any."""
        mixture = self.model.mixture
        return None if mixture is None else mixture.num_experts // self.expert_parallel

    @property
    def state_shards(self) -> int:
        """Ranks that hold the same weights, and share them under ZeRO: data- and context-parallel ones."""
        return self.data_parallel * self.context_parallel

    @property
    def num_gpus(self) -> int:
        """n = d t p c."""
        return self.state_shards * self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True)
class MemoryBreakdown:
    """Bytes on one GPU, by what they are. `working` is held only for moments of the backward."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    working: float

    @property
    def state(self) -> float:
        """Weights, gradients and optimizer state at rest."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, float]:
        """Part -> bytes, in the order figures stack them."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [*self.as_dict().items(), ("total", self.total)]
        return "\n".join(f"{name:<12}{bytes_text(value):>26}" for name, value in rows)


def stage_layers(plan: TrainingPlan, stage: int) -> range:
    """Numbers of the layers a pipeline stage owns."""
    first = sum(plan.layers_of_stage[:stage])
    return range(first, first + plan.layers_of_stage[stage])


def stage_units(plan: TrainingPlan, stage: int) -> list[Weights]:
    """The parameters of a stage on one expert-parallel rank, in the units FSDP gathers: each layer, the
    embedding, the final norm and head.

    With tied embeddings and p > 1, first and last stage each hold a copy of the table (Shoeybi 2019, section
    3).
    """
    model, last = plan.model, plan.pipeline_parallel - 1
    units = [layer_weights(model, layer, plan.local_experts) for layer in stage_layers(plan, stage)]
    if stage == 0:
        units.append(embedding_weights(model))
    if stage == last:
        copy = Weights(sharded=model.vocabulary * model.hidden)
        units.append(head_weights(model) + (copy if model.tied_embeddings and last > 0 else Weights()))
    return units


def stage_parameters(plan: TrainingPlan, stage: int) -> int:
    """Parameters on one rank of a pipeline stage, after tensor and expert parallelism and before ZeRO."""
    return sum(unit.per_rank(plan.tensor_parallel) for unit in stage_units(plan, stage))


def stage_state(plan: TrainingPlan, stage: int) -> StateBytes:
    """The training state of one rank. Ranks that hold the same experts share theirs under ZeRO."""
    routed = sum(
        routed_weights(plan.model, layer, plan.local_experts).per_rank(plan.tensor_parallel)
        for layer in stage_layers(plan, stage)
    )
    rest = stage_parameters(plan, stage) - routed
    experts = state_bytes(routed, plan.recipe, plan.zero_stage, plan.state_shards // plan.expert_parallel)
    return state_bytes(rest, plan.recipe, plan.zero_stage, plan.state_shards) + experts


def gathered_bytes(plan: TrainingPlan, stage: int) -> float:
    """What ZeRO holds unsharded for a moment, set by the largest unit (a layer, or the embedding).

    Stage 3: the gathered weights of the unit in use and of `prefetch` more. Stages 2 and 3: the full gradient
    of one unit, until it is reduced and scattered. Where only one rank shares the state there is nothing to
    gather.
    """
    if plan.zero_stage < 2 or plan.state_shards == 1:
        return 0.0
    sizes = sorted((u.per_rank(plan.tensor_parallel) for u in stage_units(plan, stage)), reverse=True)
    gathered = sum(sizes[: 1 + plan.prefetch]) * plan.recipe.weights if plan.zero_stage == 3 else 0
    return gathered + sum(sizes[:1]) * plan.recipe.gradients


def _layer_bytes(plan: TrainingPlan, layer: int, recompute: Recompute) -> float:
    return layer_activation_bytes(
        plan.model,
        plan.sequence // plan.context_parallel,
        plan.micro_batch,
        recompute,
        plan.tensor_parallel,
        plan.sequence_parallel,
        plan.attention,
        plan.counting,
        layer,
        plan.shard_checkpoints,
    )


def _sharded(plan: TrainingPlan, kept: list[Kept]) -> float:
    return kept_bytes(kept, plan.tensor_parallel, plan.sequence_parallel)


def stage_activation_bytes(plan: TrainingPlan, stage: int) -> float:
    """Kept by a stage at its peak: its layers (and the embedding) for every micro-batch in flight, and the
    head's input.
    """
    held = in_flight(plan.schedule, stage, plan.pipeline_parallel, plan.num_micro_batches, plan.num_chunks)
    shape = plan.model, plan.sequence // plan.context_parallel, plan.micro_batch, plan.counting
    one = sum(_layer_bytes(plan, layer, plan.recompute) for layer in stage_layers(plan, stage))
    if stage == 0:
        one += _sharded(plan, embedding_kept(*shape))
    head = _sharded(plan, head_kept(*shape)) if stage == plan.pipeline_parallel - 1 else 0.0
    return held * one + _heads_in_flight(plan) * head


def _heads_in_flight(plan: TrainingPlan) -> int:
    """Micro-batches whose head input and logits are kept: all of GPipe's. In the other schedules the head's
    backward follows its forward at once.
    """
    return plan.num_micro_batches if plan.schedule == "gpipe" else 1


def logits_bytes(plan: TrainingPlan, stage: int) -> float:
    """The float32 logits of one micro-batch, 4sbV/t on the last stage."""
    if stage != plan.pipeline_parallel - 1:
        return 0.0
    local = plan.sequence // plan.context_parallel
    return _sharded(plan, logits_kept(plan.model, local, plan.micro_batch, plan.counting))


def logits_copies_bytes(plan: TrainingPlan, stage: int) -> float:
    """While the loss is made: the head's own output and its float32 copy, beside what is kept."""
    counting = plan.counting
    return logits_bytes(plan, stage) * (1 + counting.element / counting.logits)


def recomputed_bytes(plan: TrainingPlan, stage: int) -> float:
    """What recomputation brings back for a moment: all that the layer in backward would have kept."""
    if plan.recompute == "none":
        return 0.0
    layers = stage_layers(plan, stage)
    back = (_layer_bytes(plan, i, "none") - _layer_bytes(plan, i, plan.recompute) for i in layers)
    return max(back, default=0.0)


def working_bytes(plan: TrainingPlan, stage: int) -> float:
    """Held for a moment: gathered units, and the larger of a recomputed layer and the logits' copies."""
    return gathered_bytes(plan, stage) + max(recomputed_bytes(plan, stage), logits_copies_bytes(plan, stage))


def training_memory(plan: TrainingPlan, stage: int = 0) -> MemoryBreakdown:
    """The bytes on one GPU of pipeline stage `stage` when its activations are at their peak."""
    state = stage_state(plan, stage)
    return MemoryBreakdown(
        weights=state.weights,
        gradients=state.gradients,
        optimizer=state.optimizer,
        activations=stage_activation_bytes(plan, stage),
        logits=_heads_in_flight(plan) * logits_bytes(plan, stage),
        working=working_bytes(plan, stage),
    )


def worst_stage(plan: TrainingPlan) -> tuple[int, MemoryBreakdown]:
    """The stage that needs most, with its breakdown: the one that must fit."""
    stages = [(stage, training_memory(plan, stage)) for stage in range(plan.pipeline_parallel)]
    return max(stages, key=lambda pair: pair[1].total)
