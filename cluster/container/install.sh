#!/bin/sh
# Makes the environment in /opt/labkit/.venv. Run as root in a fresh Debian 12, by labkit.def and by the Dockerfile, with
# the repository's files already in /opt/labkit. Needs the network; what it makes does not.
#
# TORCH_INDEX  a package index asked for torch beside the usual one: https://download.pytorch.org/whl/cpu for machines
#              without NVIDIA GPUs, which saves 3 GB, or that of an older CUDA for an older driver
# EXTRAS       what is installed, in the words of pyproject.toml
set -eu

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends ca-certificates python3 python3-venv
rm -rf /var/lib/apt/lists/*

cd /opt/labkit
python3 -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check --no-cache-dir "$@"; }
pip install --quiet -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
pip install --quiet -c constraints.txt -e ".[${EXTRAS:-lab,grade,tensorboard,hub}]"
rm .venv/bin/autograder # a command of the grader's, which is not here
chmod -R a+rX /opt/labkit # whoever runs the image reads it; nobody writes
