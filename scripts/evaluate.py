"""Evaluates rules on a seqio Task: seqio.Evaluator drives, this decodes.

Example:
  python scripts/evaluate.py --gin_file=gin/evaluate/debian_ende.gin
"""
from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any, Mapping, Sequence

import _cli

# Shown beside the Task's own metrics.
CALLS = 'tokens_per_call'
COSTS = (CALLS, 'rejection_rate', 'latency_mean', 'faults')


def main(args: Sequence[str]) -> None:
  flags, bindings = _cli.parse(_cli.gin_parser(__doc__), args)
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import evaluate
  import tqdm
  _cli.configure(flags.gin_file, bindings)
  run = evaluate.Run(_cli.call(evaluate.Evaluation), _cli.loading_bar())
  print(f'{len(run.points)} points on {", ".join(run.evaluators)} -> '
        f'{run.directory}\nat most {run.compilations} programs: one a length '
        'bucket for each model alone and each baseline, and at most two for '
        'each drafter and draft length',
        flush=True)
  if run.unforetold:
    print(run.unforetold, flush=True)
  bar = functools.partial(tqdm.tqdm, dynamic_ncols=True,
                          mininterval=0.5 if sys.stderr.isatty() else 15)
  signatures = {}
  for row in run(bar):
    tqdm.tqdm.write('\n'.join(said(row)))
    signatures[row['task']] = row['signatures']
  for task, lines in signatures.items():
    for name, signature in lines.items():
      print(f'{task}, {name}: {signature}')
  print(run.directory / evaluate.RESULTS)


def said(row: Mapping[str, Any]) -> list[str]:
  """A point with what people look at first; a warning, if one is due."""
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import foretold
  from spec_cascades.evaluation import results
  known = {field.name for field in dataclasses.fields(results.Row)}
  own = [name for name in row['metrics'] if name not in known]
  shown = {name: f'{name} {row["metrics"][name]:.4g}'
           for name in (*own, *COSTS) if name in row['metrics']}
  where, warned = f'{row["task"]}, {row["point"]}', None
  if row['predicted']:
    both = row['predicted'], row['metrics'][CALLS]
    shown[CALLS] += f' predicted {foretold.shown(*both)}'
    warned = foretold.warning(where, *both)
  stopped = [f'warning: at {where} the logits of example {i} were not finite '
             f'in round {fault}; its text ends there.'
             for i, fault in row['faults'].items()]
  return [f'{where}: {", ".join(shown.values())}', *[warned] * bool(warned),
          *stopped]


if __name__ == '__main__':
  _cli.run(main)
