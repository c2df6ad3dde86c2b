# Two commands do everything on a fresh machine: `make run` trains a small model and analyses the run, and
# `make test` tests. Both want PyTorch and megatron-core, which constraints.txt pins; `make demo` and
# `make run TRACE=…` do without.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRACE ?=
OUT ?= perfdoc-report

.PHONY: run demo test test-all lint install install-all bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# Apart from the above, because PyTorch is large and reading a trace needs none of it.
$(VENV)/.installed-all: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,train]'
	touch $@

install: $(VENV)/.installed
install-all: $(VENV)/.installed-all

# Without TRACE two ranks train a small model (about a minute) into a new folder under runs/.
ifeq ($(strip $(TRACE)),)
run: install-all
	$(BIN)/perfdoc run tiny
else
run: install
	$(BIN)/perfdoc analyze $(TRACE) -o $(OUT) --force
endif

# A capture with a known answer, beside which it lies as answer.json.
demo: install
	$(BIN)/perfdoc demo -o demo --force
	$(BIN)/perfdoc analyze demo/demo.sqlite -o $(OUT) --force

lint: install-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -m 'not slow'

test-all: lint
	$(BIN)/pytest

bench: install-all
	$(BIN)/python benchmarks/analyze.py
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/range_cost.py

clean:
	rm -rf $(VENV) build dist demo perfdoc-report
