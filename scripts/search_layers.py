"""Which sublayers a verifier should leave out when it drafts for itself.

Bayesian optimisation of the predicted speed-up (Draft & Verify). Needs
requirements-search.txt. The same command goes on after an interruption.

Example:
  python scripts/search_layers.py --corpora debian_ende --output runs/sublayers
  python scripts/decode.py --drafter sublayers:runs/sublayers "Click OK."
"""
from __future__ import annotations

import argparse
import itertools
from typing import Sequence

import _cli


def _parser() -> argparse.ArgumentParser:
  parser = _cli.text_parser(__doc__)
  add = parser.add_argument
  add('--texts', type=int, default=32, help='inputs to calibrate on: the first '
      'of the validation split that the model takes, or of the file (default: '
      '%(default)s)')
  add('--gamma', type=int, default=4, help='draft length')
  add('--trials', type=int, default=200, help='sets of sublayers to judge')
  add('--max_length', type=int, default=64, help='output tokens at most')
  add('--seed', type=int, default=0)
  return parser


def main(args: Sequence[str]) -> None:
  """Searches, and prints what it has found."""
  flags = _parser().parse_args(args)
  # pylint: disable=g-import-not-at-top
  from spec_cascades import check
  for name in ('texts', 'trials', 'max_length'):
    check.interval(f'--{name}', getattr(flags, name), 1, 10**6, whole=True)
  check.gamma(flags.gamma)
  texts = _cli.texts(flags, 'source', 'validation')
  from spec_cascades.evaluation import examples
  from spec_cascades.evaluation import pairs
  from spec_cascades.evaluation import skipping
  import tqdm
  given = {} if flags.verifier is None else dict(verifier=flags.verifier)
  pair = pairs.load(**given, drafter=None, progress=_cli.loading_bar())
  skipping.check_installed()
  if flags.corpora is not None:        # they were not made for this model
    texts = (x for x in texts if
             len(pair.vocabulary.encode(x)) <= pair.max_input_length)
  lines = list(itertools.islice(texts, flags.texts))
  rows = [examples.encode(pair.vocabulary, line, pair.max_input_length,
                          what=f'Text {i}') for i, line in enumerate(lines, 1)]
  search = skipping.Search(pair, rows, gamma=flags.gamma,
                           length=flags.max_length)
  found = search(flags.output, flags.trials, flags.seed, tqdm.tqdm)
  print(f'{len(found["skipped"])} sublayers left out; predicted '
        f'{found["tokens_per_call"]:.2f} tokens a call and '
        f'{found["speedup"]:.2f}x the verifier alone, gamma {flags.gamma}: '
        f'{flags.output}/{skipping.NAME}')


if __name__ == '__main__':
  _cli.run(main)
