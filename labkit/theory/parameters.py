"""How many parameters a transformer has, part by part, and how many one tensor-parallel rank holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from labkit.theory.models import ModelConfig


@dataclass(frozen=True)
class Weights:
    """Parameters of one part, by how tensor parallelism cuts them.

    sharded: into t pieces.  replicated: not at all; norms and the biases of row-parallel matrices (Shoeybi
    2019, section 3).  by_heads: keys and values, into whole heads: at most `heads` pieces, so that with more
    ranks than key-value heads several keep the same one.
    """

    sharded: int = 0
    replicated: int = 0
    by_heads: int = 0
    heads: int = 1

    def __add__(self, other: Weights) -> Weights:
        return Weights(
            self.sharded + other.sharded,
            self.replicated + other.replicated,
            self.by_heads + other.by_heads,
            max(self.heads, other.heads),
        )

    def __mul__(self, times: int) -> Weights:
        return Weights(self.sharded * times, self.replicated * times, self.by_heads * times, self.heads)

    @property
    def total(self) -> int:
        """Elements over all ranks, each counted once."""
        return self.sharded + self.replicated + self.by_heads

    def per_rank(self, tensor_parallel: int = 1) -> int:
        """On the rank with the most; an uneven vocabulary leaves it one piece rounded up."""
        keys_values = -(-self.by_heads // min(tensor_parallel, self.heads))
        return -(-self.sharded // tensor_parallel) + self.replicated + keys_values


def norm_weights(config: ModelConfig) -> Weights:
    """One norm: a scale, and for LayerNorm a shift too."""
    return Weights(replicated=config.hidden * (2 if config.norm == "layernorm" else 1))


def attention_weights(config: ModelConfig) -> Weights:
    """Query, key, value and output projections of one layer."""
    if config.latent is not None:
        return _latent_attention_weights(config)
    inputs = config.hidden + (1 if config.biases in ("all", "qkv") else 0)
    return Weights(
        sharded=inputs * config.query_width + config.query_width * config.hidden,
        replicated=config.hidden if config.biases == "all" else 0,
        by_heads=inputs * 2 * config.kv_width,
        heads=config.num_kv_heads,
    )


def _latent_attention_weights(config: ModelConfig) -> Weights:
    """DeepSeek-V2, equations 9 to 19: small down-projections and their norms whole, the per-head rest
    sharded.
    """
    assert config.latent is not None
    latent, h, a = config.latent, config.hidden, config.num_heads
    down = h * latent.query_rank + h * (latent.key_value_rank + latent.rotary)
    norms = latent.query_rank + latent.key_value_rank
    queries = latent.query_rank * a * (config.head_size + latent.rotary)
    keys_values = latent.key_value_rank * a * (config.head_size + latent.value)
    output = a * latent.value * h
    return Weights(sharded=queries + keys_values + output, replicated=down + norms)


def mlp_weights(config: ModelConfig, width: int | None = None) -> Weights:
    """One dense MLP of that width (default the model's ffn): up, down, and a gate if there is one."""
    width = config.ffn if width is None else width
    ups = 2 if config.gated_mlp else 1
    matrices = (ups + 1) * config.hidden * width
    if config.biases != "all":
        return Weights(sharded=matrices)
    return Weights(sharded=matrices + ups * width, replicated=config.hidden)


def routed_weights(config: ModelConfig, layer: int, routed: int | None = None) -> Weights:
    """`routed` of the experts that a router chooses among (default all); none in a layer without a router."""
    mixture = config.mixture
    if mixture is None or not config.has_experts(layer):
        return Weights()
    return mlp_weights(config, mixture.expert_ffn) * (mixture.num_experts if routed is None else routed)


def layer_weights(config: ModelConfig, layer: int = 0, routed: int | None = None) -> Weights:
    """One layer: attention, MLP or experts with their router, and two norms.

    routed: how many of the experts to count that the router chooses among, default all: those one token
    visits, or those one rank holds.
    """
    rest = attention_weights(config) + norm_weights(config) * 2
    if not config.has_experts(layer):
        return rest + mlp_weights(config)
    mixture = config.mixture
    assert mixture is not None
    router = Weights(replicated=config.hidden * mixture.num_experts)
    shared = mlp_weights(config, mixture.expert_ffn) * mixture.shared_experts
    return rest + router + shared + routed_weights(config, layer, routed)


def embedding_weights(config: ModelConfig) -> Weights:
    """The token table, cut along the vocabulary, and learned positions, which are kept whole."""
    positions = config.max_sequence * config.hidden if config.positions == "learned" else 0
    return Weights(sharded=config.vocabulary * config.hidden, replicated=positions)


def head_weights(config: ModelConfig) -> Weights:
    """The final norm and the output matrix; nothing for the matrix where it is the embedding itself."""
    own = 0 if config.tied_embeddings else config.vocabulary * config.hidden
    return norm_weights(config) + Weights(sharded=own)


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a whole model by part. `total` counts each once; `active` those one token is multiplied
    with.
    """

    embedding: int
    attention: int
    mlp: int
    norms: int
    head: int
    active: int

    @property
    def total(self) -> int:
        """Elements of the whole model; with experts, all of them."""
        return self.embedding + self.attention + self.mlp + self.norms + self.head

    def __str__(self) -> str:
        parts = ("embedding", "attention", "mlp", "norms", "head", "total", "active")
        return "\n".join(f"{part:<10}{getattr(self, part):>22,}" for part in parts)


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Every parameter of the model, exactly as `labkit.model.Transformer(config)` creates them.

    `head` is the output matrix alone (0 when tied); the final norm is among `norms`.
    """
    alike = Counter(map(config.has_experts, range(config.num_layers)))  # a plan is chosen among thousands
    layers = {config.has_experts(layer): layer for layer in range(config.num_layers)}
    attention = attention_weights(config).total * config.num_layers
    norms = norm_weights(config).total * (2 * config.num_layers + 1)
    whole_layers = sum(layer_weights(config, layers[kind]).total * n for kind, n in alike.items())
    visited = config.mixture.active_experts if config.mixture else None
    active_layers = sum(layer_weights(config, layers[kind], visited).total * n for kind, n in alike.items())
    embedding, final = embedding_weights(config).total, head_weights(config).total
    return ParameterCount(
        embedding=embedding,
        attention=attention,
        mlp=whole_layers - attention - norm_weights(config).total * 2 * config.num_layers,
        norms=norms,
        head=final - norm_weights(config).total,
        active=embedding + active_layers + final,
    )


def narayanan_parameters(num_layers: int, hidden: int, vocabulary: int, sequence: int) -> float:
    """P = 12 L h^2 (1 + 13/(12h) + (V+s)/(12Lh)), a GPT with tied embeddings (Narayanan SC21, equation 2).

    It leaves out the final LayerNorm's 2h.
    """
    h, layers = hidden, num_layers
    return 12 * layers * h**2 * (1 + 13 / (12 * h) + (vocabulary + sequence) / (12 * layers * h))
