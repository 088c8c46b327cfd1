"""Which tree trained heads should draft: measured, chosen, tried, and saved."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import check
from spec_cascades.checkpoints import converting
from spec_cascades.checkpoints import orbax
from spec_cascades.drafters import hydra_plus
from spec_cascades.drafters import medusa
from spec_cascades.drafters import paths as paths_lib
from spec_cascades.evaluation import text
from spec_cascades.models import heads
from spec_cascades.training import ahead
from spec_cascades.training import loop
from spec_cascades.training import quality
from spec_cascades.training import start
from spec_cascades.training import writing


def accuracies(lm: Any, params: Any, some: Iterable[Mapping[str, Any]],
               ranks: int) -> np.ndarray:
  """How often choice r of head k is the token of a text, [K, R] in [0, 1].

  Where a text ends before head k's token, no choice is right.

  Args:
    lm: A `heads.Headed`.
    params: Its parameters in checkpoint layout.
    some: Batches of texts, as of `data.ParallelText`; those that the verifier
      writes.
    ranks: R, choices of a head.
  """
  @jax.jit
  def count(params, batch):
    _, hidden = ahead.states(lm, params, batch)

    def right(k):
      logits = lm.ahead(params, k, hidden, ahead.upcoming(batch['targets'], k))
      best = jax.lax.top_k(logits, ranks)[1]
      same = best == ahead.further(batch['targets'], k)[..., None]
      return (same * ahead.weights_at(batch, k)[..., None]).sum((0, 1))

    every = map(right, range(1, lm.heads.count + 1))
    return jnp.stack(list(every)), batch['weights'].sum()

  found = [jax.device_get(count(params, batch)) for batch in some]
  return sum(x for x, _ in found) / max(sum(float(n) for _, n in found), 1)


def calibrate(run: loop.Run, *, nodes: int = 16, ranks: int = 8,
              sentences: int = 200, log: Callable[[str], None] = print
              ) -> tuple[tuple[int, ...], ...]:
  """Chooses the tree of a run's heads and writes it to the run's model.json.

  The verifier's greedy texts for half of the sentences of the validation split
  give the accuracies; the other half is decoded with the tree.

  Args:
    run: Of a `heads.Headed` model; its newest checkpoint is read.
    nodes: Drafts of the tree.
    ranks: Choices of a head that may be in it.
    sentences: How many of the validation split, at random.
    log: Receives the accuracies, the tree, and tokens per verifier call: those
      that independent heads would give, and those decoded.

  Raises:
    ValueError: The run has no heads or no checkpoint, or there is no such tree.
  """
  if not isinstance(run.lm, heads.Headed):
    raise ValueError(f'Got the run of a {type(run.lm).__name__}; allowed: one '
                     'of heads.Headed.')
  for name, number, least in (('sentences', sentences, 2), ('nodes', nodes, 1),
                              ('ranks', ranks, 1)):
    check.interval(name, number, least, 10**9, whole=True)
  corpus, recipe, lm = run.corpus, run.recipe, run.lm
  params = jax.tree.map(jnp.asarray, start.restore(run.model_dir)[0])
  packed, width = lm.pack(params), max(corpus.buckets)
  pairs = quality.distinct_pairs(corpus, 'validation')
  order = np.random.default_rng(0).permutation(len(pairs))[:sentences]
  rows = [corpus.encode(pairs[i][0]) for i in order]
  if len(rows) < 2:
    raise ValueError(f'The validation split has {len(rows)} texts without a '
                     'near-duplicate in train that fit; allowed: 2 or more.')
  half = len(rows) // 2

  def decoded(rows, **drafter):
    texts, calls = writing.write(
        lm, packed, rows, width=width, length=recipe.max_length - 1,
        batch=recipe.eval_batch, end=corpus.end, **drafter)
    return texts, sum(map(len, texts)) / max(calls, 1)

  texts, _ = decoded(rows[:half])
  found = accuracies(lm, params, batches(rows[:half], texts, width,
                                         recipe.max_length), ranks)
  for k, row in enumerate(found, 1):
    log(f'head {k}: {" ".join(f"{x:.3f}" for x in row)}')
  tree = paths_lib.sparse(found, nodes)
  kind = medusa.Medusa if lm.heads.prefix is None else hydra_plus.HydraPlus
  _, bought = decoded(rows[half:], drafter=kind(lm, tree), draft_params=packed)
  log(f'tree of {nodes} drafts: {bought:.3f} tokens a call decoded greedily, '
      f'{paths_lib.expected(tree, found):.3f} if heads were right '
      'independently')
  chosen = dataclasses.replace(lm, heads=dataclasses.replace(
      lm.heads, paths=tree))
  folder = pathlib.Path(run.model_dir).expanduser()
  orbax.describe(folder, chosen, converting.files_of(corpus.vocabulary))
  log(f'wrote {folder / orbax.MODEL}: {tree}')
  return tree


def batches(rows: Sequence[Sequence[int]], texts: Sequence[Sequence[int]],
            width: int, length: int, size: int = 32
            ) -> Iterator[dict[str, np.ndarray]]:
  """Inputs and what the verifier answered, padded, `size` rows at a time."""
  for i in range(0, len(rows), size):
    inputs, targets = rows[i:i + size], [x[:length] for x in texts[i:i + size]]
    lengths = np.array([len(x) for x in targets])
    yield dict(
        inputs=text.pad(inputs, width), targets=text.pad(targets, length),
        input_lengths=np.array([len(x) for x in inputs], np.int32),
        weights=(np.arange(length) < lengths[:, None]).astype(np.float32))
