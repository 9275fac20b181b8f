"""What this node can do, proved by running it: `labkit doctor --prove`, and the parts of `make gpu`.

A part is one question (do ranks start, which collectives work, how fast is memory). It runs in a process of
its own, with a deadline, and each result is on disk as soon as it is there.
"""
