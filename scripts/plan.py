"""How long to draft: from a sweep's acceptance and measured step costs.

  python scripts/sweep.py --gin_file=gin/sweeps/quickstart.gin
  python scripts/benchmark.py steps --dims shipped --output runs/costs.json
  python scripts/plan.py runs/quickstart runs/costs.json

For every point of the sweep that a chain drafted: the measured acceptance,
predicted tokens a round and speed-up at each draft length, the best length (a +
where it is the longest that could be tried), the rate above which one drafted
token pays, and what the sweep itself measured, encoders included.
"""
from __future__ import annotations

import argparse
import pathlib
from typing import Sequence

import _cli


def _flags(args: Sequence[str]) -> argparse.Namespace:
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('results', type=pathlib.Path,
      help="a sweep's results.jsonl, or the folder that holds it")
  add('costs', type=pathlib.Path,
      help='what scripts/benchmark.py steps --output saved')
  add('--acceptance', choices=('positions', 'iid'), default='positions',
      help='rates by position (default; no further than the sweep drafted), or '
      'one i.i.d. rate')
  add('--max_gamma', type=int,
      help='the longest draft to try; default: what costs and rates allow')
  flags = parser.parse_args(args)
  if flags.max_gamma is not None and flags.max_gamma < 1:
    raise ValueError(f'Got --max_gamma {flags.max_gamma}; allowed: 1 or more.')
  return flags


def _table(rows: Sequence[Sequence[str]]) -> str:
  """Rows of cells as lines of aligned columns."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(
      row, widths)).rstrip() for row in rows)


def main(args: Sequence[str]) -> None:
  """Prints the plan."""
  flags = _flags(args)
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import costs as costs_lib
  from spec_cascades.evaluation import planner
  from spec_cascades.evaluation import sweep
  path = flags.results
  path = path / sweep.RESULTS if path.is_dir() else path
  rows, left_out = planner.read(path)
  costs = costs_lib.read(flags.costs)
  found = planner.forecast(rows, costs, acceptance=flags.acceptance,
                           max_gamma=flags.max_gamma)
  longest = max(x.best.max_gamma for x in found)

  widths = sorted(costs.verifier)
  print(f'{path}: {len(rows)} points of {rows[0].verifier}, '
        f'{rows[0].examples} examples each')
  for reason, number in left_out.items():
    print(f'  left out: {number} {reason}')
  print(f'{flags.costs}: {costs.names["verifier"]}, 1 token '
        f'{costs.verifier[1]}, {widths[-1]} tokens '
        f'{costs.verifier[widths[-1]]}; {costs.names["drafter"]}, a step '
        f'{costs.drafter}')
  print(f'  {costs.machine}, {costs.device}, load {costs.load:.1f}, '
        f'{costs.measured}')
  for name, ours in (('device', costs.device), ('machine', costs.machine),
                     ('verifier', costs.names['verifier'])):
    theirs = getattr(rows[0], name)
    if theirs != ours:
      print(f'  note: the {name} of the sweep is {theirs}, that of the costs '
            f'{ours}')
  print(f'Assumed: {planner.ASSUMED[flags.acceptance]}.')
  print(f'Assumed: {planner.OMITTED}.')
  print('Under each gamma: tokens a round, speed-up.\n')
  print(_table([planner.columns(longest),
                *(planner.cells(x, longest) for x in found)]))


if __name__ == '__main__':
  _cli.run(main)
