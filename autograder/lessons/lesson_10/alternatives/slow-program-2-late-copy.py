def program_2(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, learning_rate: float
) -> list[float]:
    kept = []
    for pair in batches:
        x, y = (torch.Tensor.to(t.pin_memory(), device, non_blocking=True) for t in pair)
        model.zero_grad(set_to_none=False)
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= learning_rate * p.grad
        kept.append(loss.detach().reshape(1))
    if not kept:
        return []
    on_host = torch.cat(kept).to("cpu", non_blocking=True)
    torch.cuda.synchronize(device)
    return [float(value) for value in on_host]
