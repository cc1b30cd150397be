"""`compile` and `fit` with exact gradients."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.config import TrainingConfig
from keras_transformer.models import jax_step, tensorflow_step, torch_step
from keras_transformer.models.batch_step import UpdateState, needs_logits
from keras_transformer.nn.kernels.execution import num_replicas
from keras_transformer.nn.kernels.keras_private import (
    BuildsFromSpec,
    compiled_metrics,
    inner_optimizer,
)

_STEPS = {"tensorflow": tensorflow_step, "jax": jax_step, "torch": torch_step}[
    keras.config.backend()
]
# Batches between checks for a bad one, because a check waits for the device.
_LOOK_EVERY = 16


class ExactTraining(BuildsFromSpec):
    """Mixin, before `keras.Model`, for exact accumulation, replicas and clipping.

    One weight update follows the gradient of the mean loss over all target tokens, of
    all replicas and accumulated batches, and clips it as a whole.
    `optimizer.iterations`, and so the learning-rate schedule, counts updates. The
    `loss` in the logs is the mean over all tokens of the epoch.

    A batch without targets, or with a loss or gradient that is not finite, changes
    neither weights nor moments. In float16, an overflow of the scaled loss only halves
    the scale.

    Attributes:
        target_pad_id: Id that pads the targets, or `None`; losses and metrics must have
            the same `pad_id`.
        trains_without_logits: Whether the logits are `model(x, return_states=True)`
            times the transpose of `model.output_rows()` (V, D), plus `output_bias` (V,)
            if it is not `None`. Training then never holds all logits, if the loss is
            `MaskedCrossentropy` and every metric `MaskedAccuracy` or `Perplexity`. A
            subclass that overrides `call`, `logits`, `output_rows`, `compute_loss` or
            `compute_metrics` trains with the logits, unless it says True again.
    """

    target_pad_id = output_bias = _update = None
    trains_without_logits = False
    _needs_logits = True  # set by `compile`
    train_step = _STEPS.train_step
    test_step = _STEPS.test_step

    def compile(self, *args, gradient_accumulation_steps=1, nonfinite="stop", **kwargs):
        """As `keras.Model.compile`, with the options of exact training.

        Args:
            *args: See `keras.Model.compile`.
            gradient_accumulation_steps: Batches per update; an update may span epochs.
            nonfinite: Action if a loss or gradient is not finite: "stop" ends `fit`
                with an error, "skip" only counts the batch. `fit` checks every 16
                batches and applies none after a bad one.
            **kwargs: See `keras.Model.compile`.

        Raises:
            TypeError, ValueError: If an option is out of range, the optimizer
                accumulates, or a loss or metric has another `pad_id` than the model.
        """
        steps = gradient_accumulation_steps
        # Made for its checks.
        TrainingConfig(gradient_accumulation_steps=steps, nonfinite=nonfinite)
        self.gradient_accumulation_steps = steps
        self.nonfinite = nonfinite
        if steps > 1 and not self.built:
            raise ValueError(
                "With `gradient_accumulation_steps` a model must have weights: call "
                f"`build` first. Received: gradient_accumulation_steps={steps}"
            )
        super().compile(*args, **kwargs)
        given = inner_optimizer(self.optimizer).gradient_accumulation_steps
        if given:
            raise ValueError(
                "Give `gradient_accumulation_steps` to `compile`: the optimizer's is a "
                f"mean of means. Received: gradient_accumulation_steps={given}"
            )
        for part in [*keras.tree.flatten(self.loss), *compiled_metrics(self)]:
            ours = self.target_pad_id
            theirs = getattr(part, "pad_id", None)
            if None not in (ours, theirs) and ours != theirs:
                raise ValueError(
                    f"`pad_id` of losses and metrics must be the model's, {ours}. "
                    f"Received: {type(part).__name__}(pad_id={theirs})"
                )
        self._needs_logits = needs_logits(self)
        self._update = UpdateState(
            self.optimizer, self.trainable_weights, steps, stops=nonfinite == "stop"
        )

    def get_compile_config(self):
        """As `keras.Model.get_compile_config`, with these options."""
        names = "gradient_accumulation_steps", "nonfinite"
        config = super().get_compile_config()
        return config and config | {name: getattr(self, name) for name in names}

    def compile_from_config(self, config):
        """As `keras.Model.compile_from_config`."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def variables(self):
        """All variables; those of training are not saved."""
        return super().variables + getattr(self._update, "variables", [])

    @property
    def updates(self):
        """Updates made."""
        return 0 if self._update is None else self._read(self.optimizer.iterations)

    @property
    def nonfinite_batches(self):
        """Bad batches so far."""
        return 0 if self._update is None else self._read(self._update.nonfinite_batches)

    @property
    def held_batches(self):
        """Batches from this `fit`'s bad one on."""
        return 0 if self._update is None else self._read(self._update.held)

    @property
    def accumulated_batches(self):
        """Batches since the last update."""
        return 0 if self._update is None else self._read(self._update.batches)

    def _read(self, counter):
        """Returns a variable that counts, from the device."""
        self.sync_variables()
        return int(ops.convert_to_numpy(counter))

    def sync_variables(self):
        """Updates all variables; needed within `fit` on JAX only."""
        if keras.config.backend() == "jax":
            self.jax_state_sync()

    def loss_divisor(self, y):
        """Returns the number of targets `y` that count, a float32 scalar.

        It is the loss's `count(y)`. Without this method all targets count, and
        accumulation and replicas raise `ValueError`.
        """
        losses = list(filter(None, keras.tree.flatten(self.loss)))
        targets = keras.tree.flatten(y)[0]
        is_alone = len(losses) == 1 and isinstance(losses[0], keras.losses.Loss)
        if is_alone and hasattr(losses[0], "count"):
            return losses[0].count(targets)
        if self.gradient_accumulation_steps > 1 or num_replicas() > 1:
            raise ValueError(
                "With accumulation or several replicas the loss must have a method "
                "`count(y)`, as `MaskedCrossentropy`, or the model a `loss_divisor`. "
                f"Received: loss={self.loss!r}"
            )
        return ops.cast(ops.size(targets), "float32")

    def _refuse_class_weight(self, class_weight):
        """Raises `ValueError` for targets (B, T), of which Keras weighs rows."""
        if class_weight is None:
            return
        outputs = getattr(self, "outputs", ())  # of a functional model
        of_positions = any(len(output.shape) > 2 for output in outputs)
        if of_positions or self.target_pad_id is not None:
            raise ValueError(
                "`class_weight` must be None with targets (B, T): Keras would weigh "
                "rows by one of their positions. Give each target its weight: "
                "`sample_weight` (B, T), such as np.where(targets == 5, 100.0, 1.0). "
                f"Received: class_weight={class_weight!r:.60}"
            )

    def fit(self, *args, callbacks=None, **kwargs):
        """As `keras.Model.fit`; a bad batch raises `FloatingPointError` at the end.

        Only if `nonfinite` is "stop" and `callbacks` is not a `CallbackList`.

        Raises:
            ValueError: For a `class_weight` with targets (B, T).
        """
        self._refuse_class_weight(kwargs.get("class_weight"))
        if self._update is None or not self._update.stops:
            return super().fit(*args, callbacks=callbacks, **kwargs)
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = [_StopOnNonfinite(), *keras.tree.flatten(callbacks or [])]
        self._update.held.assign(0)
        try:
            history = super().fit(*args, callbacks=callbacks, **kwargs)
            held = self.held_batches
        finally:
            self._update.held.assign(0)
        if held:
            raise FloatingPointError(
                "The loss or gradient of a batch is not finite; the weights are those "
                f"before it (updates so far: {self.updates}). Convert target ids that "
                "are no class, such as -100, to the loss's `pad_id`, lower the "
                "learning rate, lengthen its warm-up, give the optimizer a "
                "`global_clipnorm`, or skip such batches with `nonfinite`='skip'."
            )
        return history

    def train_on_batch(self, *args, **kwargs):
        """As `keras.Model.train_on_batch`, with the `class_weight` of `fit`."""
        self._refuse_class_weight(kwargs.get("class_weight"))
        if self._update:
            self._update.held.assign(0)
        return super().train_on_batch(*args, **kwargs)

    def make_train_function(self, force=False):
        """As `keras.Model.make_train_function`."""
        # If it builds the optimizer, TensorFlow traces a step twice.
        if self.built and self.optimizer and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ExactModel(ExactTraining, keras.Model):
    """A functional model with exact training; see `ExactTraining`.

    A model with its own `call` inherits from `ExactTraining` and `keras.Model`.

    Args:
        inputs: `keras.Input`, or a structure of them.
        outputs: Results computed from the inputs.
        name: Name of the model.

    Example:
        >>> ids = keras.Input((None,), dtype="int32")
        >>> model = ExactModel(ids, keras.layers.Embedding(11, 11)(ids))
        >>> model.compile("adam", MaskedCrossentropy(), gradient_accumulation_steps=2)
    """


class _StopOnNonfinite(keras.callbacks.Callback):
    """Ends `fit` soon after a bad batch."""

    def on_train_batch_begin(self, batch, logs=None):
        # For `on_train_batch_end` Keras would read the logs of each batch.
        if batch and batch % _LOOK_EVERY < self.model.steps_per_execution:
            self.on_epoch_end(batch)

    def on_epoch_end(self, epoch, logs=None):
        if self.model.held_batches:
            self.model.stop_training = True
