"""Gradients are summed as they come, during backward; `sum_gradients` waits for the sums."""

import copy

import torch
import torch.distributed as dist
from torch import nn


class ContextParallelGPT(nn.Module):
    def __init__(self, full, context, tensor, batch):
        super().__init__()
        self.context, self.batch, self.under_way = context, batch, []
        model = copy.deepcopy(full)
        streams = RandomStreams(0, tensor)
        for index, block in enumerate(full.blocks):
            model.blocks[index] = TensorParallelBlock(block, tensor, streams)
            model.blocks[index].attention.attend = self.attend
        for name, module in model.named_children():
            self.add_module(name, module)
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(self.start)

    def attend(self, q, k, v, dropout):
        return RingAttention.apply(q, k, v, self.context)

    def start(self, parameter):
        self.under_way.append(dist.all_reduce(parameter.grad, group=self.batch, async_op=True))

    def loss(self, ids, targets):
        ranks = dist.get_world_size(self.context)
        own = own_tokens(ids.shape[-1] * ranks, dist.get_rank(self.context), ranks)
        x = self.tokens(ids) + self.positions(torch.as_tensor(own, device=ids.device))
        for block in self.blocks:
            x = block(x)
        return sharded_loss(self.head(self.norm(x)), targets, self.batch)

    def sum_gradients(self):
        for work in self.under_way:
            work.wait()
        self.under_way.clear()
