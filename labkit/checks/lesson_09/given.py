"""What the exercises of lesson 09 share: what is hidden and forbidden, models and machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.theory.grid import GridPlan, Machines
from labkit.theory.models import MixtureOfExperts, ModelConfig

HIDES = ("theory/grid/costs.py", "theory/grid/placement.py", "theory/planning")
TORCHS_GRIDS = (
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.device_mesh.DeviceMesh",
    "torch.distributed.init_device_mesh",
    "torch.distributed.DeviceMesh",
    "torch.distributed.new_subgroups",
    "torch.distributed.new_subgroups_by_enumeration",
)
OWN_PARTS = "It also works with your own earlier parts."
OWN_PARTS_CAUSE = "an earlier exercise does not pass yet; the other properties are judged with its reference"
GIB = 2.0**30
H100 = {"memory": 80e9, "flops": 600e12, "links": 436e9, "network": 50e9, "layer_floor": 4e-3, "falloff": 0.6}
A100_40 = {"memory": 40e9, "flops": 180e12, "links": 240e9, "network": 25e9, "layer_floor": 2e-3}
SMALL_GPT = {"num_layers": 24, "hidden": 2304, "num_heads": 24, "vocabulary": 51_200, "max_sequence": 2048}
LLAMA_8B = {
    **{"num_layers": 32, "hidden": 4096, "num_heads": 32, "num_kv_heads": 8, "ffn": 14_336},
    **{"vocabulary": 128_256, "max_sequence": 8192, "gated_mlp": True, "biases": "none"},
    **{"norm": "rmsnorm", "positions": "rotary", "tied_embeddings": False},
}
MIXTRAL = {**LLAMA_8B, "mixture": {"num_experts": 8, "active_experts": 2, "expert_ffn": 14_336}}
LLAMA_70B = {**LLAMA_8B, "num_layers": 80, "hidden": 8192, "num_heads": 64, "ffn": 28_672}


def model_of(setting: Mapping[str, Any]) -> ModelConfig:
    """The model of a setting."""
    fields = dict(setting["model"])
    experts = fields.pop("mixture", None)
    return ModelConfig(**fields, mixture=MixtureOfExperts(**experts) if experts else None)


def machines_of(setting: Mapping[str, Any]) -> Machines:
    """The machines of a setting."""
    return Machines(**setting["machines"])


def plan_of(setting: Mapping[str, Any]) -> GridPlan:
    """The plan of a setting."""
    return GridPlan(**setting["plan"])


def machines(nodes: int, gpus_per_node: int, of: Mapping[str, float], **other: float) -> dict[str, Any]:
    """Machines as plain numbers."""
    return {"nodes": nodes, "gpus_per_node": gpus_per_node, **of, **other}


def told(setting: Mapping[str, Any]) -> str:
    """A setting in words."""
    model, given = setting["model"], setting["machines"]
    shape = f"{model['num_layers']} layers of {model['hidden']}, {model['num_heads']} heads"
    where = f"{given['nodes']} x {given['gpus_per_node']} GPUs of {given['memory'] / GIB:.0f} GiB"
    plan = f"{plan_of(setting)}: " if "plan" in setting else ""
    return f"{plan}{shape}, on {where}, {setting['batch']} sequences of {setting['sequence']}"
