"""The course's transformer: counted right, causal, and the same whatever its attention keeps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from labkit.model import (
    Mixture,
    ModelConfig,
    Recomputed,
    Transformer,
    explicit_attention,
    fused_attention,
    gpt,
    llama,
    recomputed_attention,
    rotary_angles,
    rotate,
)
from labkit.theory.models import MixtureOfExperts, preset
from labkit.theory.parameters import count_parameters

pytestmark = pytest.mark.days()

GPT = gpt(3, 48, 4, vocabulary=101, max_sequence=40, dropout=0.0)
LLAMA = llama(2, 48, 6, 2, 100, vocabulary=101, max_sequence=40)
EXPERTS = LLAMA.but(mixture=MixtureOfExperts(5, 2, 28, shared_experts=1, dense_layers=1))
CONFIGS = [
    GPT,
    GPT.but(tied_embeddings=False, biases="none"),
    GPT.but(head_size=20),
    LLAMA,
    LLAMA.but(biases="qkv", tied_embeddings=True),
    LLAMA.but(num_kv_heads=1, positions="learned", norm="layernorm"),
    EXPERTS,
    GPT.but(mixture=MixtureOfExperts(3, 1, 20)),
]


def made(config: ModelConfig, seed: int = 0, **options: object) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(config, **options).double()  # type: ignore[arg-type]


def counted(model: Transformer) -> int:
    """Each parameter once; tied embeddings are one."""
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("config", CONFIGS)
def test_counted_to_the_last_parameter(config: ModelConfig) -> None:
    assert counted(made(config)) == count_parameters(config).total


@pytest.mark.parametrize("name", ["GPT-2 124M", "Llama 3 8B", "Llama 3 70B", "Mixtral 8x7B"])
def test_published_shapes_build_and_count(name: str) -> None:
    with torch.device("meta"):
        model = Transformer(preset(name))
    assert counted(model) == count_parameters(preset(name)).total


@pytest.mark.parametrize("config", CONFIGS)
def test_no_token_sees_the_future(config: ModelConfig) -> None:
    model = made(config)
    ids = torch.randint(config.vocabulary, (2, 30))
    changed = ids.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % config.vocabulary
    before, after = model(ids), model(changed)
    assert torch.allclose(before[:, :20], after[:, :20], atol=1e-12)
    assert not torch.allclose(before[:, 20:], after[:, 20:])


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    "options",
    [
        {"attend": explicit_attention},
        {"attend": recomputed_attention(fused_attention)},
        {"attend": recomputed_attention(explicit_attention)},
        {"wrap": Recomputed},
    ],
)
def test_whatever_is_kept_the_gradients_are_the_same(config: ModelConfig, options: dict[str, object]) -> None:
    ids = torch.randint(config.vocabulary, (3, 31))
    reference, model = made(config), made(config, **options)
    for m in (reference, model):
        m.loss(ids[:, :-1], ids[:, 1:]).backward()
    for expected, seen in zip(reference.parameters(), model.parameters(), strict=True):
        assert expected.grad is not None
        assert torch.allclose(expected.grad, seen.grad, atol=1e-10)


def test_gpt_equals_stock_pytorch() -> None:
    """The same numbers as nn.TransformerEncoderLayer with the weights copied over."""
    config = GPT.but(num_layers=1)
    model = made(config)
    stock = torch.nn.TransformerEncoderLayer(
        config.hidden, config.num_heads, config.ffn, 0.0, F.gelu, batch_first=True, norm_first=True
    ).double()
    block = model.blocks[0]
    own = [block.attention.query, block.attention.key, block.attention.value]
    copies = {
        "self_attn.in_proj_weight": torch.cat([m.weight for m in own]),
        "self_attn.in_proj_bias": torch.cat([m.bias for m in own]),
        "self_attn.out_proj": block.attention.output,
        "linear1": block.mlp.up,
        "linear2": block.mlp.down,
        "norm1": block.attention_norm,
        "norm2": block.mlp_norm,
    }
    state = {}
    for name, source in copies.items():
        is_module = isinstance(source, torch.nn.Module)
        state |= {f"{name}.{n}": p for n, p in source.named_parameters()} if is_module else {name: source}
    stock.load_state_dict(state)
    x = torch.randn(2, 17, config.hidden, dtype=torch.float64)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(17, dtype=torch.float64)
    assert torch.allclose(block(x), stock(x, src_mask=mask), atol=1e-10)


def test_a_token_gets_the_weighted_sum_of_its_experts() -> None:
    """Token by token; expert 0 is visited by none of them, and has gradients of zero."""
    torch.manual_seed(0)
    mixture = Mixture(EXPERTS).double()
    x = torch.randn(2, 7, 48, dtype=torch.float64)
    x[..., 0] = 30.0  # so that one weight of the router decides about expert 0
    with torch.no_grad():
        mixture.router.weight[0] = 0.0
        mixture.router.weight[0, 0] = -1.0
    out = mixture(x)
    for token, seen in zip(x.flatten(0, 1), out.flatten(0, 1), strict=True):
        scores = mixture.router(token)
        best = scores.argsort(descending=True)[:2]
        gates = scores[best].exp() / scores[best].exp().sum()
        expected = sum(g * mixture.experts[int(e)](token) for g, e in zip(gates, best, strict=True))
        assert torch.allclose(seen, expected + mixture.shared[0](token), atol=1e-12)
    out.sum().backward()
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in mixture.experts[0].parameters())
    assert all(p.grad.abs().sum() > 0 for p in mixture.router.parameters())


def test_gates_are_made_in_float32() -> None:
    mixture = Mixture(EXPERTS).bfloat16()
    gates, _ = mixture.route(torch.randn(50, 48).bfloat16())
    assert gates.dtype == torch.bfloat16
    scores = mixture.router(torch.ones(1, 48).bfloat16())
    exact = scores.float().topk(2).values.softmax(-1).bfloat16()
    assert torch.equal(mixture.route(torch.ones(1, 48).bfloat16())[0], exact)


def test_grouped_keys_equal_repeated_ones() -> None:
    q, k, v = (torch.randn(2, n, 9, 8, dtype=torch.float64) for n in (6, 2, 2))
    repeated = F.scaled_dot_product_attention(
        q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), is_causal=True
    )
    assert torch.allclose(explicit_attention(q, k, v, 0.0), repeated, atol=1e-12)
    assert torch.allclose(fused_attention(q, k, v, 0.0), repeated, atol=1e-12)


def test_rotary_scores_depend_on_distance_alone() -> None:
    cos, sin = rotary_angles(8, 50)
    q, k = torch.randn(8), torch.randn(8)

    def score(i: int, j: int) -> float:
        return float(rotate(q, cos[i], sin[i]) @ rotate(k, cos[j], sin[j]))

    assert score(3, 10) == pytest.approx(score(33, 40), abs=1e-4)
    assert score(3, 10) != pytest.approx(score(3, 11), abs=1e-4)


def test_it_learns() -> None:
    torch.manual_seed(0)
    model = Transformer(LLAMA)
    ids = torch.arange(40).repeat(2, 1) % 7
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = model.loss(ids[:, :-1], ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < 4 < losses[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gpt(2, 50, 4), "hidden 50 is not a multiple of num_heads 4"),
        (lambda: llama(2, 48, 6, 4, 100), "num_heads 6 is not a multiple of num_kv_heads 4"),
        (lambda: gpt(0, 48, 4), "num_layers must be at least 1"),
        (lambda: Transformer(preset("DeepSeek-V2 236B")), "expected a model with plain attention"),
        (lambda: Mixture(GPT), "has no experts"),
        (lambda: Transformer(GPT)(torch.zeros(1, 41, dtype=torch.long)), "at most 40 tokens"),
    ],
)
def test_errors_say_what_is_wrong(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
