"""Grids of ranks: a plan of five numbers, the machines it runs on, and what lesson 09 computes about them.

The planner of `labkit plan` (labkit.theory.planning) knows more of both; this is the arithmetic that fits on
a page.
"""

from __future__ import annotations

from labkit.theory.grid.plan import GridPlan as GridPlan
from labkit.theory.grid.plan import Machines as Machines
