def choose_plan(model: ModelConfig, machines: Machines, batch: int, sequence: int) -> GridPlan:
    """Of the plans that run and lose less than 4% of the best one's seconds, the one with fewest stages."""
    ranked = sorted(
        (sum(step_seconds(plan, model, machines, batch, sequence).values()), number, plan)
        for number, plan in enumerate(thinkable(model, machines, batch))
    )
    found: list[tuple[float, GridPlan]] = []
    for seconds, _, plan in ranked:
        if found and seconds > 1.04 * found[0][0]:
            break
        if len(found) < 40 and not feasible(plan, model, machines, batch, sequence):
            found.append((seconds, plan))
    if not found:
        raise ValueError(f"no plan for {model.name} runs on {machines.num_gpus} GPUs")
    return min(found, key=lambda pair: (pair[1].pipeline, pair[1].tensor, pair[0]))[1]


def thinkable(model: ModelConfig, machines: Machines, batch: int) -> Iterator[GridPlan]:
    gpus = machines.num_gpus
    for t in range(1, machines.gpus_per_node + 1):
        if machines.gpus_per_node % t or any(n % t for n in (model.num_heads, model.num_kv_heads, model.ffn)):
            continue
        for p in range(1, model.num_layers + 1):
            d, over = divmod(gpus, t * p)
            if over or not d or batch % d:
                continue
            rows = batch // d
            for b in (b for b in range(1, rows + 1) if rows % b == 0):
                for zero, recompute in product((0, 1), (False, True)):
                    yield GridPlan(d, t, p, b, zero, recompute)
