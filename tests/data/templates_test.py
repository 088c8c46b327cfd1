"""Rendering of prompts, and the draw of solved records."""
import pytest

pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning')


def _fields(**kwargs):
  import tensorflow as tf

  return {k: tf.constant(v) for k, v in kwargs.items()}


def test_fields_are_filled_in_and_cut_at_a_space():
  from spec_cascades.data import templates

  render = lambda pattern, text: templates.render(
      pattern, _fields(x=text)).numpy().decode()
  assert render('a {x} b {x}', 'Ä{}') == 'a Ä{} b Ä{}'
  assert render('{x:9}!', 'One two three') == 'One two!'
  assert render('{x:9}', 'Zwölf äöü') == 'Zwölf äöü'
  assert render('{x:9}', 'Zwölfzehner') == 'Zwölfzehn'
  assert render('no field', '') == 'no field'


@pytest.mark.parametrize('stop, text, wanted', [
    ('', ' a\nb ', 'a\nb'), ('\n', '\n a\nb', 'a'), ('[DONE]', 'a\n', 'a'),
    ('[DONE]', ' a\n b\n[DONE]\nWrite', 'a\n b'), ('\n', '', '')])
def test_an_answer_ends_at_its_stop(stop, text, wanted):
  from spec_cascades.data import templates

  assert templates.Template('', stop=stop).clean(text) == wanted


def _draw(rows, count, seed=0):
  import tensorflow as tf
  from spec_cascades.data import shots
  from spec_cascades.data import templates

  sources, targets = zip(*rows)
  dataset = tf.data.Dataset.from_tensor_slices(
      {'x': list(sources), 'target': list(targets)})
  return shots.draw(dataset, templates.Template('{x}?'), count, seed)


def test_a_question_is_drawn_once_and_order_does_not_matter():
  rows = [(str(i % 10), f'{i:02}') for i in range(30)]
  drawn = _draw(rows, 10)
  assert sorted(drawn) == [
      (f'{i}?'.encode(), f'{i}? {i:02}'.encode()) for i in range(10)]
  assert _draw(rows[::-1], 10) == drawn
  assert _draw(rows, 4) == drawn[:4]
  assert _draw(rows, 4, seed=1) != drawn[:4]


def test_long_records_are_passed_over():
  rows = [('a' * 1000, 'b'), ('c' * 996, 'd'), ('e', 'f' * 1000), ('g', 'h')]
  assert {x[:1] for x, _ in _draw(rows, 2)} == {b'c', b'g'}
  with pytest.raises(ValueError, match='Got 2 records of at most 1000 bytes'):
    _draw(rows, 3)


def test_every_record_may_come_first():
  rows = [(str(i), 'x') for i in range(3)]
  assert len({_draw(rows, 1, seed)[0] for seed in range(9)}) == 3
