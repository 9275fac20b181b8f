"""All tensors travel as bytes, in one message."""


def broadcast_module(module, group):
    own = [t.data for t in [*module.buffers(), *module.parameters()]]
    raw = [
        t.contiguous().view(-1).view(torch.uint8) if t.numel() else t.new_empty(0, dtype=torch.uint8)
        for t in own
    ]
    message = torch.cat(raw)
    dist.broadcast(message, group_src=0, group=group)
    for tensor, part in zip(own, message.split([len(r) for r in raw]), strict=True):
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
