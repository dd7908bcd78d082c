# make demo and make test work on a fresh machine: Python >= 3.10 (PYTHON=...) and a C compiler.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: demo test test-long lint types bench clean

demo: $(VENV)/.has-demo
	$(RUN) -m tilegrad demo

test: lint types
	$(RUN) -m pytest -n 2 --dist loadfile

test-long: $(VENV)/.has-long
	$(RUN) -m pytest -m long --timeout 3600

lint: $(VENV)/.has-test
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/.has-test
	$(RUN) -m mypy

bench: $(VENV)/.has-test
	$(RUN) -m benchmarks.train_step --model mlp --json

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# One stamp a set of extras; a changed pyproject.toml installs again.
$(VENV)/.has-test: EXTRAS = test,torch,demo
$(VENV)/.has-long: EXTRAS = test,torch,demo,minilm
$(VENV)/.has-demo: EXTRAS = demo
$(VENV)/.has-%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("tilegrad needs Python 3.10 or newer: make PYTHON=/path/to/python3" if sys.version_info < (3, 10) else 0)'
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV)
	$(RUN) -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@
