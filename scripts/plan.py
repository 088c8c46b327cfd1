"""How long to draft: from a sweep's acceptance and measured step costs.

  python scripts/sweep.py --gin_file=gin/sweeps/quickstart.gin
  python scripts/benchmark.py steps --dims shipped --output runs/costs.json
  python scripts/plan.py runs/quickstart runs/costs.json

For every point of the sweep that a chain drafted: the measured acceptance,
predicted tokens a round and speed-up at each draft length, the best length (a +
where it is the longest that could be tried), the rate above which one drafted
token pays, and what the sweep itself measured, encoders included.

The closest prediction takes one pass of both models over the sweep's texts:

  python scripts/plan.py runs/quickstart runs/costs.json --acceptance texts \
    --gin_file=gin/sweeps/quickstart.gin
"""
from __future__ import annotations

import argparse
import pathlib
from typing import Any, Sequence

import _cli


def _flags(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('results', type=pathlib.Path,
      help="a sweep's results.jsonl, or the folder that holds it")
  add('costs', type=pathlib.Path,
      help='what scripts/benchmark.py steps --output saved')
  add('--acceptance', choices=('positions', 'iid', 'texts'),
      default='positions',
      help='rates by position (default; no further than the sweep drafted), '
      'one i.i.d. rate, or token by token over the texts of the sweep')
  add('--gin_file', action='append', metavar='FILE', default=[],
      help="with --acceptance texts: the sweep's gin file; its "
      '--gin.NAME=VALUE too, except OUTPUT_DIR')
  add('--max_gamma', type=int,
      help='the longest draft to try; default: what costs and rates allow')
  flags, bindings = _cli.parse(parser, args)
  if flags.max_gamma is not None and flags.max_gamma < 1:
    raise ValueError(f'Got --max_gamma {flags.max_gamma}; allowed: 1 or more.')
  if (flags.acceptance == 'texts') != bool(flags.gin_file):
    raise ValueError('--acceptance texts and --gin_file belong together; the '
                     'file says which models and data the sweep had.')
  if bindings and not flags.gin_file:
    raise ValueError(f'Got --gin.{bindings[0].replace(" = ", "=")} without '
                     '--gin_file, whose names it is to set; give both.')
  if flags.gin_file:
    folder = flags.results if flags.results.is_dir() else flags.results.parent
    bindings.append(f'OUTPUT_DIR = {str(folder)!r}')
  return flags, bindings


def _table(rows: Sequence[Sequence[str]]) -> str:
  """Rows of cells as lines of aligned columns."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(
      row, widths)).rstrip() for row in rows)


def _texts(flags: argparse.Namespace, bindings: Sequence[str]) -> Any:
  """Acceptance over the texts of each point of the sweep."""
  from spec_cascades.evaluation import sweep  # pylint: disable=g-import-not-at-top
  import tqdm  # pylint: disable=g-import-not-at-top
  _cli.configure(flags.gin_file, bindings)
  run = sweep.Run(_cli.call(sweep.Sweep), _cli.loading_bar())
  return run.acceptance(tqdm.tqdm)


def main(args: Sequence[str]) -> None:
  """Prints the plan."""
  flags, bindings = _flags(args)
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import costs as costs_lib
  from spec_cascades.evaluation import foretold
  from spec_cascades.evaluation import planner
  from spec_cascades.evaluation import sweep
  path = flags.results
  path = path / sweep.RESULTS if path.is_dir() else path
  rows, left_out = planner.read(path)
  costs = costs_lib.read(flags.costs)
  texts = _texts(flags, bindings) if flags.gin_file else None
  found = planner.forecast(rows, costs, acceptance=flags.acceptance,
                           texts=texts, max_gamma=flags.max_gamma)
  longest = max(x.best.max_gamma for x in found)

  widths = sorted(costs.verifier)
  print(f'{path}: {len(found)} points of {rows[0].verifier}, '
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
  if off := sorted(map(abs, planner.errors(found))):
    print('\nPredicted tokens a call against decoded ones, at the gamma of the '
          f'sweep: {off[len(off) // 2]:.1%} off in the median, '
          f'{off[-1]:.1%} at most.')
    if off[-1] > foretold.TOLERATED:
      print('More than 5 %: do not trust these speed-ups; --acceptance texts '
            'predicts better.' if flags.acceptance != 'texts' else
            'More than 5 %: too few texts, or not those that the rules wrote.')


if __name__ == '__main__':
  _cli.run(main)
