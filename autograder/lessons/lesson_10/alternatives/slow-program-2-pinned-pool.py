def program_2(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, learning_rate: float
) -> list[float]:
    """Pinned memory is used again as soon as the copy from it is done, and never waited for."""
    pool: list[tuple[torch.cuda.Event, Tensor, Tensor]] = []
    losses: list[Tensor] = []
    copies = torch.cuda.Stream(device)
    for x, y in batches:
        fitting = (entry for entry in pool if entry[1].shape == x.shape and entry[2].shape == y.shape)
        free = next((entry for entry in fitting if entry[0].query()), None)
        if free is None:
            free = (torch.cuda.Event(), torch.empty_like(x).pin_memory(), torch.empty_like(y).pin_memory())
            pool.append(free)
        done, pinned_x, pinned_y = free
        pinned_x.copy_(x)
        pinned_y.copy_(y)
        with torch.cuda.stream(copies):
            x, y = pinned_x.to(device, non_blocking=True), pinned_y.to(device, non_blocking=True)
            done.record(copies)
        torch.cuda.current_stream(device).wait_event(done)
        for part in (x, y):
            part.record_stream(torch.cuda.current_stream(device))
        loss = F.mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= learning_rate * p.grad
        losses.append(loss.detach())
    return torch.stack(losses).tolist() if losses else []
