"""Jobs over several nodes of a Slurm cluster: one torch agent a node, under srun, in one shared directory."""
