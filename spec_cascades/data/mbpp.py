"""TFDS builder of MBPP, which TFDS itself has not.

  python scripts/prepare_public.py mbpp

Importing this module loads TensorFlow Datasets and registers the builder.
"""
from __future__ import annotations

import json
import os
import pathlib
from typing import Any, Iterator

import numpy as np
import tensorflow_datasets as tfds

URL = ('https://raw.githubusercontent.com/google-research/google-research/'
       'master/mbpp/mbpp.jsonl')
# First and last task of each split, as published.
SPLITS = {'prompt': (1, 10), 'test': (11, 510), 'validation': (511, 600),
          'train': (601, 974)}
_DESCRIPTION = """\
Mostly Basic Python Problems: 974 short tasks for entry-level programmers, each
with a solution and tests.
"""
_CITATION = """\
@article{austin2021program,
  author = {Jacob Austin and Augustus Odena and Maxwell Nye and Maarten Bosma
            and Henryk Michalewski and David Dohan and Ellen Jiang and Carrie
            Cai and Michael Terry and Quoc Le and Charles Sutton},
  title = {Program Synthesis with Large Language Models},
  journal = {arXiv preprint arXiv:2108.07732},
  year = {2021},
}
"""


class Mbpp(tfds.core.GeneratorBasedBuilder):
  """Reads the published JSON lines file."""

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'First release.'}

  def _info(self) -> tfds.core.DatasetInfo:
    texts = tfds.features.Sequence(tfds.features.Text())
    return tfds.core.DatasetInfo(
        builder=self,
        description=_DESCRIPTION,
        features=tfds.features.FeaturesDict({
            'task_id': tfds.features.Scalar(np.int32),
            'text': tfds.features.Text(),
            'code': tfds.features.Text(),
            'test_setup_code': tfds.features.Text(),
            'test_list': texts,
            'challenge_test_list': texts,
        }),
        homepage='https://github.com/google-research/google-research/tree/'
                 'master/mbpp',
        citation=_CITATION,
        license='CC-BY-4.0',
    )

  def _split_generators(self, dl_manager: tfds.download.DownloadManager):
    path = dl_manager.download(URL)
    return {name: self._generate_examples(path, name) for name in SPLITS}

  def _generate_examples(
      self, path: os.PathLike, split: str) -> Iterator[tuple[int, Any]]:
    first, last = SPLITS[split]
    lines = pathlib.Path(path).read_text(encoding='utf-8').splitlines()
    rows = {row['task_id']: row for row in map(json.loads, lines)}
    missing = set(range(first, last + 1)) - set(rows)
    if missing:
      raise ValueError(f'{path} lacks {len(missing)} tasks of the split '
                       f'{split}, one of them {min(missing)}; download the '
                       'whole file again.')
    for i in range(first, last + 1):
      yield i, rows[i]
