"""All rules, baselines and the truncation control with the shipped pair.

Command:
  python scripts/sweep.py --config=configs/debian.py
Needs: the corpus: python scripts/build_corpus.py.
Result: runs/debian/test: 120 points on 500 sentences of the test split that
have no near-duplicate in train. Quality is measured in batches, latency on the
first 60. Its time has not been measured to the end.
"""


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [('test', ('gin/sweeps/debian.gin', 'gin/protocols/local.gin',
                    'gin/tasks/debian_ende.gin'), ())]
