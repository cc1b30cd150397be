"""`compile` and `fit` whose gradient is that of one large batch, token by token."""

from __future__ import annotations

import inspect

import keras
from keras import ops

from keras_transformer.exact_training import jax, tensorflow, torch
from keras_transformer.exact_training.update import UpdateState, inner_optimizer
from keras_transformer.kernels.execution import num_replicas
from keras_transformer.kernels.keras_private import BuildsFromSpec, compiled_metrics
from keras_transformer.layers.arguments import check_size

_BACKENDS = {"tensorflow": tensorflow, "jax": jax, "torch": torch}
_STEPS = _BACKENDS[keras.config.backend()]
# Batches after which `fit` looks for a bad one: it need not wait for the device after
# each, and if one was bad, the device computes so many in vain.
_LOOK_EVERY = 16


class ExactTraining(BuildsFromSpec):
    """Mixin, before `keras.Model`, for exact accumulation, replicas and clipping.

    One weight update follows the gradient of

        sum of the losses of all target tokens / number of target tokens

    over all replicas of the model and all accumulated batches, as if they were one
    batch, however the tokens are spread over them. `optimizer.iterations`, and with it
    the learning-rate schedule, counts these updates. The `loss` in the logs, for
    training and validation alike, is the mean over all tokens of the epoch.

    A batch whose loss or gradient is not finite, or that has no target, changes neither
    the weights nor the optimizer's moments. In float16 Keras puts a
    `keras.optimizers.LossScaleOptimizer` around any other: a gradient that is not
    finite because the loss was scaled too much halves the scale, and does not count.

    Attributes:
        target_pad_id: Id that pads the targets, or `None`: `compile` refuses losses and
            metrics with another `pad_id`.
        trains_without_logits: Whether the logits are `model(x, return_states=True)`
            times the transpose of `model.output_rows()` (V, D), plus `output_bias`. The
            step then never holds them all, if the loss is `MaskedCrossentropy` and
            every metric `MaskedAccuracy` or `Perplexity`. A subclass that computes
            logits, loss or metrics in another way sets it to `False`.
        output_bias: Bias on the logits (V,), or `None`.
    """

    target_pad_id = output_bias = global_clipnorm = _update = None
    trains_without_logits = False
    gradient_accumulation_steps, nonfinite = 1, "stop"
    train_step, test_step = _STEPS.train_step, _STEPS.test_step

    def compile(
        self, optimizer="rmsprop", loss=None, *args, gradient_accumulation_steps=1,
        global_clipnorm=None, nonfinite="stop", **kwargs,
    ):  # fmt: skip
        """As `keras.Model.compile`, with the options of exact training.

        Args:
            optimizer: Keras optimizer that neither accumulates nor clips all weights
                together.
            loss: Keras loss that is a mean over targets; see `loss_divisor`.
            *args: Further arguments of `keras.Model.compile`.
            gradient_accumulation_steps: Batches whose gradients make one update. If
                some are left at the end of an epoch, the next one completes the update.
            global_clipnorm: Largest norm of the gradient of all weights, or `None`.
            nonfinite: What to do if a loss or gradient is not finite: "stop" ends
                `fit` with an error, "skip" only counts it. `fit` looks every 16
                batches; until then, those after the bad one are not applied either.
            **kwargs: As `keras.Model.compile`.

        Raises:
            ValueError: If an option is out of range; if the optimizer itself
                accumulates or clips all weights together; if batches accumulate and
                the model has no weights yet; if a loss or metric takes another id for
                padding than the model.
        """
        steps, longest = gradient_accumulation_steps, global_clipnorm
        check_size("gradient_accumulation_steps", steps)
        if steps > 1 and not self.built:
            raise ValueError(
                "With `gradient_accumulation_steps` a model must have its weights: call "
                f"`build` first. Received: gradient_accumulation_steps={steps}"
            )
        if longest is not None and not longest > 0:
            raise ValueError(
                "`global_clipnorm` must be above 0, or None. Received: "
                f"global_clipnorm={longest!r}"
            )
        if nonfinite not in ("stop", "skip"):
            raise ValueError(
                f"`nonfinite` must be 'stop' or 'skip'. Received: {nonfinite=}"
            )
        super().compile(optimizer, loss, *args, **kwargs)
        for option in ("gradient_accumulation_steps", "global_clipnorm"):
            if given := getattr(inner_optimizer(self.optimizer), option, None):
                raise ValueError(
                    f"Give `{option}` to `compile`, not to the optimizer, which would "
                    f"apply it batch by batch. Received: {option}={given!r}"
                )
        ours = self.target_pad_id
        for part in [*keras.tree.flatten(self.loss), *compiled_metrics(self)]:
            theirs, kind = getattr(part, "pad_id", None), type(part).__name__
            # With another one padding would count, and the tokens of that id would not.
            if None not in (ours, theirs) and ours != theirs:
                raise ValueError(
                    "Losses and metrics must have the `pad_id` of the model: give "
                    f"{kind}(pad_id={ours}) to `compile`. Received: pad_id={theirs} of "
                    f"{kind}, pad_id={ours} of {type(self).__name__}"
                )
        self.gradient_accumulation_steps = steps
        self.global_clipnorm, self.nonfinite = longest, nonfinite
        self._update = UpdateState(
            self.optimizer, self.trainable_weights, steps, nonfinite == "stop"
        )

    def get_compile_config(self):
        """As `keras.Model.get_compile_config`, with the options of exact training."""
        names = "gradient_accumulation_steps", "global_clipnorm", "nonfinite"
        config = super().get_compile_config()
        return config and config | {name: getattr(self, name) for name in names}

    def compile_from_config(self, config):
        """As `keras.Model.compile_from_config`, and builds the optimizer."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def variables(self):
        """All variables. Those of training are neither in `weights` nor in files."""
        return super().variables + (self._update.variables if self._update else [])

    @property
    def passing_variables(self):
        """Variables that mean nothing after a `fit`: no saved state need hold them."""
        return [self._update.held] if self._update else []

    # Each reads a number from the device, which first has to do all that it was given.
    # On JAX the variables are not up to date within `fit`.

    @property
    def updates(self):
        """Number of weight updates that the optimizer has made."""
        self.sync_variables()
        return int(ops.convert_to_numpy(self.optimizer.iterations))

    @property
    def nonfinite_batches(self):
        """Number of batches since `compile` that were not finite."""
        return self._count_of("nonfinite_batches")

    @property
    def held_batches(self):
        """Number of batches since the bad one that ends this `fit`, itself included."""
        return self._count_of("held")

    @property
    def accumulated_batches(self):
        """Number of batches since the last update whose gradients await the next."""
        return self._count_of("batches")

    def _count_of(self, name):
        self.sync_variables()
        counter = getattr(self._update, name, 0)
        return int(ops.convert_to_numpy(counter))

    def sync_variables(self):
        """Brings all variables up to date; needed within `fit` on JAX only."""
        if keras.config.backend() == "jax":
            self.jax_state_sync()

    def loss_divisor(self, y):
        """Returns the divisor of the loss of a batch; override it for other losses.

        It is what the loss's method `count` returns for the targets. A loss without one
        is taken for a mean over all targets. With accumulation and on several replicas
        it is refused, because each batch is weighted by its number of targets.

        Args:
            y: Targets of the batch.

        Returns:
            Float32 scalar.
        """
        losses = [part for part in keras.tree.flatten(self.loss) if part is not None]
        targets = keras.tree.flatten(y)[0]
        if len(losses) == 1 and hasattr(losses[0], "count"):
            return losses[0].count(targets)
        if self.gradient_accumulation_steps > 1 or num_replicas() > 1:
            raise ValueError(
                "With accumulation or several replicas the loss must say how many "
                "targets it counts, by a method `count(y)` as `MaskedCrossentropy` has; "
                f"or override `loss_divisor`. Received: loss={self.loss!r}"
            )
        return ops.cast(ops.size(targets), "float32")

    def fit(self, *args, **kwargs):
        """As `keras.Model.fit`. A `CallbackList` is left as it is.

        Raises:
            FloatingPointError: At the end, if `nonfinite` is "stop" and a loss or
                gradient was not finite.
        """
        if self.nonfinite != "stop" or self._update is None:
            return super().fit(*args, **kwargs)
        options = inspect.signature(super().fit).bind(*args, **kwargs).arguments
        given = options.get("callbacks")
        if not isinstance(given, keras.callbacks.CallbackList):
            given = keras.tree.flatten(given or [])
            options["callbacks"] = [StopOnNonfinite(), *given]
        self._update.held.assign(0)
        try:
            history, held = super().fit(**options), self.held_batches
        finally:
            self._update.held.assign(0)
        if held:
            raise FloatingPointError(
                f"The loss or the gradient of a batch is not finite after {self.updates} "
                "updates; the weights are those before it. Lower the learning rate, "
                "lengthen its warm-up, clip the gradient with `global_clipnorm`, or "
                "skip such batches with `nonfinite`='skip'."
            )
        return history

    def train_on_batch(self, *args, **kwargs):
        """As `keras.Model.train_on_batch`. After a bad batch it goes on with the next."""
        if self._update:
            self._update.held.assign(0)
        return super().train_on_batch(*args, **kwargs)

    def make_train_function(self, force=False):
        """As `keras.Model.make_train_function`, but builds the optimizer first."""
        # TensorFlow traces a step twice if it builds the optimizer. Under a strategy or
        # a distribution Keras has built it already.
        if self.built and self.optimizer and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ExactModel(ExactTraining, keras.Model):
    """A functional model with exact training; see `ExactTraining`.

    A model with a `call` of its own derives from `ExactTraining` and `keras.Model`.

    Args:
        inputs: `keras.Input`, or a structure of some.
        outputs: What was computed from them.
        name: Name of the model.

    Example:
        >>> ids = keras.Input((None,), dtype="int32")
        >>> model = ExactModel(ids, keras.layers.Embedding(11, 11)(ids))
        >>> model.compile("adam", MaskedCrossentropy(), gradient_accumulation_steps=2)
    """


class StopOnNonfinite(keras.callbacks.Callback):
    """Ends `fit` some batches after a bad one; those in between change nothing.

    It has no `on_train_batch_end`, for which Keras would read the logs of every batch.
    """

    def on_epoch_begin(self, epoch, logs=None):
        self._looked_at = 0

    def on_train_batch_begin(self, batch, logs=None):
        if batch >= self._looked_at + _LOOK_EVERY:
            self._looked_at = batch
            self.look()

    def on_epoch_end(self, epoch, logs=None):
        self.look()

    def look(self):
        """Waits until the device has done what it was given, and asks about it."""
        if held := self.model.held_batches:
            self.stop(held)

    def stop(self, held: int):
        """Makes Keras end `fit`, in which `held` batches were not applied."""
        self.model.stop_training = True
