"""What a layer that follows a verifier buys: EAGLE's tokens a call, predicted.

    following.measure(lm, params, corpus, sources, gamma=4, ...)   # a `Bought`

A draft's q depends on how many drafts were made since the verifier's own states
ended. One teacher-forced pass over what was decoded gives it for every token
and every such number, see `follow.unrolled`.
"""
from __future__ import annotations

import functools
from typing import Any, Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import check
from spec_cascades import theory
from spec_cascades import warp
from spec_cascades.drafters import eagle
from spec_cascades.evaluation import attached
from spec_cascades.evaluation import pairs
from spec_cascades.models import features
from spec_cascades.training import bought
from spec_cascades.training import calibrating
from spec_cascades.training import data
from spec_cascades.training import follow
from spec_cascades.training import loop
from spec_cascades.training import quality
from spec_cascades.training import start
from spec_cascades.training import writing


def acceptance(lm: Any, params: Any, batches: Iterable[Mapping[str, Any]],
               gamma: int, temperature: float) -> list[np.ndarray]:
  """Per text, how likely each token is accepted at each depth: [T, gamma].

  min(1, q_k(y_t) / p(y_t)), q_k being what is drafted at y_t by a round that
  has accepted k drafts before it.

  Args:
    lm: A `features.Featured`.
    params: Its parameters in checkpoint layout.
    batches: Texts that the verifier has written, see `calibrating.batches`.
    gamma: Draft length.
    temperature: Of both.
  """
  found = []
  for batch in batches:
    p, q = jax.device_get(_laws(lm, params, batch, gamma,
                                jnp.float32(temperature)))
    p = np.asarray(p, np.float64)[..., None]
    kept = np.minimum(np.divide(q, p, out=np.zeros_like(q, np.float64),
                                where=p > 0), 1)
    sizes = np.asarray(batch['weights']).sum(1).astype(int)
    found += [text[:size] for text, size in zip(kept, sizes)]
  return found


@functools.partial(jax.jit, static_argnums=(0, 3))
def _laws(lm, params, batch, gamma, temperature):
  """p [B, T] of the targets, and q [B, T, gamma] by depth."""
  tokens, hidden, encoded, at = follow.whole(lm, params, batch)
  before = jnp.pad(lm.given(params, hidden[:, :-1]), ((0, 0), (1, 0), (0, 0)))
  drafted = follow.unrolled(lm, params, before, tokens, encoded, gamma)

  def law(states):
    states = jnp.take_along_axis(states, at[..., None], 1)
    said = warp.Warp(temperature)(lm.head(params, states))
    return jnp.take_along_axis(said.probs, batch['targets'][..., None], -1)

  return law(hidden)[..., 0], jnp.concatenate(list(map(law, drafted)), -1)


def measure(lm: Any, params: Any, corpus: data.ParallelText,
            sources: Sequence[str], *, gamma: int, temperature: float,
            max_length: int, batch: int, seed: int = 0) -> bought.Bought:
  """Decodes texts with a chain of the layer, and predicts what it took.

  Args:
    lm: A `features.Featured`.
    params: Its parameters in checkpoint layout.
    corpus: How texts are put to the verifier.
    sources: Texts of at most the corpus's widest bucket.
    gamma: Draft length.
    temperature: Of both.
    max_length: Tokens of an output at most, with the one that it begins with or
      follows.
    batch: Rows of a call.
    seed: Of what is drawn.
  """
  rows, width = [corpus.encode(x) for x in sources], max(corpus.buckets)
  packed = lm.pack(params)
  texts, calls = writing.write(
      lm.verifier, packed['model'], rows, width=width, length=max_length - 1,
      batch=batch, end=corpus.end, drafter=eagle.Eagle(lm, gamma),
      draft_params=packed, temperature=temperature, seed=seed)
  rates = acceptance(lm, params, calibrating.batches(
      rows, texts, width, max_length), gamma, temperature)
  count = sum(map(len, texts))
  rounds = sum(theory.round_starts_by_depth(x).sum() for x in rates)
  return bought.Bought(temperature, gamma, float(count / rounds), count / calls)


def follows(lm: Any) -> bool:
  """Whether a model is a verifier with such a layer."""
  return isinstance(lm, features.Featured)


def report(run: loop.Run, gamma: int, sentences: int, part: str | None = None,
           log: Callable[[str], None] = print) -> list[bought.Bought]:
  """Measures a run's layer on validation texts, greedy and sampled.

  Args:
    run: Of a `features.Featured` model; its newest checkpoint is read.
    gamma: Draft length.
    sentences: How many texts of the validation split, at random.
    part: The folder of a layer to read in place of the checkpoint; of the
      verifier that the run starts from.
    log: Receives a line a temperature.

  Raises:
    ValueError: There is no such layer, or no text.
  """
  check.gamma(gamma)
  check.interval('sentences', sentences, 1, 10**9, whole=True)
  lm = run.lm
  if part is None:
    params = start.restore(run.model_dir)[0]
  elif run.init_from is None:
    raise ValueError(f'Got the part {part} without init_from; allowed: with '
                     'the verifier that it was trained beside.')
  else:
    pair = pairs.load(run.init_from, None)
    found, _ = attached.read(part, pair)
    if not isinstance(found, attached.Part):
      raise ValueError(f'{part} is a whole run and no part; give its gin file '
                       'and no part.')
    lm = features.beside(pair.verifier.lm, found.heads)
    params = dict(model=pair.verifier.unpacked(), heads=found.checkpoint)
  if not follows(lm):
    raise ValueError(f'{part or run.model_dir} has no layer that follows its '
                     'verifier; allowed: what gin/train/eagle.gin or '
                     'eagle3.gin trained.')
  params = jax.tree.map(jnp.asarray, params)
  found = quality.distinct_pairs(run.corpus, 'validation')
  order = np.random.default_rng(0).permutation(len(found))[:sentences]
  if not len(order):
    raise ValueError('The validation split has no text without a near-duplicate'
                     ' in train that fits; allowed: one or more.')
  out = []
  for temperature in (0., 1.):
    out.append(measure(
        lm, params, run.corpus, [found[i][0] for i in order], gamma=gamma,
        temperature=temperature, max_length=run.recipe.max_length,
        batch=run.recipe.eval_batch))
    log(f'{len(order)} texts, {out[-1]}')
    if out[-1].warning:
      log(out[-1].warning)
  return out
