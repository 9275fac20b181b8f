"""Where each number of a whole module is on the ranks: from its state to the state of one rank's part.

A state is parameters by name, or their gradients. Names of the whole are those of labkit.model, names of the
part those that lesson 07 asks for.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.checks.shared.beside import State
from labkit.checks.shared.split import under


def put_under(prefix: str, state: Mapping[str, Tensor]) -> State:
    """The same entries, their names with a prefix."""
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def cut_attention(full: Mapping[str, Tensor], rank: int, size: int) -> State:
    """Each rank's queries, keys and values, one below the other; its columns of the output projection."""
    part: State = {}
    for kind in ("weight", "bias"):
        if f"query.{kind}" in full:
            blocks = [full[f"{name}.{kind}"].chunk(size)[rank] for name in ("query", "key", "value")]
            part[f"qkv_{kind}"] = torch.cat(blocks)
    part["output_weight"] = full["output.weight"].chunk(size, dim=1)[rank]
    if "output.bias" in full:
        part["output_bias"] = full["output.bias"]
    return part


def cut_mlp(full: Mapping[str, Tensor], rank: int, size: int) -> State:
    """Rows of `up`, columns of `down` (lesson 06)."""
    return {
        "up_weight": full["up.weight"].chunk(size)[rank],
        "up_bias": full["up.bias"].chunk(size)[rank],
        "down_weight": full["down.weight"].chunk(size, dim=1)[rank],
        "down_bias": full["down.bias"],
    }


def cut_rows(table: Tensor, rank: int, size: int) -> Tensor:
    """ceil(V / t) rows of a table [V, h]; rows beyond V are zeros."""
    rows = -(-len(table) // size)
    return F.pad(table, (0, 0, 0, rows * size - len(table)))[rank * rows : (rank + 1) * rows]


def cut_table(full: Mapping[str, Tensor], rank: int, size: int) -> State:
    """The part of an embedding."""
    return {"weight": cut_rows(full["weight"], rank, size)}


def cut_block(full: Mapping[str, Tensor], rank: int, size: int) -> State:
    """Norms are whole on every rank."""
    norms = {name: t for name, t in full.items() if "_norm." in name}
    attention = cut_attention(under("attention.", full), rank, size)
    mlp = cut_mlp(under("mlp.", full), rank, size)
    return norms | put_under("attention.", attention) | put_under("mlp.", mlp)


def cut_gpt(full: Mapping[str, Tensor], rank: int, size: int) -> State:
    """The table's rows, and the head's where it is not the table; positions and norms are whole."""
    part = {"tokens.weight": cut_rows(full["tokens.weight"], rank, size)}
    part["positions"] = full["positions.weight"]
    layers = sorted({name.split(".")[1] for name in full if name.startswith("blocks.")})
    for layer in layers:
        prefix = f"blocks.{layer}."
        part |= put_under(prefix, cut_block(under(prefix, full), rank, size))
    part |= {name: t for name, t in full.items() if name.startswith("norm.")}
    if "head.weight" in full:
        part["head_weight"] = cut_rows(full["head.weight"], rank, size)
    return part
