# Two commands do everything on a fresh machine: `make run` trains a small model with profiling on and analyses
# the run, `make test` checks. Both want PyTorch and megatron-core, which constraints.txt pins; reading a trace
# (`make run TRACE=x.sqlite`, `make demo`) needs neither. Each target installs what it needs and no more.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRACE ?=
OUT ?= perfdoc-report
# Another build of PyTorch than the index's own: `make run TORCH=cpu` takes a tenth of the download.
TORCH ?=

# A program takes up to three times as long where its bytecode is not kept, which some images forbid.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run demo test test-all fuzz lint install install-train install-dev install-all
.PHONY: bench docs pictures site package clean

# Installs what follows it. pip draws its downloads, and is silent while it unpacks, which takes a minute of PyTorch.
# It would compile every module, which takes twice as long as to unpack them; Python compiles the few that are used.
PIP = @echo 'installing into $(VENV): $(@F:.installed%=perfdoc%)'; (while sleep 3; do printf .; done) & beat=$$!; \
	trap 'kill $$beat' EXIT; trap 'exit 130' INT; \
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile
TORCH_VERSION = $(shell sed -n 's/^torch==//p' constraints.txt)

# Written last where an environment is made.
$(BIN)/pip:
	@echo 'making an environment in $(VENV)'; $(PYTHON) -m venv $(VENV)

# In one call each, and PyTorch apart from the rest, because it is large and reading a trace needs none of it.
STAMPS := $(addprefix $(VENV)/.installed,-all -train -dev)
$(VENV)/.installed-train: EXTRAS = [train]
$(VENV)/.installed-dev: EXTRAS = [dev]
$(VENV)/.installed-all: EXTRAS = [dev,train]
$(VENV)/.installed-all: HOLDS = $(STAMPS)

$(VENV)/.installed $(STAMPS): pyproject.toml constraints.txt | $(BIN)/pip
ifneq ($(TORCH),)
	$(if $(findstring train,$(EXTRAS)),$(PIP) torch==$(TORCH_VERSION) --index-url https://download.pytorch.org/whl/$(TORCH))
endif
	$(PIP) -c constraints.txt -e '.$(EXTRAS)'
	@touch $@ $(HOLDS) $(VENV)/.installed

install: $(VENV)/.installed
install-train: $(VENV)/.installed-train
install-dev: $(VENV)/.installed-dev
install-all: $(VENV)/.installed-all

ifeq ($(strip $(TRACE)),)
# Each run gets a directory of its own under runs/, and prints its report's path last.
run: install-train
	$(BIN)/perfdoc run tiny
else
run: install
	$(BIN)/perfdoc analyze $(TRACE) -o $(OUT) --force
endif

# A synthetic trace whose answer is known.
demo: install
	$(BIN)/perfdoc demo -o demo --force
	$(BIN)/perfdoc analyze demo/traces --config demo/job.yaml -o $(OUT) --force

lint: install-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pip check

# Files of tests on as many processes. Some tests start processes of their own, so that more gain little.
WORKERS ?= 2

# The slow tests as well, and several times as many random cases as `make test` draws.
test: WHICH = -m 'not slow'
test-all: export PERFDOC_TESTS = all

# Lint runs beside the tests, and what it said comes after theirs. Either fails the target.
test test-all: install-all
	@said=$$(mktemp); $(MAKE) --no-print-directory lint >$$said 2>&1 & lint=$$!; \
	trap 'kill $$lint 2>/dev/null; rm -f $$said' EXIT; trap 'exit 130' INT; \
	$(BIN)/pytest -n $(WORKERS) --dist loadfile $(WHICH); tests=$$?; \
	wait $$lint; linted=$$?; cat $$said; exit $$((tests ? tests : linted))

# Damaged inputs of every kind, for so long; what is found goes to FOUND. docs/security.md keeps the record.
MINUTES ?= 10
FIRST ?= 0
FOUND ?= fuzz-found.jsonl
fuzz: install-dev
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --first $(FIRST) --file $(FOUND)

# What is made from the program's own files: the rules' pages, the schemas of what it writes, the screens that README
# and the tutorial show. Tests fail where they are stale.
docs: install-dev
	$(BIN)/python -m tests.rules.examples docs/rules/examples.json
	$(BIN)/python -m perfdoc.rules.engine.pages docs/rules
	$(BIN)/perfdoc schema diagnosis > results/diagnosis.schema.json
	$(BIN)/perfdoc schema diff > src/perfdoc/compare/diff/diff.schema.json
	$(BIN)/perfdoc schema tune > src/perfdoc/tune/tune.schema.json
	$(BIN)/python -m tests.results.published
	COLUMNS=80 $(BIN)/python -m tests.shown_screens

# The pictures of README and docs, with a headless Chromium. Takes minutes; not part of `docs`.
pictures: install-dev
	$(BIN)/python docs/pictures.py

# The pages as a site, in site/. Warnings are errors; a test builds it as well.
site: install-dev
	$(BIN)/mkdocs build --strict --quiet

# What an index takes, in dist/, checked.
package: install-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

bench: install-all
	$(BIN)/python benchmarks/analyze.py
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/range_cost.py
	$(BIN)/python benchmarks/mark_cost.py

clean:
	rm -rf $(VENV) build dist site demo perfdoc-report
