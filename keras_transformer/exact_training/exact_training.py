"""`compile` and `fit` whose gradient is that of one large batch, token by token."""

from __future__ import annotations

import inspect

import keras
from keras import ops

from keras_transformer.exact_training import jax as jax_steps
from keras_transformer.exact_training import tensorflow as tensorflow_steps
from keras_transformer.exact_training import torch as torch_steps
from keras_transformer.exact_training.counted_targets import (
    check_is_counted,
    left_out_class,
)
from keras_transformer.kernels.keras_private import (
    BuildsFromSpec,
    jax_state,
    layout_of,
)

# With the mean loss l of a batch and its n targets, each adds up the gradients of n l
# over batches and replicas, and divides the sum by the sum of the n.
_STEPS = {"tensorflow": tensorflow_steps, "jax": jax_steps, "torch": torch_steps}


class ExactTraining(BuildsFromSpec):
    """Mixin before `keras.Model`: exact accumulation, replicas, clipping and losses.

    One weight update follows the gradient of

        sum of the losses of all target tokens / number of target tokens

    over all replicas of the model and all accumulated batches, however the tokens are
    spread over them: what one large batch gives. `optimizer.iterations`, and with it a
    learning-rate schedule, counts these updates. The `loss` in the logs, of training
    and of validation, is the same mean over the tokens of an epoch.

    A batch whose loss or gradient is not finite changes no weight and no moment of the
    optimizer; `nonfinite_batches` counts it. Nor does a batch without a target token.

    Any Keras loss that is a mean serves. `loss_divisor` says what it divides by; where
    it cannot tell, several batches or replicas an update are refused.
    """

    nonfinite = "stop"
    gradient_accumulation_steps = 1
    global_clipnorm = None
    _update_state = None

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        *args,
        gradient_accumulation_steps=1,
        global_clipnorm=None,
        nonfinite="stop",
        **kwargs,
    ):
        """As `keras.Model.compile`, with the options of exact training.

        Args:
            optimizer: Keras optimizer, without accumulation and global clipping of its
                own.
            loss: Keras loss that is a mean over targets, as `loss_divisor` counts them.
            *args: As `keras.Model.compile` takes after these.
            gradient_accumulation_steps: Batches whose gradients make one update; those
                left over at the end of an epoch count towards the next one's first.
            global_clipnorm: Longest gradient of all weights together, or `None`.
            nonfinite: After a loss or gradient that is not finite: "stop" ends `fit`
                with an error after the batch's callbacks, "skip" only counts it.
            **kwargs: As `keras.Model.compile`.

        Raises:
            ValueError: If an option is out of range, the optimizer accumulates, clips
                all weights together or adapts a scale of the loss on its own, the
                loss is no such mean and batches accumulate, or the model has no
                weights yet.
        """
        _check_options(gradient_accumulation_steps, global_clipnorm, nonfinite)
        super().compile(optimizer, loss, *args, **kwargs)
        _check_optimizer(self.optimizer)
        if gradient_accumulation_steps > 1 and self._counts_targets:
            check_is_counted(loss)
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.global_clipnorm = global_clipnorm
        self.nonfinite = nonfinite
        if gradient_accumulation_steps > 1 and not self.built:
            raise ValueError(
                "A model must have its weights before it is compiled with "
                "`gradient_accumulation_steps`: call `build` first. Received: "
                f"gradient_accumulation_steps={gradient_accumulation_steps}"
            )
        self._update_state = UpdateState(
            self.trainable_weights if gradient_accumulation_steps > 1 else None
        )

    def get_compile_config(self):
        """As `keras.Model.get_compile_config`, with the options of exact training."""
        config = super().get_compile_config()
        if config:
            config["gradient_accumulation_steps"] = self.gradient_accumulation_steps
            config["global_clipnorm"] = self.global_clipnorm
            config["nonfinite"] = self.nonfinite
        return config

    def compile_from_config(self, config):
        """As `keras.Model.compile_from_config`; makes the optimizer's variables."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def variables(self):
        """All state, that of training included; `weights` and files leave it out."""
        state = self._update_state
        return super().variables + ([] if state is None else state.variables)

    @property
    def nonfinite_batches(self):
        """Number of batches since `compile` that were not applied."""
        if self._update_state is None:
            return 0
        # `variables` ends with the update's, and these begin with the counter.
        place = -len(self._update_state.variables)
        counter = self._update_state.nonfinite_batches
        return self._now(counter, "non_trainable_variables", place)

    @property
    def updates(self):
        """Number of weight updates that the optimizer has made.

        Other than `optimizer.iterations`, it is up to date in a callback within `fit`
        on JAX too.
        """
        # An optimizer makes its counter before all else.
        return self._now(self.optimizer.iterations, "optimizer_variables", 0)

    def sync_variables(self):
        """Brings all variables up to date, which within `fit` on JAX are behind."""
        if keras.config.backend() == "jax":
            self.jax_state_sync()

    def _now(self, counter, kind, place):
        """Returns the value of a counter, the variable of a kind at a place."""
        # To bring all variables up to date after every batch would be slow.
        newest = jax_state(self, kind)
        return _number(counter if newest is None else newest[place])

    def loss_divisor(self, y):
        """Returns the number that the loss of a batch was divided by, to be overridden.

        The targets that are not `pad_id` for a loss with that attribute, such as
        `MaskedCrossentropy`, or not `ignore_class`; all targets for any other loss, as
        Keras' own divide.

        Args:
            y: Targets of the batch.

        Returns:
            Float32 scalar.
        """
        targets = keras.tree.flatten(y)[0]
        left_out = left_out_class(self.loss)
        if left_out is None:
            return ops.cast(ops.size(targets), "float32")
        return ops.sum(ops.cast(ops.not_equal(targets, left_out), "float32"))

    @property
    def _counts_targets(self):
        """Whether `loss_divisor` is not overridden."""
        return type(self).loss_divisor is ExactTraining.loss_divisor

    def output_rows(self):
        """Returns the output matrix, to be overridden to train without the logits.

        With it the logits are `self(x, return_states=True)` times its transpose, and
        no step of training holds them all, if the loss is `MaskedCrossentropy` and
        every metric takes `TokenScores`.

        Returns:
            Float tensor (V, D); or `None`, if the logits are made in another way.
        """
        return None

    def fit(self, *args, **kwargs):
        """As `keras.Model.fit`.

        Raises:
            FloatingPointError: At the end, if `nonfinite` is "stop" and a loss or
                gradient was not finite.
        """
        if self.nonfinite != "stop" or self._update_state is None:
            return super().fit(*args, **kwargs)
        options = inspect.signature(super().fit).bind(*args, **kwargs).arguments
        check = StopOnNonfinite()
        callbacks = options.get("callbacks")
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(check)
        else:
            callbacks = [] if callbacks is None else keras.tree.flatten(callbacks)
            options["callbacks"] = [check, *callbacks]
        history = super().fit(**options)
        if check.found:
            raise FloatingPointError(
                "The loss or the gradient of a batch is not finite after "
                f"{self.updates} updates; the weights are those "
                "before it. Lower the learning rate, lengthen its warm-up, clip the "
                "gradient with `global_clipnorm`, or skip with `nonfinite`='skip'."
            )
        return history

    def make_train_function(self, force=False):
        """As `keras.Model.make_train_function`, with the optimizer's variables made.

        A step that makes them would be traced twice by TensorFlow. Where they belong to
        a strategy or a distribution, Keras has made them by now.
        """
        if self.built and self.optimizer and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def train_step(self, *args):
        """One batch; the arguments and the result are those of the backend."""
        return _STEPS[keras.config.backend()].train_step(self, *args)

    def test_step(self, *args):
        """One batch without training; as `train_step`."""
        return _STEPS[keras.config.backend()].test_step(self, *args)


class UpdateState:
    """Variables of the training beside the optimizer's.

    Attributes:
        nonfinite_batches: Batches that were not applied.
        batches: Batches since the last update; only with accumulation, as the others.
        divisor: Target tokens of these batches, of all replicas.
        gradients: Sum of the gradients of these tokens, one for each weight; of this
            replica alone.
        variables: All of them.
        targets_checked: Whether the loss is known to count as `loss_divisor` does.
    """

    def __init__(self, weights=None):
        self.nonfinite_batches = _scalar("nonfinite_batches", "int")
        self.targets_checked = False
        self.batches = self.divisor = None
        self.gradients = []
        self.variables = [self.nonfinite_batches]
        if weights is not None:
            self.batches = _scalar("accumulated_batches", "int")
            self.divisor = _scalar("accumulated_divisor", "float32")
            self.gradients = [_accumulator(weight) for weight in weights]
            self.variables += [self.batches, self.divisor, *self.gradients]


class StopOnNonfinite(keras.callbacks.Callback):
    """Ends `fit` after a batch that was not applied.

    Attributes:
        found: Whether there was one.
    """

    found = False

    def on_train_begin(self, logs=None):
        self._before = self.model.nonfinite_batches

    def on_train_batch_end(self, batch, logs=None):
        if self.model.nonfinite_batches > self._before:
            self.found = self.model.stop_training = True


def _number(variable):
    return int(ops.convert_to_numpy(variable))


def _scalar(name, dtype):
    return keras.Variable(
        0,
        dtype=dtype,
        trainable=False,
        autocast=False,
        aggregation="only_first_replica",
        name=name,
    )


def _accumulator(weight):
    # Each replica sums its own; they meet at the update.
    return keras.Variable(
        "zeros",
        shape=weight.shape,
        dtype="float32",
        trainable=False,
        autocast=False,
        aggregation="sum",
        synchronization="on_read",
        layout=layout_of(weight),
        name="accumulated_gradient",
    )


def _check_options(steps, clipnorm, nonfinite):
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(
            "`gradient_accumulation_steps` must be an integer of at least 1. Received: "
            f"gradient_accumulation_steps={steps!r}"
        )
    if clipnorm is not None and not clipnorm > 0:
        raise ValueError(
            "`global_clipnorm` must be above 0, or None. Received: "
            f"global_clipnorm={clipnorm!r}"
        )
    if nonfinite not in ("stop", "skip"):
        raise ValueError(
            f"`nonfinite` must be 'stop' or 'skip'. Received: nonfinite={nonfinite!r}"
        )


def _check_optimizer(optimizer):
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "Training in float16 with a scaled loss is not supported: use the dtype "
            "'mixed_bfloat16', which needs no scale. Received: optimizer="
            f"{optimizer.name!r}"
        )
    for option in ("gradient_accumulation_steps", "global_clipnorm"):
        if getattr(optimizer, option, None) is not None:
            raise ValueError(
                f"Give `{option}` to `compile`, not to the optimizer, which would "
                f"apply it batch by batch. Received: {option}="
                f"{getattr(optimizer, option)!r} of the optimizer"
            )
