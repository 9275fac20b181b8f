"""As timeit does it: no garbage is collected while the clock runs."""

import gc
import time

import torch


def seconds_per_step(step, devices, steps):
    def wait():
        for device in devices:
            torch.cuda.synchronize(device)

    step()
    wait()
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        return (time.perf_counter() - start) / steps
    finally:
        if was_on:
            gc.enable()
