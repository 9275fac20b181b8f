"""Wrong answers to lesson 03: communication during backward. Ids with D or P and a number name a row of the
list of known mistakes.
"""

from __future__ import annotations

from autograder.mutants import Mutant

OVERLAP = "03.overlapped-data-parallel"

OF_OVERLAP = [
    Mutant(
        "D16-not-waited",
        OVERLAP,
        (
            "gradients",
            "trained-weights",
        ),
        "        for handle in self.started:\n            handle.wait()\n",
        (
            "        for parameter in self.module.parameters():\n"
            "            parameter.grad = parameter.grad.clone()\n"
        ),
        "taken before the sum is there",
    ),
    Mutant(
        "D1-sum-in-buckets",
        OVERLAP,
        (
            "gradients",
            "trained-weights",
            "no-sync",
        ),
        "torch.mul(parameter.grad, 1 / dist.get_world_size(self.group), out=place)",
        "place.copy_(parameter.grad)",
        "the sum, not divided",
    ),
    Mutant(
        "D4-no-broadcast",
        OVERLAP,
        (
            "replicas",
            "gradients",
        ),
        "        broadcast_module(module, group)\n",
        "",
        "replicas start apart",
    ),
    Mutant(
        "blocking",
        OVERLAP,
        ("overlap",),
        "self.started.append(dist.all_reduce(self.flats[number], group=self.group, async_op=True))",
        (
            "work = dist.all_reduce(self.flats[number], group=self.group, async_op=True)\n"
            "        work.wait()\n"
            "        self.started.append(work)"
        ),
        "each bucket is waited for at once",
    ),
    Mutant(
        "after-backward",
        OVERLAP,
        ("overlap",),
        (
            "            while len(self.started) < len(self.buckets) and "
            "not self.missing[len(self.started)]:\n"
            "                self._start_next()\n"
        ),
        "",
        "all buckets after backward",
    ),
    Mutant(
        "one-bucket",
        OVERLAP,
        (
            "all-reduces",
            "overlap",
        ),
        "assign_buckets(parameters, bucket_bytes)",
        "assign_buckets(parameters, 2**60)",
        "one bucket: nothing can start early",
    ),
    Mutant(
        "D18-elements-as-bytes",
        OVERLAP,
        ("all-reduces",),
        "assign_buckets(parameters, bucket_bytes)",
        "assign_buckets(parameters, bucket_bytes * 8)",
        "elements taken for bytes",
    ),
    Mutant(
        "one-each-parameter",
        OVERLAP,
        ("all-reduces",),
        "assign_buckets(parameters, bucket_bytes)",
        "assign_buckets(parameters, 1)",
        "one all_reduce a parameter",
    ),
    Mutant(
        "sent-twice",
        OVERLAP,
        ("all-reduces",),
        "        self.started.append(dist",
        (
            "        dist.all_reduce(self.flats[number].clone(), group=self.group)\n"
            "        self.started.append(dist"
        ),
        "the bytes go around twice",
    ),
    Mutant(
        "not-reset",
        OVERLAP,
        (
            "gradients",
            "trained-weights",
        ),
        "            handle.wait()\n        self._reset()\n",
        "            handle.wait()\n        self.callback_queued = False\n",
        "counters of the first backward stay",
    ),
    Mutant(
        "views-of-a-bucket-not-sent",
        OVERLAP,
        (
            "gradients",
            "trained-weights",
        ),
        "        for parameter in self.buckets[number]:\n"
        "            parameter.grad = self.places[parameter]  # no copy back: the mean arrives here\n",
        "",
        "the mean arrives in the bucket, and the gradients stay this rank's own",
    ),
    Mutant(
        "stale-bucket-for-unused",
        OVERLAP,
        ("unused-parameter",),
        "            place.zero_()\n",
        "            pass\n",
        "an unused parameter sends what its bucket held from the step before",
    ),
    Mutant(
        "D10-no-finally",
        OVERLAP,
        ("no-sync",),
        ("        try:\n            yield\n        finally:\n            self.sync = before\n"),
        ("        yield\n        self.sync = before\n"),
        "an exception leaves sync off",
    ),
    Mutant(
        "no-sync-ignored",
        OVERLAP,
        ("no-sync",),
        ("            if not self.sync:\n                return\n"),
        "",
        "sent inside no_sync too",
    ),
    Mutant(
        "always-silent",
        OVERLAP,
        (
            "gradients",
            "all-reduces",
            "no-sync",
        ),
        "        self.sync = True\n",
        "        self.sync = False\n",
        "nothing is ever sent",
    ),
    Mutant(
        "D14-waits-for-unused",
        OVERLAP,
        ("unused-parameter",),
        ("        while len(self.started) < len(self.buckets):\n            self._start_next()\n"),
        "",
        "buckets that do not fill are never sent",
    ),
    Mutant(
        "order-of-filling",
        OVERLAP,
        ("unused-parameter",),
        (
            "            while len(self.started) < len(self.buckets) and "
            "not self.missing[len(self.started)]:\n"
            "                self._start_next()\n"
        ),
        (
            "            if not self.missing[number]:\n"
            "                turn = len(self.started)\n"
            "                for kept in (self.buckets, self.flats):\n"
            "                    kept[turn], kept[number] = kept[number], kept[turn]\n"
            "                self._start_next()\n"
        ),
        "buckets start as they fill, in an order of each rank's own",
    ),
    Mutant(
        "D13-offsets",
        OVERLAP,
        ("gradients",),
        "flat.split([p.numel() for p in bucket])",
        (
            "[flat[i : i + p.numel()] if i + p.numel() <= flat.numel() else flat[-p.numel() :] for "
            "i, p in enumerate(bucket)]"
        ),
        "offsets count parameters",
    ),
    Mutant(
        "world-in-buckets",
        OVERLAP,
        ("subgroup",),
        "dist.all_reduce(self.flats[number], group=self.group, async_op=True)",
        "dist.all_reduce(self.flats[number], async_op=True)",
        "over all ranks of the job",
    ),
]
