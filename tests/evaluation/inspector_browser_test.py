"""Texts side by side and the time split, in a real browser."""
import fakedetails
import pytest

from spec_cascades.evaluation.report import inspector
from spec_cascades.evaluation.report import split

playwright = pytest.importorskip(
    'playwright.sync_api', reason='needs playwright, of requirements-test.txt')
TIP = '#probabilities'


@pytest.fixture(scope='module')
def summary():
  return fakedetails.make(limit=6)


def token(page, card, index):
  """A token of the open text, by the place of its point."""
  return page.locator('details[open] section').nth(card).locator(
      '.told i').nth(index)


def drawn(summary, page, card, text=0):
  """Its tokens: cards are in the page's own order."""
  key = page.locator('details').nth(text).locator('section').nth(card)
  name = key.locator('h5').inner_text()
  hot = 'T = 1' in key.evaluate(
      'x => x.parentNode.previousSibling.textContent')
  row, = (r for r in summary.rows if r.temperature == hot and name == (
      r.method + ('' if r.alpha is None else f' {r.alpha:g}')))
  return next(x for x in summary.texts[text].decoded if x.key == row.key).tokens


def reference(page, summary, text):
  return page.locator('dd').get_by_text(summary.texts[text].references[0])


def says(tip, x):
  """The tooltip shows what a token is."""
  assert tip.is_visible()
  assert tip.locator('strong').inner_text() == x.text.replace(' ', '\u2423')
  terms, values = (tip.locator(tag).all_inner_texts() for tag in ('dt', 'dd'))
  assert dict(zip(terms, map(float, values))) == {
      name: value for name, value in (('q', x.q), ('p', x.p), ('pi', x.pi))
      if value is not None}


def test_hovering_shows_origin_and_probabilities(visit, summary):
  page = visit()
  tip = page.locator(TIP)
  assert tip.is_hidden()
  for card, index in ((2, 2), (4, 0), (0, 1)):
    token(page, card, index).hover()
    x = drawn(summary, page, card)[index]
    says(tip, x)
    origin = tip.locator('span').inner_text()
    assert origin.removeprefix('draft ') == x.origin
  page.mouse.move(1, 1)
  assert tip.is_hidden()


def test_keys_walk_along_a_text_and_to_the_next(visit, summary):
  page = visit()
  tip, tokens = page.locator(TIP), drawn(summary, page, 3)
  token(page, 3, 0).focus()
  says(tip, tokens[0])
  page.keyboard.press('ArrowRight')
  says(tip, tokens[1])
  page.keyboard.press('ArrowLeft')
  says(tip, tokens[0])
  page.keyboard.press('ArrowLeft')                 # the text begins here
  says(tip, tokens[0])
  page.keyboard.press('End')
  page.keyboard.press('Home')
  says(tip, tokens[0])
  page.keyboard.press('End')
  page.keyboard.press('ArrowRight')                # the text ends here
  says(tip, tokens[-1])
  page.keyboard.press('Tab')
  says(tip, drawn(summary, page, 4)[0])
  page.keyboard.press('Shift+Tab')                 # comes back where it was
  says(tip, tokens[-1])
  focus = page.evaluate('document.activeElement.getAttribute'
                        '("aria-describedby")')
  assert f'#{focus}' == TIP
  page.keyboard.press('Escape')
  assert tip.is_hidden()


def test_what_the_pointer_leaves_goes_back_to_the_focus(visit, summary):
  page = visit()
  tip = page.locator(TIP)
  token(page, 3, 0).focus()
  token(page, 2, 1).hover()
  says(tip, drawn(summary, page, 2)[1])
  page.mouse.move(1, 1)
  says(tip, drawn(summary, page, 3)[0])


def test_a_tap_shows_probabilities_and_another_place_hides_them(
    visit, summary):
  page = visit(360, 640, has_touch=True)
  token(page, 5, 1).tap()
  says(page.locator(TIP), drawn(summary, page, 5)[1])
  page.locator('details[open] dd').first.tap()
  assert page.locator(TIP).is_hidden()


def test_one_text_unfolds_at_a_time(visit, summary):
  page = visit()
  folds = page.locator('.inspector details')
  assert folds.count() == len(summary.texts)
  folds.nth(1).locator('summary').focus()
  page.keyboard.press('Enter')
  assert [x.get_attribute('open') is not None for x in folds.all()] == [
      False, True, False]
  assert reference(page, summary, 1).is_visible()


def test_methods_hide_and_show_in_all_texts(visit):
  page = visit()
  button = page.locator('.inspector').get_by_role('button', name='Chow')
  cards = page.locator(f'section.{button.get_attribute("data-method")}')
  shown = lambda: [x.is_visible() for x in cards.all()]
  before = shown()
  button.press('Enter')
  assert not any(shown()) and any(before)
  assert button.get_attribute('aria-pressed') == 'false'
  button.click()
  assert shown() == before


def test_origins_differ_in_more_than_colour(visit):
  page = visit()
  style = 'x => getComputedStyle(x).textDecorationStyle'
  kinds = {kind: page.locator(f'section .{kind}').first.evaluate(style)
           for kind in ('accepted', 'corrected', 'bonus')}
  assert len(set(kinds.values())) == 3


@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('width', [360, 1600])
def test_nothing_is_wider_than_the_window(visit, width, scheme):
  page = visit(width, color_scheme=scheme)
  tip = page.locator(TIP)
  for at in ('firstChild', 'lastChild'):
    for text in page.locator('details[open] section .told').all()[:8]:
      text.evaluate(f'x => {{ x.{at}.tabIndex = 0; x.{at}.focus(); }}')
      box = tip.bounding_box()
      assert 0 <= box['x'] and box['x'] + box['width'] <= width
  assert page.evaluate('document.documentElement.scrollWidth') == width
  for bar in page.locator('.bars svg').all():
    assert bar.bounding_box()['width'] > 100


def test_the_page_is_whole_without_javascript(visit, summary):
  page = visit(java_script_enabled=False)
  assert page.get_by_text(inspector.USAGE).is_hidden()
  x = drawn(summary, page, 2)[0]
  assert token(page, 2, 0).get_attribute('title') == (
      f'q {x.q:g}, p {x.p:g}, pi {x.pi:g}')
  page.locator('summary').nth(2).click()
  assert reference(page, summary, 2).is_visible()


def test_bars_are_as_long_as_their_parts(visit, summary):
  page = visit(1200)
  longest = max(max(x.whole, sum(x.parts)) for x in summary.split)
  for bar in page.locator('.bars svg').all()[:4]:
    hint = bar.get_attribute('aria-label')
    total = float(hint.split('sum ')[1].split(' of ')[0])
    widths = sum(float(part.get_attribute('width'))
                 for part in bar.locator('rect').all())
    assert widths == pytest.approx(split.WIDTH * total / longest, abs=.5)
