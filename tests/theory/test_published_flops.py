"""Published rates, utilisations and training times, reproduced, each beside where it was printed."""

from __future__ import annotations

import pytest

from labkit.theory.flops import (
    forward_flops,
    korthikanti_hardware_flops,
    korthikanti_model_flops,
    narayanan_flops,
    palm_flops,
    recomputed_flops,
    six_n_flops,
    train_step_flops,
    training_seconds,
    utilization,
    utilization_from_rate,
)
from labkit.theory.hardware import GPUS
from labkit.theory.models import gpt, llama, preset
from labkit.theory.parameters import count_parameters, narayanan_parameters

A100, H100 = GPUS["A100 80 GB"].dense_bf16, GPUS["H100 80 GB"].dense_bf16
DAY = 86_400

# Narayanan et al. SC21 (arXiv 2104.04473), table 1; V = 51,200, s = 2048, A100:
# P in billions, a, h, L, GPUs, batch, TFLOP/s a GPU, % of peak, PFLOP/s in all
SC21 = [
    (1.7, 24, 2304, 24, 32, 512, 137, 44, 4.4),
    (3.6, 32, 3072, 30, 64, 512, 138, 44, 8.8),
    (7.5, 32, 4096, 36, 128, 512, 142, 46, 18.2),
    (18.4, 48, 6144, 40, 256, 1024, 135, 43, 34.6),
    (39.1, 64, 8192, 48, 512, 1536, 138, 44, 70.8),
    (76.1, 80, 10_240, 60, 1024, 1792, 140, 45, 143.8),
    (145.6, 96, 12_288, 80, 1536, 2304, 148, 47, 227.1),
    (310.1, 128, 16_384, 96, 1920, 2160, 155, 50, 297.4),
    (529.6, 128, 20_480, 105, 2520, 2520, 163, 52, 410.2),
    (1008.0, 160, 25_600, 128, 3072, 3072, 163, 52, 502.0),
]


@pytest.mark.parametrize("row", SC21, ids=lambda r: f"{r[0]}B")
def test_sc21_table_1(row: tuple[float, ...]) -> None:
    billions, a, h, layers, gpus, batch, tflops, percent, pflops = row
    config = gpt(int(layers), int(h), int(a))
    equation = narayanan_parameters(int(layers), int(h), 51_200, 2048)
    assert equation / 1e9 == pytest.approx(billions, abs=0.051)
    assert (
        count_parameters(config).total == round(equation) + 2 * h
    )  # the equation leaves out the final LayerNorm
    step = train_step_flops(config, 2048, int(batch), "full")
    assert step == pytest.approx(narayanan_flops(int(layers), int(h), 51_200, 2048, int(batch)), rel=1e-12)
    seconds = step / (gpus * tflops * 1e12)
    assert 100 * utilization(step, seconds, int(gpus), A100) == pytest.approx(percent, abs=0.51)
    assert step / seconds / 1e15 == pytest.approx(pflops, rel=0.006)


def test_sc21_percent_of_peak_counts_recomputation() -> None:
    """Table 1's 52% of the trillion-parameter model is hardware FLOPs; model FLOPs give 39%."""
    config = gpt(128, 25_600, 160)
    hardware = train_step_flops(config, 2048, 3072, "full")
    seconds = hardware / (3072 * 163e12)
    assert utilization(hardware, seconds, 3072, A100) == pytest.approx(0.52, abs=0.005)
    assert utilization(train_step_flops(config, 2048, 3072), seconds, 3072, A100) == pytest.approx(
        0.392, abs=0.001
    )


@pytest.mark.parametrize(
    ("params", "tokens", "gpus", "rate", "days"),
    [(175e9, 300e9, 1024, 140e12, 34), (1.008e12, 450e9, 3072, 163e12, 84)],  # SC21, section 5.1
)
def test_sc21_training_time(params: float, tokens: float, gpus: int, rate: float, days: int) -> None:
    assert training_seconds(params, tokens, gpus, rate) / DAY == pytest.approx(days, abs=0.5)


# Korthikanti et al. 2022 (arXiv 2205.05198), tables 3 and 5; s = 2048, V = 51,200, A100:
# shape, GPUs, batch, iteration seconds, MFU, HFU as printed; and the HFU its own appendix A leads to
TABLE_5 = {
    "22B": (gpt(48, 6144, 64), 8, 4, 1.10, 41.5, 43.7, 42.4),
    "175B": (gpt(96, 12_288, 96), 64, 64, 13.75, 51.4, 52.8, 51.8),
    "530B": (gpt(105, 20_480, 128), 280, 280, 37.83, 56.0, 57.0, 56.4),
    "1T": (gpt(128, 25_600, 160), 512, 512, 71.49, 56.3, 57.0, 56.5),
}


