"""What a run tells while it goes on, where TensorBoard can't be written."""
import pytest

from spec_cascades.training import progress


class Full:
  """A writer of events whose disk is full."""

  def write_scalars(self, step, figures):
    raise RuntimeError('No space left on device')

  def close(self):
    raise RuntimeError('No space left on device, still')


def started(folder):
  made = progress.Progress(folder, lambda line: None, total=4,
                           tensorboard=False)
  made._writer = Full()
  return made


def test_a_disk_that_events_fill_is_one_line(tmp_path):
  with pytest.raises(ValueError, match=r"tensorboard can't be written at step 2"
                     r' \(RuntimeError: No space left on device\); checkpoints '
                     'are whole'):
    with started(tmp_path) as made:
      made.found(2, dict(bleu=1.))
  with pytest.raises(ValueError, match="can't be written at the end"):
    with started(tmp_path):
      pass


def test_what_ended_a_run_is_what_is_said(tmp_path):
  with pytest.raises(KeyError, match='its own'):
    with started(tmp_path):
      raise KeyError('its own')
