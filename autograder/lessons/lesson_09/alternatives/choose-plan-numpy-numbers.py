import numpy as np


def choose_plan(model: ModelConfig, machines: Machines, batch: int, sequence: int) -> GridPlan:
    gpus, found = machines.nodes * machines.gpus_per_node, []
    for tensor in np.arange(1, machines.gpus_per_node + 1):
        for data in range(1, gpus // tensor + 1):
            if gpus % (data * tensor) or batch % data or machines.gpus_per_node % tensor:
                continue
            for micro_batch in range(1, batch // data + 1):
                if batch % (data * micro_batch) == 0 and gpus // (data * tensor) <= model.num_layers:
                    grid = (data, tensor, gpus // (data * tensor), micro_batch)
                    found += [GridPlan(*grid, *how) for how in product([True, False], repeat=2)]
    costs = np.array([sum(step_seconds(p, model, machines, batch, sequence).values()) for p in found])
    for number in np.argsort(costs):
        if feasible(found[number], model, machines, batch, sequence) == []:
            return found[number]
    raise ValueError("nothing fits")
