# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# lesson: {number: "01", title: "Memory math: what fits", minutes: 140}
# ---

# %% [markdown]
# # Memory math: what fits
#
# A GPU with 80 GB runs a model of 8 billion parameters with room to spare. The same GPU cannot take a single
# training step of it. **Where does the memory go, how much of it can you work out before you book the GPUs,
# and what is each byte for?**
#
# **You need** what a transformer layer is made of, and Python. **You will have built** a calculator: twelve
# functions of a few lines each that give parameters (exact to the last one), memory, operations and batch
# sizes, and you will have checked them against published tables and against a training step that really ran.
# About 140 minutes: two sittings, the second from *Operations* on.

# %% tags=["setup"]
# What this lesson imports: run it first
import torch

import labkit
from labkit.model import ModelConfig, gpt
from labkit.show import STATES, Picture, Table, new_figure, prediction
from labkit.show.calculator import MemoryCalculator
from labkit.show.memory import draw_memory
from labkit.theory import GB, GIB, GPU, GPUS, RECIPES, bytes_text, preset
from labkit.theory import TrainingPlan, state_bytes, training_memory

# %load_ext labkit

# %% [markdown]
# ## The whole lesson in one picture
#
# One sequence of 4096 tokens, a model of 8 billion parameters, one GPU. Left to right, each bar adds up what
# the GPU must hold. You will write the formula behind every colour but the grey
# (copies that live for a moment).

# %%
llama_8b = preset("Llama 3 8B")
training = training_memory(TrainingPlan(llama_8b, sequence=4096))
draw_memory({"to run it": {"weights": training.weights}, "to train it": training}, GPUS["H100 80 GB"])

# %% [markdown]
# ## Bytes, and two kinds of gigabyte
#
# A **gigabyte** (GB) is $10^9$ bytes. A **gibibyte** (GiB) is $2^{30}$ bytes, 7.4% more. `nvidia-smi` and
# PyTorch count in binary units; file sizes, papers and price lists mostly in decimal ones; and all of them
# may print "GB". An "80 GB" H100 has 79.6 GiB, which is 85.5 GB. In this course a number of bytes is a plain
# number, and the unit is written where it is shown:

# %%
Table(["GPU", "memory"], [[gpu.name, bytes_text(gpu.memory)] for gpu in GPUS.values()])

# %% [markdown]
# ## Counting parameters
#
# The letters of this lesson: $L$ layers, hidden size $h$, $a$ attention heads, vocabulary $V$, sequence
# length $s$, micro-batch $b$, and $N$ parameters in all. A model is described by a `ModelConfig`. Two
# families matter:
#
# | field | GPT-2, GPT-3 | Llama |
# |---|---|---|
# | `num_heads`, `head_size` | $a$ heads of $h/a$ | the same |
# | `num_kv_heads` | $a$ | fewer: each key-value head serves several query heads |
# | `ffn`, `gated_mlp` | $4h$, two matrices | its own width, three matrices (gate, up, down) |
# | `biases` | `"all"` | `"none"`; `"qkv"` exists too (Qwen) |
# | `norm` | `"layernorm"`: scale and shift | `"rmsnorm"`: scale |
# | `positions` | `"learned"`: `max_sequence` more embeddings | `"rotary"`: no parameters |
# | `tied_embeddings` | the head *is* the token embedding | usually a matrix of its own |
#
# Each layer has two norms, and there is one more before the head. The head has no bias.

# %%
gpt_2 = gpt(num_layers=12, hidden=768, num_heads=12, vocabulary=50_257, max_sequence=1024)
fields = [name for name in vars(gpt_2) if name not in ("name", "mixture", "latent", "dropout")]
Table(
    ["field", "GPT-2", "Llama 3 8B"],
    [[name, str(getattr(gpt_2, name)), str(getattr(llama_8b, name))] for name in fields],
)

# %% [markdown]
# $12 L h^2$ is the usual estimate: $4h^2$ for attention and $8h^2$ for the MLP. How far off is it for Llama 3
# 8B, which has $L = 32$, $h = 4096$, and about as many parameters as its name says? Guess the percentage,
# with a minus where the estimate is too small, then go on; you will compute it below.

# %% predict="twelve-l-h-squared"
your_guess_percent = ...

# %% [markdown]
# ### Exercise: count the parameters
# Exactly, in whole numbers, for any `ModelConfig` (no mixture of experts). Every matrix is `in x out`; biases
# have one number an output. Count from the shape's numbers: in this lesson's exercises the library's own
# model, its parts and its formulas refuse to be called, and so does PyTorch's counter of operations.
#
# <details><summary>Hint 1</summary>Write a line each for attention, MLP, norm, embedding, head. Queries have
# num_heads x head_size columns; keys and values num_kv_heads x head_size each.</details>
# <details><summary>Hint 2</summary>With biases="all" every matrix of a layer has one, the output ones too;
# with "qkv" only the first three.</details>


# %% exercise="01.count-parameters" difficulty=2 minutes=14
def count_parameters(config: ModelConfig) -> int:
    """Parameters of the model, each once: a tied head is the embedding, not a second one."""
    ### BEGIN SOLUTION
    h, ffn = config.hidden, config.ffn
    queries = config.num_heads * config.head_size
    keys_and_values = 2 * config.num_kv_heads * config.head_size
    attention = h * (queries + keys_and_values) + queries * h
    if config.biases in ("all", "qkv"):
        attention += queries + keys_and_values
    if config.biases == "all":
        attention += h
    ups = 2 if config.gated_mlp else 1
    mlp = (ups + 1) * h * ffn
    if config.biases == "all":
        mlp += ups * ffn + h
    norm = 2 * h if config.norm == "layernorm" else h
    embedding = config.vocabulary * h
    if config.positions == "learned":
        embedding += config.max_sequence * h
    head = 0 if config.tied_embeddings else config.vocabulary * h
    return embedding + config.num_layers * (attention + mlp + 2 * norm) + norm + head
    ### END SOLUTION


