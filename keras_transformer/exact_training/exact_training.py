"""`compile` and `fit` whose gradient is that of one large batch, token by token."""

from __future__ import annotations

import inspect
import warnings

import keras
from keras import ops

from keras_transformer.exact_training import jax as jax_steps
from keras_transformer.exact_training import tensorflow as tensorflow_steps
from keras_transformer.exact_training import torch as torch_steps
from keras_transformer.exact_training.counted_targets import (
    check_is_counted,
    left_out_class,
)
from keras_transformer.exact_training.loss_scale import inner_optimizer
from keras_transformer.exact_training.nonfinite import (
    NEVER,
    nonfinite_error,
    with_check,
)
from keras_transformer.exact_training.padding import (
    OtherPadding,
    check_pad_ids,
)
from keras_transformer.kernels.keras_private import (
    BuildsFromSpec,
    jax_state,
    layout_of,
)

# Each step sums the gradients of n l, where l is the mean loss of a batch and n its
# number of targets, over batches and replicas, and divides by the sum of all n.
_STEPS = {"tensorflow": tensorflow_steps, "jax": jax_steps, "torch": torch_steps}


class ExactTraining(BuildsFromSpec):
    """Mixin, before `keras.Model`, for exact accumulation, replicas and clipping.

    One weight update follows the gradient of

        sum of the losses of all target tokens / number of target tokens

    over all replicas of the model and all accumulated batches, as if they were one
    batch, however the tokens are spread over them. `optimizer.iterations`, and with it
    the learning-rate schedule, counts these updates. The `loss` in the logs, for
    training and validation alike, is the mean over all tokens of the epoch.

    A batch whose loss or gradient is not finite changes neither the weights nor the
    optimizer's moments; `nonfinite_batches` counts it. A batch without a target token
    changes nothing either.

    In float16 ("mixed_float16") the optimizer is a `keras.optimizers.
    LossScaleOptimizer`, which Keras puts around any other: a gradient that is not
    finite because the loss was scaled too much is dropped, the scale is halved, and
    the batch does not count as one that is not finite.

    Any Keras loss that is a mean can be used. `loss_divisor` returns what it divides
    by; where that is unknown, accumulation and several replicas are refused.

    Attributes:
        target_pad_id: Id that pads the targets, where the model knows it: `compile`
            refuses losses and metrics with another `pad_id`. `None` checks nothing.
        output_bias: Bias on the logits (V,), or `None`; see `output_rows`.
    """

    target_pad_id = None
    output_bias = None

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
            *args: Further arguments of `keras.Model.compile`.
            gradient_accumulation_steps: Batches whose gradients make one update. If
                some are left at the end of an epoch, the next one completes the update.
            global_clipnorm: Largest norm of the gradient of all weights, or `None`.
            nonfinite: What to do if a loss or gradient is not finite: "stop" ends
                `fit` with an error, "skip" only counts it. `fit` looks every 16
                batches, so that it need not wait for each; until then, those after
                the bad one are not applied either.
            **kwargs: As `keras.Model.compile`.

        Raises:
            ValueError: If an option is out of range; if the optimizer itself
                accumulates or clips all weights together; if batches accumulate and
                the loss is no such mean, or the model has no weights yet; if a loss
                or metric takes another id for padding than the model.
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
        check_pad_ids(self)

    def get_compile_config(self):
        """As `keras.Model.get_compile_config`, with the options of exact training."""
        config = super().get_compile_config()
        if config:
            config["gradient_accumulation_steps"] = self.gradient_accumulation_steps
            config["global_clipnorm"] = self.global_clipnorm
            config["nonfinite"] = self.nonfinite
        return config

    def compile_from_config(self, config):
        """As `keras.Model.compile_from_config`, and builds the optimizer."""
        try:
            self.compile(**keras.saving.deserialize_keras_object(config))
        except OtherPadding as error:
            # It is compiled. Files from before this was checked must still load.
            warnings.warn(str(error), stacklevel=2)
        if self.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def variables(self):
        """All variables. Those of training are neither in `weights` nor in files."""
        state = self._update_state
        return super().variables + ([] if state is None else state.variables)

    @property
    def passing_variables(self):
        """Variables that mean nothing after a `fit`: no saved state need hold them."""
        state = self._update_state
        return [] if state is None else [state.held]

    @property
    def nonfinite_batches(self):
        """Number of batches since `compile` that were not finite.

        Like the other counters, it is read from the device, which first has to do all
        that it was given: a callback that asks after every batch slows the training.
        """
        return self._of_update("nonfinite_batches", 0)

    @property
    def held_batches(self):
        """Number of batches in this `fit` that were not applied since a bad one.

        It counts the bad batch too, whose loss or gradient was not finite, and is
        above 0 only if `nonfinite` is "stop".
        """
        return max(0, self._of_update("held", 0))

    @property
    def accumulated_batches(self):
        """Number of batches since the last update whose gradients await the next."""
        return self._of_update("batches", 0)

    def _of_update(self, name, default):
        """Returns the value of a counter among the update's variables."""
        state = self._update_state
        counter = None if state is None else getattr(state, name)
        if counter is None:
            return default
        # The update's variables come last.
        place = next(i for i, v in enumerate(state.variables) if v is counter)
        place -= len(state.variables)
        return self._now(counter, "non_trainable_variables", place)

    @property
    def updates(self):
        """Number of weight updates that the optimizer has made.

        It is up to date in callbacks within `fit` on every backend. On JAX
        `optimizer.iterations` is not.
        """
        counter, variables = self.optimizer.iterations, self.optimizer.variables
        # With a scaled loss it is a variable of the inner optimizer.
        place = next(i for i, v in enumerate(variables) if v is counter)
        return self._now(counter, "optimizer_variables", place)

    def sync_variables(self):
        """Brings all variables up to date; needed within `fit` on JAX only."""
        if keras.config.backend() == "jax":
            self.jax_state_sync()

    def _now(self, counter, kind, place):
        """Returns a counter's value; on JAX entry `place` of the state `kind`."""
        # Syncing all variables after every batch would be slow.
        newest = jax_state(self, kind)
        return _number(counter if newest is None else newest[place])

    def loss_divisor(self, y):
        """Returns the divisor of the loss of a batch; override it for other losses.

        For a loss with a `pad_id`, such as `MaskedCrossentropy`, or an `ignore_class`
        it is the number of the other targets; for any other loss that of all targets.

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
        """Returns the output matrix; override it to train without the logits.

        The logits must be `self(x, return_states=True)` times its transpose, plus
        `output_bias` if that is not `None`. Then the training step never holds them
        all, if the loss is `MaskedCrossentropy` and every metric takes `TokenScores`.

        Returns:
            Float tensor (V, D), or `None` if the logits are computed in another way.
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
        options["callbacks"], check = with_check(options.get("callbacks"), self)
        held = self._update_state.held
        held.assign(0)
        try:
            history = super().fit(**options)
        finally:
            held.assign(NEVER)
        if check.found:
            raise nonfinite_error(
                self.updates,
                "Lower the learning rate, lengthen its warm-up, clip the gradient with "
                "`global_clipnorm`, or skip such batches with `nonfinite`='skip'.",
            )
        return history

    def make_train_function(self, force=False):
        """As `keras.Model.make_train_function`, but builds the optimizer first.

        TensorFlow traces a step twice if it builds the optimizer. Under a strategy or a
        distribution Keras has built it already.
        """
        if self.built and self.optimizer and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def train_step(self, *args):
        """Trains on a batch; arguments and result depend on the backend."""
        return _STEPS[keras.config.backend()].train_step(self, *args)

    def test_step(self, *args):
        """Evaluates a batch; arguments and result depend on the backend."""
        return _STEPS[keras.config.backend()].test_step(self, *args)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ExactModel(ExactTraining, keras.Model):
    """A functional model that trains exactly: `ExactModel(inputs, outputs)`."""


