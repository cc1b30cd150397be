"""Spoken digits: labels of frames, and classification of voices.

A frame of 10 ms is a vector of 40 mel bands. A tagger labels each frame (silence or a
digit) of new voices; with --task voice a classifier names the voice, at a new speed.
The baseline is logistic regression. Needs espeak-ng.
"""

import argparse
import shutil
import subprocess
import keras_transformer.quiet

import keras
import numpy as np
from local_attention import LocalAttention
from sklearn.linear_model import LogisticRegression

import keras_transformer as kt

STEP, BANDS = 220, 40  # Samples a frame, of 22,050 a second; mel bands.
WINDOW = 25  # Frames on each side that attention sees.
VOICES = "en+m1 en+m2 en+m3 en+m4 en+f1 en+f2 en+f3 en+f4 en-us+m7 en-us+f5".split()


def spoken(digit, voice, speed):
    """Returns the samples of a digit said at `speed` words a minute, in [-1, 1]."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", str(digit)]
    sound = subprocess.run(command, capture_output=True, check=True).stdout[44:]
    sound = np.frombuffer(sound, "<i2", count=len(sound) // 2) / 32768
    return np.trim_zeros(np.where(np.abs(sound) > 0.01, sound, 0))


def log_mel(samples):
    """Returns frames (T, 40) of order 1, from windows of 46 ms."""
    starts = np.arange(0, len(samples) - 1024, STEP)[:, None]
    windows = samples[starts + np.arange(1024)] * np.hanning(1024)
    edges = 700 * (np.geomspace(1, 1 + 8000 / 700, BANDS + 2) - 1)  # Hz.
    slopes = np.fft.rfftfreq(1024, 1 / 22050)[:, None] - edges
    widths = np.diff(edges)
    rise, fall = slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    power = np.abs(np.fft.rfft(windows)) ** 2 @ np.maximum(np.minimum(rise, -fall), 0)
    return (np.log(power + 1e-3) / 4).astype("float32")


def record(count, voices, speeds, speak, seed):
    """Returns frames (N, T, 40), tags (N, T) and voices (N, 1); tag 1 is silence."""
    rng, cache, frames, tags = np.random.default_rng(seed), {}, [], []
    for voice in np.arange(count) % len(voices):
        sound, labels, speed = [np.zeros(2000)], [np.ones(2000)], rng.choice(speeds)
        for digit in rng.integers(10, size=4):
            key = int(digit), voices[voice], int(speed)
            cache[key] = cache[key] if key in cache else speak(*key)
            sound += [cache[key], np.zeros(rng.integers(500, 4000))]
            labels += [np.full(len(sound[-2]), 2 + digit), np.ones(len(sound[-1]))]
        sound = np.concatenate(sound)
        frames.append(log_mel(sound + rng.normal(0, 0.003, len(sound))))
        tags.append(np.concatenate(labels)[512::STEP][: len(frames[-1])])
    pad = {"padding": "post", "dtype": "float32"}
    frames, tags = (keras.utils.pad_sequences(rows, **pad) for rows in (frames, tags))
    return frames, tags.astype("int32"), 1 + np.arange(count)[:, None] % len(voices)


def make_model(
    config,
    num_classes,
    per_frame=True,
    stack=kt.EncoderStack,
    positions=kt.PositionalEncoding,
):
    """Returns a model from frames (B, T, F), zeros for padding, to logits.

    The logits are (B, T, classes), or (B, classes) with one class for all frames.
    """
    frames = keras.Input((None, BANDS), name="frames")
    states = keras.layers.Masking()(frames)  # Every later layer sees the mask.
    states = keras.layers.Dense(config.d_model)(states)
    states = positions(dropout_rate=config.dropout_rate)(states)
    states = stack(config, name="stack")(states)
    if not per_frame:
        states = keras.layers.GlobalAveragePooling1D()(states)
    states = kt.layers.Dropout(config.dropout_rate)(states)
    logits = keras.layers.Dense(num_classes, name="logits")(states)
    return kt.ExactModel(frames, logits)


class LocalLayer(kt.EncoderLayer):
    def make_attention(self, name, d_model):
        sizes = self.num_heads, d_model // self.num_heads
        return LocalAttention(*sizes, WINDOW, dtype=self.dtype_policy, name=name)


class LocalStack(kt.EncoderStack):
    def make_encoder_layer(self, name):
        return LocalLayer(**self.config.layer_options(), name=name)


def main(arguments=None, speak=spoken):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=("digits", "voice"), default="digits")
    for name, default in {"recordings": 400, "epochs": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    if speak is spoken and not shutil.which("espeak-ng"):
        raise SystemExit("espeak-ng must be installed: apt-get install espeak-ng")
    keras.utils.set_random_seed(1)
    is_digits = options.task == "digits"
    new = (VOICES[8:], (130, 190)) if is_digits else (VOICES[:8], (160,))
    x, *y = record(options.recordings, VOICES[:8], (130, 190), speak, 1)
    new_x, *new_y = record(options.recordings // 4, *new, speak, 2)
    y, new_y = (tags if is_digits else who for tags, who in (y, new_y))
    sizes = dict(num_layers=2, d_model=64, d_ff=128, num_heads=4, norm_first=True)
    config = kt.EncoderConfig(**sizes)
    classes = 12 if is_digits else 9
    model = make_model(config, classes, is_digits, LocalStack)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.002), loss, jit_compile=False)
    model.fit(x, y, batch_size=16, epochs=options.epochs, verbose=2)
    found = np.argmax(model.predict(new_x, verbose=0), axis=-1).reshape(new_y.shape)
    accuracy = np.mean((found == new_y)[new_y > 0])
    flat, new_flat = (a if is_digits else a.mean(1, keepdims=True) for a in (x, new_x))
    alone = LogisticRegression(max_iter=1000)
    alone.fit(flat[y > 0][:5000], y[y > 0][:5000])
    baseline = alone.score(new_flat[new_y > 0], new_y[new_y > 0])
    print(f"right: {accuracy:.1%}; logistic regression: {baseline:.1%}")
    return accuracy, baseline


if __name__ == "__main__":
    main()