# %% reveals="twelve-l-h-squared"
estimate, exact = 12 * 32 * 4096**2, count_parameters(llama_8b)
print(f"12Lh^2 = {estimate:,}   counted = {exact:,}")
prediction("how many percent 12Lh^2 is off", your_guess_percent, 100 * (estimate / exact - 1), "computed")

# %% check="01.count-parameters"
# GPT-2 and Llama 3 as released, shapes nobody released, and every field on its own: to
# the last parameter.
labkit.check("01.count-parameters", count_parameters)

# %% [markdown]
# ## Running a model
#
# To run a model you need its weights: $N$ parameters of 16, 8 or 4 bits. A widely used rule multiplies by 1.2
# for all the rest (EleutherAI, *Transformer Math 101*). **The rule is for inference only.**
#
# "All the rest" is mostly the **KV cache**. To generate the next token, attention needs the key and the value
# of every earlier token, in every layer. They are kept rather than computed again: for each token, layer and
# *key-value* head, one key and one value of `head_size` numbers. What grouped-query attention is for, you
# will see below.

# %% [markdown]
# ### Exercise: weights at rest
# Two functions: the weights with the rule of thumb, and the cache exactly. Nothing is rounded, and no
# argument has to be refused.
#
# <details><summary>Hint</summary>A byte is eight bits. The cache has a factor 2 for "a key and a value", and
# another, the bytes of a number.</details>


# %% exercise="01.inference-bytes" difficulty=1 minutes=6
def inference_bytes(num_params: int, bits: int = 16, overhead: float = 1.2) -> float:
    """Bytes to run a model: its weights at `bits` bits each, times an overhead factor."""
    ### BEGIN SOLUTION
    return num_params * bits / 8 * overhead
    ### END SOLUTION


def kv_cache_bytes(config: ModelConfig, sequence: int, batch: int = 1, bits: int = 16) -> float:
    """Bytes of the keys and values of `batch` sequences of `sequence` tokens."""
    ### BEGIN SOLUTION
    numbers_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_size
    return numbers_per_token * sequence * batch * bits / 8
    ### END SOLUTION


# %%
rows = [
    [name, *(bytes_text(kv_cache_bytes(preset(name), s)) for s in (1024, 16_000, 128_000))]
    for name in ("Llama 3 8B", "Llama 3 70B", "Llama 3 405B")
]
Table(["KV cache, 16 bits", "1,024 tokens", "16,000", "128,000"], rows)

# %% [markdown]
# Hugging Face's article on Llama 3.1 prints 0.125, 1.95 and 15.62 "GB" for the 8B model: GiB, as you see. For
# the 405B model it prints twice what you found, 0.984, 15.38 and 123.05. The row fits a model with 16
# key-value heads; the model as released has 8.

# %%
tokens = [2**i for i in range(10, 18)]
grouped = preset("Llama 3 70B")
figure, (axes,) = new_figure(height=2.8)
for config, style in ((grouped.but(num_kv_heads=64), "--"), (grouped, "-")):
    cache = [kv_cache_bytes(config, t) / GIB for t in tokens]
    axes.plot(
        tokens,
        cache,
        style,
        color=STATES["activations"],
        marker="o",
        label=f"cache, k = {config.num_kv_heads}",
    )
axes.axhline(inference_bytes(70_553_706_496, overhead=1) / GIB, color=STATES["weights"], label="weights")
axes.set(yscale="log", xlabel="tokens in the cache", ylabel="GiB", title="70B in 16 bits, k key-value heads")
axes.set_xscale("log", base=2)
axes.legend()
Picture(
    figure, "KV cache of a 70B model: with 64 key-value heads it passes the weights, with 8 it stays below"
)

# %% check="01.inference-bytes"
labkit.check("01.inference-bytes", inference_bytes, kv_cache_bytes)

# %% [markdown]
# ## Training: the state
#
# Training keeps, for each parameter, its **weight**, its **gradient** and what the **optimizer** remembers.
# AdamW remembers two running averages. In *mixed precision* the forward and backward work in 16 bits, but the
# optimizer does not: an update smaller than about $2^{-8}$ of a bf16 weight would vanish, so it updates a
# **master** copy of the weights in fp32, and its averages are fp32 too. The recipes in use differ in which
# copies they keep:
#
# | recipe | weights | gradients | master weights | averages |
# |---|---|---|---|---|
# | `"adamw-fp32"` | fp32 | fp32 | the weights themselves | two, fp32 |
# | `"adamw-mixed"` (ZeRO, section 3.1) | 16 bits | 16 bits | fp32 | two, fp32 |
# | `"adamw-mixed-fp32-gradients"` (Megatron-LM) | 16 bits | fp32 | fp32 | two, fp32 |
# | `"adamw-mixed-both-gradients"` (nanotron) | 16 bits | 16 bits, *and* their fp32 sum | fp32 | two, fp32 |
# | `"adamw-no-master"` | 16 bits | 16 bits | the weights themselves | two, fp32 |
# | `"sgd-momentum-mixed"` | 16 bits | 16 bits | fp32 | one, fp32 |
# | `"sgd-mixed"` | 16 bits | 16 bits | fp32 | none |
#
# A lecture computes for a 70-billion model, fp16, AdamW: *"140 GB for the model, times 4 with the optimizer
# states is 560, and 140 for the gradients: 700 GB"*. Before you go on: how many GB does `"adamw-mixed"` take?

