"""A training run as a model directory, or the part of one beside a verifier."""
from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any, Callable

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import check
from spec_cascades import checkpoints
from spec_cascades.checkpoints import beside
from spec_cascades.checkpoints import converting
from spec_cascades.checkpoints import extras
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import native
from spec_cascades.checkpoints import orbax
from spec_cascades.checkpoints import stores
from spec_cascades.data import files
from spec_cascades.evaluation import examples
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import qualities
from spec_cascades.models import heads
from spec_cascades.models import t5
from spec_cascades.training import borrowing
from spec_cascades.training import loop
from spec_cascades.training import quality
from spec_cascades.training import start
from spec_cascades.training import train_step


def export(run: loop.Run, output: str, *, dtype: str = 'bfloat16',
           sentences: int | None = None,
           log: Callable[[str], None] = print) -> dict[str, float]:
  """Writes the newest checkpoint of a run and measures what was written.

  Quality is of the exported weights, so after rounding to `dtype`, and added to
  what was written: on all texts of test, or of validation where there is no
  test, without a near-duplicate in train, and for English to German on the
  embedded set. Heads keep the tree that was chosen for them.

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
  params, figures = _rounded(params, dtype), dict(step=step)
  native.save(output, _chosen(run), params, None, dtype,
              lender=_lender(run, params, output, log),
              words=converting.files_of(corpus.vocabulary),
              max_input_length=max(corpus.buckets), info=figures)
  log(f'wrote {output}')
  metric = qualities.make(run.recipe.metric)
  for name, chosen in _sets(corpus).items():
    if not chosen:
      log(f'{name}: not measured, there is no text')
      continue
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
    _note(pathlib.Path(output).expanduser(), figures)
    log(f'{name}: {metric.name} {score:.2f} on {len(chosen)} texts')
  return figures


def _lender(run, params, output, log):
  """Whose encoder is left out: that of the verifier beside the output."""
  if run.encoder_from is None or not borrowing.still(run.lm):
    return None
  output = pathlib.Path(output).expanduser().resolve()
  there = output.parent / pathlib.Path(run.encoder_from).expanduser(
      ).resolve().name
  if there == output:
    raise ValueError(f'{output} is where the verifier is that lends its '
                     'encoder; give another --output.')
  if native.recognises(there) and _lends(native.source(there), params):
    return extras.Owner(there.name, native.digest(there))
  log(f'written with its encoder, as that is not the one of {there}')
  return None


def _lends(source, params):
  """Whether a model's file has, to the bit, the encoder of parameters."""
  for ours, theirs in t5.BORROWED.items():
    flat = traverse_util.flatten_dict(params[ours], sep='/')
    leaves = {name.removeprefix(f'{theirs}/'): leaf for name, leaf
              in source.leaves.items() if name.startswith(f'{theirs}/')}
    if flat.keys() != leaves.keys() or not all(
        _equal(flat[name], leaf) for name, leaf in leaves.items()):
      return False
  return True


def _sets(corpus):
  """Pairs to measure, by what they are called."""
  splits = [x for x in ('test', 'validation') if x in corpus.splits][:1]
  sets = {f'{x}_distinct': quality.distinct_pairs(corpus, x) for x in splits}
  if (corpus.source, corpus.target) == ('en', 'de'):
    sets['software_docs'] = [(x.source, x.reference) for x in examples.read()]
  return sets or dict(test_distinct=[])


def _note(folder, figures):
  """Puts figures beside a model that was written."""
  said = dict(native.described(folder), info=figures)
  files.write_atomically(folder / native.CONFIG,
                         json.dumps(said, indent=2) + '\n')


