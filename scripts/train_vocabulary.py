"""Trains a SentencePiece vocabulary on the train split of built corpora.

Example:
  python scripts/train_vocabulary.py --corpora debian_ende --vocab_size 4096
"""

import argparse
import itertools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

# pylint: disable=wrong-import-position
from spec_cascades.data import corpus
from spec_cascades.data import debian
from spec_cascades.data import vocabulary


def _parse_args() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
      '--corpora',
      default='debian_ende',
      help='comma-separated corpora to train on (default: %(default)s)',
  )
  parser.add_argument(
      '--vocab_size',
      type=int,
      default=vocabulary.DEFAULT_VOCAB_SIZE,
      help='number of pieces (default: %(default)s)',
  )
  parser.add_argument(
      '--cache_dir',
      default=str(corpus.DEFAULT_CACHE_DIR),
      help='directory that build_corpus.py filled (default: %(default)s)',
  )
  parser.add_argument(
      '--model_path',
      help='default: CACHE_DIR/vocab/CORPORA_VOCAB_SIZE.model',
  )
  return parser.parse_args()


def main() -> int:
  """Trains, writes the model and prints pieces per word on validation."""
  args = _parse_args()
  names = args.corpora.split(',')
  cache_dir = pathlib.Path(args.cache_dir).expanduser()
  path = args.model_path or (
      cache_dir / 'vocab' / f'{"+".join(names)}_{args.vocab_size}.model'
  )
  try:
    chosen = [corpus.find(x) for x in names]
    texts = itertools.chain.from_iterable(
        vocabulary.interleave(
            corpus.read(x.name, 'train', cache_dir), (x.source, x.target)
        )
        for x in chosen
    )
    path = vocabulary.train(texts, path, vocab_size=args.vocab_size)
    print(path)
    for x in chosen:
      rows = list(corpus.read(x.name, 'validation', cache_dir))
      for feature in (x.source, x.target):
        ratio = vocabulary.pieces_per_word(path, [y[feature] for y in rows])
        print(f'{x.name} validation {feature}: {ratio:.3f} pieces per word')
  except (debian.SourceError, ValueError, OSError) as error:
    print(f'train_vocabulary: {error}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
