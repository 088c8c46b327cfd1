"""Writes a datastore for the drafter rest: the outputs of a corpus, indexed.

Examples:
  python scripts/build_datastore.py --corpora debian_ende --output rest/ende
  python scripts/decode.py --drafter rest --part rest/ende "Click OK."
  python scripts/build_datastore.py --file notes.txt --output rest/notes \\
    --verifier gemma-3-270m-q4_k_m.gguf
"""
from __future__ import annotations

import argparse
import itertools
import pathlib
import time
from typing import Iterator, Sequence

import _cli


def _parser() -> argparse.ArgumentParser:
  parser = _cli.Parser(description=__doc__,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('--output', required=True, help='directory to write')
  add('--corpora', help='comma-separated corpora that build_corpus.py made; '
      'the outputs of their train splits are taken')
  add('--file', help='or: a file with one text a line')
  add('--verifier', help='model directory, or any checkpoint, whose tokens it '
      'is to have; default: the shipped one')
  add('--cache_dir', default='~/.cache/spec_cascades',
      help='directory that build_corpus.py filled (default: %(default)s)')
  return parser


def _texts(flags: argparse.Namespace) -> Iterator[str]:
  """Texts one by one; ValueError if it is not clear which."""
  if (flags.corpora is None) == (flags.file is None):
    raise ValueError(f'Got --corpora={flags.corpora} and --file={flags.file}; '
                     'give one of the two.')
  if flags.file is not None:
    path = pathlib.Path(flags.file).expanduser()
    lines = path.read_text(encoding='utf-8').splitlines()
    return filter(str.strip, lines)
  from spec_cascades.data import corpus  # pylint: disable=g-import-not-at-top
  chosen = [corpus.find(name) for name in flags.corpora.split(',')]
  cache_dir = pathlib.Path(flags.cache_dir).expanduser()
  return itertools.chain.from_iterable(
      (row[x.target] for row in corpus.read(x.name, 'train', cache_dir))
      for x in chosen)


def main(args: Sequence[str]) -> None:
  """Builds, writes, and says how large it is."""
  flags = _parser().parse_args(args)
  texts = _texts(flags)
  # pylint: disable=g-import-not-at-top
  from spec_cascades.drafters import retrieval
  from spec_cascades.evaluation import datastores
  from spec_cascades.evaluation import pairs
  given = {} if flags.verifier is None else dict(verifier=flags.verifier)
  pair = pairs.load(**given, drafter=None, progress=_cli.loading_bar())
  words, begun = pair.vocabulary, time.time()
  start = (0,) if pairs.encodes(pair.verifier.lm) else ()
  tokens = datastores.joined(
      ((*words.bare(text), words.ends[0]) for text in texts), start)
  store = retrieval.index(tokens)
  place = datastores.write(flags.output, store, pair.vocabulary_sha256,
                           flags.corpora or pathlib.Path(flags.file).name)
  size = sum(x.stat().st_size for x in place.glob('*.npy')) / 1e6
  print(f'{place}: {len(tokens):,} tokens, {size:.1f} MB, '
        f'{time.time() - begun:.0f} s')


if __name__ == '__main__':
  _cli.run(main)
