from .beam import (
    FIRST_ROOM as FIRST_ROOM,
    beam_search as beam_search,
    reordering as reordering,
)
from .generator import Generator as Generator
from .language_sampler import LanguageSampler as LanguageSampler
from .sampling import sample_tokens as sample_tokens
from .tokens import (
    Constraints as Constraints,
    DecodingResult as DecodingResult,
    SpecialIds as SpecialIds,
    length_penalty as length_penalty,
)
from .translation import (
    Alignment as Alignment,
    Score as Score,
    Sentence as Sentence,
    TextTranslator as TextTranslator,
    Translation as Translation,
)
from .translator import Translator as Translator
