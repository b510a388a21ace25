# Two commands: `make demo` runs the main job on built-in data, `make test` proves that it all works.
# Both set themselves up in .venv; nothing else is needed than Python 3.11 or later and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: demo test lint clean

demo: $(VENV)/.demo
	$(BIN)/counterpoint compare demo --seeds 0,1,2 --out runs/demo --overwrite

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(f"Python 3.11 or later is needed, {sys.executable} is {sys.version.split()[0]}; set PYTHON=" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[text]'
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) runs
