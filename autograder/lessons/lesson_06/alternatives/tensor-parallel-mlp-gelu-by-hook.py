"""The two layers in a row, with GeLU before the second as a hook on it."""

from torch import nn


class TensorParallelMLP(nn.Module):
    def __init__(self, up, down):
        super().__init__()
        self.add_module("up", up)
        self.add_module("down", down)
        self.gelu = nn.GELU()
        down.register_forward_pre_hook(lambda layer, given: tuple(map(self.gelu, given)))

    @classmethod
    def from_mlp(cls, mlp, group):
        cuts = {"up": ColumnParallelLinear.from_linear, "down": RowParallelLinear.from_linear}
        return cls(**{name: cut(getattr(mlp, name), group) for name, cut in cuts.items()})

    def forward(self, x):
        return nn.Sequential(*(self.get_submodule(name) for name in ("up", "down")))(x)