# %% predict="seventy-billion"
your_guess_gb = ...

# %% [markdown]
# ### Exercise: the training state
# Count master weights with the optimizer: they are its own. Bytes are whole numbers, exact however large.
#
# <details><summary>Hint</summary>A dict from recipe to (weights, gradients, optimizer) bytes is all it takes.
# fp32 is 4 bytes, 16 bits are 2.</details>


# %% exercise="01.training-state-bytes" difficulty=2 minutes=8
def training_state_bytes(num_params: int, recipe: str) -> dict[str, int]:
    """Bytes of the training state: {"weights": ..., "gradients": ..., "optimizer": ...}.

    recipe: a name from the table above; any other raises ValueError with the names there are.
    """
    ### BEGIN SOLUTION
    each = {
        "adamw-fp32": (4, 4, 8),
        "adamw-mixed": (2, 2, 4 + 8),
        "adamw-mixed-fp32-gradients": (2, 4, 4 + 8),
        "adamw-mixed-both-gradients": (2, 2 + 4, 4 + 8),
        "adamw-no-master": (2, 2, 8),
        "sgd-momentum-mixed": (2, 2, 4 + 4),
        "sgd-mixed": (2, 2, 4),
    }
    if recipe not in each:
        raise ValueError(f"unknown recipe {recipe!r}; there are {', '.join(each)}")
    weights, gradients, optimizer = each[recipe]
    return {
        "weights": num_params * weights,
        "gradients": num_params * gradients,
        "optimizer": num_params * optimizer,
    }
    ### END SOLUTION


# %%
recipes = [
    "sgd-mixed",
    "adamw-no-master",
    "adamw-mixed",
    "adamw-mixed-fp32-gradients",
    "adamw-mixed-both-gradients",
]
draw_memory(
    {r.replace("adamw-mixed", "mixed"): training_state_bytes(70 * 10**9, r) for r in recipes},
    GPUS["H200 141 GB"],
)

# %%
prediction(
    "70B, adamw-mixed, GB", your_guess_gb, sum(training_state_bytes(70 * 10**9, "adamw-mixed").values()) / GB
)

# %% [markdown]
# 1120 GB, not 700. The lecture took the optimizer for a multiple of the *weights*: "4 x" is the multiple of
# the whole state for fp32 weights. AdamW's memory does not shrink when the weights do: it grows. Fp32 weights
# are their own master copy, so the two averages, 8 bytes a parameter, are all it keeps. 16- or 8-bit weights
# need the master copy too: 12 bytes, whether they take 2 or 1.

# %% check="01.training-state-bytes"
labkit.check("01.training-state-bytes", training_state_bytes)

# %% [markdown]
# ## A look ahead: the state, sharded
#
# With $d$ data-parallel ranks, every rank keeps the same state: $d$ copies of the same thing. **ZeRO**
# (Rajbhandari 2019) lets each rank keep a $d$-th. Stage 1 shards the optimizer's part, stage 2 the gradients
# too, stage 3 the weights too. Lesson 08 builds it. Here is what it is for, on the example of the paper's
# figure 1 (7.5 billion parameters, $d = 64$):

# %%
draw_memory(
    {f"ZeRO stage {z}": dict(vars(state_bytes(7.5e9, RECIPES["mixed AdamW, 16 B"], z, 64))) for z in range(4)}
)

# %% [markdown]
# A shard is how the state is *stored*. To compute with a layer, a rank needs all of it, for a moment: at
# stage 3 its weights are gathered just before they are used; at stages 2 and 3 its whole gradient exists
# until it has been summed over the ranks and scattered. This **working set** is set by the largest layer and
# does not shrink with $d$. (Real systems also gather one layer ahead.)
#
# ### Exercise: the state, sharded
# What one rank keeps at each stage, and the working set beside it. Nothing is rounded, and no argument has to
# be refused. One rank alone has nothing sharded and nothing to gather: its working set is 0 at every stage.
#
# <details><summary>Hint</summary>Start from training_state_bytes, twice: for the model, and for its largest
# layer.</details>


# %% exercise="01.zero-state-bytes" difficulty=2 minutes=10
def zero_state_bytes(
    num_params: int, recipe: str, stage: int, data_parallel: int, largest_layer: int
) -> dict[str, float]:
    """Bytes on one of `data_parallel` ranks: {"weights", "gradients", "optimizer", "working"}.

    stage: 0 (nothing sharded) to 3. largest_layer: parameters of the largest layer; its weights
    (stage 3) and gradients (stages 2 and 3), at the recipe's bytes each, are the working set.
    """
    ### BEGIN SOLUTION
    whole = training_state_bytes(num_params, recipe)
    one_layer = training_state_bytes(largest_layer, recipe)
    sharded_from = {"optimizer": 1, "gradients": 2, "weights": 3}
    kept = {part: whole[part] / (data_parallel if stage >= sharded_from[part] else 1) for part in whole}
    in_use = [part for part in ("weights", "gradients") if stage >= sharded_from[part] and data_parallel > 1]
    return {**kept, "working": sum(one_layer[part] for part in in_use)}
    ### END SOLUTION


