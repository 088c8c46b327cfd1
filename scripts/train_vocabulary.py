"""Trains a SentencePiece vocabulary on the train split of built corpora.

Example:
  python scripts/train_vocabulary.py --corpora debian_ende --vocab_size 4096
"""
from __future__ import annotations

import argparse
import itertools
import pathlib
from typing import Sequence

import _cli

from spec_cascades.data import corpus
from spec_cascades.data import vocabulary


def _parser() -> argparse.ArgumentParser:
  parser = _cli.Parser(description=__doc__,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
      '--corpora', default='debian_ende',
      help='comma-separated corpora to train on (default: %(default)s)')
  parser.add_argument('--vocab_size', type=int,
                      default=vocabulary.DEFAULT_VOCAB_SIZE,
                      help='number of pieces (default: %(default)s)')
  parser.add_argument(
      '--cache_dir', default=str(corpus.DEFAULT_CACHE_DIR),
      help='directory that build_corpus.py filled (default: %(default)s)')
  parser.add_argument(
      '--model_path', help='default: CACHE_DIR/vocab/CORPORA_VOCAB_SIZE.model')
  return parser


def main(args: Sequence[str]) -> None:
  """Trains, writes the model and prints pieces per word on validation."""
  flags = _parser().parse_args(args)
  names = flags.corpora.split(',')
  cache_dir = pathlib.Path(flags.cache_dir).expanduser()
  path = flags.model_path or (
      cache_dir / 'vocab' / f'{"+".join(names)}_{flags.vocab_size}.model')
  chosen = [corpus.find(name) for name in names]
  texts = itertools.chain.from_iterable(
      vocabulary.interleave(corpus.read(x.name, 'train', cache_dir),
                            (x.source, x.target)) for x in chosen)
  path = vocabulary.train(texts, path, vocab_size=flags.vocab_size)
  print(path)
  for x in chosen:
    rows = list(corpus.read(x.name, 'validation', cache_dir))
    for feature in (x.source, x.target):
      ratio = vocabulary.pieces_per_word(path, [row[feature] for row in rows])
      print(f'{x.name} validation {feature}: {ratio:.3f} pieces per word')


if __name__ == '__main__':
  _cli.run(main)
