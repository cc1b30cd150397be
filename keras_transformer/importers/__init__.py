"""Weights from other systems: their trained translators as ours."""
