"""Which parts of a verifier to leave out, so that the rest drafts best for it.

A sampler of optuna proposes sets of sublayers; each is judged by its predicted
speed-up: greedy acceptance over the verifier's own texts, from a pass with the
sublayers' weights at 0, and the time of a step, from what a sublayer of each
kind was measured to take. So nothing is compiled for a set.

Reference: Zhang et al. (2023), https://arxiv.org/abs/2309.08168
"""
from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from typing import Any, Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import check
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import theory
from spec_cascades import warp
from spec_cascades.data import files
from spec_cascades.drafters import null
from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import forced
from spec_cascades.evaluation import pairs
from spec_cascades.models import reduced
from spec_cascades.models import skip

NAME, TRIALS, CALL = 'skipped.json', 'trials.log', 'search.json'
GREEDY, VERSION = warp.Warp(0.), 1
STARTS = 2, 3, 4, 6, 10, 15    # layers of which one is left out


@dataclasses.dataclass(frozen=True)
class Times:
  """Seconds of steps.

  Attributes:
    verifier: Of a call, by width of its block.
    parts: Of one sublayer, by its name.
  """
  verifier: Mapping[int, float]
  parts: Mapping[str, float]

  def without(self, skipped: Sequence[skip.Sublayer]) -> theory.StepTimes:
    """Of a drafter that leaves some sublayers out."""
    saved = sum(self.parts[name] for _, name in skipped)
    return theory.StepTimes(dict(self.verifier),
                            max(self.verifier[1] - saved, 0.))


def measure(lm: Any, packed: Any, gamma: int, prompt: Any,
            runs: int = 21) -> Times:
  """Times whole steps, and steps without all sublayers of a kind but one.

  Times of kinds are differences of these, scaled to add up to what a step takes
  more than one of a single sublayer.

  Args:
    lm: The verifier.
    packed: Its parameters in decode layout.
    gamma: Draft length.
    prompt: One row, to make a cache.
    runs: Of each program.
  """
  program = lambda lm, nodes: benchmarks.block_program(
      benchmarks.Loaded(lm, packed), nodes, prompt=prompt)
  calls = {n: program(lm, n) for n in (1, gamma + 1)}
  every, kinds = skip.sublayers(lm), {}
  for layer, name in every:
    kinds.setdefault(name, []).append((layer, name))
  for name, some in kinds.items():
    calls[name] = program(skip.without(lm, some[1:]), 1)
  calls['one'] = program(skip.without(lm, every[1:]), 1)
  found = {key: x.over(20).median
           for key, x in benchmarks.timed(calls, runs).items()}
  part = lambda name: (found[1] - found[name]) / max(len(kinds[name]) - 1, 1)
  return Times({n: found[n] for n in (1, gamma + 1)}, scaled(
      {name: max(part(name), 0.) for name in kinds}, every[1:],
      found[1] - found['one']))


def scaled(parts: Mapping[str, float], those: Sequence[skip.Sublayer],
           seconds: float) -> dict[str, float]:
  """Times of kinds of sublayers such that `those` take so many seconds."""
  total = sum(parts[name] for _, name in those)
  factor = max(seconds, 0.) / total if total else 0.
  return {name: factor * x for name, x in parts.items()}


@dataclasses.dataclass(frozen=True)
class _Side:
  """A model with parameters in decode layout, as `pairs.Model` has them."""
  lm: Any
  params: Any


def own_texts(model: _Side, rows: Sequence[Sequence[int]], length: int,
              eos: int | tuple[int, ...]) -> list[list[int]]:
  """What a model answers greedily, at most `length` tokens with the end."""
  prompt = pairs.prompt_of(model.lm)(rows, max(map(len, rows)))
  spec = decode.GenSpecSample(model.lm, null.Null(),
                              prompt.prefix.shape[1] + length, eos=eos)
  state = spec(model.params, None, prompt, decode.row_keys(0, range(len(rows))),
               targets.Lossless(), GREEDY)
  check.finite(state.fault)
  return [np.asarray(tokens[start:end]).tolist()[:length]
          for tokens, start, end in zip(state.tokens, prompt.prefix_lengths,
                                        state.lengths)]


