# make demo and make test work on a fresh machine: Python >= 3.10 (PYTHON=...) and a C compiler.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: demo test test-long lint types qemu bench clean

demo: $(VENV)/.has-demo
	$(RUN) -m tilegrad demo

test: lint types qemu
	$(RUN) -m pytest -n 2 --dist loadfile

test-long: $(VENV)/.has-long qemu
	$(RUN) -m pytest -m long --timeout 3600

lint: $(VENV)/.has-test
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/.has-test
	$(RUN) -m mypy

# Tests of other machines need these; installed where this user may without being asked for a password.
qemu:
	@missing=; for c in qemu-aarch64 aarch64-linux-gnu-gcc riscv64-linux-gnu-gcc; do command -v $$c >/dev/null || missing=1; done; \
	test -z "$$missing" || { \
	  test "$$(id -u)" = 0 || sudo='sudo -n'; \
	  $$sudo apt-get install -qq -y qemu-user gcc-aarch64-linux-gnu gcc-riscv64-linux-gnu >/dev/null 2>&1 || \
	  echo "qemu-user and gcc-aarch64-linux-gnu are not here and cannot be installed: tests of other machines are skipped"; }

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