# %%
largest = 128_256 * 8192  # Llama 3 70B: the embedding is larger than any layer
draw_memory(
    {f"{d} ranks": zero_state_bytes(70_553_706_496, "adamw-mixed", 3, d, largest) for d in (8, 16, 64, 512)},
    GPUS["H100 80 GB"],
    title="Llama 3 70B, stage 3: the state shrinks with the ranks, the working set does not",
)

# %% check="01.zero-state-bytes"
labkit.check("01.zero-state-bytes", zero_state_bytes)

# %% [markdown]
# ## Activations: what backward needs
#
# The forward pass leaves behind what the backward pass will ask for: the input of every matrix product, of
# every norm, of GeLU; the attention probabilities; where dropout struck. These **activations** are no
# property of the model. They grow with the batch and the sequence. Let PyTorch tell you, for one layer of a
# small GPT, what it keeps. The function below runs on a rank of its own, and lists each tensor that autograd
# saves, once:


# %%
def kept_by_one_layer() -> list[list[str]]:
    from labkit.model import Block, explicit_attention

    s, b, h, a = 64, 2, 128, 4
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    config = gpt(1, h, a, max_sequence=s, dropout=0.1)
    block = Block(config, explicit_attention).to(device, torch.bfloat16)
    weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x = torch.randn(b, s, h, dtype=torch.bfloat16, device=device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        block(x)
    sbh = s * b * h
    return [
        [list(t.shape), str(t.dtype)[6:], f"{t.untyped_storage().nbytes() / sbh:.2f}"] for t in kept.values()
    ]


Table(["shape", "dtype", "bytes, in sbh"], labkit.launch(kept_by_one_layer, ranks=1).results[0])

# %% [markdown]
# Korthikanti et al. (2022, section 4.1) made this list by hand for 16-bit activations and dropout masks of
# one byte (a CPU keeps masks in two, as you may see above), and added it up. One layer keeps, **in bytes**:
#
# $$\underbrace{11\,sbh + 5as^2b}_{\text{attention}} + \underbrace{19\,sbh}_{\text{MLP}}
# + \underbrace{4\,sbh}_{\text{norms}}
# = sbh\left(34 + \frac{5as}{h}\right)$$
#
# The term $5as^2b$ is the scores: $2as^2b$ bytes of probabilities, $as^2b$ of dropout mask, $2as^2b$ of
# dropped probabilities. It grows with the *square* of the sequence. There are four ways to make the sum
# smaller:
#
# | | bytes a layer |
# |---|---|
# | nothing | $sbh\,(34 + 5as/h)$ |
# | **tensor parallelism**: attention and MLP are split inside | $sbh\,(10 + 24/t + 5as/(ht))$ |
# | and **sequence parallelism**: the rest is split along $s$ | $(sbh/t)\,(34 + 5as/h)$ |
# | **selective recomputation**: the scores are made again in backward | drop the term $5as/h$ |
# | **full recomputation**: only the layer's input is kept, on every rank | $2sbh$ |
#
# Tensor parallelism over $t$ ranks does not split the norms, the dropouts outside attention, and the inputs
# of attention and MLP: the 10. A **fused** attention kernel (FlashAttention, Dao 2022) never stores the
# scores at all: its backward makes them again, block by block, inside the kernel. So the term is gone, and
# nothing is left for you to recompute. The formulas are for GPT's layer: a GeLU MLP of width $4h$, as many
# key-value heads as heads, dropout. Llama's is counted the same way, tensor by tensor, and comes out
# different.

# %%
sequences = [1024, 2048, 4096, 8192]
rows = {f"s = {s}": {"activations": 34 * s * 4096 * 32, "scores": 5 * 32 * s**2 * 32} for s in sequences}
draw_memory(rows, GPUS["H100 80 GB"], title="L = 32, h = 4096, a = 32, b = 1: 34sbhL, and the scores")

# %% [markdown]
# ### Exercise: what backward needs
# All $L$ layers, without embedding and head, by the formulas above: of the shape, only $L$, $h$ and $a$
# count.
#
# <details><summary>Hint 1</summary>Three terms: 10 stays whole without sequence parallelism, 24 and the
# scores are divided by t.</details>
# <details><summary>Hint 2</summary>The scores are there only with recompute="none" and without fused
# attention. Full recomputation asks for nothing else: 2sbhL, whatever t is.</details>


# %% exercise="01.activation-bytes" difficulty=3 minutes=16
def activation_bytes(
    config: ModelConfig,
    sequence: int,
    micro_batch: int,
    recompute: str = "none",
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    fused_attention: bool = False,
) -> float:
    """Bytes that all layers keep for backward on one rank, for one micro-batch, with
    16-bit activations.

    recompute: "none", "selective" or "full"; anything else raises ValueError.
    """
    ### BEGIN SOLUTION
    if recompute not in ("none", "selective", "full"):
        raise ValueError(f'recompute must be "none", "selective" or "full", got {recompute!r}')
    s, b, h, t = sequence, micro_batch, config.hidden, tensor_parallel
    if recompute == "full":
        return config.num_layers * 2 * s * b * h
    whole = 10 / t if sequence_parallel else 10
    stores_scores = recompute == "none" and not fused_attention
    scores = 5 * config.num_heads * s / (h * t) if stores_scores else 0
    return config.num_layers * s * b * h * (whole + 24 / t + scores)
    ### END SOLUTION


# %%
mt_nlg = gpt(num_layers=105, hidden=20_480, num_heads=128)  # 530 billion parameters
cases = {
    "TP": {},
    "TP, SP": {"sequence_parallel": True},
    "TP, selective": {"recompute": "selective"},
    "TP, SP, selective": {"recompute": "selective", "sequence_parallel": True},
    "full": {"recompute": "full"},
}
draw_memory(
    {
        name: {"activations": activation_bytes(mt_nlg, 2048, 1, tensor_parallel=8, **c)}
        for name, c in cases.items()
    },
    GPUS["A100 80 GB"],
    title="530B, t = 8: activations of all layers (compare Korthikanti 2022, figure 7)",
)

# %% check="01.activation-bytes"
labkit.check("01.activation-bytes", activation_bytes)

# %% [markdown]
# ## Operations
#
# A product of $[m, k]$ and $[k, n]$ takes $2mkn$ operations: a multiplication and an addition for each. Per
# token and layer, the forward pass multiplies with every matrix once, two operations a parameter, and makes
# scores: queries with $s$ keys, probabilities with $s$ values, $2s$ operations each for every one of the
# $a \times$ `head_size` columns. The head multiplies with $hV$. Embedding, norms and the like are too small
# to count. **Backward costs two forwards**: one product for the gradient of the input, one for that of the
# weight. For a GPT and a batch of $B$ sequences (Narayanan 2021 and Korthikanti 2022, eq. 7):
#
# $$\text{model FLOPs} = 72\,B L s h^2\left(1 + \frac{s}{6h} + \frac{V}{12hL}\right)$$
#
# Dividing by the tokens and forgetting the middle term leaves $6N$ a token, the famous $6ND$ for $D$ tokens.
# What it forgets is $12Lhs$ a token; what it counts too much, where the head has a matrix of its own, is the
# input embedding, which multiplies nothing: 7% of Llama 3 8B. (We count all $s^2$ scores, as those papers do;
# a causal model needs half of them, and current Megatron-LM counts so.)
#
# Recomputation adds operations, not progress: selective one more forward *of the scores*, full one more
# forward of *all layers* (not of the head).
#
# ### Exercise: operations of a step
# For any `ModelConfig` again, so count the matrices rather than use the GPT formula. `recompute` is always
# one of the three that the docstring names.
#
# <details><summary>Hint</summary>A step is 3 forwards of layers and head, plus what is recomputed. Take the
# matrices from count_parameters, without norms, biases and embeddings.</details>


# %% exercise="01.train-step-flops" difficulty=3 minutes=14
def train_step_flops(config: ModelConfig, sequence: int, batch: int, recompute: str = "none") -> float:
    """Operations of a training step on `batch` sequences, recomputed ("none",
    "selective", "full") too.
    """
    ### BEGIN SOLUTION
    h, tokens = config.hidden, batch * sequence
    queries = config.num_heads * config.head_size
    keys_and_values = 2 * config.num_kv_heads * config.head_size
    matrices = h * (queries + keys_and_values) + queries * h + (3 if config.gated_mlp else 2) * h * config.ffn
    scores = config.num_layers * 2 * (2 * sequence * queries) * tokens
    layers = config.num_layers * 2 * matrices * tokens + scores
    head = 2 * h * config.vocabulary * tokens
    again = {"none": 0, "selective": scores, "full": layers}[recompute]
    return 3 * (layers + head) + again
    ### END SOLUTION


# %%
lengths = [2**i for i in range(10, 18)]
share = [train_step_flops(llama_8b, s, 1) / (6 * count_parameters(llama_8b) * s) for s in lengths]
figure, (axes,) = new_figure(height=2.4)
axes.plot(lengths, share, marker="o")
axes.axhline(1, color="grey", linestyle="--")
axes.set_xscale("log", base=2)
axes.set(xlabel="sequence length s", ylabel="your count / 6N a token", title="Llama 3 8B: what 6ND forgets")
Picture(
    figure,
    "the ratio of counted operations to 6ND grows from 0.97 at 1024 tokens to above 5 at 131072",
)

# %% check="01.train-step-flops"
labkit.check("01.train-step-flops", train_step_flops)

# %% [markdown]
# ## How busy are the GPUs?
#
# **Model FLOPs utilization** (MFU) is the model FLOPs a second, over what all the GPUs could do at their
# peak. With recomputed operations counted in, it is called *hardware* FLOPs utilization (HFU), and is larger
# without being better: the 52% of the trillion-parameter model of Narayanan
# et al. (2021, table 1) is HFU; its MFU is 39%.
#
# Which peak? A data sheet prints 1,979 TFLOP/s for an H100 in bfloat16, with an asterisk: *with sparsity*.
# Nobody trains with 2:4 sparsity. The dense peak is half of that.

# %%
Table(
    ["GPU", "dense bf16, TFLOP/s", "with sparsity"],
    [[g.name, g.dense_bf16 / 1e12, g.sparse_bf16 / 1e12] for g in GPUS.values()],
)

# %% [markdown]
# ### Exercise: model FLOPs utilization
# Against the dense peak, and without what is recomputed. (Seconds that no GPU reaches give more than 1:
# nothing is refused.)
#
# <details><summary>Hint</summary>One division. Ask of each number whether it is of one GPU or of
# all.</details>


# %% exercise="01.model-flops-utilization" difficulty=1 minutes=6
def model_flops_utilization(
    config: ModelConfig, sequence: int, batch: int, seconds: float, num_gpus: int, gpu: GPU
) -> float:
    """MFU, between 0 and 1, of a step that trained on `batch` sequences in `seconds`
    on `num_gpus` GPUs.

    gpu: has dense_bf16 and sparse_bf16, peak FLOP/s of one GPU.
    """
    ### BEGIN SOLUTION
    return train_step_flops(config, sequence, batch) / (seconds * num_gpus * gpu.dense_bf16)
    ### END SOLUTION


# %%
published = [  # Korthikanti 2022, tables 3 and 5: shape, batch, seconds a step, GPUs, MFU %
    ("22B", gpt(48, 6144, 64), 4, 1.10, 8, 41.5),
    ("175B", gpt(96, 12_288, 96), 64, 13.75, 64, 51.4),
    ("530B", gpt(105, 20_480, 128), 280, 37.83, 280, 56.0),
    ("1T", gpt(128, 25_600, 160), 512, 71.49, 512, 56.3),
]
Table(
    ["model", "your MFU, %", "published, %"],
    [
        [name, 100 * model_flops_utilization(config, 2048, batch, seconds, gpus, GPUS["A100 80 GB"]), mfu]
        for name, config, batch, seconds, gpus, mfu in published
    ],
)

# %% check="01.model-flops-utilization"
labkit.check("01.model-flops-utilization", model_flops_utilization)

# %% [markdown]
# ## What fits
#
# State, activations, and one thing more: the **logits**. The head gives every token a number for each of the
# $V$ entries of the vocabulary. While the loss is made there are three copies of them: the head's own output
# in 16 bits, the same in fp32, and what the loss keeps of it for the backward, in fp32 too. That makes
# $(2 + 4 + 4)sbV = 10sbV$ bytes. With $V = 128{,}256$ and $s = 8192$ it is 10.5 GB for one sequence, more
# than any layer. (Smaller terms are left out here: the inputs of the last norm and the head. A recomputed
# layer comes back for a moment too, but when the logits have gone, and where $V > 3.4h$ it is smaller.)
#
# Ten is the forward's count, and the one to use here. PyTorch's backward of the loss holds three fp32 copies
# for a moment, what the loss kept and two gradients: $12sbV$.
#
# A plan that fills the memory to the last byte does not run: the allocator leaves gaps, libraries take
# buffers, NCCL takes its own. Formulas come out several GiB below what runs really used. Keep **a tenth** of
# the memory free.
#
# ### Exercise: the largest micro-batch
# One GPU, fused attention.
#
# <details><summary>Hint</summary>State once, then so many bytes a sequence. How many of those go into what is
# left of nine tenths?</details>


# %% exercise="01.largest-micro-batch" difficulty=2 minutes=10
def largest_micro_batch(
    config: ModelConfig, sequence: int, gpu_bytes: int, recipe: str = "adamw-mixed", recompute: str = "none"
) -> int:
    """The largest micro-batch whose state, activations (fused attention) and logits leave a tenth free.

    0 if not even one sequence fits.
    """
    ### BEGIN SOLUTION
    state = sum(training_state_bytes(count_parameters(config), recipe).values())
    one_sequence = activation_bytes(config, sequence, 1, recompute, fused_attention=True)
    one_sequence += (2 + 4 + 4) * sequence * config.vocabulary
    return max(0, int((0.9 * gpu_bytes - state) // one_sequence))
    ### END SOLUTION


# %%
small = gpt(num_layers=24, hidden=2048, num_heads=16, vocabulary=50_257)
Table(
    ["micro-batch of a 1.3B GPT, s = 2048", "none", "selective", "full"],
    [
        [
            g.name,
            *(largest_micro_batch(small, 2048, g.memory, recompute=r) for r in ("none", "selective", "full")),
        ]
        for g in GPUS.values()
    ],
    caption="With fused attention, selective recomputation has nothing left to save",
)

# %% check="01.largest-micro-batch"
labkit.check("01.largest-micro-batch", largest_micro_batch)

# %% [markdown]
# ## Batches in tokens
#
# A step of a large run works on about 4 million tokens. No GPU holds so many, so the batch is put together
# from three factors: the micro-batch $b$ that one GPU holds, the **accumulation** steps over which each GPU
# adds up gradients, and the $d$ data-parallel ranks:
#
# $$\text{global batch} = b \times \text{accumulation} \times d \quad\text{sequences}$$
#
# A lecture's example: 4 million tokens in sequences of "4,000" make 1024 sequences (it means $2^{22}$ and
# 4096); one GPU holds 2; on 128 GPUs, 4 accumulation steps. *"Quiz: what if we had 512 GPUs?"* And 768?
#
# ### Exercise: batches
# The product, and the question the other way round: how many accumulation steps? Both in whole numbers. The
# only thing to refuse are tokens that do not divide into whole steps.
#
# <details><summary>Hint</summary>Two things must divide: tokens by the sequence, sequences by b x
# d.</details>


# %% exercise="01.global-batch-size" difficulty=1 minutes=6
def global_batch_size(micro_batch: int, accumulation: int, data_parallel: int) -> int:
    """Sequences that go into one optimizer step."""
    ### BEGIN SOLUTION
    return micro_batch * accumulation * data_parallel
    ### END SOLUTION


def accumulation_steps(tokens_per_step: int, sequence: int, micro_batch: int, data_parallel: int) -> int:
    """Micro-batches each rank adds up in a step of so many tokens. ValueError if it does not divide."""
    ### BEGIN SOLUTION
    at_once = sequence * micro_batch * data_parallel
    if tokens_per_step % at_once:
        raise ValueError(
            f"{tokens_per_step} tokens are not a multiple of {at_once}, what all ranks take at once"
        )
    return tokens_per_step // at_once
    ### END SOLUTION


# %%
[(gpus, accumulation_steps(2**22, 4096, 2, gpus)) for gpus in (64, 128, 256, 512)]

# %% check="01.global-batch-size"
labkit.check("01.global-batch-size", global_batch_size, accumulation_steps)

# %% [markdown]
# ## Predict, then measure
#
# Formulas are worth what they predict. Take a small GPT **without dropout**, trained by AdamW with everything
# in one number type of $e$ bytes, 2 or 4, and predict the bytes of a step that will really run. Then run it,
# here, and look.
#
# From the list you saw above: without dropout there are no masks, and the dropped probabilities are the
# probabilities. Per layer there remain 16 tensors of $sbh$ numbers (count them: two norm inputs, two inputs
# of attention and MLP, queries, keys, values, the attention output, and 4 + 4 around GeLU) and, with explicit
# attention, $as^2b$ probabilities. After the last layer: the inputs of the final norm and of the head, of
# $sbh$ numbers each, and the logits, which alone take 4 bytes a number whatever $e$ is.
#
# ### Exercise: predict a step
# Both numbers in bytes, for the step described above.
#
# <details><summary>Hint</summary>AdamW in one number type: weight, gradient, two averages.</details>


# %% exercise="01.predict-step" difficulty=2 minutes=12
def predict_step(
    config: ModelConfig, sequence: int, micro_batch: int, element_bytes: int, fused_attention: bool
) -> dict[str, float]:
    """Bytes of a step: {"state": weights, gradients and averages; "activations": all
    that autograd keeps}.

    config: a GPT without dropout. To be right within 1% (state) and 3% (activations).
    """
    ### BEGIN SOLUTION
    tokens, e = sequence * micro_batch, element_bytes
    per_layer = 16 * tokens * config.hidden * e
    if not fused_attention:
        per_layer += config.num_heads * sequence * tokens * e
    head = 2 * tokens * config.hidden * e + 4 * tokens * config.vocabulary
    return {"state": 4 * e * count_parameters(config), "activations": config.num_layers * per_layer + head}
    ### END SOLUTION


# %%
def measured_step(
    config: ModelConfig, sequence: int, micro_batch: int, dtype: torch.dtype, fused: bool
) -> dict:
    """One real training step, on this rank's device."""
    from labkit.model import Transformer, explicit_attention, fused_attention
    from labkit.record.memory import measure_step

    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    model = Transformer(config, fused_attention if fused else explicit_attention).to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(config.vocabulary, (micro_batch, sequence + 1), device=device)
    step = measure_step(model, optimizer, lambda: model.loss(ids[:, :-1], ids[:, 1:]))
    return {"state": step.weights + step.gradients + step.optimizer, "activations": step.activations}


rows = []
toy = gpt(4, 256, 8, vocabulary=2000, max_sequence=512, dropout=0.0)
for dtype, e, fused in ((torch.float32, 4, True), (torch.bfloat16, 2, True), (torch.bfloat16, 2, False)):
    seen = labkit.launch(measured_step, toy, 384, 2, dtype, fused, ranks=1).results[0]
    mine = predict_step(toy, 384, 2, e, fused)
    kind = f"{str(dtype)[6:]}, {'fused' if fused else 'explicit'}"
    for part in ("state", "activations"):
        off = f"{100 * (mine[part] / seen[part] - 1):+.2f}%"
        rows.append([kind, part, mine[part], seen[part], off])
Table(["step", "", "your prediction, bytes", "measured, bytes", "difference"], rows)

# %% check="01.predict-step"
labkit.check("01.predict-step", predict_step)

# %% [markdown]
# And in the large? On an H100, GPTs and a Llama of 8 layers with $h = 1024$, $s = 1024$, $V = 32{,}000$, with
# explicit and fused attention, in both types: what torch had allocated at the end of a forward (1.8 to 5.6
# GiB) was within 0.1% of state, activations and logits for the GPTs and within 2.5% for the Llama; the step's
# peak, with twelve bytes a logit, as near. **The allocator reserved 1 to 10% more** than was ever allocated:
# no formula has that, and it is one reason for the tenth that stays free. `labkit doctor --prove` measures
# the same on your GPU.

# %% [markdown]
# ## The calculator
#
# All of it on one page, for one GPU of a plan you choose. It adds what later lessons are about: pipeline
# stages and how many micro-batches they hold, Llama's own layer, experts. Things to try:
#
# 1. Llama 3 8B on 8 H100s: what is the smallest ZeRO stage that fits? Does full recomputation replace it?
# 2. Llama 3 70B: make it fit on 64 H100s, in two different ways.
# 3. Raise $s$ with fused, then with explicit attention. When does recomputation stop helping? Look at the
#    logits.
# 4. DeepSeek-V2 has 236 billion parameters, of which a token visits 21. Which bars know the difference?

# %%
MemoryCalculator(model="Llama 3 8B", gpu="H100 80 GB", data_parallel=8)

# %% [markdown]
# ## Find the mistakes
#
# ### Exercise: find the mistakes
#
# These are lines from real course slides and articles. Each is wrong, and by now you can say by how much.
#
# 1. *"700 / 1024^3 = 652 GB"*, said of $700 \cdot 10^9$ bytes. How many **GiB** are $700 \cdot 10^9$ bytes?
# 2. *"70B + AdamW, fp16: 700 GB"*. How many GB is the state under `adamw-mixed`?
# 3. *"optimizer states AdamW = 4 x mem_req"*, where mem_req is the fp16 weights: 8 bytes a parameter. How
#    many bytes a parameter do AdamW's optimizer states take in mixed precision, master weights included?
# 4. *"optimizer states SGD = 1.5 x mem_req"*. And SGD with momentum, master weights included?
# 5. *"DeepSeek-V2, 236B parameters, needs about 1.5 TB to train"*. How many GB is its state under
#    `adamw-mixed`?
# 6. *"activations = sbhL"* with full recomputation. How many **bytes** are they for $s = 1000$,
#    $b = 1$, $h = 1000$, $L = 1$, in 16 bits?
# 7. *"(5a\*s)/h\*t"*, in the line for tensor parallelism. What is the term for $a = 64$, $s = 2048$,
#    $h = 8192$, $t = 8$?
# 8. *"H100: BFLOAT16 1,979 teraFLOPS"*, used as the peak for MFU. What is the dense peak in TFLOP/s?
# 9. *"4 million tokens, sequences of 4,000: 1024 sequences"*. How many sequences of 4,000 are $4 \cdot 10^6$
#    tokens?
#
# Three digits are enough.


# %% exercise="01.slide-mistakes" difficulty=2 minutes=8
def corrected_slides() -> dict[str, float]:
    """The right numbers, under the keys gib_of_700e9_bytes, gb_of_70b_adamw_mixed,
    optimizer_bytes_per_parameter_adamw, optimizer_bytes_per_parameter_sgd_momentum,
    gb_of_236b_adamw_mixed, full_recompute_bytes, score_term_with_8_ranks,
    h100_dense_bf16_tflops and sequences_of_4000_in_4_million_tokens.
    """
    ### BEGIN SOLUTION
    return {
        "gib_of_700e9_bytes": 700e9 / 2**30,
        "gb_of_70b_adamw_mixed": 70 * 16,
        "optimizer_bytes_per_parameter_adamw": 4 + 4 + 4,
        "optimizer_bytes_per_parameter_sgd_momentum": 4 + 4,
        "gb_of_236b_adamw_mixed": 236 * 16,
        "full_recompute_bytes": 2 * 1000 * 1 * 1000,
        "score_term_with_8_ranks": 5 * 64 * 2048 / (8192 * 8),
        "h100_dense_bf16_tflops": 989,
        "sequences_of_4000_in_4_million_tokens": 4_000_000 / 4000,
    }
    ### END SOLUTION


# %% check="01.slide-mistakes"
labkit.check("01.slide-mistakes", corrected_slides)

# %% [markdown]
# One more to read with care, since it sounds official: a model page gives *"60 GB, 500 GB and 3.25 TB"* to
# train Llama 3.1 in 16 bits, with 8B, 70B and 405B parameters (an earlier version: 300 GB for 70B). Divide:
# 7.5, 7.1 (4.3) and 8.0 bytes a parameter. The state of `adamw-mixed` alone takes 16, so these are estimates
# of something smaller.

# %% [markdown]
# ## Ours against PyTorch's own ruler
#
# PyTorch ships `MemTracker`, which follows every tensor that is alive. Run a step under it, and compare with
# what you predicted and with what our saved-tensor hooks counted:


# %%
def live_after_forward(config: ModelConfig, sequence: int, micro_batch: int) -> int:
    from torch.distributed._tools.mem_tracker import MemTracker

    from labkit.model import Transformer

    model = Transformer(config)
    ids = torch.randint(config.vocabulary, (micro_batch, sequence + 1))
    tracker = MemTracker()
    tracker.track_external(model)
    with tracker:
        loss = model.loss(ids[:, :-1], ids[:, 1:])  # as long as `loss` lives, so does all that backward needs
        alive = tracker.get_tracker_snapshot("current")[torch.device("cpu")]["Total"]
    del loss
    return alive - sum(p.numel() * 4 for p in model.parameters())


tracked = labkit.launch(live_after_forward, toy, 384, 2, ranks=1, backend="gloo").results[0]
counted = labkit.launch(measured_step, toy, 384, 2, torch.float32, True, ranks=1, backend="gloo").results[0]
Table(
    ["activations, float32, fused", "bytes"],
    [
        ["your formula", predict_step(toy, 384, 2, 4, True)["activations"]],
        ["hooks", counted["activations"]],
        ["MemTracker", tracked],
    ],
)

# %% [markdown]
# ## Where this leaves you
#
# You can say what a model will need before you have a GPU: parameters exactly, state to the byte, activations
# within a few percent, and what tensor parallelism, ZeRO and recomputation each take away. What the formulas
# leave out: fragmentation, communication buffers, temporary copies. Against some 550
# runs published with the Ultra-Scale Playbook, the calculator above is 3 GiB a GPU low at the median,
# and 6 GiB off on average, as a few runs held far more.
#
# **Think about**
#
# 1. Full recomputation makes activations 17 times smaller and a step a third more expensive; when is that a
#    good trade against a smaller micro-batch?
# 2. A pipeline's first stage holds $p$ micro-batches of $L/p$ layers. What did cutting the model into
#    stages save?
# 3. Why does ZeRO not help with activations?
#
# **To read**
#
# - Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022, section 4.
# - Rajbhandari et al., *ZeRO*, 2019, sections 3 to 5.
# - Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters*, 2021.
# - EleutherAI, *Transformer Math 101*.

# %% scoreboard=true
labkit.scoreboard("01")
