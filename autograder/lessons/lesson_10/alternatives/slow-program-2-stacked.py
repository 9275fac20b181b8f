def program_2(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, learning_rate: float
) -> list[float]:
    batches = list(batches)
    losses = torch.zeros(len(batches), dtype=torch.float64, device=device)
    for number, (x, y) in enumerate(batches):
        x = x.pin_memory().to(device, non_blocking=True)
        y = y.pin_memory().to(device, non_blocking=True)
        loss = F.mse_loss(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            losses[number] = loss
            for p, gradient in zip(model.parameters(), gradients, strict=False):
                p.sub_(gradient, alpha=learning_rate)
    return losses.cpu().tolist()
