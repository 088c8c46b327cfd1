"""All rules, baselines and the truncation control with the shipped pair.

Command:
  python scripts/sweep.py --config=configs/debian.py
Needs: the corpus, for the first sweep: python scripts/build_corpus.py.
Result: two sweeps of 120 points: runs/debian/test on 500 sentences of the test
split that have no near-duplicate in train, runs/debian/docs on the 200 embedded
ones. Quality is measured in batches, latency on the first 60.
"""

COMMON = ('gin/sweeps/debian.gin', 'gin/protocols/local.gin')


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [('test', (*COMMON, 'gin/tasks/debian_ende.gin'), ()),
          ('docs', COMMON, ())]
