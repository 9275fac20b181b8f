"""Which plan trains a model fastest on a cluster: memory by stage, step time by term, and a search over both.

from labkit.theory.planning import Cluster, Job, choose
choose(Job(preset("Llama 3 8B"), sequence=8192, batch=512), Cluster.of("h100", nodes=16))
"""

from __future__ import annotations

from labkit.theory.planning.cluster import Cluster as Cluster
from labkit.theory.planning.feasible import feasible as feasible
from labkit.theory.planning.job import Job as Job
from labkit.theory.planning.job import Plan as Plan
from labkit.theory.planning.search import Choice as Choice
from labkit.theory.planning.search import Priced as Priced
from labkit.theory.planning.search import choose as choose
from labkit.theory.planning.search import price as price
from labkit.theory.planning.software import MEGATRON as MEGATRON
from labkit.theory.planning.software import NANOTRON as NANOTRON
from labkit.theory.planning.software import Software as Software
