# Two commands do everything on a fresh machine: `make run` and `make test`. The tests want PyTorch and
# megatron-core too, which constraints.txt pins; `make train` trains the small model and analyses the run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRACE ?=
OUT ?= perfdoc-report

.PHONY: run train test test-all lint install install-all bench clean

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

# Without TRACE a demonstration trace with a known answer is written and analysed.
run: install
ifeq ($(strip $(TRACE)),)
	$(BIN)/perfdoc demo -o demo --force
	$(BIN)/perfdoc analyze demo/demo.sqlite -o $(OUT) --force
else
	$(BIN)/perfdoc analyze $(TRACE) -o $(OUT) --force
endif

train: install-all
	$(BIN)/perfdoc run tiny

lint: install-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -m 'not slow'

test-all: lint
	$(BIN)/pytest

bench: install
	$(BIN)/python benchmarks/analyze.py

clean:
	rm -rf $(VENV) build dist demo perfdoc-report
