"""What people type: models, config.json files, numbers of tokens, plans; and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labkit.cli import main
from labkit.theory.hugging_face import UnknownConfig, from_config, read_config
from labkit.theory.models import preset
from labkit.theory.parameters import count_parameters
from labkit.theory.planning import MEGATRON, Cluster, Plan, choose
from labkit.theory.planning.asked import (
    model_named,
    number_of_tokens,
    plan_named,
    question_of,
    recipe_named,
    training_tokens,
)

LLAMA = {  # meta-llama/Meta-Llama-3-8B
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
}


def test_configs_of_hugging_face_count_as_the_released_models() -> None:
    assert count_parameters(from_config(LLAMA)).total == 8_030_261_248
    assert count_parameters(from_config(GPT2)).total == 124_439_808
    qwen = LLAMA | {"model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14}
    qwen |= {"num_key_value_heads": 2, "intermediate_size": 4864, "num_hidden_layers": 24}
    qwen |= {"vocab_size": 151936, "tie_word_embeddings": True}
    assert count_parameters(from_config(qwen)).total == 494_032_768  # Qwen2-0.5B, as released


def test_a_head_that_no_entry_speaks_of_is_tied_where_that_is_the_default() -> None:
    """SmolLM3 3B and Gemma 2B, as released: transformers writes only what is not its class's default."""
    smol = {k: v for k, v in LLAMA.items() if k != "tie_word_embeddings"} | {"model_type": "smollm3"}
    smol |= {"hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16}
    smol |= {"num_hidden_layers": 36, "num_key_value_heads": 4}
    assert count_parameters(from_config(smol)).total == 3_075_098_624
    gemma = smol | {"model_type": "gemma", "intermediate_size": 16384, "num_attention_heads": 8}
    gemma |= {"num_hidden_layers": 18, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 256000}
    assert count_parameters(from_config(gemma)).total == 2_506_172_416


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**LLAMA, "model_type": "mamba"}, "model_type is 'mamba'; known are"),
        (
            {k: v for k, v in LLAMA.items() if k != "hidden_size"},
            "missing required field `hidden_size`",
        ),
        ({**LLAMA, "num_local_experts": 8}, "has 8 experts"),
        ({**LLAMA, "num_hidden_layers": 0}, "model: num_layers must be at least 1, got 0"),
        ({**LLAMA, "num_attention_heads": 24, "head_dim": None}, "model: hidden 4096 is not a multiple"),
    ],
)
def test_a_config_that_is_not_understood_says_why(config, said: str) -> None:
    with pytest.raises(UnknownConfig, match=said):
        from_config(config)


def test_a_config_is_read_from_a_file_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert model_named(str(folder)) == model_named(str(folder / "config.json"))
    assert model_named(str(folder)).name == "my-llama"
    (folder / "config.json").write_text("{")
    with pytest.raises(UnknownConfig, match="is not JSON"):
        read_config(folder / "config.json")
    with pytest.raises(UnknownConfig, match="cannot be read: No such file"):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize("text", ["llama-3-8b", "Llama 3 8B", "LLAMA_3_8B"])
def test_a_preset_is_found_however_it_is_written(text: str) -> None:
    assert model_named(text) == preset("Llama 3 8B")


def test_numbers_of_tokens() -> None:
    """Batches are counted in powers of two, trainings in powers of ten."""
    assert number_of_tokens("4M") == 2**22
    assert number_of_tokens("1_000_000") == 10**6
    assert number_of_tokens("0.5m") == 2**19
    assert training_tokens("1.5T") == 1.5e12
    for wrong in ("4X", "", "-3M", "0", "_5", "1__0"):
        with pytest.raises(ValueError, match="is no number of tokens"):
            number_of_tokens(wrong)


def test_plans() -> None:
    assert plan_named("16,2,4") == Plan(16, 2, 4)
    assert plan_named("16, 2, 4, 2, 3") == Plan(16, 2, 4, 2, 3)
    assert plan_named("pp=4,dp=16,tp=2,recompute=full,cp=2") == Plan(16, 2, 4, context=2, recompute="full")
    for wrong, said in (
        ("16,2", "needs dp, tp and pp"),
        ("a,2,4", "expected a whole number"),
        ("1,2,4,x=3", "names are dp"),
        ("16,2,4,dp=8", "dp is given twice"),
        ("\u00b2,2,4", "expected a whole number"),
        ("1,2,4,recompute=some", "recompute is none, selective or full"),
    ):
        with pytest.raises(ValueError, match=said):
            plan_named(wrong)


