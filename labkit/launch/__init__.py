"""Run a function or a notebook cell on ranks. Importing this does not import torch."""

from labkit.launch.api import launch
from labkit.launch.failure.errors import (
    DeadlockError,
    InfrastructureError,
    JobCancelled,
    JobTimeout,
    LaunchError,
    OutOfMemory,
    RankError,
    RankKilled,
    RankReport,
)
from labkit.launch.job import Job

__all__ = [
    "DeadlockError",
    "InfrastructureError",
    "Job",
    "JobCancelled",
    "JobTimeout",
    "LaunchError",
    "OutOfMemory",
    "RankError",
    "RankKilled",
    "RankReport",
    "launch",
]
