"""Hugging Face Transformers: `MarianMTModel.generate` on PyTorch, random weights."""

from __future__ import annotations

import torch
import transformers
from workload import END_ID, PAD_ID, START_ID, TARGET_LENGTH, Setting, Size, source_ids


class Peer:
    """Generates with keys and values cached; see `worker.Contender`.

    `variant` is the type of weights and arithmetic: float32 or bfloat16.
    """

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}

    def __init__(self, size: Size, variant: str, threads: int, folder: str):
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        model = transformers.MarianMTModel(marian_config(size))
        self._model = model.to(getattr(torch, variant)).eval()
        self._source, self._beam = None, 1

    def prepare(self, setting: Setting):
        """Makes the sentences, as ids."""
        self._source = torch.from_numpy(source_ids(setting.batch)).long()
        self._beam = setting.beam

    @torch.inference_mode()
    def run(self):
        """Generates for all sentences as one batch: ids [B, 1 + T]."""
        return self._model.generate(
            self._source,
            attention_mask=torch.ones_like(self._source),
            do_sample=False,
            num_beams=self._beam,
            min_new_tokens=TARGET_LENGTH,
            max_new_tokens=TARGET_LENGTH,
            use_cache=True,
        )

    def result(self, output) -> list[int]:
        """Tokens decoded for each sentence: none is padding, the start not counted."""
        return (output[:, 1:] != PAD_ID).sum(dim=1).tolist()


def marian_config(size: Size, **options) -> transformers.MarianConfig:
    """Returns the configuration of a model of the sizes.

    Args:
        size: The Transformer's sizes.
        **options: Further options of Marian's.
    """
    return transformers.MarianConfig(
        vocab_size=size.vocabulary_size,
        d_model=size.d_model,
        encoder_layers=size.num_layers,
        decoder_layers=size.num_layers,
        encoder_attention_heads=size.num_heads,
        decoder_attention_heads=size.num_heads,
        encoder_ffn_dim=size.d_ff,
        decoder_ffn_dim=size.d_ff,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD_ID,
        bos_token_id=START_ID,
        eos_token_id=END_ID,
        decoder_start_token_id=START_ID,
        # The default would make the last token the end token.
        forced_eos_token_id=None,
        **options,
    )