def test_a_question() -> None:
    question = question_of("llama-3-8b", nodes=2, sequence=8192, batch_tokens="4M", tokens="1T")
    assert (question.job.batch, question.cluster.num_gpus, question.tokens) == (512, 16, 1e12)
    assert recipe_named("18").bytes_per_parameter == 18
    kept = [question_of("llama-3-8b", software=name).job.recipe for name in ("nanotron", "megatron")]
    assert [recipe.bytes_per_parameter for recipe in kept] == [20, 18]  # Megatron has no 16-bit gradients
    with pytest.raises(ValueError, match="holds no sequence of 8192"):
        question_of("llama-3-8b", sequence=8192, batch_tokens="4K")
    for wrong in ("int3", ""):
        with pytest.raises(ValueError, match=f"no recipe '{wrong}'"):
            recipe_named(wrong)
    with pytest.raises(ValueError, match="sequence must be 1 or more, got 0"):
        question_of("llama-3-8b", sequence=0)
    with pytest.raises(ValueError, match="no software 'deepspeed'; there are nanotron"):
        question_of("llama-3-8b", software="deepspeed")
    with pytest.raises(ValueError, match="fabric must be one of shared, full, got 'ring'"):
        question_of("llama-3-8b", fabric="ring")  # type: ignore[arg-type]


@pytest.mark.parametrize(("nodes", "told"), [(1, "on 1 node of 8 x"), (2, "on 2 nodes of 8 x")])
def test_one_node_is_one(nodes: int, told: str) -> None:
    assert told in question_of("llama-3-8b", nodes).heading()


@pytest.mark.parametrize(
    ("nodes", "sequence", "tokens", "batch"),
    [
        (3, 4096, "1M", 256),  # as asked for, though 24 GPUs do not divide it
        (4, 6000, "1M", 176),  # 174.8 sequences: 175 have no divisor among the 32 GPUs'
        (4, 3000, "1M", 352),
        (4, 4096, "1_000_000", 256),
        (64, 6000, "1M", 176),
        (4, 6000, "6_100", 1),
    ],
)
def test_a_batch_is_one_that_can_be_shared_out(nodes: int, sequence: int, tokens: str, batch: int) -> None:
    assert question_of("llama-3-8b", nodes, sequence=sequence, batch_tokens=tokens).job.batch == batch


def test_a_huge_batch_is_searched_at_once() -> None:
    job = question_of("llama-3-8b", 2, batch_tokens="1000G").job
    assert choose(job, Cluster.of("h100", 2), MEGATRON).best


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def test_the_command_says_three_plans_and_how_far_to_trust_them() -> None:
    said = run("--model", "llama-3-8b", "--nodes", "16", "--sequence", "8192", "--tokens", "1T")
    assert said.exit_code == 0
    for part in (
        "3 plans to measure:",
        "GPU-hours",
        "tokens/s/GPU, MFU",
        "memory, ",
        "slower: ",
        "555 measured",
    ):
        assert part in said.output


def test_the_command_answers_in_json() -> None:
    said = json.loads(run("--model", "llama-3-8b", "--nodes", "2", "--tokens", "1T", "--json").output)
    assert len(said["best"]) == 3
    best = said["best"][0]
    assert sum(best["seconds_by_term"].values()) == pytest.approx(best["step_seconds"])
    gpus = best["plan"]["data"] * best["plan"]["tensor"] * best["plan"]["pipeline"] * best["plan"]["context"]
    assert gpus == 16
    assert best["gpu_hours"] == pytest.approx(best["days"] * 24 * 16)
    assert best["days"] == pytest.approx(1e12 / (best["tokens_per_second_per_gpu"] * 16) / 86_400)


def test_the_command_explains_a_plan() -> None:
    fits = run("--model", "llama-3-8b", "--nodes", "2", "--explain", "4,2,2")
    assert fits.exit_code == 0
    assert "memory, stage 2 of 2: " in fits.output
    large = run("--model", "llama-3-8b", "--nodes", "2", "--explain", "16,1,1,mb=16")
    assert large.exit_code == 1
    assert "does not run: a GPU needs" in large.output
    wrong = run("--model", "llama-3-8b", "--nodes", "2", "--explain", "4,3,2")
    assert wrong.exit_code == 2
    assert "32 attention heads do not divide over 3 tensor-parallel ranks; " in wrong.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "foo"), "no model 'foo': give the path of a config.json, or one of GPT-2 124M"),
        (("--model", "llama-3-8b", "--gpu", "q9"), "no GPU 'q9'"),
        (("--model", "llama-3-405b"), "fits: the smallest needs"),
        (("--model", "mixtral"), "may be any of Mixtral 8x7B, Mixtral 8x22B: say more of the name"),
    ],
)
def test_the_command_says_what_cannot_be_used(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--network", "-1"], "-1.0 is not in the range x>0"),
        (["--tokens", "0"], "expected more than 0 tokens, found '0'"),
        (["--batch-tokens", "0.0M"], "expected more than 0 tokens, found '0.0M'"),
    ],
)
def test_numbers_that_must_be_more_than_zero_are_told_as_they_were_given(words: list[str], says: str) -> None:
    result = run("--model", "llama-3-8b", *words)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_config_that_is_none_is_told_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0")
    result = run("--model", str(tmp_path / "passwd"))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"labkit: --model {tmp_path / 'passwd'}: ")
    assert "is not JSON" in result.stderr
