def choose_plan(model: ModelConfig, machines: Machines, batch: int, sequence: int) -> GridPlan:
    def price(plan: GridPlan) -> float:
        return sum(step_seconds(plan, model, machines, batch, sequence).values())

    def runs(plan: GridPlan) -> bool:
        return not feasible(plan, model, machines, batch, sequence)

    winners = []
    for grid in grids_of(model, machines, batch):
        options = sorted(options_of(grid, batch), key=price)
        winners += next(([plan] for plan in options if runs(plan)), [])
    if not winners:
        raise ValueError(f"{model.name} does not fit")
    return min(winners, key=price)


def grids_of(model: ModelConfig, machines: Machines, batch: int) -> Iterator[GridPlan]:
    for tensor in range(1, machines.gpus_per_node + 1):
        for pipeline in range(1, min(model.num_layers, machines.num_gpus // tensor) + 1):
            data, left = divmod(machines.num_gpus, tensor * pipeline)
            if left == 0 and batch % data == 0 and machines.gpus_per_node % tensor == 0:
                yield GridPlan(data, tensor, pipeline)


def options_of(grid: GridPlan, batch: int) -> Iterator[GridPlan]:
    whole = batch // grid.data
    for micro_batch, zero, recompute in product(range(1, whole + 1), (1, 0), (True, False)):
        if whole % micro_batch == 0:
            yield GridPlan(grid.data, grid.tensor, grid.pipeline, micro_batch, zero, recompute)
