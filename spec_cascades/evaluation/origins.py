"""Some texts of a finished sweep, with the origin of every token.

Which draft was accepted is nowhere in a sweep's records, so the texts are
decoded once more, round by round, with the same keys; and both models read what
came out, for the probabilities of its tokens.
"""
from __future__ import annotations

import collections
import math
from typing import Any, Callable, Sequence

import numpy as np

from spec_cascades import decode
from spec_cascades import targets
from spec_cascades.drafters import cached
from spec_cascades.drafters import ouroboros
from spec_cascades.drafters import specinfer
from spec_cascades.drafters import vertical
from spec_cascades.evaluation import forced
from spec_cascades.evaluation import inspected
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import stream
from spec_cascades.evaluation import summary

MAX_TOKENS = 12_000           # of all texts at all points
DIGITS = 3                    # of a probability that is kept


def chosen(run: Any, figures: summary.Figures,
           records: summary.Records) -> list[int]:
  """Examples whose texts differ most from the verifier's own.

  By the share of tokens that the two do not have in common, over all points of
  the lowest temperature; as many as the sweep wants, and no more than
  `MAX_TOKENS` in all.
  """
  ready = figures.ready(records)
  coldest = min(run.points[key].temperature for key in ready)
  cold = [key for key in ready if run.points[key].temperature == coldest]
  bag = lambda key, i: collections.Counter(records[key, i, 0].tokens)
  away = lambda a, b: 1 - (a & b).total() / max(a.total(), b.total(), 1)
  gaps, sizes = [], []
  for i in range(len(run.examples)):
    own = bag(figures.base[coldest], i)
    gaps.append(sum(away(own, bag(key, i)) for key in cold))
    sizes.append(sum(len(records[key, i, 0].tokens) for key in ready))
  out, room = [], MAX_TOKENS
  for i in sorted(range(len(gaps)), key=lambda i: -gaps[i]):
    if len(out) < run.sweep.inspected and sizes[i] <= room:
      out.append(i)
      room -= sizes[i]
  return out


def measure(run: Any, programs: programs_lib.Programs, examples: Sequence[int],
            keys: Sequence[str], records: summary.Records,
            progress: Callable[..., Any]) -> list[inspected.Text]:
  """Decodes some examples again, and reads what both models say of them.

  Args:
    run: A `sweep.Run`.
    programs: Of its points.
    examples: At least one, see `chosen`.
    keys: Points that are done.
    records: Of all decodes.
    progress: `tqdm` or something called like it.
  """
  found: dict[int, list[inspected.Decoded]] = {i: [] for i in examples}
  prompts = programs_lib.Prompts(run.rows, run.buckets, run.sweep.seed,
                                 run.pair.prompt, run.pair.verifier.lm)
  with progress(total=len(keys), initial=0, unit='point',
                desc='inspecting texts') as bar:
    for key in keys:
      for i, decoded in zip(examples, _at_point(
          run, programs, prompts, key, examples, records)):
        found[i].append(decoded)
      bar.update(1)
  of = run.examples
  return [inspected.Text(of[i].id, of[i].source, tuple(of[i].references),
                         tuple(found[i])) for i in examples]


def _at_point(run, programs, prompts, key, examples, records
              ) -> list[inspected.Decoded]:
  point = run.points[key]
  taken = [records[key, i, 0] for i in examples]
  drafted = point.drafter and not programs.name(point).baseline
  again = (_again(programs, prompts, point, examples) if drafted else
           [(r.tokens, [''] * len(r.tokens), r.stats['verifier_calls'])
            for r in taken])
  target, warp = programs.chosen(point)
  drafter = _drafter(run, programs, point)
  judged = drafted and not (target.uses_q and drafter is None)
  widest = max(*map(len, run.rows), *(b.max_length for b in run.buckets))
  laws = forced.probabilities(
      run.pair, drafter, [run.rows[i] for i in examples],
      [x[0] for x in again], target if judged else targets.Lossless(), warp,
      width=widest)
  return [inspected.Decoded(
      key, _tokens(run.pair.vocabulary, tokens, origins, (
          q, p, pi if judged else np.full_like(p, np.nan))),
      calls, tokens == record.tokens)
          for record, (tokens, origins, calls), (q, p, pi) in zip(
              taken, again, laws)]


def _drafter(run, programs, point) -> tuple[Any, Any] | None:
  """Which model's law q is at a point; of a model alone, the pair's drafter's.

  None where q is no model's that reads a text by itself: it may be of heads, of
  guessed states, or of part of a cache.
  """
  small = run.pair.drafter
  if not point.drafter:
    return small and (small.lm, small.params)
  spec, _, params = programs.loop(point, run.buckets[0])
  drafter = getattr(spec.drafter, 'chain', spec.drafter)
  if isinstance(drafter, cached.Cached):
    return drafter.lm, params
  if isinstance(drafter, specinfer.SpecInfer):
    return drafter.lms[0], params[0]
  if isinstance(drafter, (vertical.Vertical, ouroboros.Ouroboros)):
    return drafter.lm, params[0]
  return None


def _tokens(vocabulary, tokens, origins, laws) -> tuple[inspected.Token, ...]:
  """As text, with the rounded probabilities: q, p and pi."""
  shown = stream.Detokenizer(vocabulary)
  pieces = stream.pieces(vocabulary, tokens, origins)
  return tuple(inspected.Token(
      shown.add(token) or piece.text, piece.origin, *map(_short, law))
               for token, piece, law in zip(tokens, pieces, zip(*laws)))


def _again(programs, prompts, point, examples):
  """Tokens, origins and calls of the verifier of each example."""
  found = {}
  for bucket in dict.fromkeys(prompts.buckets[i] for i in examples):
    some = [i for i in examples if prompts.buckets[i] == bucket]
    tokens, origins = [[] for _ in some], [[] for _ in some]
    for done in decode.stream(*programs.loop(point, bucket),
                              *prompts(*some)[1:], *programs.chosen(point)):
      for row in range(len(some)):
        tokens[row] += done.tokens[row].tolist()
        origins[row] += done.origins[row]
      calls = np.asarray(done.state.stats.verifier_calls).tolist()
    found |= dict(zip(some, zip(tokens, origins, calls)))
  return [found[i] for i in examples]


def _short(number: float) -> float | None:
  """To some digits; None for NaN."""
  return None if math.isnan(number) else float(f'{number:.{DIGITS}g}')
