"""The best tree to draft, from a sweep's texts and measured step costs.

  python scripts/sweep.py --gin_file=gin/sweeps/quickstart.gin
  python scripts/benchmark.py steps --dims shipped --trees \
    --output runs/costs.json
  python scripts/shape_tree.py runs/quickstart runs/costs.json \
    --gin_file=gin/sweeps/quickstart.gin --output runs/trees

For every point of the sweep that a chain drafted, one pass of both models over
the texts that it wrote: how often a node's k-th child is accepted and none
before it, and the tree with the greatest predicted speed-up (Sequoia). A file
for each goes to --output, for --drafter tree:FILE of scripts/decode.py and for
the drafter of a curve.
"""
from __future__ import annotations

import argparse
import functools
import pathlib
from typing import Sequence

import _cli


def _flags(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('results', type=pathlib.Path, help='the folder of a finished sweep')
  add('costs', type=pathlib.Path,
      help='what scripts/benchmark.py steps --output saved')
  add('--gin_file', action='append', metavar='FILE', required=True,
      help="the sweep's gin file; its --gin.NAME=VALUE too, except OUTPUT_DIR")
  add('--output', type=pathlib.Path, help='a folder for the trees')
  add('--ranks', type=int, default=8, help='children of a node at most')
  add('--max_nodes', type=int,
      help='of a tree; default: the widest block of the costs')
  flags, bindings = _cli.parse(parser, args)
  for name, least in (('ranks', 1), ('max_nodes', 2)):
    number = getattr(flags, name)
    if number is not None and number < least:
      raise ValueError(f'Got --{name} {number}; allowed: {least} or more.')
  if flags.output is not None and flags.output.exists() and (
      not flags.output.is_dir()):
    raise ValueError(f'Got --output {flags.output}; give a folder.')
  return flags, [*bindings, f'OUTPUT_DIR = {str(flags.results)!r}']


def main(args: Sequence[str]) -> None:
  """Prints a tree for each point, and saves it."""
  flags, bindings = _flags(args)
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import costs as costs_lib
  from spec_cascades.evaluation import forced
  from spec_cascades.evaluation import points
  from spec_cascades.evaluation import sequoia
  from spec_cascades.evaluation import shapes
  from spec_cascades.evaluation import sweep
  import tqdm
  costs = costs_lib.read(flags.costs)
  _cli.configure(flags.gin_file, bindings)
  run = sweep.Run(_cli.call(sweep.Sweep), _cli.loading_bar())
  found = run.acceptance(tqdm.tqdm, functools.partial(
      forced.by_rank, ranks=flags.ranks))
  print(f'{flags.costs}: {costs.names["verifier"]}, {costs.names["drafter"]}; '
        f'{costs.machine}, {costs.device}, load {costs.load:.1f}')
  rest = sequoia.beside(costs.times, costs.rounds) if costs.rounds else None
  print('Assumed: a child is accepted by its rank alone; '
        + ('a level of the tree takes the drafter as long as one token, and '
           'nothing else takes time (--trees of benchmark.py measures it).'
           if rest is None else
           f'beside its block a round takes {1e3 * rest.fixed:.2f} ms, '
           f'{1e3 * rest.level:.2f} a level and {1e3 * rest.node:.2f} a node.'))
  names = points.file_names({key: run.points[key] for key in found})
  reads_q = {key: reads for key, (_, _, reads) in zip(run.points, points.drafts(
      list(run.points.values()), run.sweep.curves))}
  for key, rates in found.items():
    best = sequoia.best(
        rates, costs.times, uses_q=reads_q[key], max_nodes=flags.max_nodes,
        rest=rest)
    print(f'{run.points[key].label}: accepted by rank '
          f'{" ".join(f"{r:.3f}" for r in rates)}\n  {len(best.parents)} '
          f'nodes, {best.tokens:.2f} tokens a round, {best.speedup:.2f}x: '
          f'{list(best.parents)}')
    if flags.output is not None:
      flags.output.mkdir(parents=True, exist_ok=True)
      shapes.write(flags.output / f'{names[key]}.json', best)


if __name__ == '__main__':
  _cli.run(main)
