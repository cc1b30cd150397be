"""Models that can be exported before their first call."""

from __future__ import annotations


class HasSignature:
    """Mixin before a Keras model that knows the shapes and types of its inputs."""

    def input_signature(self):
        """Returns the `keras.InputSpec` of each argument of `call`, to be overridden.

        Returns:
            List of one structure like the argument, `None` for sizes that may vary.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define `input_signature`."
        )

    def export(self, filepath, *args, input_signature=None, **kwargs):
        """As `keras.Model.export`; by default the signature takes any batch.

        Args:
            filepath: Directory of the SavedModel, NAME/VERSION.
            *args: As `keras.Model.export` takes after the path.
            input_signature: Shapes and types of the inputs; default
                `self.input_signature()`.
            **kwargs: As `keras.Model.export`.
        """
        if input_signature is None:
            input_signature = self.input_signature()
        super().export(filepath, *args, input_signature=input_signature, **kwargs)
