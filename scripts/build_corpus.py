"""Builds the Debian corpora from packages and prepares TFDS data sets.

Example:
  python scripts/build_corpus.py --corpora debian_ende,debian_synopsis
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from spec_cascades.data import corpus  # pylint: disable=wrong-import-position
from spec_cascades.data import debian  # pylint: disable=wrong-import-position


def _parse_args() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
      '--corpora',
      default=','.join(corpus.CORPORA),
      help='comma-separated corpora (default: all of %(default)s)',
  )
  parser.add_argument(
      '--cache_dir',
      default=str(corpus.DEFAULT_CACHE_DIR),
      help='downloads and JSON lines files (default: %(default)s)',
  )
  parser.add_argument(
      '--data_dir',
      help='TFDS data directory (default: $TFDS_DATA_DIR, else '
      '~/tensorflow_datasets, as for TFDS itself)',
  )
  parser.add_argument(
      '--skip_tfds',
      action='store_true',
      help='write the JSON lines files only; TensorFlow is not needed then',
  )
  parser.add_argument(
      '--refresh', action='store_true', help='fetch the apt indices again'
  )
  return parser.parse_args()


def _prepare(name: str, args: argparse.Namespace) -> None:
  """Writes the TFDS data set; TensorFlow is loaded here, on demand."""
  from spec_cascades.data import builders  # pylint: disable=g-import-not-at-top

  info = builders.prepare(
      name, cache_dir=args.cache_dir, data_dir=args.data_dir
  )
  print(f'TFDS data set: {info.data_dir}', flush=True)


def main() -> int:
  """Builds every corpus and prints its summary as JSON."""
  args = _parse_args()
  try:
    for name in args.corpora.split(','):
      summary = corpus.build(
          name, cache_dir=args.cache_dir, refresh=args.refresh
      )
      print(json.dumps(summary, indent=2, ensure_ascii=False), flush=True)
      if not args.skip_tfds:
        _prepare(name, args)
  except (debian.SourceError, ValueError, OSError) as error:
    print(f'build_corpus: {error}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
