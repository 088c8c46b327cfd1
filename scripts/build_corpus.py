"""Builds the Debian corpora from packages and prepares TFDS data sets.

Example:
  python scripts/build_corpus.py --corpora debian_ende,debian_synopsis
"""
from __future__ import annotations

import argparse
import json
from typing import Sequence

import _cli

from spec_cascades.data import corpus


def _parser() -> argparse.ArgumentParser:
  parser = _cli.Parser(description=__doc__,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--corpora', default=','.join(corpus.CORPORA),
                      help='comma-separated (default: all of %(default)s)')
  parser.add_argument(
      '--cache_dir', default=str(corpus.DEFAULT_CACHE_DIR),
      help='downloads and JSON lines files (default: %(default)s)')
  parser.add_argument(
      '--data_dir', help='TFDS data directory (default: $TFDS_DATA_DIR, else '
      '~/tensorflow_datasets, as for TFDS itself)')
  parser.add_argument(
      '--skip_tfds', action='store_true',
      help='write the JSON lines files only; TensorFlow is not needed then')
  parser.add_argument('--refresh', action='store_true',
                      help='fetch the apt indices again')
  return parser


def main(args: Sequence[str]) -> None:
  """Builds every corpus and prints its summary as JSON."""
  flags = _parser().parse_args(args)
  names = [corpus.find(name).name for name in flags.corpora.split(',')]
  for name in names:
    summary = corpus.build(name, cache_dir=flags.cache_dir,
                           refresh=flags.refresh)
    print(json.dumps(summary, indent=2, ensure_ascii=False), flush=True)
    if not flags.skip_tfds:
      _prepare(name, flags)


def _prepare(name: str, flags: argparse.Namespace) -> None:
  """Writes the TFDS data set; TensorFlow is loaded here, on demand."""
  from spec_cascades.data import builders  # pylint: disable=g-import-not-at-top
  info = builders.prepare(name, cache_dir=flags.cache_dir,
                          data_dir=flags.data_dir)
  print(f'TFDS data set: {info.data_dir}', flush=True)


if __name__ == '__main__':
  _cli.run(main)
