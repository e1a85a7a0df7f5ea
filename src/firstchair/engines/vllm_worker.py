"""Runs inside vLLM's workers: loads a checkpoint into the model that they serve.

    vllm serve … --worker-extension-cls firstchair.engines.vllm_worker.CheckpointLoader

Imports nothing of ours, so that vLLM's environment needs this package on its path and none of its dependencies.
"""

from __future__ import annotations

from typing import Any


class CheckpointLoader:
    """Becomes a base class of vLLM's worker."""

    model_runner: Any

    def firstchair_load(self, weights_path: str) -> dict[str, int]:
        """Load the model directory ``weights_path`` in place. Returns how many embeddings were prepared anew."""
        self.model_runner.reload_weights(weights_path=weights_path)
        return {"embeddings": prepare_embeddings(self.model_runner.get_model())}


def prepare_embeddings(model: Any) -> int:
    """Have each embedding and output head derive again what it computes with; returns how many there are.

    On a CPU vLLM multiplies by the output head through a packed copy. A head that is tied to the embedding has no
    weights of its own in a checkpoint, so vLLM's reload leaves the copy of the old ones in place.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    layers = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    for layer in layers:
        layer.quant_method.process_weights_after_loading(layer)
    return len(layers)