class Search:
  """Predicted speed-ups of sets of sublayers that are left out.

  Args:
    pair: The verifier, in checkpoint layout still; its drafter is not used.
    rows: Tokens of the inputs to calibrate on.
    gamma: Draft length.
    length: New tokens of a text at most.

  Raises:
    ValueError: There are no inputs.
  """

  def __init__(self, pair: pairs.Pair, rows: Sequence[Sequence[int]], *,
               gamma: int, length: int):
    if not rows:
      raise ValueError('There is no text to calibrate on; give some.')
    model, found = pair.verifier, pair.verifier.unpacked()
    self.lm, self.gamma, self.rows = reduced.whole(model.lm), gamma, rows
    self._checkpoint = jax.tree.map(
        jnp.asarray, found['model'] if self.lm is not model.lm else found)
    texts = json.dumps([list(map(int, row)) for row in rows])
    self._call = dict(
        verifier=model.sha256, gamma=gamma, max_length=length,
        texts=hashlib.sha256(texts.encode()).hexdigest())
    verifier = _Side(self.lm, self.lm.pack(self._checkpoint))
    self._pair = dataclasses.replace(pair, verifier=verifier)
    self.texts = own_texts(verifier, rows, length, tuple(pair.vocabulary.ends))
    self.times = measure(self.lm, verifier.params, gamma,
                         pair.prompt([rows[0]], max(map(len, rows))))

  def tokens_per_call(self, skipped: Sequence[skip.Sublayer]) -> float:
    """Predicted for drafts of gamma tokens, greedily."""
    gates = {part: jnp.float32(part not in skipped)
             for part in skip.sublayers(self.lm)}
    packed = self.lm.pack(skip.weighted(self.lm, self._checkpoint, gates))
    pair = dataclasses.replace(self._pair, drafter=_Side(self.lm, packed))
    rates = forced.acceptance(pair, self.rows, self.texts, targets.Lossless(),
                              GREEDY)
    return theory.tokens_per_call(rates, self.gamma)

  def speedup(self, skipped: Sequence[skip.Sublayer]) -> float:
    """Predicted, over the verifier alone; 0 if no self-attention is left."""
    try:
      skip.without(self.lm, skipped)
    except ValueError:
      return 0.
    return theory.speedup(self.tokens_per_call(skipped), self.gamma,
                          self.times.without(skipped), uses_q=False)

  def __call__(self, directory: str, trials: int, seed: int = 0,
               progress: Callable[..., Any] = iter) -> dict[str, Any]:
    """The best set that `trials` proposals find; goes on where it was stopped.

    Args:
      directory: Keeps the trials, and gets `skipped.json`.
      trials: In all, those before an interruption among them.
      seed: Of the proposals, together with how many there were at the start.
      progress: `tqdm` or something called like it.

    Raises:
      ValueError: optuna is not installed, or the directory has the trials of
        another verifier, of other texts or lengths.
    """
    optuna = _optuna()
    place = pathlib.Path(directory).expanduser()
    place.mkdir(parents=True, exist_ok=True)
    files.claim(place / CALL, self._call, (place / TRIALS).is_file())
    kept = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(place / TRIALS)))
    study = optuna.create_study(
        storage=kept, study_name=f'gamma{self.gamma}', direction='maximize',
        load_if_exists=True)
    # A sampler with the seed of the first start would propose the same again.
    study.sampler = optuna.samplers.TPESampler(
        seed=(seed + len(study.trials)) % 2**32, multivariate=True)
    every = skip.sublayers(self.lm)
    named = {f'{layer}/{name}': (layer, name) for layer, name in every}
    # To begin with each second layer, and ever fewer: of a deep model that was
    # not trained for it, half of the layers draft nothing that is kept.
    for gap in STARTS if not study.trials else ():
      start = {key: int(layer % gap == gap - 1)
               for key, (layer, _) in named.items()}
      if any(start.values()):
        study.enqueue_trial(start)

    def judge(trial):
      return self.speedup([part for key, part in named.items()
                           if trial.suggest_int(key, 0, 1)])

    done = lambda: sum(x.state.is_finished() for x in study.trials)
    for _ in progress(range(done(), trials)):
      study.optimize(judge, n_trials=1)
    best = study.best_trial
    chosen = [part for key, part in named.items() if best.params[key]]
    found = dict(version=VERSION, verifier=self._call['verifier'],
                 gamma=self.gamma, skipped=chosen, kept=1 - len(chosen) / len(
                     every), speedup=best.value,
                 tokens_per_call=self.tokens_per_call(chosen),
                 trials=done())
    files.write_atomically(place / NAME, json.dumps(found, indent=1) + '\n')
    return found


def read(path: str, verifier: str, lm: Any) -> tuple[skip.Sublayer, ...]:
  """The sublayers that a search has chosen for a verifier.

  Args:
    path: `skipped.json`, or the directory that holds it.
    verifier: SHA-256 of the verifier.
    lm: The verifier.

  Raises:
    ValueError: There is none, or it is of another verifier.
  """
  place = pathlib.Path(path).expanduser()
  place = place / NAME if place.is_dir() else place
  hint = 'make it with scripts/search_layers.py'
  if not place.is_file():
    raise ValueError(f'No {NAME} at {path}; {hint}.')
  try:
    said = json.loads(place.read_text(encoding='utf-8'))
    skipped = tuple((int(layer), str(name)) for layer, name in said['skipped'])
    owner, version = said['verifier'], said['version']
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f"{place} can't be read ({error}); {hint}.") from None
  if owner != verifier or version != VERSION:
    raise ValueError(f'{place} is of another verifier; {hint}.')
  return skip.without(lm, skipped).config.skipped


def kept(path: str) -> float | None:
  """The share of sublayers that are left; None if that can't be read."""
  place = pathlib.Path(path).expanduser()
  try:
    text = (place / NAME if place.is_dir() else place).read_text('utf-8')
    return float(json.loads(text)['kept'])
  except (OSError, ValueError, KeyError, TypeError):
    return None


def check_installed() -> None:
  """Raises ValueError unless optuna is."""
  _optuna()


def _optuna():
  try:
    import optuna  # pylint: disable=g-import-not-at-top
  except ImportError:
    raise ValueError('The search needs optuna: pip install -r '
                     'requirements-search.txt.') from None
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  return optuna