@pytest.mark.parametrize("name", TABLE_5)
def test_korthikanti_table_5(name: str) -> None:
    """Seconds are printed to two decimals (1.10 s: half a percent), hence a quarter of a point."""
    config, gpus, batch, seconds, mfu, printed_hfu, derived_hfu = TABLE_5[name]
    shape = (config.num_layers, config.hidden, 51_200, 2048, batch)
    model = train_step_flops(config, 2048, batch)
    hardware = train_step_flops(config, 2048, batch, "selective")
    assert model == pytest.approx(korthikanti_model_flops(*shape), rel=1e-12)
    assert 100 * utilization(model, seconds, gpus, A100) == pytest.approx(mfu, abs=0.25)
    as_printed = korthikanti_hardware_flops(*shape)
    assert 100 * utilization(as_printed, seconds, gpus, A100) == pytest.approx(printed_hfu, abs=0.25)
    assert 100 * utilization(hardware, seconds, gpus, A100) == pytest.approx(derived_hfu, abs=0.06)


def test_korthikanti_recomputes_one_forward_of_the_scores() -> None:
    """Appendix A: 4Bs^2h a layer, which turns s/(6h) into 2s/(9h); equation 8 has s/(3h)."""
    config, batch, s, h = gpt(96, 12_288, 96), 64, 2048, 12_288
    extra = recomputed_flops(config, s, batch, "selective")
    assert extra == 4 * batch * s**2 * h * 96
    assert extra == pytest.approx(72 * batch * 96 * s * h**2 * (2 * s / (9 * h) - s / (6 * h)))


def test_korthikanti_530b_with_data_parallel() -> None:
    """Section 6.3: on 2240 GPUs (d = 8) the step takes 39.15 s, MFU 54.2%."""
    flops = train_step_flops(gpt(105, 20_480, 128), 2048, 8 * 280)
    assert 100 * utilization(flops, 39.15, 2240, A100) == pytest.approx(54.2, abs=0.1)


# Llama 3 405B (arXiv 2407.21783), table 4: GPUs, t, c, p, d, sequence, batch a DP group, TFLOP/s a GPU, MFU
LLAMA_TABLE_4 = [
    (8192, 8, 1, 16, 64, 8192, 32, 430, 43),
    (16_384, 8, 1, 16, 128, 8192, 16, 400, 41),
    (16_384, 8, 16, 16, 8, 131_072, 16, 380, 38),  # version 1 prints d = 4, which does not give 16,384 GPUs
]


@pytest.mark.parametrize("row", LLAMA_TABLE_4, ids=lambda r: f"{r[0]}-{r[5]}")
def test_llama_3_table_4(row: tuple[int, ...]) -> None:
    gpus, t, c, p, d, sequence, per_group, tflops, mfu = row
    assert t * c * p * d == gpus
    assert sequence * per_group * d == pytest.approx(16.8e6, rel=0.01)
    assert 100 * utilization(tflops * 1e12, 1.0, 1, H100) == pytest.approx(mfu, abs=0.6)


def test_llama_3_training_flops() -> None:
    """3.8e25 FLOPs for 405B parameters and 15.6T tokens (section 3.2): 6ND."""
    assert six_n_flops(405e9, 15.6e12) == pytest.approx(3.8e25, rel=0.01)


# Hoffmann 2022 (arXiv 2203.15556), table 3: parameters, FLOPs, tokens
CHINCHILLA = [
    (400e6, 1.92e19, 8.0e9),
    (1e9, 1.21e20, 20.2e9),
    (10e9, 1.23e22, 205.1e9),
    (67e9, 5.76e23, 1.5e12),
    (175e9, 3.85e24, 3.7e12),
    (280e9, 9.90e24, 5.9e12),
    (520e9, 3.43e25, 11.0e12),
    (1e12, 1.27e26, 21.2e12),
    (10e12, 1.30e28, 216.2e12),
]


@pytest.mark.parametrize(("params", "flops", "tokens"), CHINCHILLA)
def test_chinchilla_table_3(params: float, flops: float, tokens: float) -> None:
    assert six_n_flops(params, tokens) == pytest.approx(flops, rel=0.05)


