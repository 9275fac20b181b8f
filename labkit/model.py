"""The one transformer of the course: GPT or Llama, by the fields of `ModelConfig`.

    model = Transformer(gpt(num_layers=2, hidden=64, num_heads=4, vocabulary=256, max_sequence=128))
    loss = model.loss(ids[:, :-1], ids[:, 1:])

Read from the top: norms, positions, attention, MLP, experts, block, model. Shapes: b sequences of s tokens,
hidden h, a heads of d, k key-value heads, vocabulary V.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from labkit.theory.models import ModelConfig, gpt, llama

__all__ = ["ModelConfig", "Transformer", "explicit_attention", "fused_attention", "gpt", "llama"]

Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2)), scaled (Zhang and Sennrich 2019). Written out, so that what backward keeps is in
    sight.
    """

    def __init__(self, hidden: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h]."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def make_norm(config: ModelConfig) -> nn.Module:
    """The norm of the family: LayerNorm for GPT, RMSNorm for Llama."""
    return nn.LayerNorm(config.hidden) if config.norm == "layernorm" else RMSNorm(config.hidden)


def rotary_angles(head_size: int, max_sequence: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine [s, d] of position x frequency, each frequency twice (Su 2021, equation 34)."""
    frequencies = base ** (-torch.arange(0, head_size, 2).float() / head_size)
    angles = torch.outer(torch.arange(max_sequence).float(), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i+d/2}) of [b, heads, s, d] by its position's angle."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """softmax(q k^T / sqrt(d)) v with every score in memory, each query seeing itself and what came before.

    q: [b, a, s, d]; k, v: [b, k, s, d]. The a / k query heads that share a key head are laid one below the
    other, so that keys and values are not copied. Returns [b, a, s, d].
    """
    b, a, s, d = q.shape
    kv_heads = k.shape[1]
    scores = q.reshape(b, kv_heads, -1, d) @ k.transpose(-2, -1) / math.sqrt(d)
    future = torch.full((s, s), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    probabilities = (scores.view(b, a, s, s) + future).softmax(-1)
    probabilities = F.dropout(probabilities, dropout)
    return (probabilities.view(b, kv_heads, -1, s) @ v).view(b, a, s, d)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """The same by PyTorch's fused kernel, which never holds all scores (Dao 2022). Shapes as
    `explicit_attention`.
    """
    return F.scaled_dot_product_attention(
        q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=k.shape[1] != q.shape[1]
    )


def float32_or_more(x: Tensor) -> Tensor:
    """In float32, or float64 where it is in that already."""
    return x if x.dtype == torch.float64 else x.float()


class Attention(nn.Module):
    """Causal self-attention [b, s, h] -> [b, s, h]; `attend` says how the scores are made."""

    def __init__(self, config: ModelConfig, attend: Attend):
        super().__init__()
        bias, h = config.biases in ("all", "qkv"), config.hidden
        self.query = nn.Linear(h, config.query_width, bias=bias)
        self.key = nn.Linear(h, config.kv_width, bias=bias)
        self.value = nn.Linear(h, config.kv_width, bias=bias)
        self.output = nn.Linear(config.query_width, h, bias=config.biases == "all")
        self.config, self.attend = config, attend
        if config.positions == "rotary":
            cos, sin = rotary_angles(config.head_size, config.max_sequence)
            self.cos: Tensor
            self.sin: Tensor
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, h] -> [b, s, h]."""
        b, s, _ = x.shape
        q, k, v = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        if self.config.positions == "rotary":
            q, k = (rotate(t, self.cos[:s], self.sin[:s]) for t in (q, k))
        out = self.attend(q, k, v, self.config.dropout if self.training else 0.0)
        return self.output(out.transpose(1, 2).reshape(b, s, -1))

    def _heads(self, x: Tensor) -> Tensor:
        """[b, s, heads * d] -> [b, heads, s, d]."""
        return x.unflatten(-1, (-1, self.config.head_size)).transpose(1, 2)


class MLP(nn.Module):
    """down(gelu(up(x))), [b, s, h] -> [b, s, h]."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        bias = config.biases == "all"
        self.up = nn.Linear(config.hidden, config.ffn, bias=bias)
        self.down = nn.Linear(config.ffn, config.hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h]."""
        return self.down(F.gelu(self.up(x)))


class GatedMLP(MLP):
    """down(silu(gate(x)) * up(x)) (SwiGLU, Shazeer 2020)."""

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        self.gate = nn.Linear(config.hidden, config.ffn, bias=config.biases == "all")

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h]."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


