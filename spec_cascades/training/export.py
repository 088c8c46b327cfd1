"""A training run as a model directory, with its measured quality."""
from __future__ import annotations

from typing import Callable

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import check
from spec_cascades.checkpoints import converting
from spec_cascades.checkpoints import native
from spec_cascades.evaluation import examples
from spec_cascades.evaluation import qualities
from spec_cascades.training import loop
from spec_cascades.training import quality
from spec_cascades.training import start


def export(run: loop.Run, output: str, *, dtype: str = 'bfloat16',
           sentences: int | None = None,
           log: Callable[[str], None] = print) -> dict[str, float]:
  """Writes the newest checkpoint of a run and measures what was written.

  Quality is of the exported weights, so after rounding to `dtype`: on all test
  texts without a near-duplicate in train, and for English to German on the
  hand-written set.

  Args:
    run: The training run.
    output: The directory to write.
    dtype: Of the weights written.
    sentences: Texts of each set to decode, chosen at random; None is all.
    log: Receives one line per figure.

  Raises:
    ValueError: There is no checkpoint.
  """
  if sentences is not None:
    check.interval('sentences', sentences, 1, 10**9, whole=True)
  lm, corpus = run.lm, run.corpus
  params, step = start.restore(run.model_dir)
  ids = lambda x: jnp.issubdtype(x.dtype, jnp.integer)
  params = jax.tree.map(
      lambda x: jnp.asarray(x) if ids(x) else
      jnp.asarray(x, dtype).astype(jnp.float32), params)
  metric = qualities.make(run.recipe.metric)
  sets = dict(test_distinct=quality.distinct_pairs(corpus, 'test'))
  if (corpus.source, corpus.target) == ('en', 'de'):
    sets['software_docs'] = [(x.source, x.reference) for x in examples.read()]
  figures = dict(step=step)
  for name, chosen in sets.items():
    order = np.random.default_rng(0).permutation(len(chosen))[:sentences]
    chosen = [chosen[i] for i in sorted(order)]
    sources = [source for source, _ in chosen]
    longest = max(len(corpus.encode(x)) for x in sources)
    found = quality.translate(lm, params, corpus, sources,
                              width=max(longest, *corpus.buckets, 1),
                              max_length=run.recipe.max_length,
                              batch=run.recipe.eval_batch)
    score = metric(found, [(target,) for _, target in chosen])
    figures[f'{metric.name.lower()}_{name}'] = round(score, 2)
    log(f'{name}: {metric.name} {score:.2f} on {len(chosen)} texts')
  native.save(output, lm, params, None, dtype,
              words=converting.files_of(corpus.vocabulary),
              max_input_length=max(corpus.buckets), info=figures)
  log(f'wrote {output}')
  return figures
