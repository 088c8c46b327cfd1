"""A training run as a model directory, with its measured quality."""
from __future__ import annotations

import pathlib
from typing import Callable

import jax
import jax.numpy as jnp

from spec_cascades.checkpoints import native
from spec_cascades.evaluation import examples
from spec_cascades.evaluation import metrics
from spec_cascades.training import loop
from spec_cascades.training import quality


def export(run: loop.Run, output: str, *, dtype: str = 'bfloat16',
           log: Callable[[str], None] = print) -> dict[str, float]:
  """Writes the newest checkpoint of a run and measures what was written.

  BLEU is of the exported weights, so after rounding to `dtype`: on all test
  sentences without a near-duplicate in train, and on the hand-written set.

  Args:
    run: The training run.
    output: The directory to write.
    dtype: Of the weights written.
    log: Receives one line per figure.

  Raises:
    ValueError: There is no checkpoint.
  """
  lm, corpus = run.lm, run.corpus
  params, step = loop.restore_params(run.model_dir)
  params = jax.tree.map(
      lambda x: jnp.asarray(x, dtype).astype(jnp.float32), params)
  pairs = quality.distinct_pairs(corpus, 'test')
  own = [(x.source, x.reference) for x in examples.read()]
  figures = dict(step=step)
  for name, chosen in (('test_distinct', pairs), ('software_docs', own)):
    sources = [source for source, _ in chosen]
    longest = max(len(corpus.vocabulary.encode(x)) for x in sources)
    found = quality.translate(lm, params, corpus.vocabulary, sources,
                              width=max(longest, *corpus.buckets, 1))
    figures[f'bleu_{name}'] = round(
        metrics.bleu(found, [(target,) for _, target in chosen])[0], 2)
    log(f'{name}: BLEU {figures[f"bleu_{name}"]} on {len(chosen)} sentences')
  native.save(output, lm, params, pathlib.Path(
      corpus.vocabulary.path).expanduser(), dtype,
              max_input_length=max(corpus.buckets), info=figures)
  log(f'wrote {output}')
  return figures
