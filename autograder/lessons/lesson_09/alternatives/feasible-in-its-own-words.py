def feasible(plan: GridPlan, model: ModelConfig, machines: Machines, batch: int, sequence: int) -> list[str]:
    d, t, p, b = plan.data, plan.tensor, plan.pipeline, plan.micro_batch
    problems = []

    def must_divide(divisor, number, what):
        if number % divisor:
            problems.append(f"{what} {number:,} cannot be split by {divisor:,}")

    if d * t * p != machines.num_gpus:
        problems.append(f"there are {machines.num_gpus:,} GPUs and the plan is for {d * t * p:,}")
    must_divide(t, machines.gpus_per_node, "GPUs of a node:")
    must_divide(t, model.num_heads, "query heads:")
    must_divide(t, model.num_kv_heads, "key-value heads:")
    must_divide(t, model.ffn, "MLP width:")
    if p > model.num_layers:
        problems.append(f"only {model.num_layers} layers for as many as {p} stages")
    must_divide(d * b, batch, "batch:")
    if problems:
        return problems
    needed = worst_stage(
        TrainingPlan(
            model,
            sequence,
            b,
            recompute="full" if plan.recompute else "none",
            data_parallel=d,
            zero_stage=plan.zero,
            tensor_parallel=t,
            pipeline_parallel=p,
            num_micro_batches=batch // (d * b),
        )
    )[1].total
    usable = machines.memory - machines.memory / 10
    if needed > usable:
        return [f"out of memory: {needed / 2**30:.1f} GiB > {usable / 2**30:.1f} GiB"]
    return []
