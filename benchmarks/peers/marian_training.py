"""Hugging Face Transformers: `MarianMTModel` in training mode on PyTorch."""

from __future__ import annotations

import torch
import transformers
from peers.marian_peer import marian_config
from peers.torch_training import TorchPeer
from torch import nn
from training_workload import DROPOUT_RATE
from workload import PAD_ID, Size


class Peer(TorchPeer):
    """Trains Marian; see `TorchPeer`."""

    versions = TorchPeer.versions | {"transformers": transformers.__version__}

    def make_model(self, size: Size, longest: int) -> nn.Module:
        """Returns the model, dropout in all three places."""
        config = marian_config(
            size,
            dropout=DROPOUT_RATE,
            attention_dropout=DROPOUT_RATE,
            activation_dropout=DROPOUT_RATE,
        )
        return Marian(transformers.MarianMTModel(config))


class Marian(nn.Module):
    """Gives the logits alone, so that its loss is everyone's.

    Args:
        model: A `MarianMTModel`.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Gives logits [B, T, V] for ids [B, S] and [B, T]."""
        output = self.model(
            source,
            attention_mask=(source != PAD_ID).long(),
            decoder_input_ids=target_in,
            use_cache=False,
        )
        return output.logits
