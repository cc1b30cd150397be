"""A model and a search together: ids to ids, and strings to strings."""

from keras_transformer.generation.generator import Generator, LanguageSampler

__all__ = ["Generator", "LanguageSampler"]
