# Everything a newcomer needs; only python3 (3.11 or newer) and make have to be there.
#
#   make serve   set up once, then start the server: works without network from the second time on;
#                flags go into SERVE_ARGS: make serve SERVE_ARGS="--port 9000"
#   make test    the tests
#   make check   all gates: format, lint, types, tests, docs, bench smoke
#   make bench   the benchmarks in bench/
#   make conformance   judges that are not ours, Node.js ones included (see conformance/README.md)
#   make clean   remove what the above made (your data folder stays)

PYTHON ?= python3
VENV ?= .venv
SERVE_ARGS ?=
TEST_ARGS ?=
# Tests run in this many processes, a file in one of them; TEST_WORKERS=0 runs them in order, as debuggers need it.
TEST_WORKERS ?= 2

BIN := $(VENV)/bin
PY := $(BIN)/python
# The stamps say which declaration an environment was made from; a changed pyproject.toml makes it again.
VENV_STAMP := $(VENV)/.treadle-venv
SERVE_STAMP := $(VENV)/.treadle-serve
TEST_STAMP := $(VENV)/.treadle-test
DEV_STAMP := $(VENV)/.treadle-dev

.DEFAULT_GOAL := help
.PHONY: help serve setup test check format lint types bench bench-smoke conformance wheel clean
# Steps share one environment, so they run one after the other.
.NOTPARALLEL:

help:
	@sed -n 's/^#   //p' Makefile

$(VENV_STAMP): scripts/make_venv.py
	@$(PYTHON) scripts/make_venv.py $(VENV)
	@touch $@

$(SERVE_STAMP): $(VENV_STAMP) pyproject.toml
	@$(PY) scripts/install.py '.[knowledge,local]'
	@$(BIN)/treadle setup --from-make
	@touch $@

$(TEST_STAMP): $(VENV_STAMP) pyproject.toml
	@$(PY) scripts/install.py '.[knowledge,local,test]'
	@$(BIN)/treadle setup --from-make
	@touch $@

$(DEV_STAMP): $(TEST_STAMP) pyproject.toml
	@$(PY) scripts/install.py '.[dev]'
	@touch $@

setup: $(SERVE_STAMP)

serve: $(SERVE_STAMP)
	@$(BIN)/treadle go --from-make $(SERVE_ARGS)

test: $(TEST_STAMP)
	$(PY) -m pytest -n $(TEST_WORKERS) --dist loadfile $(TEST_ARGS)

format: $(DEV_STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(DEV_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV_STAMP)
	$(BIN)/mypy

# Docs checks, the import table and the size ratchet are tests, so they run here.
check: lint types test bench-smoke

bench-smoke: $(TEST_STAMP)
	$(PY) bench/smoke.py

conformance: $(TEST_STAMP)
	conformance/all.sh

bench: $(TEST_STAMP)
	$(PY) bench/run.py

wheel: $(DEV_STAMP)
	$(PY) -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