def make_mlp(config: ModelConfig) -> nn.Module:
    """The MLP of the family: GELU for GPT, SwiGLU for Llama."""
    return GatedMLP(config) if config.gated_mlp else MLP(config)


class Mixture(nn.Module):
    """Each token through k of E experts, added up by their gates, and through the shared experts.

    The gates are the softmax of a token's k highest scores (Mixtral, arXiv 2401.04088, section 2.1), taken in
    float32. Shared experts: DeepSeekMoE (arXiv 2401.06066), section 3.2.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        mixture = config.mixture
        if mixture is None:
            raise ValueError(f"{config.name} has no experts: expected a config with a mixture")
        expert = config.but(ffn=mixture.expert_ffn)
        self.router = nn.Linear(config.hidden, mixture.num_experts, bias=False)
        self.experts = nn.ModuleList(make_mlp(expert) for _ in range(mixture.num_experts))
        self.shared = nn.ModuleList(make_mlp(expert) for _ in range(mixture.shared_experts))
        self.active_experts = mixture.active_experts

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """[n, h] -> gates [n, k], which add up to 1 for each token, and the numbers of its experts [n, k]."""
        scores, chosen = float32_or_more(self.router(tokens)).topk(self.active_experts)
        return scores.softmax(-1).to(tokens.dtype), chosen

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, h] -> [b, s, h]. An expert that no token visits gets gradients of zero."""
        tokens = x.flatten(0, -2)
        gates, chosen = self.route(tokens)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(tokens[rows]) * gates[rows, place, None])
        for expert in self.shared:
            out = out + expert(tokens)
        return out.view_as(x)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). [b, s, h] -> [b, s, h].

    layer: its number, from 0: where the model has experts, they take the place of the MLP from some layer on.
    """

    def __init__(self, config: ModelConfig, attend: Attend, layer: int = 0):
        super().__init__()
        self.attention_norm, self.mlp_norm = make_norm(config), make_norm(config)
        self.attention = Attention(config, attend)
        self.mlp = Mixture(config) if config.has_experts(layer) else make_mlp(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, h] -> [b, s, h]."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Recomputed(nn.Module):
    """A block that keeps only its input and runs its forward a second time in backward."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, h] -> [b, s, h]."""
        return checkpoint(self.block, x, use_reentrant=False)


def recomputed_attention(attend: Attend) -> Attend:
    """Attention whose scores are made again in backward: only queries, keys and values are kept."""

    def attend_again(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return checkpoint(attend, q, k, v, dropout, use_reentrant=False)

    return attend_again


class Transformer(nn.Module):
    """Token ids [b, s] -> logits [b, s, V].

    attend: `explicit_attention`, `fused_attention`, or `recomputed_attention` of one.  wrap: what each block
    is put into, for example `Recomputed`.
    """

    def __init__(
        self,
        config: ModelConfig,
        attend: Attend = fused_attention,
        wrap: Callable[[Block], nn.Module] = lambda block: block,
    ):
        super().__init__()
        if config.latent:
            raise ValueError(f"{config.name}: expected a model with plain attention; no other is built")
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.max_sequence, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(wrap(Block(config, attend, layer)) for layer in range(config.num_layers))
        self.norm = make_norm(config)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.apply(self._initialise)
        if config.tied_embeddings:
            self.head.weight = self.tokens.weight

    def _initialise(self, module: nn.Module) -> None:
        """Normal(0, 0.02) for matrices, zero for biases (Radford 2019)."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def embed(self, ids: Tensor) -> Tensor:
        """[b, s] -> [b, s, h]."""
        s = ids.shape[1]
        if s > self.config.max_sequence:
            raise ValueError(f"expected at most {self.config.max_sequence} tokens a sequence, got {s}")
        x = self.tokens(ids)
        if self.config.positions == "learned":
            x = x + self.positions.weight[:s]
        return self.dropout(x)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids [b, s] -> logits [b, s, V]."""
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over all b x s tokens, from float32 logits (or float64 ones)."""
        logits = float32_or_more(self(ids))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
