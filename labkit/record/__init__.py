"""What the ranks did: communication, time, memory. Importing this does not import torch."""

from labkit.record.current import progress, slow_link, span
from labkit.record.events import Collective, MemoryUse, Span

__all__ = ["Collective", "MemoryUse", "Span", "progress", "slow_link", "span"]
