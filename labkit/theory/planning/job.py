"""What is to be trained, and one way of spreading it over GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from labkit.theory.activations import AttentionKernel, Recompute
from labkit.theory.models import ModelConfig
from labkit.theory.parameters import count_parameters
from labkit.theory.recipes import NANOTRON, Recipe


@dataclass(frozen=True)
class Job:
    """A model, and a step of `batch` sequences of `sequence` tokens."""

    model: ModelConfig
    sequence: int
    batch: int
    recipe: Recipe = NANOTRON
    attention: AttentionKernel = "fused"

    def __post_init__(self) -> None:
        if self.sequence < 1 or self.batch < 1:
            raise ValueError(f"sequence and batch must be 1 or more, got {self.sequence} and {self.batch}")

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch * self.sequence

    @property
    def num_params(self) -> int:
        """Elements of the model."""
        return count_parameters(self.model).total


@dataclass(frozen=True)
class Share:
    """What of a plan decides the work on one micro-batch of one layer on one GPU.

    split: whether sequence parallelism splits what tensor parallelism leaves whole.  expert: ranks that share
    the experts of a layer out.
    """

    tensor: int
    context: int
    micro_batch: int
    recompute: Recompute
    split: bool
    expert: int = 1

    def tokens(self, job: Job) -> int:
        """Tokens of a micro-batch on one context-parallel rank."""
        return self.micro_batch * job.sequence // self.context


@dataclass(frozen=True)
class Plan:
    """How a step is spread: d replicas x t x c x p stages, and what each GPU does with its share.

    expert: e, ranks out of the d c, next to each other, that share each layer's experts out.  chunks: v,
    pieces of each stage in the interleaved schedule.  Ranks are numbered with tensor parallelism innermost,
    then context, data, and the pipeline outermost (Megatron's and nanotron's default).
    """

    data: int
    tensor: int = 1
    pipeline: int = 1
    micro_batch: int = 1
    zero: int = 1
    chunks: int = 1
    context: int = 1
    recompute: Recompute = "none"
    sequence_parallel: bool = True
    expert: int = 1

    @property
    def num_gpus(self) -> int:
        """d t p c."""
        return self.data * self.tensor * self.pipeline * self.context

    @cached_property
    def share(self) -> Share:
        """The part of the plan that the work on one layer depends on."""
        split = self.sequence_parallel and self.tensor > 1
        return Share(self.tensor, self.context, self.micro_batch, self.recompute, split, self.expert)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights, and share the state under ZeRO: data- and context-parallel."""
        return self.data * self.context

    def micro_batches(self, job: Job) -> int:
        """Micro-batches a step on each replica."""
        return job.batch // (self.data * self.micro_batch)

    def __str__(self) -> str:
        parts = [f"dp {self.data}", f"tp {self.tensor}", f"pp {self.pipeline}"]
        parts += [f"cp {self.context}"] if self.context > 1 else []
        parts += [f"ep {self.expert}"] if self.expert > 1 else []
        parts += [f"micro-batch {self.micro_batch}", f"ZeRO {self.zero}"]
        parts += [f"{self.chunks} chunks a stage"] if self.chunks > 1 else []
        parts += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        return ", ".join(parts)
