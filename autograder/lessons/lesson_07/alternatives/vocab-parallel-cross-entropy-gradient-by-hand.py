"""One autograd function that keeps the probabilities and writes the gradient down."""

import torch
import torch.distributed as dist


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, counted, vocabulary, group, smoothing):
        rows, first = logits.shape[-1], dist.get_rank(group) * logits.shape[-1]
        real = max(0, min(rows, vocabulary - first))  # the other columns are padding
        own = logits[..., :real]
        largest = own.amax(-1) if real else logits.new_full(logits.shape[:-1], -torch.inf)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        own = own - largest.unsqueeze(-1)
        place = targets - first
        here = counted & (place >= 0) & (place < real)
        of_target = torch.zeros_like(largest)
        if real:
            picked = own.gather(-1, place.clamp(0, real - 1).unsqueeze(-1)).squeeze(-1)
            of_target = torch.where(here, picked, of_target)
        exponentials = own.exp()
        sums = torch.stack((exponentials.sum(-1), of_target, own.sum(-1)), -1)
        dist.all_reduce(sums, group=group)
        total, of_target, plain = sums.unbind(-1)
        losses = total.log() - (1 - smoothing) * of_target - smoothing / vocabulary * plain
        number = counted.sum()
        ctx.save_for_backward(exponentials / total.unsqueeze(-1), place.where(here, -1), counted, number)
        ctx.padding, ctx.smoothing, ctx.vocabulary = rows - real, smoothing, vocabulary
        return losses.where(counted, torch.zeros_like(losses)).sum() / number

    @staticmethod
    def backward(ctx, gradient):
        probabilities, place, counted, number = ctx.saved_tensors
        columns = torch.arange(probabilities.shape[-1], device=place.device)
        of_logits = probabilities - ctx.smoothing / ctx.vocabulary
        hit = (place.unsqueeze(-1) == columns).to(of_logits.dtype)
        of_logits = of_logits - (1 - ctx.smoothing) * hit
        of_logits = of_logits * counted.unsqueeze(-1) * (gradient / number)
        return torch.nn.functional.pad(of_logits, (0, ctx.padding)), None, None, None, None, None


def vocab_parallel_cross_entropy(logits, targets, vocabulary, group, ignore_index=-100, label_smoothing=0.0):
    counted = targets != ignore_index
    wrong = targets[counted & ((targets < 0) | (targets >= vocabulary))]
    if len(wrong):
        raise ValueError(f"target {wrong[0].item()} is outside a vocabulary of {vocabulary}")
    if logits.element_size() < 4:
        logits = logits.float()
    return _CrossEntropy.apply(logits, targets, counted, vocabulary, group, label_smoothing)
