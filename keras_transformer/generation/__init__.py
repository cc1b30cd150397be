"""A model and a search together: ids to ids, and strings to strings."""

from keras_transformer.generation.generator import Generator
from keras_transformer.generation.language_sampler import LanguageSampler

__all__ = ["Generator", "LanguageSampler"]
