"""A hook in place of a function of its own; foreach updates; sums by all_gather."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.model import Transformer
from labkit.parallel import Parts, is_cut, library_parts
from labkit.pipeline import PipelinePart, TiedWeight


def stream_seed(seed: int, coordinates: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    number = seed
    for axis in ("dp", "pp"):
        number = number * sizes[axis] + coordinates[axis]
    return number


def _copied(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone())


class Stage(nn.Module):
    def __init__(
        self,
        full: Transformer,
        stage: int,
        num_stages: int,
        group: dist.ProcessGroup,
        streams: object,
        parts: Parts,
    ):
        super().__init__()
        self.first, self.last = stage == 0, stage == num_stages - 1
        self.group, self.streams, self.dropout = group, streams, full.config.dropout
        self.vocabulary = full.config.vocabulary
        self.tokens = self.positions = self.norm = self.head_weight = None
        self.blocks = nn.ModuleDict()
        for layer in own_layers(full.config.num_layers, stage, num_stages):
            self.blocks[str(layer)] = parts.block(full.blocks[layer], group, streams)
        if self.first:
            self.tokens = parts.embedding.from_embedding(full.tokens, group)
            self.positions = _copied(full.positions.weight)
        if self.last:
            like = full.norm.weight
            self.norm = nn.LayerNorm(full.config.hidden, full.norm.eps, device=like.device, dtype=like.dtype)
            self.norm.load_state_dict(full.norm.state_dict())
            if not (self.first and full.config.tied_embeddings):
                self.head_weight = nn.Parameter(parts.embedding.own_rows(full.head.weight.detach(), group))

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self._embedded(x)
        for block in self.blocks.values():
            x = block(x)
        if not self.last:
            return x
        x = self.norm(x)
        if x.requires_grad:
            x.register_hook(self._summed)
        return x @ (self.tokens.weight if self.head_weight is None else self.head_weight).T

    def _embedded(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions[: ids.size(1)]
        dropping = self.training and self.dropout > 0
        with self.streams.shared() if dropping else nullcontext():
            return F.dropout(x, self.dropout, dropping)

    def _summed(self, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=self.group)
        return gradient


class GPT3D:
    def __init__(
        self,
        full: Transformer,
        sizes: Mapping[str, int],
        order: Sequence[str],
        group: dist.ProcessGroup,
        seed: int = 0,
        parts: Parts | None = None,
    ):
        self.config, self.sizes, self.parts = full.config, dict(sizes), parts or library_parts()
        self.groups = build_groups(sizes, order, group)
        self.at = rank_to_coordinates(dist.get_rank(group), sizes, order)
        streams = self.parts.streams(stream_seed(seed, self.at, sizes), self.groups["tp"])
        self.stage = Stage(full, self.at["pp"], sizes["pp"], self.groups["tp"], streams, self.parts)
        self.tied = self._tie(order, group) if full.config.tied_embeddings and sizes["pp"] > 1 else None

    def _tie(self, order: Sequence[str], group: dist.ProcessGroup) -> TiedWeight | None:
        ends, tied = (0, self.sizes["pp"] - 1), None
        for replica in range(self.sizes["dp"]):
            for block in range(self.sizes["tp"]):
                ranks = [
                    coordinates_to_rank({"dp": replica, "pp": end, "tp": block}, self.sizes, order)
                    for end in ends
                ]
                pair = dist.new_group([dist.get_global_rank(group, rank) for rank in ranks])
                if dist.get_rank(group) in ranks:
                    weight = self.stage.tokens.weight if self.stage.first else self.stage.head_weight
                    tied = TiedWeight(weight, pair)
        return tied

    def step(
        self, ids: Tensor, targets: Tensor, num_micro_batches: int, learning_rate: float, max_norm: float
    ) -> tuple[Tensor, Tensor]:
        stage, here = self.stage, self.at["pp"]
        stage.zero_grad()
        halves = (t.tensor_split(num_micro_batches) for t in (ids, targets))
        pairs = list(zip(*halves, strict=True))
        weight = next(stage.parameters())

        def loss_of(logits: Tensor, wanted: Tensor) -> Tensor:
            return self.parts.cross_entropy(logits, wanted, self.config.vocabulary, self.groups["tp"])

        part = PipelinePart(
            {here: stage},
            self.sizes["pp"],
            pairs,
            loss_of,
            lambda _, i: weight.new_empty(*pairs[i][0].shape, self.config.hidden),
            self.tied,
            lambda _: self.parts.average_gradients(stage, self.groups["dp"]),
        )
        actions = self.parts.schedule(here, self.sizes["pp"], num_micro_batches)
        loss = self.parts.run_schedule(part, actions, self.groups["pp"])
        own = (
            torch.zeros((), dtype=weight.dtype, device=weight.device)
            if loss is None
            else loss.to(weight.dtype)
        )
        loss = self._total(self._total(own, "pp"), "dp") / self.sizes["dp"]
        norm = self._norm()
        with torch.no_grad():
            weights = [p for p in stage.parameters() if p.grad is not None]
            scale = float(min(1.0, max_norm / norm.item())) if norm.item() > 0 else 1.0
            torch._foreach_add_(weights, [p.grad for p in weights], alpha=-learning_rate * scale)
        return loss, norm

    def _norm(self) -> Tensor:
        cut, whole = [], []
        for name, p in self.stage.named_parameters():
            if self.tied is not None and self.stage.last and p is self.tied.parameter:
                continue
            (cut if is_cut(name) else whole).append(p.grad.detach().pow(2).sum())
        zero = next(self.stage.parameters()).detach().new_zeros(())
        squares = self._total(sum(cut, zero), "tp") + sum(whole, zero)
        return self._total(squares, "pp").sqrt()

    def _total(self, number: Tensor, axis: str) -> Tensor:
        all_of_them = [torch.empty_like(number) for _ in range(self.sizes[axis])]
        dist.all_gather(all_of_them, number.contiguous(), group=self.groups[axis])
        return torch.stack(all_of_them).sum()

    def to_full(self) -> dict[str, Tensor]:
        return stage_to_full(self.stage, self.parts)
