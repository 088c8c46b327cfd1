"""What a sweep leaves behind: rows, records, and the keys that name them.

`results.jsonl` has one `Row` per point. `examples.jsonl`, the journal, opens
with the sweep's configuration and has a `Record` per decode; it is what a
sweep that was killed resumes from.
"""
from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
import sys
from typing import Any, Iterable

from spec_cascades.data import files

SCHEMA = 5
ROOT = pathlib.Path(__file__).resolve().parents[1]
# Sources that decide which tokens come out, and what they are worth.
ENGINE = ('*.py', 'targets/*.py', 'models/*.py', 'models/*.c', 'drafters/*.py',
          'checkpoints/*.py',
          *(f'data/{name}.py'
            for name in ('gguf_tokenizers', 'public_datasets', 'templates',
                         'tokenizers', 'words')),
          *(f'evaluation/{name}.py' for name in (
              'answers', 'asking', 'attached', 'confine', 'costs', 'counted',
              'datastores', 'drafting', 'examples', 'kinds', 'meshes',
              'metrics', 'pairs', 'programs', 'public_examples', 'qualities',
              'rules', 'sandbox', 'shapes', 'skipping', 'sources', 'text')))
APART = ('fatal.py', 'hosts.py', 't5x_models.py')     # they decide nothing


def _column(doc: str, unit: str = '', *, measured: bool = False) -> Any:
  """A documented column; `measured` ones differ from run to run."""
  return dataclasses.field(
      metadata=dict(doc=doc, unit=unit, measured=measured))


_measured = functools.partial(_column, measured=True)


@dataclasses.dataclass(frozen=True)
class Row:
  """One point of a sweep. Sums and ratios of sums are over all examples."""
  schema: int = _column('version of this schema')
  key: str = _column('content key of the point')
  sweep: str = _column('content key of the sweep and its device')
  method: str = _column('name of the curve, or verifier or drafter alone')
  rule: str = _column('target distribution; empty for a model alone')
  alpha: float | None = _column('threshold of the rule; null if it has none')
  temperature: float = _column('of both models; 0 is greedy')
  top_k: int = _column('tokens kept; 0 is off')
  top_p: float = _column('mass kept; 1 is off')
  gamma: int = _column(
      'drafts of a round, one after another, at most; 0 without; the sweep\'s '
      'where the tree of a file is drafted', 'tokens')
  drafter: str = _column('kind and name of the drafter; empty without one')
  verifier: str = _column('name of the model that has the last word')
  dtype: str = _column('of weights, activations and caches')
  batch: int = _column('rows decoded together where nothing is timed', 'rows')
  data: str = _column('name of the evaluation set')
  seed: int = _column('of the random numbers')
  examples: int = _column('examples decoded', 'examples')
  timed: int = _column('examples timed', 'examples')
  timed_batch: int = _column('rows timed together, in equal shares', 'rows')
  trials: int = _column('how often each of these was timed')
  faults: int = _column('examples stopped by non-finite logits', 'examples')
  metric: str = _column('what quality is: BLEU, say')
  quality: float = _column('of all texts, 0 to 100')
  quality_low: float = _column('bootstrap 95 % interval, lower end')
  quality_high: float = _column('bootstrap 95 % interval, upper end')
  signature: str = _column('what the metric depends on, and its version')
  latency_mean: float = _measured('wall-clock per example', 'ms')
  latency_median: float = _measured('wall-clock per example', 'ms')
  latency_p90: float = _measured('wall-clock per example', 'ms')
  relative_latency: float = _measured(
      'time of all examples over that of the verifier alone, same temperature')
  relative_low: float = _measured('bootstrap 95 % interval, lower end')
  relative_high: float = _measured('bootstrap 95 % interval, upper end')
  tokens_per_second: float = _measured('emitted over wall-clock', 'tokens/s')
  rounds: int = _column('rounds of the loop', 'rounds')
  drafted: int = _column('proposed tokens', 'tokens')
  accepted: int = _column('draft tokens kept', 'tokens')
  corrected: int = _column('tokens that replaced a rejected draft', 'tokens')
  bonus: int = _column('tokens after a draft with no rejection', 'tokens')
  emitted: int = _column('accepted + corrected + bonus', 'tokens')
  deferred: float = _column('summed deferral to the verifier', 'tokens')
  verifier_calls: int = _column('forward passes of the verifying model')
  drafter_calls: int = _column('forward passes of the drafter')
  rejection_rate: float | None = _column(
      'corrected / (accepted + corrected); null where no draft is judged')
  tokens_per_call: float = _column('emitted / verifier_calls', 'tokens')
  mean_accepted: float = _column('accepted / rounds', 'tokens')
  deferral_rate: float = _column('deferred / emitted')
  histogram: list[int] = _column('rounds that kept j = 0, 1, ... draft tokens')
  programs: int = _column('XLA programs the point ran on, shared with others',
                          measured=True)
  compile_seconds: float = _measured('compilation of these programs', 's')
  device: str = _measured('JAX platform and device kind')
  machine: str = _measured('processor and cores')
  versions: dict[str, str] = _measured('of Python and the libraries')
  started: str = _measured('UTC, ISO 8601')
  finished: str = _measured('UTC, ISO 8601')


