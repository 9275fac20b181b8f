"""Measured training runs as jobs and plans, and what the planner says of each."""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from labkit.theory.models import ModelConfig, llama
from labkit.theory.planning import NANOTRON, Cluster, Job, Plan, Software
from labkit.theory.planning.footprint import peak_bytes
from labkit.theory.planning.step import step_time
from labkit.theory.units import GB, GIB

VISIBLE = Path(__file__).parent / "data" / "measured_configurations.csv"
SEQUENCE = 4096
VOCABULARY = 131_072


def _model(name: str, layers: int, hidden: int, heads: int, ffn: int) -> ModelConfig:
    """nanotron's benchmark shapes: as many key-value heads as heads, tied where the MLP is below 10,000."""
    return llama(
        layers, hidden, heads, heads, ffn, VOCABULARY, SEQUENCE, tied_embeddings=ffn < 10_000, name=name
    )


# scripts/scaling_benchmarks.py of nanotron
MODELS = {
    "1B": _model("1B", 16, 2048, 32, 8192),
    "3B": _model("3B", 28, 3072, 32, 8192),
    "8B": _model("8B", 32, 4096, 32, 14_336),
    "70B": _model("70B", 80, 8192, 64, 28_672),
    "80B": _model("80B", 80, 8192, 64, 28_672),
    "405B": _model("405B", 126, 16_384, 128, 53_248),
}


@dataclass(frozen=True)
class Run:
    """One finished run. tokens: a second and GPU, measured.  memory: as printed, in what it calls GB."""

    model: str
    nodes: int
    plan: Plan
    micro_batches: int
    tokens: float
    memory: float
    software: Software = NANOTRON

    @property
    def group(self) -> tuple[str, int]:
        """Runs of one model on one number of nodes are compared with each other."""
        return self.model, self.nodes

    @property
    def job(self) -> Job:
        """The step that was run, whatever the file calls its global batch."""
        batch = self.plan.data * self.plan.micro_batch * self.micro_batches
        return Job(MODELS[self.model], SEQUENCE, batch)

    @property
    def cluster(self) -> Cluster:
        """8 H100 a node, 50 GB/s of network each."""
        return Cluster.of("H100 80 GB", self.nodes)

    @property
    def seconds(self) -> float:
        """Of a step, measured."""
        return self.job.tokens / (self.tokens * self.cluster.num_gpus)

    @cached_property
    def predicted_bytes(self) -> float:
        """Of the fullest stage."""
        return peak_bytes(self.job, self.plan, self.software)

    @cached_property
    def predicted_seconds(self) -> float:
        """Of a step."""
        return step_time(self.job, self.plan, self.cluster, self.software).total

    @property
    def predicted_tokens(self) -> float:
        """A second and GPU."""
        return self.job.tokens / (self.predicted_seconds * self.cluster.num_gpus)

    def memory_error(self, unit: int = GIB) -> float:
        """Predicted less measured, in GiB, where a printed GB means `unit` bytes."""
        return (self.predicted_bytes - self.memory * unit) / GIB


OTHER_UNIT = GB


def read_runs(path: Path) -> list[Run]:
    """The finished runs of a file, in its order."""
    with path.open(newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if row["status"] == "ok" and float(row["tok_s_gpu"] or 0) > 0
        ]
    unknown = sorted({row["model"] for row in rows} - set(MODELS))
    if unknown:
        sys.exit(f"{path}: no shape is known for {', '.join(unknown)}; there are {', '.join(MODELS)}")
    return [_run(row) for row in rows]


def _run(row: dict[str, str]) -> Run:
    d, t, p, b, zero = (int(row[name]) for name in ("dp", "tp", "pp", "mbs", "zero"))
    return Run(
        row["model"],
        int(row["nodes"]),
        Plan(d, t, p, b, zero),
        int(row["grad_acc"]),
        float(row["tok_s_gpu"]),
        float(row["gpu_mem_gb"] or "nan"),
    )
