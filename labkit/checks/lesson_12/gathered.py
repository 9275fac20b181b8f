"""What experts that are spread over ranks are held against: all tokens of a group in one process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from labkit.checks.exercise import Evidence
from labkit.checks.lesson_12.layer import PARTS, Whole, make_experts
from labkit.checks.lesson_12.reference import routed
from labkit.checks.shared.beside import SCALE, STEPS, descend
from labkit.checks.shared.places import groups_of, place_of

FIRST_AGAIN = 1  # of the tokens of a call between a forward and its backward
FIRST_TOGETHER = 2  # of those of the first of two calls before one backward: no two calls have as many


@dataclass(frozen=True)
class Gathered(Evidence):
    """Answers, to be held against all tokens of a group through all its experts in one process."""

    def _whole(self, index: int) -> Whole:
        state = {part: self.inputs[f"{part}.{index}"] for part in PARTS}
        whole = Whole(self.inputs[f"router.{index}"], make_experts(state), self.case.params["k"])
        whole.router.requires_grad_(not self.case.params.get("frozen_router", False))
        local = self.case.params["shape"][2]
        for number, expert in enumerate(whole.experts):
            owner = groups_of(self.case)[index][number // local]
            expert.requires_grad_(owner not in self.case.params.get("frozen_experts", []))
        return whole

    @cached_property
    def once(self) -> dict[int, dict[str, Tensor]]:
        """Rank -> output, evaluated, grad.tokens, grad.router, grad.EXPERT.NAME; none of what is frozen."""
        expected: dict[int, dict[str, Tensor]] = {}
        for index, members in enumerate(groups_of(self.case)):
            whole = self._whole(index)
            for rank in members:
                whole.router.grad = None
                tokens = self.inputs[f"tokens.{rank}.0"].clone().requires_grad_()
                out = whole(tokens)
                (out * self.inputs[f"grad.{rank}"]).sum().backward()
                assert tokens.grad is not None
                own = {"output": out.detach(), "grad.tokens": tokens.grad}
                if whole.router.grad is not None:
                    own["grad.router"] = whole.router.grad
                if rank in self.case.params.get("plain", []):
                    del own["grad.tokens"]
                expected[rank] = own | {"evaluated": whole(self.inputs[f"tokens.{rank}.1"]).detach()}
            for position, rank in enumerate(members):
                expected[rank] |= self._of_rank(whole, position, "grad")
        return expected

    @cached_property
    def together(self) -> dict[int, dict[str, Tensor]]:
        """Rank -> together.output, of the first of two calls with a graph, together.first and
        together.second, of tokens, and together.router, in a sum of what both gave.
        """
        expected: dict[int, dict[str, Tensor]] = {}
        for index, members in enumerate(groups_of(self.case)):
            whole = self._whole(index)
            for rank in members:
                whole.router.grad = None
                first, second = (self.inputs[f"tokens.{rank}.{s}"].clone().requires_grad_() for s in (1, 0))
                out, another = whole(first[FIRST_TOGETHER:]), whole(second)
                (out.square().sum() + (another * self.inputs[f"grad.{rank}"]).sum()).backward()
                of_leaves = {"first": first.grad, "second": second.grad, "router": whole.router.grad}
                expected[rank] = {"together.output": out.detach()}
                expected[rank] |= {f"together.{n}": grad for n, grad in of_leaves.items() if grad is not None}
        return expected

    @cached_property
    def trained(self) -> dict[int, dict[str, Tensor]]:
        """Rank -> trained.tokens, trained.router, trained.EXPERT.NAME."""
        return self._training[0]

    @cached_property
    def _training(self) -> tuple[dict[int, dict[str, Tensor]], dict[int, list[Tensor]]]:
        """What `trained` says, and for each group the router that each step begins with."""
        expected: dict[int, dict[str, Tensor]] = {}
        routers: dict[int, list[Tensor]] = {}
        for index, members in enumerate(groups_of(self.case)):
            whole = self._whole(index)
            routers[index] = []
            for step in range(STEPS):
                routers[index].append(whole.router.detach().clone())
                whole.zero_grad()
                tokens = [self.inputs[f"tokens.{rank}.{step}"].clone().requires_grad_() for rank in members]
                (SCALE * whole(torch.cat(tokens)).square().sum()).backward()
                descend(whole)
            for position, rank in enumerate(members):
                expected[rank] = self._of_rank(whole, position, "trained")
                expected[rank]["trained.router"] = whole.router.detach()
                gradient = tokens[position].grad
                if gradient is not None and rank not in self.case.params.get("plain", []):
                    expected[rank]["trained.tokens"] = gradient
        return expected, routers

    def _of_rank(self, whole: Whole, position: int, what: str) -> dict[str, Tensor]:
        local = self.case.params["shape"][2]
        found: dict[str, Tensor] = {}
        for number in range(local):
            for name, parameter in whole.experts[position * local + number].named_parameters():
                if what == "grad" and not parameter.requires_grad:
                    continue
                tensor = parameter.grad if what == "grad" else parameter.detach()
                found[f"{what}.{number}.{name}"] = torch.zeros_like(parameter) if tensor is None else tensor
        return found

    def visits(self, rank: int, step: int = 0, first: int = 0) -> Tensor:
        """[E]: how many of a rank's tokens, from the first that is used, visit each expert of its group."""
        return self._visits(rank, self.inputs[f"router.{place_of(self.case, rank).index}"], step, first)

    def visits_in_training(self, rank: int, step: int) -> Tensor:
        """The same with the router that a step begins with."""
        return self._visits(rank, self._training[1][place_of(self.case, rank).index][step], step)

    def _visits(self, rank: int, router: Tensor, step: int, first: int = 0) -> Tensor:
        tokens = self.inputs[f"tokens.{rank}.{step}"][first:]
        found = routed(tokens, router, self.case.params["k"])
        return torch.bincount(found.experts.flatten(), minlength=len(router))
