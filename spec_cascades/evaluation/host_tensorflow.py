"""TensorFlow for data and event files only: it leaves accelerators to JAX."""
from __future__ import annotations

from typing import Any


def load() -> Any:
  """TensorFlow without GPUs, whose memory it would take; call before others."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  try:
    tf.config.set_visible_devices([], 'GPU')
  except RuntimeError:
    pass                     # It runs already: what it takes it has.
  return tf
