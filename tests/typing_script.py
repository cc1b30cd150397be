"""A user's program, read by a type checker and never run; see `test_typing.py`.

The checker must find the errors where `# error:` stands, and the types after `# is:`.
"""

from typing import reveal_type

import keras

import keras_transformer
from keras_transformer import (
    Adam,
    Corpus,
    DecoderLayer,
    EncoderConfig,
    EncoderLayer,
    EncoderStack,
    ExportedTranslator,
    MaskedAccuracy,
    MaskedCrossentropy,
    MultiHeadAttention,
    RunConfig,
    Transformer,
    TransformerConfig,
    TransformerSchedule,
    Translator,
    causal_mask,
    train,
)

reveal_type(keras_transformer.__version__)  # is: str
print(keras_transformer.Transfomer)  # error: Module has no attribute "Transfomer"

# Layers.
layer = EncoderLayer(num_heads=4, d_ff=128, norm_first=True, name="first")
reveal_type(layer)  # is: EncoderLayer
EncoderLayer(num_heads=4, d_f=128)  # error: Unexpected keyword argument "d_f"
EncoderLayer(4, 128, nam="first")  # error: Unexpected keyword argument "nam"
EncoderLayer(num_heads=4)  # error: Missing positional argument "d_ff"
DecoderLayer(2, d_ff="wide")  # error: Argument "d_ff" to "DecoderLayer"
attention = MultiHeadAttention(2, 16, positions="rotary", activity_regularizer="l2")
reveal_type(attention)  # is: MultiHeadAttention
MultiHeadAttention(2, 16, positions="rotray")  # error: Argument "positions" to
MultiHeadAttention(2, 16, use_gate=True)  # error: Unexpected keyword argument
MultiHeadAttention(2)  # error: Missing positional argument "key_dim"
DecoderLayer(2, 8, attention="lokal")  # error: Argument "attention" to
EncoderLayer(2, 8, attention="ssru")  # error: Unexpected keyword argument "attention"
mask = causal_mask(5)
reveal_type(mask)  # is: Tensor
reveal_type(mask[None] + 1)  # is: Tensor
states = layer.call(mask, mask=mask, training=True)
layer.call(mask, maks=mask)  # error: Unexpected keyword argument "maks"
inputs = keras.Input((None, 32))
outputs = layer(inputs, training=False)

# Models.
config = TransformerConfig(d_model=32, num_heads=2, dropout_rate=0.0)
reveal_type(config.d_model)  # is: int
reveal_type(TransformerConfig.preset("tiny"))  # is: TransformerConfig
TransformerConfig(d_modle=3)  # error: Unexpected keyword argument "d_modle"
TransformerConfig(d_model="wide")  # error: Argument "d_model" to
model = Transformer(config, name="translation")
reveal_type(model)  # is: Transformer
reveal_type(model.config)  # is: TransformerConfig
Transformer(3)  # error: Argument 1 to "Transformer"
EncoderStack(EncoderConfig(num_layers=2), name="stack")
EncoderStack(2)  # error: Argument 1 to "EncoderStack"
rate = TransformerSchedule(d_model=32, warmup_steps=100)
TransformerSchedule(d_model=32, warm_up=100)  # error: Unexpected keyword argument
loss = MaskedCrossentropy(label_smoothing=0.1)
MaskedCrossentropy(smoothing=0.1)  # error: Unexpected keyword argument "smoothing"
model.compile(Adam(rate, beta_2=0.98), loss, metrics=[MaskedAccuracy()])
model.fit([[1, 2]], [[2, 3]], epochs=2)

# From text to a translation.
reveal_type(Corpus)  # is: def
translator = train([("a", "b")], "run", RunConfig(), optimizer=None)
reveal_type(translator)  # is: Translator
train([("a", "b")], "run", epochs=3)  # error: Unexpected keyword argument "epochs"
reveal_type(translator.nbest(["a"])[0][0].text)  # is: str
Translator.load(3)  # error: Argument 1 to "load"
reveal_type(Translator.load("run"))  # is: Translator
reveal_type(translator("a"))  # is: str
reveal_type(translator(["a"]))  # is: list[str]
translator.translat(["a"])  # error: "Translator" has no attribute "translat"
reveal_type(ExportedTranslator("saved_models/de_en/1"))  # is: ExportedTranslator