@dataclasses.dataclass(frozen=True)
class Record:
  """One example decoded at one point; `seconds` is measured, or null."""
  key: str
  example: int
  seconds: float | None
  tokens: list[int]
  fault: int                    # round of non-finite logits, from 1, or 0
  stats: dict[str, Any]
  trial: int = 0                # 0 is what quality is measured on
  kind: str = 'example'


def deterministic(row: Row) -> dict[str, Any]:
  """The columns that do not depend on the clock or the machine."""
  return {f.name: getattr(row, f.name) for f in dataclasses.fields(Row)
          if not f.metadata['measured']}


def to_json(row: Row | Record) -> str:
  """One line of JSON."""
  # Flat, so that nothing has to be copied, as `asdict` does.
  return json.dumps({f.name: getattr(row, f.name)
                     for f in dataclasses.fields(row)}, ensure_ascii=False)


def row_from_json(line: str) -> Row:
  """The inverse of `to_json` for a row.

  Raises:
    ValueError: Not a row of this schema.
  """
  fields = json.loads(line)
  version = fields.get('schema') if isinstance(fields, dict) else None
  if version != SCHEMA:
    raise ValueError(f'Got a row of schema {version}; this version reads '
                     f'schema {SCHEMA}.')
  names = {f.name for f in dataclasses.fields(Row)}
  if set(fields) != names:
    raise ValueError('Got a row with other columns: '
                     f'{", ".join(sorted(set(fields) ^ names))}.')
  return Row(**fields)


def write_rows(path: pathlib.Path, rows: Iterable[Row]) -> None:
  """Writes all rows at once: readers see the old file or the new one."""
  files.write_atomically(path, ''.join(to_json(row) + '\n' for row in rows))


def read_rows(path: pathlib.Path) -> list[Row]:
  """All rows of a results file; ValueError names file and line."""
  rows = []
  lines = path.read_text(encoding='utf-8').rstrip('\n').split('\n')
  for i, line in enumerate(lines, 1):
    try:
      rows.append(row_from_json(line))
    except (ValueError, TypeError) as error:
      raise ValueError(f'{path}, line {i}: {error} Choose another OUTPUT_DIR '
                       'or move the file away.') from None
  return rows


def content_key(content: Any) -> str:
  """SHA-256 of canonical JSON: sorted keys, no spaces."""
  text = json.dumps(content, sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()


def rules_digest(rules: Iterable[type]) -> dict[str, str]:
  """SHA-256 of the files of rules that are not the package's, by module.

  A rule that was typed into a notebook has no file and is not among them.
  """
  files = {rule.__module__: getattr(sys.modules.get(rule.__module__),
                                    '__file__', None) for rule in rules}
  return {name: hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
          for name, path in sorted(files.items())
          if path and not pathlib.Path(path).is_relative_to(ROOT)}


@functools.lru_cache(maxsize=1)
def code_digest() -> str:
  """SHA-256 over the sources of `ENGINE`."""
  state = hashlib.sha256()
  for path in sorted(p for pattern in ENGINE for p in ROOT.glob(pattern)):
    if path.parent == ROOT and path.name in APART:
      continue
    state.update(path.relative_to(ROOT).as_posix().encode() + b'\0')
    state.update(path.read_bytes() + b'\0')
  return state.hexdigest()
