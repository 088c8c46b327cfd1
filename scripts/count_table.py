"""Counts the n-grams of a training corpus: a drafter that costs hardly a thing.

  python scripts/count_table.py --gin_file=gin/train/drafter.gin --order 3 \
    --output runs/trigrams.npz
  python scripts/decode.py --drafter counts:runs/trigrams.npz "Opens a file."

The gin file is one that scripts/train.py takes: its corpus is counted, with its
tokens. An order of 1 is the unigram, 2 the bigram. As for any drafter, texts
that the verifier wrote are the better ones, see gin/train/distill.gin.
"""
from __future__ import annotations

import pathlib
from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  """Counts, and saves the table."""
  parser = _cli.gin_parser(__doc__)
  add = parser.add_argument
  add('--output', type=pathlib.Path, required=True, help='the file to write')
  add('--order', type=int, default=3, help='n (default: 3)')
  add('--follow', type=int, default=16,
      help='tokens kept behind a context (default: 16)')
  add('--least', type=int, default=1,
      help='times that a context must have been seen (default: 1)')
  flags, bindings = _cli.parse(parser, args)
  for name in ('order', 'follow', 'least'):
    if getattr(flags, name) < 1:
      raise ValueError(f'Got --{name} {getattr(flags, name)}; allowed: 1 or '
                       'more.')
  _cli.directory(flags.output.parent)  # or it is refused, before all else
  if flags.output.is_dir():
    raise ValueError(f'Got --output {flags.output}, a directory; give a file.')
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import counted
  from spec_cascades.models import counts
  from spec_cascades.training import loop
  _cli.configure(flags.gin_file, bindings)
  run = _cli.call(loop.Run)
  table = counts.build(
      counted.texts(run.corpus, run.lm), run.lm.vocab_size, flags.order,
      follow=flags.follow, least=flags.least,
      ends=(run.corpus.end,))
  flags.output.parent.mkdir(parents=True, exist_ok=True)
  counted.write(flags.output, table)
  sizes = ', '.join(str(len(level.older)) for level in table.levels)
  print(f'{flags.output}: {flags.output.stat().st_size / 2**20:.1f} MiB; '
        f'contexts of 1 to {flags.order - 1} tokens: {sizes or "none"}')


if __name__ == '__main__':
  _cli.run(main)
