"""Tokens per verifier call of drafters, greedy: predicted, and decoded.

Predicted from one round at every place of the texts, each begun with a prefill
of its own, so that a drafter which carries on wrongly from round to round is
found out. For drafters of any kind that go by the text alone: trees, heads.

Examples:
  python scripts/predict_tokens.py --drafter chain tree ngram
  python scripts/predict_tokens.py --gamma 4 --examples 50 --drafter \\
    eagle_tree:spec_cascades/assets/debian_ende/parts/eagle
"""
from __future__ import annotations

import argparse
from typing import Sequence

import _cli


def _parser() -> argparse.ArgumentParser:
  parser = _cli.Parser(description=__doc__,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('--drafter', nargs='+', required=True, help='keys of KINDS in '
      'spec_cascades/evaluation/kinds.py, with the path of what they read')
  add('--gamma', type=int, default=4, help='tokens drafted a round')
  add('--file', help='texts, a line each; default: the embedded sentences')
  add('--examples', type=int, default=200, help='of the texts, the first ones')
  add('--max_length', type=int, default=64, help='output tokens at most')
  add('--verifier', help='model directory, or any checkpoint; default: the '
      'shipped pair')
  add('--drafter_dir', help='the same, for drafters that are a small model')
  return parser


def main(args: Sequence[str]) -> None:
  """Prints a line for each drafter, and a warning where they disagree."""
  flags = _parser().parse_args(args)
  # pylint: disable=g-import-not-at-top
  import tqdm

  from spec_cascades import check
  from spec_cascades.evaluation import afresh
  from spec_cascades.evaluation import drafting
  from spec_cascades.evaluation import examples
  from spec_cascades.evaluation import foretold
  from spec_cascades.evaluation import pairs
  for name in ('examples', 'max_length'):
    check.interval(f'--{name}', getattr(flags, name), 1, 10**6, whole=True)
  for name in flags.drafter:
    afresh.check_name(name, flags.gamma)
  lines = (_cli.lines(flags.file) if flags.file else
           [x.source for x in examples.read()])[:flags.examples]
  given = dict(verifier=flags.verifier, drafter=flags.drafter_dir)
  given = {name: path for name, path in given.items() if path}
  if flags.verifier or not any(map(drafting.takes_small, flags.drafter)):
    given.setdefault('drafter', None)
  pair = drafting.supplied(
      pairs.load(**given, progress=_cli.loading_bar()),
      [(name, flags.gamma) for name in flags.drafter])
  rows = [examples.encode(pair.vocabulary, line, pair.max_input_length,
                          what=f'Text {i}') for i, line in enumerate(lines, 1)]
  for name in flags.drafter:
    judge = drafting.split(name)[0].judge
    drafter, params = drafting.make(name, pair, flags.gamma)
    texts, calls = afresh.decoded(pair, drafter, params, rows, flags.max_length,
                                  judge)
    ahead = afresh.emitted(pair, drafter, params, rows, texts, judge, tqdm.tqdm)
    count = sum(map(len, texts))
    decoded, predicted = count / calls.sum(), count / afresh.rounds(ahead).sum()
    print(f'{name}: {decoded:.2f} tokens a call, predicted '
          f'{foretold.shown(predicted, decoded)}; {count} tokens of '
          f'{len(rows)} texts, gamma {flags.gamma}, T=0')
    if warning := foretold.warning(name, predicted, decoded):
      print(warning)


if __name__ == '__main__':
  _cli.run(main)
