"""Clusters run by Slurm: what its commands say, what a site is like, and JupyterLab in a job."""
