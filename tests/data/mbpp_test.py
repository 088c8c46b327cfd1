"""The TFDS builder of MBPP on a file like the published one."""
import pytest

from tests import publicdata

pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning')


def test_splits_are_the_published_ones(tmp_path):
  import tensorflow_datasets as tfds

  publicdata.prepare_mbpp(tmp_path / 'tfds', tmp_path)
  builder = tfds.builder('mbpp:1.0.0', data_dir=tmp_path / 'tfds')
  sizes = {k: x.num_examples for k, x in builder.info.splits.items()}
  assert sizes == {'prompt': 10, 'test': 500, 'validation': 90, 'train': 374}
  prompt = tfds.as_numpy(builder.as_dataset('prompt'))
  assert {int(x['task_id']) for x in prompt} == set(range(1, 11))


def test_a_truncated_file_is_refused(tmp_path):
  with pytest.raises(ValueError, match='lacks 474 tasks of the split test'):
    publicdata.prepare_mbpp(tmp_path / 'tfds', tmp_path, num_tasks=36)
