"""The memory of a training step on this GPU: allocated against the formulas, and what the allocator adds.

Twice: at the end of a forward, when weights, gradients of the micro-batch before, the optimizer's state and
all activations are there at once, which is the sum that the formulas predict; and at the step's peak, a
moment later, when the loss's backward has made two more float copies of the logits: the gradient of their
logarithms and that of the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from labkit.model import Transformer, explicit_attention, fused_attention, gpt, llama
from labkit.prove.result import Results
from labkit.theory.activations import AttentionKernel, eager_counting
from labkit.theory.memory import TrainingPlan, training_memory
from labkit.theory.models import ModelConfig
from labkit.theory.recipes import Recipe

MIB = 2**20
WITHIN = 0.03
_SEQUENCE = 1024
_MODELS = {
    "gpt": gpt(8, 1024, 16, vocabulary=32000, max_sequence=_SEQUENCE, dropout=0.0),
    "gpt with dropout": gpt(8, 1024, 16, vocabulary=32000, max_sequence=_SEQUENCE, dropout=0.1),
    "llama": llama(8, 1024, 16, 4, 2816, vocabulary=32000, max_sequence=_SEQUENCE),
}
_ATTENTION = {"explicit": explicit_attention, "fused": fused_attention}
_DTYPES = {torch.bfloat16: 2, torch.float32: 4}


@dataclass(frozen=True)
class Trial:
    """One model on the device. micro_batch in sequences of 1,024 tokens."""

    name: str
    config: ModelConfig
    attention: AttentionKernel
    dtype: torch.dtype
    micro_batch: int = 2


@dataclass(frozen=True)
class Held:
    """Bytes allocated when all four parts are there, the most over the step, and the most that the allocator
    had reserved, which nothing predicts.
    """

    allocated: float
    most: float
    reserved: float = 0.0


def main(results: Results) -> None:
    """A row a model: both within 3% of the prediction, and reserved beside them."""
    _workspaces()
    for trial in trials():
        expected, held = predicted(trial), measured(trial)
        off, off_most = held.allocated / expected.allocated - 1, held.most / expected.most - 1
        says = (
            f"predicted {expected.allocated / MIB:.0f} MiB, allocated {held.allocated / MIB:.0f} "
            f"({off:+.2%}); most in the step {expected.most / MIB:.0f}, found {held.most / MIB:.0f} "
            f"({off_most:+.2%}); reserved {held.reserved / MIB:.0f}: the allocator adds "
            f"{held.reserved / held.most - 1:.1%}"
        )
        numbers = {
            "predicted_bytes": expected.allocated,
            "allocated_bytes": held.allocated,
            "predicted_most_bytes": expected.most,
            "most_bytes": held.most,
            "reserved_bytes": held.reserved,
        }
        results.check(trial.name, max(abs(off), abs(off_most)) <= WITHIN, says, **numbers)


def trials() -> Iterator[Trial]:
    """Each model, kernel and type; dropout only with explicit scores, where its masks are kept, and groups of
    query heads in 32 bits too: no fused kernel takes them so, and torch's attention keeps all scores then.
    """
    for (name, config), kernel, dtype in product(_MODELS.items(), _ATTENTION, _DTYPES):
        grouped = config.num_kv_heads < config.num_heads and dtype is torch.float32
        if not (kernel == "fused" and (config.dropout or grouped)):
            about = f"{name}, {kernel} attention, {str(dtype).removeprefix('torch.')}"
            yield Trial(about, config, kernel, dtype)  # type: ignore[arg-type]


def predicted(trial: Trial) -> Held:
    """Bytes of weights, gradients, AdamW's two moments, activations and logits, all of one type; and those
    with the copies that the loss's backward makes.
    """
    element = _DTYPES[trial.dtype]
    plan = TrainingPlan(
        trial.config,
        _SEQUENCE,
        trial.micro_batch,
        Recipe("one type, AdamW", element, element, 0, 2 * element),
        attention=trial.attention,
        counting=eager_counting(element, "cuda"),
    )
    parts = training_memory(plan)
    kept = parts.total - parts.working
    return Held(kept, kept + 2 * parts.logits)


def measured(trial: Trial) -> Held:
    """The second of two steps, its gradients added to those of the first; nothing is left on the device."""
    before = torch.cuda.memory_allocated()
    model = Transformer(trial.config, _ATTENTION[trial.attention]).to("cuda", trial.dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(trial.config.vocabulary, (trial.micro_batch, _SEQUENCE), device="cuda")
    model.loss(ids, ids).backward()
    optimizer.step()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    loss = model.loss(ids, ids)
    allocated = torch.cuda.memory_allocated() - before - ids.nbytes
    loss.backward()
    optimizer.step()
    return Held(
        allocated, torch.cuda.max_memory_allocated() - before, torch.cuda.max_memory_reserved() - before
    )


def _workspaces() -> None:
    """Have cuBLAS take what it keeps, for products with a bias too, so that no model is charged for it."""
    for dtype in _DTYPES:
        x = torch.randn(256, 256, device="cuda", dtype=dtype, requires_grad=True)
        layer = torch.nn.Linear(256, 256, device="cuda", dtype=dtype)
        (layer(x) @ x).sum().backward()
    torch.cuda.synchronize()
