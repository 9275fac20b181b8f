"""What each exercise of lesson 03 must show: replicas, gradients, buckets, overlap, tokens."""

from labkit.checks.lesson_03 import accumulation, buckets, indices, overlap, replicas, tokens

EXERCISES = [
    indices.EXERCISE,
    replicas.BROADCAST,
    replicas.AVERAGE,
    buckets.EXERCISE,
    overlap.EXERCISE,
    accumulation.EXERCISE,
    tokens.EXERCISE,
]
