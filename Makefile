# make lab     JupyterLab on the lessons            PORT=8888  ROOT=notebooks
# make test    style, types and tests               PYTEST="tests/build -k cli"  WORKERS=3
# make thorough  all that tries the checks and takes long (hours on two cores; goes on where it was), written down when it has passed
# make gpu     all that needs a GPU, tried and measured    PART=tests  OUT=gpu-report
# make bundle-gpu  a folder for a node with GPUs and no network    BUNDLE=gpu-bundle  NODE_PYTHON=3.12
# make versions  tests with the oldest and the newest packages that are supported (20 minutes)    ENDS=lowest
# make wheel   labkit and the lessons as one file, for students and hosted notebooks    WHEEL=dist
# make site    the course as a web site, to read: lessons run once, with their outputs    SITE=build/site  RUN_LESSONS=06
# make env     everything installed, nothing run
#
# PYTHON=... and TORCH_INDEX=... choose what is installed: see lab.mk

WHOLE = .venv/.has-all
include lab.mk

PYTEST =
WORKERS = 4
PART =
OUT = gpu-report
BUNDLE = gpu-bundle
NODE_PYTHON = 3.12
ENDS =
SITE = build/site
WHEEL = dist
RUN_LESSONS =
# How soon a fault is told, and what it leaves behind, is tested when nothing else runs.
QUIET = $(addprefix tests/launch/,test_faults.py test_session.py test_session_interrupted.py test_teardown.py)
BUSY = $(addprefix --ignore=,$(QUIET))

.PHONY: test thorough versions gpu bundle-gpu site wheel

# What failed beside others is tried once more with nobody beside it: on a machine with fewer cores than workers some waits are
# too short. Both tries are told; what fails twice has failed, and a sample drawn at random is drawn alike.
test: .venv/.has-all
	@status=0; export LABKIT_SAMPLE=$$(date +%s); types=$$(mktemp); trap 'rm -f $$types' EXIT; \
	$(RUN) -m ruff check . || status=1; \
	$(RUN) -m mypy >$$types 2>&1 & mypy=$$!; \
	$(RUN) -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(or $(PYTEST),$(BUSY)); first=$$?; \
	if [ $$first = 1 ]; then \
		echo "Once more, alone, what failed:"; \
		$(RUN) -m pytest --last-failed --maxfail 4 $(or $(PYTEST),$(BUSY)); first=$$?; \
	fi; \
	[ $$first = 0 ] || status=1; \
	wait $$mypy || status=1; cat $$types; \
	$(if $(PYTEST),,$(RUN) -m pytest $(QUIET) || status=1;) \
	exit $$status

# Interrupted, it goes on where it was: each part that has passed leaves a file until something it rests on is newer.
RESTS_ON = $(shell git ls-files labkit autograder solutions tests constraints.txt | grep -v survivors.toml)

thorough: $(addprefix build/thorough/,autograder/test_attacks autograder/test_apptainer browser/test_lessons)
	@$(RUN) -m autograder thorough

build/thorough/%: $(RESTS_ON) | .venv/.has-all
	@LABKIT_EVERYTHING=1 LABKIT_REQUIRE=browser,sandbox $(RUN) -m pytest tests/$*.py
	@mkdir -p $(@D) && touch $@

versions: .venv/.python
	@$(RUN) tests/versions.py $(ENDS)

gpu: .venv/.has-all
	@exec $(RUN) -m autograder.gpu --out "$(OUT)" $(addprefix --part ,$(PART))

bundle-gpu: .venv/.has-all
	@exec $(RUN) -m autograder.gpu.bundle "$(BUNDLE)" --python "$(NODE_PYTHON)"

site: .venv/.has-all
	@exec $(RUN) -m autograder.site "$(SITE)" $(addprefix --run ,$(RUN_LESSONS))

wheel: .venv/.has-all
	@exec $(RUN) -m autograder.gradebook.wheel "$(WHEEL)"

.venv/.has-all: pyproject.toml constraints.txt | .venv/.python
	@$(call install,.[lab$(,)grade$(,)tensorboard$(,)hub$(,)site$(,)test])
	@echo "$(CURDIR)" | tee .venv/.has-lab > $@
