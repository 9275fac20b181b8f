"""GPUs: the memory their driver reports, and their dense peak rates.

Data sheets print rates with 2:4 sparsity beside (or instead of) dense ones, twice as high: a utilisation is a
fraction of the dense peak. They also print "80 GB" for 80 GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class GPU:
    """memory: bytes in all, as nvidia-smi reports them. dense_bf16, sparse_bf16: peak FLOP/s."""

    name: str
    memory: int
    dense_bf16: float

    @property
    def sparse_bf16(self) -> float:
        """The rate with 2:4 structured sparsity, which training does not use."""
        return 2 * self.dense_bf16


_ALL = (
    GPU("A100 40 GB", 40_960 * MIB, 312e12),
    # CINECA's own part ("custom Ampere A100 GPU 64 GB", leonardo-supercomputer.cineca.eu/hpc-system) has 124
    # multiprocessors (arXiv 2307.16885) where the A100 on sale has 108, at the same clock
    GPU("A100 64 GB (Leonardo)", 65_536 * MIB, 312e12 * 124 / 108),
    GPU("A100 80 GB", 81_920 * MIB, 312e12),
    GPU("H100 80 GB", 81_559 * MIB, 989e12),
    GPU("H200 141 GB", 143_771 * MIB, 989e12),
    GPU("B200 180 GB", 183_359 * MIB, 2250e12),
)

GPUS: dict[str, GPU] = {gpu.name: gpu for gpu in _ALL}
