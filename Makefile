# The two commands a fresh machine needs are `make demo` and `make test`; each builds .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check check-slow format clean

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.ready ## run the whole loop on the embedded desk
	$(BIN)/firstchair demo

test: $(VENV)/.ready ## the test suite (PostgreSQL tests need DATABASE_URL or a local `postgres` binary)
	$(BIN)/python -m pytest -n 2 -m "not slow"

check: $(VENV)/.ready ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check-slow: $(VENV)/.ready ## vLLM, a 135M-parameter model, fuzzing: tens of minutes
	$(BIN)/python -m pytest -m slow --timeout 3000

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo-run
