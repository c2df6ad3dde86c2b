# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRACE ?=
OUT ?= perfdoc-report

.PHONY: run test test-all lint install bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

install: $(VENV)/.installed

# Without TRACE a demonstration trace with a known answer is written and analysed.
run: install
ifeq ($(strip $(TRACE)),)
	$(BIN)/perfdoc demo -o demo --force
	$(BIN)/perfdoc analyze demo/demo.sqlite -o $(OUT) --force
else
	$(BIN)/perfdoc analyze $(TRACE) -o $(OUT) --force
endif

lint: install
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
