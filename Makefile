# make run        set up .venv and sweep replay designs in the simulator (ARGS="--smoke" for a quick one)
# make test       set up .venv and run the tests (8 minutes on 2 cores)
# make test-full  the same with the stated sizes, log in docs/checks/
# make bench      simulator speed beside NumPy, numba and flashbax
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# A file's tests stay together: they share what they compile.
SPREAD := --numprocesses auto --maxprocesses 8 --dist loadfile

.PHONY: run test test-full bench
run: $(VENV)/.installed
	$(PY) -m sim.sweep $(ARGS)

test: $(VENV)/.installed
	$(PY) -m pytest $(SPREAD) $(ARGS)

test-full: $(VENV)/.installed
	mkdir -p docs/checks
	set -o pipefail; $(PY) -m pytest $(SPREAD) -m "" --durations=15 $(ARGS) 2>&1 | tee docs/checks/test-full.log

bench: $(VENV)/.installed
	$(INSTALL) --editable '.[benchmarks]'
	$(PY) benchmarks/sim_speed.py $(ARGS)

SHELL := /bin/bash
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[sim,cluster,llm,tasks,study,dev]'
	touch $@
