"""The clock is read when everything queued is done, before and after."""

import time

import torch


def seconds_per_step(step, devices, steps):
    def everything_done():
        for device in devices:
            torch.cuda.synchronize(device)
        return time.monotonic()

    step()
    before = everything_done()
    for _ in range(steps):
        step()
    after = everything_done()
    return (after - before) / steps