def export_part(run: loop.Run, output: str, *, verifier: str | None = None,
                dtype: str = 'bfloat16', log: Callable[[str], None] = print
                ) -> dict[str, float]:
  """Writes what the newest checkpoint of a run has beside its verifier.

  Greedy and sampled texts are the verifier's own, so no quality is measured,
  but the run's loss on validation, after rounding to `dtype`, with agreement
  and acceptance. Heads keep the tree that was chosen for them.

  Args:
    run: The training run, of a `heads.Beside` whose verifier stayed as it is.
    output: The directory to write, see `checkpoints.beside`.
    verifier: The checkpoint that it was trained beside; None: what the run
      started from.
    dtype: Of the weights written.
    log: Receives one line per figure.

  Raises:
    ValueError: There is no checkpoint, nothing is beside the run's model, or
      the verifier is not known or another one than it was.
  """
  lm, path = _chosen(run), verifier or run.init_from
  if not isinstance(lm, heads.Beside):
    raise ValueError(f'Got the run of a {type(lm).__name__}, which has no part '
                     'beside a verifier; allowed: heads.Headed, features.'
                     'Featured and masks.Masked. Export it whole, without '
                     '--part.')
  if path is None:
    raise ValueError('Got a run with init_from=None, so nothing says which '
                     'verifier its part belongs to; give it: --verifier.')
  beside.check_free(output)
  found = checkpoints.source_of(path)
  params, step = start.restore(run.model_dir)
  _check_same(run, params['model'], found, path)
  params = dict(params, heads=_rounded(params['heads'], dtype))
  figures = dict(step=step)
  if run.objective is not None:
    update = train_step.Update(lm, None, objective=run.objective)
    for name, x in quality.Validation(update, run.corpus).means(params).items():
      figures[name] = round(x, 4)
      log(f'{name}: {x:.4f}')
  beside.write(output, dataclasses.replace(lm, lm=found.lm), params['heads'],
               extras.Owner(pairs.shown(path), pairs.digest(path)), dtype,
               info=figures)
  log(f'wrote {output}')
  return figures


def _rounded(params, dtype):
  """Float32 arrays with the values that a file of `dtype` holds."""
  ids = lambda x: jnp.issubdtype(x.dtype, jnp.integer)
  return jax.tree.map(
      lambda x: jnp.asarray(x) if ids(x) else
      jnp.asarray(x, dtype).astype(jnp.float32), params)


def _chosen(run) -> Any:
  """The run's model, with the tree of heads that was chosen since."""
  path = pathlib.Path(run.model_dir).expanduser() / orbax.MODEL
  if not isinstance(run.lm, heads.Headed) or not path.is_file():
    return run.lm
  kept = extras.heads_of(path, stores.read_json(path))
  paths = getattr(kept, 'paths', run.lm.heads.paths)
  return dataclasses.replace(run.lm, heads=dataclasses.replace(
      run.lm.heads, paths=paths))


def _check_same(run, params, found, path) -> None:
  """Refuses a verifier that is not, to the bit, the one in the run."""
  have = traverse_util.flatten_dict(dict(params), sep='/')
  want = {name: leaf for name, leaf in found.leaves.items()
          if not name.startswith(f'{extras.HEADS}/')}
  same = have.keys() == want.keys() and all(
      have[name].shape == tuple(leaf.shape) and _equal(have[name], leaf)
      for name, leaf in want.items())
  if not same:
    raise ValueError(
        f'The verifier in {run.model_dir} is not that of {path}: it was '
        'trained with its part (Medusa-2, SPACE), or started from another; '
        'allowed with --part: one that stayed as it is. Export the run whole, '
        'without --part, or give the verifier that it was trained beside: '
        '--verifier.')
  if found.heads is not None or found.tokens is not None:
    raise ValueError(f'{path}, which the run started from, holds more than its '
                     'verifier; give the verifier alone: --verifier.')


def _equal(array: np.ndarray, leaf: loading.Leaf) -> bool:
  """Whether an array of a run holds what was read from a file."""
  return np.array_equal(np.asarray(array, np.float32),
                        np.asarray(loading.read(leaf)).astype(np.float32))