def test_playbook_flops_per_token() -> None:
    """1.34B, L16, h2048, s4096: 9.65e9 a token, and 1.127e10 where a pipeline counts the tied head twice."""
    once = palm_flops(1.34e9, 1, 16, 2048, 4096)
    twice = palm_flops(1.34e9 + 131_072 * 2048, 1, 16, 2048, 4096)
    assert once == pytest.approx(9.65e9, rel=0.002)
    assert twice == pytest.approx(1.127e10, rel=0.002)


def test_llama_layer_matches_the_closed_form() -> None:
    """Forward, a token and layer: 2h(h + 2hk/a) + 2h^2 + 6hf + 4sh."""
    config, s = preset("Llama 3 8B"), 4096
    h, f, k, a = 4096, 14_336, 8, 32
    per_layer = forward_flops(config, s).layers / (s * 32)
    assert per_layer == 2 * h * (h + 2 * h * k // a) + 2 * h**2 + 6 * h * f + 4 * s * h


def test_attention_beyond_6nd() -> None:
    """8B, s = 4096: 12Lhs adds 13% to 6N; a causal count adds half of that."""
    config = preset("Llama 3 8B")
    full, causal = (3 * forward_flops(config, 4096, causal=c).scores / 4096 for c in (False, True))
    assert full == 12 * 32 * 4096 * 4096
    assert full / (6 * 8.03e9) == pytest.approx(0.13, abs=0.005)
    assert causal == full / 2


def test_six_n_is_the_matrices_of_a_model_without_embedding_lookup() -> None:
    """6 a matrix parameter and token, and 12Lhs; norms and the input table are not multiplied with."""
    config = llama(4, 256, 8, 4, 700, vocabulary=1000)
    count = count_parameters(config)
    matrices = count.attention + count.mlp + count.head
    assert train_step_flops(config, 128, 3) == palm_flops(matrices, 3 * 128, 4, 256, 128)


def test_experts_are_counted_active() -> None:
    """DeepSeek-V2: 21B of 236B parameters work on a token (arXiv 2405.04434, abstract)."""
    per_token = forward_flops(preset("DeepSeek-V2 236B"), 1).total
    assert per_token / 2 == pytest.approx(21e9, rel=0.05)


def test_slide_numbers_use_the_sparse_peak() -> None:
    """The H100 data sheet's 1,979 TFLOP/s is with 2:4 sparsity; against it, utilisation reads half."""
    gpu = GPUS["H100 80 GB"]
    assert gpu.sparse_bf16 == pytest.approx(1979e12, rel=0.001)
    assert utilization(4e14, 1.0, 1, gpu.sparse_bf16) == utilization(4e14, 1.0, 1, gpu.dense_bf16) / 2


def test_rates_are_of_the_whole_job() -> None:
    per_token = 6e9
    assert utilization_from_rate(per_token, 8 * 50_000, 8, 1e15) == pytest.approx(0.3)


@pytest.mark.parametrize("wrong", [(1.0, 0.0, 1, 1.0), (1.0, 1.0, 0, 1.0), (1.0, 1.0, 1, 0.0)])
def test_utilization_refuses_nonsense(wrong: tuple[float, float, int, float]) -> None:
    with pytest.raises(ValueError, match="need seconds > 0"):
        utilization(*wrong)


@pytest.mark.parametrize(
    ("params", "layers", "width", "chips", "peak", "tokens_per_second", "without", "with_attention"),
    [  # PaLM (arXiv 2204.02311), appendix B: PaLM 540B on TPU v4 and MT-NLG 530B on A100
        (540.35e9, 118, 48 * 256, 6144, 275e12, 238_300, 45.7, 46.2),
        (530e9, 105, 20_480, 2240, 312e12, 65_430, 29.7, 30.2),
    ],
)
def test_palm_appendix_b(
    params: float,
    layers: int,
    width: int,
    chips: int,
    peak: float,
    tokens_per_second: float,
    without: float,
    with_attention: float,
) -> None:
    per_token = [six_n_flops(params, 1), palm_flops(params, 1, layers, width, 2048)]
    ours = [100 * utilization_from_rate(f, tokens_per_second, chips, peak) for f in per_token]
    assert ours == pytest.approx([without, with_attention], abs=0.1)


def test_gpt_3_training_compute() -> None:
    """3.14e23 FLOPs for 174.6B parameters and 300B tokens (Brown 2020, table D.1): 6ND."""
    total = count_parameters(preset("GPT-3 175B")).total
    assert six_n_flops(total, 300e9) == pytest.approx(3.14e23, rel=0.003)
