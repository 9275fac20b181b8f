"""No function of its own: hooks on tensors fetch and send the gradients, which nothing announces."""


class RemoteStage(nn.Module):
    def __init__(self, module, group):
        super().__init__()
        self.module, self.group = module, group
        self.before = dist.get_rank(group) - 1
        after = dist.get_rank(group) + 1
        self.after = after if after < dist.get_world_size(group) else None

    def forward(self, x=None):
        if self.before >= 0:
            x = receive_tensor(self.before, self.group)
            if torch.is_grad_enabled():
                x.requires_grad_().register_hook(self._send_back)
                x = x.clone()
        out = self.module(x)
        if self.after is None:
            return out
        send_tensor(out, self.after, self.group)
        if not torch.is_grad_enabled():
            return torch.zeros(())
        gradient = torch.empty_like(out, memory_format=torch.contiguous_format)

        def receive(_):
            dist.recv(gradient, group_src=self.after, group=self.group)
            return gradient

        through = out.view_as(out)
        through.register_hook(receive)
        return through.sum()

    def _send_back(self, gradient):
        dist.send(gradient.contiguous(), group_dst=self.before, group=self.group)
