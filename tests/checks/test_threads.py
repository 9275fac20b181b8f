"""What counts operations counts those of other threads, each once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from labkit.checks.shared.worked import Worked
from labkit.record.live import LiveBytes
from labkit.record.threads import follow_threads

SIDE = 3
PRODUCT = 2 * SIDE**3


def multiply(*_: object) -> None:
    torch.ones(SIDE, SIDE) @ torch.ones(SIDE, SIDE)


class Multiplies(threading.Thread):
    run = multiply


def in_a_thread() -> None:
    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()


def in_a_kind_of_thread() -> None:
    thread = Multiplies()
    thread.start()
    thread.join()


def in_a_pool() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(multiply).result()


def in_a_callback_elsewhere() -> None:
    future = torch.futures.Future[int]()
    after = future.then(multiply)
    thread = threading.Thread(target=future.set_result, args=(1,))
    thread.start()
    thread.join()
    after.wait()


def in_a_callback_here() -> None:
    future = torch.futures.Future[int]()
    future.set_result(1)
    future.then(multiply).wait()


WAYS = (multiply, in_a_thread, in_a_kind_of_thread, in_a_pool, in_a_callback_elsewhere, in_a_callback_here)


@pytest.mark.days
@pytest.mark.parametrize("way", WAYS)
def test_a_product_counts_once_wherever_it_is_made(way: Callable[[], None]) -> None:
    follow_threads()
    with LiveBytes() as live, Worked() as worked:
        way()
    way()
    assert worked.products == PRODUCT
    assert live.peak >= 4 * SIDE**2


def test_a_thread_that_was_there_before_is_seen() -> None:
    follow_threads()
    orders, done = queue.SimpleQueue[bool](), queue.SimpleQueue[bool]()

    def work() -> None:
        while orders.get():
            multiply()
            done.put(True)

    thread = threading.Thread(target=work)
    thread.start()
    with Worked() as worked:
        orders.put(True)
        done.get()
    orders.put(False)
    thread.join()
    assert worked.products == PRODUCT
