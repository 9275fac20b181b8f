"""Bytes inside, labelled outside: every quantity in `labkit.theory` is a plain number of bytes.

A gigabyte (GB) is 10^9 bytes, a gibibyte (GiB) is 2^30 bytes: 7.4% more. Papers and vendors write "GB" for
both, so a number leaves this package only with its own label.
"""

from __future__ import annotations

GB = 10**9
GIB = 2**30

_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def in_gb(num_bytes: float) -> float:
    """Decimal gigabytes: num_bytes / 10^9."""
    return num_bytes / GB


def in_gib(num_bytes: float) -> float:
    """Binary gibibytes: num_bytes / 2^30."""
    return num_bytes / GIB


def _scaled(num_bytes: float, base: int, labels: tuple[str, ...]) -> str:
    value, label = float(num_bytes), labels[0]
    for label in labels:
        if abs(value) < base or label == labels[-1]:
            break
        value /= base
    digits = 0 if label == "B" else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f} {label}"


def decimal_text(num_bytes: float) -> str:
    """`1.12 TB`: the largest decimal unit that keeps the number at 1 or more."""
    return _scaled(num_bytes, 1000, _DECIMAL)


def binary_text(num_bytes: float) -> str:
    """`1,043.1 GiB`: the largest binary unit that keeps the number at 1 or more."""
    return _scaled(num_bytes, 1024, _BINARY)


def bytes_text(num_bytes: float) -> str:
    """Both: `140.0 GB (130.4 GiB)`."""
    return f"{decimal_text(num_bytes)} ({binary_text(num_bytes)})"
