"""Writes a datastore for the drafter rest: the outputs of a corpus, indexed.

Examples:
  python scripts/build_datastore.py --corpora debian_ende --output rest/ende
  python scripts/decode.py --drafter rest:rest/ende "Click OK."
  python scripts/build_datastore.py --file notes.txt --output rest/notes \\
    --verifier gemma-3-270m-q4_k_m.gguf
"""
from __future__ import annotations

import pathlib
import time
from typing import Sequence

import _cli


def main(args: Sequence[str]) -> None:
  """Builds, writes, and says how large it is."""
  flags = _cli.text_parser(__doc__).parse_args(args)
  texts = _cli.texts(flags, 'target', 'train')
  _cli.directory(flags.output)         # or it is refused, before all else
  # pylint: disable=g-import-not-at-top
  from spec_cascades.drafters import suffixes
  from spec_cascades.evaluation import datastores
  from spec_cascades.evaluation import pairs
  given = {} if flags.verifier is None else dict(verifier=flags.verifier)
  pair = pairs.load(**given, drafter=None, progress=_cli.loading_bar())
  words, begun = pair.vocabulary, time.time()
  start = (0,) if pairs.encodes(pair.verifier.lm) else ()
  tokens = datastores.joined(
      ((*words.bare(text), words.ends[0]) for text in texts), start)
  store = suffixes.index(tokens, words.ends[0])
  place = datastores.write(flags.output, store, pair.vocabulary_sha256,
                           flags.corpora or pathlib.Path(flags.file).name)
  size = sum(x.stat().st_size for x in place.glob('*.npy')) / 1e6
  print(f'{place}: {len(tokens):,} tokens, {size:.1f} MB, '
        f'{time.time() - begun:.0f} s')


if __name__ == '__main__':
  _cli.run(main)