class UpdateState:
    """Variables of the training that are not the optimizer's.

    Attributes:
        nonfinite_batches: Batches whose loss or gradient was not finite.
        held: Batches since the first of these in a `fit` that stops at one, itself
            included; none of them is applied. `NEVER` where training goes on.
        batches: Batches since the last update; `None` without accumulation.
        divisor: Target tokens of these batches, over all replicas; or `None`.
        gradients: Sums of the gradients of these tokens in this replica, one for each
            weight; empty without accumulation.
        variables: All of them.
        targets_checked: Whether `check_targets` has passed.
    """

    def __init__(self, weights=None):
        self.nonfinite_batches = _scalar("nonfinite_batches", "int")
        self.held = _scalar("held_batches", "int", NEVER)
        self.targets_checked = False
        self.batches = self.divisor = None
        self.gradients = []
        self.variables = [self.nonfinite_batches, self.held]
        if weights is not None:
            self.batches = _scalar("accumulated_batches", "int")
            self.divisor = _scalar("accumulated_divisor", "float32")
            self.gradients = [_accumulator(weight) for weight in weights]
            self.variables += [self.batches, self.divisor, *self.gradients]


def _number(variable):
    return int(ops.convert_to_numpy(variable))


def _scalar(name, dtype, value=0):
    return keras.Variable(
        value,
        dtype=dtype,
        trainable=False,
        autocast=False,
        aggregation="only_first_replica",
        name=name,
    )


def _accumulator(weight):
    # Each replica sums its own; the update adds them up.
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
    optimizer = inner_optimizer(optimizer)
    for option in ("gradient_accumulation_steps", "global_clipnorm"):
        if getattr(optimizer, option, None) is not None:
            raise ValueError(
                f"Give `{option}` to `compile`, not to the optimizer, which would "
                f"apply it batch by batch. Received: {option}="
                f"{getattr(optimizer, option)!r} of the optimizer"
            )
