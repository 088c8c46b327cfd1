"""What can't be trained together, refused before texts or weights are read."""
from __future__ import annotations

from typing import Any, Callable, Mapping

import numpy as np
import orbax.checkpoint as ocp

from spec_cascades import hosts
from spec_cascades.evaluation import tensorboard
from spec_cascades.models import features
from spec_cascades.models import heads
from spec_cascades.models import masks
from spec_cascades.models import reduced
from spec_cascades.training import ahead
from spec_cascades.training import borrowing
from spec_cascades.training import consistent
from spec_cascades.training import exits
from spec_cascades.training import follow
from spec_cascades.training import sharding
from spec_cascades.training import start

# Of a `Run`'s settings, what the arrays of its state depend on.
SHAPING = ('lm', 'optimizer', 'freeze', 'objective', 'online')
OBJECTIVES = {heads.Headed: ahead.Ahead, masks.Masked: ahead.Ahead,
              features.Featured: follow.Follow}


def check(run: Any) -> None:
  """Refuses a run whose parts don't go together; compiles nothing.

  Args:
    run: A `loop.Run`.

  Raises:
    ValueError: Texts that the model can't be trained on, a mesh that there is
      not, a loss of another model, or what is not installed.
  """
  if run.online is not None:
    _online(run)
  start.check(run.lm, run.corpus, run.recipe.max_length)
  borrowing.check(run.lm, run.init_from, run.encoder_from)
  sharding.layout(run.mesh, run.lm, rules=run.rules)
  _objective(run)
  if run.recipe.tensorboard:
    tensorboard.check()
  _texts(run)


def begins(run: Any, log: Callable[[str], None]) -> None:
  """Says where a run starts from, and what of its settings may surprise."""
  if run.init_from is not None:
    log(f'starting from {run.init_from}')
  recipe, corpus = run.recipe, run.corpus
  if said := getattr(corpus.reader, 'said', None):
    log(said)
  if recipe.steps and (share := _highest(recipe)) < .8:
    log(f'of {recipe.steps} steps, {recipe.warmup} are to warm up and '
        f'{recipe.cooldown} to cool down: the rate rises to {share:.0%} of its '
        f'peak, {recipe.peak:g}; a shorter loop.Recipe.cooldown lets it go on')
  for width, pairs in corpus.unused.items():
    log(f'{pairs} pairs of up to {width} tokens fill no batch of '
        f'{corpus.rows(width)} and are left out; fewer tokens_per_batch, or '
        'other buckets, take them')
  if corpus.widest_target >= recipe.max_length:
    log(f'texts are measured up to {recipe.max_length - 1} tokens, but targets '
        f'have up to {corpus.widest_target}: see loop.Recipe.max_length')


def _highest(recipe: Any) -> float:
  """The part of its peak that a rate gets to, decays left out."""
  t = np.linspace(1, recipe.steps, 1000)
  return float((np.minimum(t / max(recipe.warmup, 1), 1) * np.minimum(
      (recipe.steps - t + 1) / max(recipe.cooldown, 1), 1)).max())


def same_arrays(place: Any, there: Any, here: Any, changes: Mapping[str, str]
                ) -> None:
  """Refuses to go on from a checkpoint of another model or optimiser.

  Args:
    place: Of the checkpoint.
    there: Shapes of the tree that it holds.
    here: Those of the run that is to go on; a memory's may be others.
    changes: See `settings.changes`.
  """
  before, now = map(_shapes, (there, here))
  if before == now:
    return
  lines = [line for name, line in changes.items()
           if name.split('.')[0] in SHAPING]
  if not lines:
    name = min(name for name in {*before, *now}
               if before.get(name) != now.get(name))
    lines = [f'{name} there {before.get(name, "absent")}, '
             f'here {now.get(name, "absent")}']
  raise ValueError(f'The checkpoint {place} is of another model or optimiser: '
                   f'{"; ".join(lines)}. Give those, or another model_dir.')


def _shapes(tree):
  """Of arrays by name."""
  flat = {'/'.join(map(str, path)): x
          for path, x in ocp.tree.to_flat_dict(tree).items()}
  return {name: 'any' if name.startswith('memory/') else tuple(x.shape)
          for name, x in flat.items() if x is not None}


def _objective(run):
  """Refuses a loss that is not of the model, or texts that are not of it."""
  objective = run.objective and type(run.objective)
  steady = objective is consistent.Consistent
  whole = objective in (consistent.Consistent, exits.Exits)
  if OBJECTIVES.get(type(run.lm)) is not objective and not (
      whole and not isinstance(run.lm, reduced.Around)):
    raise ValueError(f'Got a {type(run.lm).__name__} and objective='
                     f'{run.objective}; allowed: heads.Headed and masks.Masked '
                     'with ahead.Ahead, features.Featured with follow.Follow, '
                     'T5s and decoders with consistent.Consistent, exits.Exits '
                     'or none.')
  if steady != bool(run.corpus.guesses):
    raise ValueError(f'Got objective={run.objective} and a corpus with guesses='
                     f'{run.corpus.guesses}; allowed: guesses above 0 with '
                     'consistent.Consistent, 0 without. Set '
                     'data.ParallelText.guesses.')
  if whole and run.teacher is not None:
    raise ValueError(f'Got {objective.__name__} and a teacher; allowed: the '
                     'model is its own. Leave out teacher.')


def _texts(run):
  """Refuses texts of the student's own that can't be had or judged."""
  share, headed = run.on_policy.share, isinstance(run.lm, heads.Beside)
  if headed and run.teacher is not None and not run.objective.verifier:
    raise ValueError('Got heads and a teacher; allowed: ahead.Ahead with '
                     'verifier above 0, a verifier that is trained and kept '
                     'near its teacher. One that stays is the teacher of its '
                     'heads: leave out teacher.')
  if run.teacher is None and share and not headed:
    raise ValueError(f'Got on_policy with a share of {share} and no teacher: a '
                     'model learns nothing from what it wrote itself. Give a '
                     'teacher.')
  if share and run.teacher is not None and getattr(
      run.distillation, 'mix', 1) == 1:
    raise ValueError(f'Got on_policy with a share of {share} and '
                     f'{run.distillation}, which learns from targets alone; '
                     'allowed: a losses.Distillation with mix below 1. A '
                     'student learns nothing from targets that it wrote.')
  if share and run.corpus.packed:
    raise ValueError(f'Got on_policy with a share of {share} and packed texts: '
                     'a student writes one text a row. Set '
                     'data.ParallelText.packed or policies.OnPolicy.share to '
                     '0.')


def _online(run):
  """Refuses requests that can't be served."""
  if hosts.count() > 1:
    raise ValueError(f'Got online and {hosts.count()} processes; allowed: one, '
                     'which decodes the requests on one device.')
  if tuple(run.mesh or (1, 1)) != (1, 1):
    raise ValueError(f'Got online and mesh={tuple(run.mesh)}; allowed: one '
                     'device, (1, 1), where requests are decoded.')
  if isinstance(run.lm, heads.Beside):
    raise ValueError('Got online and heads; allowed: a drafter of its own, '
                     'which the teacher verifies. Leave out online.')
  if run.teacher is None:
    raise ValueError('Got online and no teacher, which is the verifier that '
                     'the model drafts for. Give a teacher.')
  if share := run.on_policy.share:
    raise ValueError(f'Got online and on_policy with a share of {share}; '
                     'allowed: one of them. Leave out on_policy.')
