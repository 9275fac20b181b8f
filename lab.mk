# The environment in .venv (`make env`), and `make lab`. It is all of the Makefile that students have.
#
# PYTHON=...       the interpreter to use (3.11 or newer); found when not given
# TORCH_INDEX=...  a package index asked for torch beside the usual one; empty for none. Found when not given: on Linux
#                  without an NVIDIA driver it is PyTorch's CPU index if it answers, which saves 3 GB of CUDA packages.

SHELL = /bin/sh
PORT = 8888
ROOT = notebooks
RUN = .venv/bin/python
WHOLE ?= .venv/.has-lab
CPU_INDEX = https://download.pytorch.org/whl/cpu

.PHONY: lab env clean

lab: .venv/.has-lab
	@exec $(RUN) -m labkit.cli lab --port "$(PORT)" --root "$(ROOT)"

env: $(WHOLE)

clean:
	rm -rf .venv

# Two sets of packages: what a student needs, and everything, which has the first in it. The stamps hold the folder
# they were made in, because an environment does not survive being moved, nor the loss of its interpreter.
$(shell test -x .venv/bin/python || rm -f .venv/.python .venv/.has-lab)
$(shell grep -qsxF "$(CURDIR)" .venv/.has-lab || rm -f .venv/.has-lab .venv/.has-all)

.venv/.has-lab: pyproject.toml constraints.txt | .venv/.python
	@$(call install,.[lab])
	@echo "$(CURDIR)" > $@

# pip compiles on one core; some packages have files that no Python 3 compiles, which harms nothing. A sandbox cannot
# write what it compiles of our own.
, := ,
define install
set -e; index="$(TORCH_INDEX)"; \
if [ "$(origin TORCH_INDEX)" = undefined ] && [ "$$(uname -s)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1; then \
	if $(RUN) -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=5)' $(CPU_INDEX)/torch/ 2>/dev/null; \
	then index=$(CPU_INDEX); fi; \
fi; \
echo "Installing $(1) into .venv (about a minute)$${index:+, torch from $$index}"; \
pip="$(RUN) -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt"; \
$$pip $${index:+--extra-index-url "$$index"} torch; \
$$pip -e "$(1)"; \
$(RUN) -m compileall -qq -j 0 .venv/lib $(wildcard labkit autograder) || true
endef

.venv/.python:
	@if $(RUN) -m pip --version >/dev/null 2>&1; then touch $@; exit 0; fi; \
	found=; \
	for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14 python); do \
		says=$$("$$candidate" -c 'import sys, venv, ensurepip; \
			print("ok" if sys.version_info >= (3, 11) else "is " + sys.version.split()[0])' 2>&1 | tail -n 1); \
		if [ "$$says" = ok ]; then "$$candidate" -m venv --clear .venv && touch $@; exit; fi; \
		found="$$found\n  $$candidate: $$says"; \
	done; \
	printf 'Expected Python 3.11 or newer with venv (Debian: apt-get install python3-venv). Found:%b\n' "$$found" >&2; \
	echo 'Give one with PYTHON=/path/to/python3' >&2; exit 1
