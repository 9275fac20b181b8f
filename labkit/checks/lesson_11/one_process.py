"""What a GPT with divided sequences is compared with: the same training in one process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.exercise import Evidence
from labkit.checks.lesson_11.divided_gpt import plain_model
from labkit.checks.lesson_11.losses import IGNORED
from labkit.checks.lesson_11.tokens import zigzag
from labkit.checks.shared.beside import STEPS, State, descend
from labkit.checks.shared.split import dtype_of, loaded, under

SHORTEST = 2  # as many tokens of each rank are the least that can be cut


@dataclass(frozen=True)
class OneProcess(Evidence):
    """With the same training in one process, computed in float64, told in the case's dtype."""

    @cached_property
    def losses(self) -> list[Tensor]:
        """One a step, and after training that of the first step's batch."""
        return self._trained[0]

    @cached_property
    def states(self) -> dict[str, State]:
        """ "grad.STEP", the gradients of each loss, and "trained", the weights after the last step."""
        return self._trained[1]

    @property
    def shortest(self) -> Tensor | None:
        """The loss of the shortest sequences, after training; None where no rank has a target of theirs."""
        return self._trained[2]

    @cached_property
    def _trained(self) -> tuple[list[Tensor], dict[str, State], Tensor | None]:
        model = loaded(plain_model(self.case).double(), under("full.", self.inputs))
        dtype = dtype_of(self.case)
        losses, states = [], {}
        for step in range(STEPS + 1):
            model.zero_grad()
            loss = self._loss(model, step % STEPS)
            loss.backward()
            losses.append(loss.detach().to(dtype))
            states[f"grad.{step}"] = {
                n: p.grad.to(dtype, copy=True) for n, p in model.named_parameters() if p.grad is not None
            }
            if step < STEPS:
                descend(model)
        states["trained"] = {name: p.detach().to(dtype) for name, p in model.named_parameters()}
        ids, targets = (self._first_tokens(self.inputs[name][0]) for name in ("ids", "targets"))
        if bool((targets == IGNORED).all()):
            return losses, states, None
        logits = model(ids).detach()
        shortest = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED).to(dtype)
        return losses, states, shortest

    def _loss(self, model: nn.Module, step: int) -> Tensor:
        logits, targets = model(self.inputs["ids"][step]), self.inputs["targets"][step]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def _first_tokens(self, rows: Tensor) -> Tensor:
        """Of [B, s], each replica's first row: as one short sequence, the first tokens of every rank."""
        p = self.case.params
        pieces, first = p["sizes"]["cp"], rows[:: p["rows"]]
        found = first[:, : SHORTEST * pieces].clone()
        for piece in range(pieces):
            own = zigzag(p["sequence"], piece, pieces)[:SHORTEST]
            found[:, zigzag(found.shape[1], piece, pieces)] = first[:, own]
        return found
