"""Warps against transformers' own, in the order in which it applies them."""
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades.warp import Warp

ROWS, VOCAB = 8, 50


def theirs(logits, options):
  """Probabilities after the processors that `generate` would build."""
  torch = pytest.importorskip('torch')
  processors = pytest.importorskip('transformers.generation.logits_process')
  kinds = dict(
      temperature=processors.TemperatureLogitsWarper,
      top_k=processors.TopKLogitsWarper, top_p=processors.TopPLogitsWarper,
      min_p=processors.MinPLogitsWarper, eta=processors.EtaLogitsWarper)
  scores = torch.tensor(logits)
  for name, kind in kinds.items():             # the order of `generate`
    if name in options:
      scores = kind(options[name])(None, scores)
  return torch.softmax(scores, -1).numpy()


@pytest.mark.parametrize('seed', range(40))
def test_any_mixture_of_warps_is_that_of_transformers(seed):
  draw = np.random.default_rng(seed)
  every = dict(temperature=float(draw.uniform(.3, 2)),
               top_k=int(draw.integers(1, VOCAB)),
               top_p=float(draw.uniform(.2, .99)),
               min_p=float(draw.uniform(.01, .5)),
               eta=float(draw.uniform(.001, .2)))
  options = {k: v for k, v in every.items() if draw.random() < .6}
  logits = np.float32(3 * draw.standard_normal((ROWS, VOCAB)))
  np.testing.assert_allclose(Warp(**options)(jnp.asarray(logits)).probs,
                             theirs(logits, options), atol=1e-5)
