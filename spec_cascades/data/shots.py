"""Solved records for prompts, drawn by seed.

Importing this module loads TensorFlow.
"""
from __future__ import annotations

from spec_cascades.data import templates
import tensorflow as tf

MAX_BYTES = 1000


def draw(dataset: tf.data.Dataset, template: templates.Template, count: int,
         seed: int) -> list[tuple[bytes, bytes]]:
  """Bodies of `count` records, and the same with answers, by rank.

  A record's rank is a hash of its body, keyed by the seed: the draw depends
  on which records there are, not on their order or on files. Records of more
  than `MAX_BYTES`, body and answer together, are passed over, so that prompts
  keep to a length; of records with the same body the first by answer is taken.

  Args:
    dataset: Fields of records, see `records`.
    template: How they are asked and answered.
    count: How many.
    seed: Of the draw, >= 0.

  Raises:
    ValueError: There are fewer such records.
  """
  def solve(fields):
    body = templates.render(template.body, fields)
    answer = templates.render(template.answer, fields)
    rank = tf.strings.to_hash_bucket_strong(body, 2**62, key=[seed, 0])
    return rank, body, tf.strings.join([body, answer])

  best = {}
  solved = dataset.map(solve, num_parallel_calls=tf.data.AUTOTUNE)
  fits = lambda rank, body, text: tf.strings.length(text) <= MAX_BYTES
  for batch in solved.filter(fits).batch(4096).as_numpy_iterator():
    for rank, body, text in sorted(zip(*batch)):
      if len(best) == count and rank > max(best.values())[0]:
        break
      best[body] = min(best.get(body, (rank, text)), (rank, text))
      if len(best) > count:
        del best[max(best, key=best.get)]
  if len(best) < count:
    raise ValueError(f'Got {len(best)} records of at most {MAX_BYTES} bytes to '
                     f'draw {count} from; ask for fewer shots.')
  return sorted(((body, text) for body, (_, text) in best.items()),
                key=lambda pair: best[pair[0]])
