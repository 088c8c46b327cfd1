"""The page in a real browser: what readers see, point at, tap and type."""
import fakesweep
import pytest

from spec_cascades.evaluation.report import style

playwright = pytest.importorskip(
    'playwright.sync_api', reason='needs playwright, of requirements-test.txt')
LIGHT, DARK = 'rgb(255, 255, 255)', 'rgb(18, 22, 28)'


@pytest.fixture(scope='module')
def summary():
  return fakesweep.make(limit=10)


def find(summary, method, alpha=None, temperature=1.):
  """A row and its point's selector."""
  row, = (r for r in summary.rows if (r.method, r.alpha, r.temperature) == (
      method, alpha, temperature))
  return row, f'#point-{style.anchor(row)}'


def centre(page, point):
  """Where a point's mark is in the window, scrolled into it."""
  mark = page.locator(f'{point} .mark')
  mark.scroll_into_view_if_needed()
  box = mark.bounding_box()
  return box['x'] + box['width'] / 2, box['y'] + box['height'] / 2


def figures(page):
  """Of the open tooltip."""
  assert page.locator('#tip').is_visible()
  terms, values = (page.locator(f'#tip {tag}').all_inner_texts()
                   for tag in ('dt', 'dd'))
  return dict(zip(terms, values),
              method=page.locator('#tip strong').inner_text())


def expected(row):
  rejected = row.rejection_rate
  return dict(
      method=row.method, alpha='-' if row.alpha is None else f'{row.alpha:g}',
      T=f'{row.temperature:g}', ms=f'{row.latency_mean:.1f}',
      BLEU=f'{row.quality:.2f} '
           f'({row.quality_low:.1f} to {row.quality_high:.1f})',
      relative=f'{row.relative_latency:.2f} '
               f'({row.relative_low:.2f} to {row.relative_high:.2f})',
      rejected='-' if rejected is None else f'{rejected:.2f}',
      deferred=f'{row.deferral_rate:.2f}' if row.gamma else '-') | {
          'tokens/call': f'{row.tokens_per_call:.2f}'}


def focused(page):
  """The target of the link that has the focus."""
  return page.evaluate('document.activeElement.getAttribute("href")')


def opacity(page, selector):
  return page.locator(selector).first.evaluate(
      'x => Number(getComputedStyle(x).opacity)')


def test_hovering_shows_the_figures_and_intervals_of_a_point(visit, summary):
  page = visit(reduced_motion='reduce')
  for setting in (('Lossy', .3), ('verifier',), ('TokenV3', .8)):
    row, point = find(summary, *setting)
    assert opacity(page, f'{point} .whisker') == 0
    page.mouse.move(*centre(page, point))
    assert figures(page) == expected(row)
    assert opacity(page, f'{point} .whisker') == 1
    assert opacity(page, f'.curve:has({point})') == 1
    assert opacity(page, 'figure:first-child .curve:not(.on)') < .5
  page.mouse.move(1, 1)
  assert page.locator('#tip').is_hidden() and not page.locator('.on').count()


def test_keys_walk_from_point_to_point(visit, summary):
  page = visit()
  page.locator('#intervals').focus()
  page.keyboard.press('Tab')
  row, _ = find(summary, 'verifier')
  assert figures(page) == expected(row)
  for _ in range(3):
    page.keyboard.press('ArrowDown')
  row, _ = find(summary, 'Lossy', .3)
  assert figures(page) == expected(row)
  page.keyboard.press('ArrowRight')
  row, point = find(summary, 'Lossy', .7)
  assert figures(page) == expected(row)
  page.keyboard.press('ArrowRight')                # the curve ends here
  assert figures(page) == expected(row)
  page.keyboard.press('Escape')
  assert page.locator('#tip').is_hidden()
  page.keyboard.press('Tab')                       # one stop in each panel
  assert figures(page)['T'] == '0'
  page.keyboard.press('Shift+Tab')
  assert figures(page) == expected(row)
  page.keyboard.press('Enter')
  assert focused(page) == point


def test_the_legend_hides_and_shows_a_curve_in_all_panels(visit):
  page = visit()
  button = page.get_by_role('button', name='Chow')
  curve = page.locator(
      f'.curve.{button.get_attribute("data-curve")}')
  button.click()
  assert curve.count() == 2 and button.get_attribute('aria-pressed') == 'false'
  assert not any(x.is_visible() for x in curve.all())
  button.press('Enter')
  assert button.get_attribute('aria-pressed') == 'true'
  assert all(x.is_visible() for x in curve.all())


def test_the_legend_lights_a_curve_in_all_panels(visit):
  page = visit(reduced_motion='reduce')
  button = page.get_by_role('button', name='Chow')
  lit = lambda: page.locator('.curve.on').evaluate_all(
      'all => all.map(x => x.dataset.curve)')
  away = lambda: page.mouse.move(1, 1)
  for light, leave in ((button.hover, away), (button.focus, button.blur)):
    light()
    assert lit() == [button.get_attribute('data-curve')] * 2
    assert opacity(page, '.curve:not(.on)') < .5
    leave()
    assert not lit()
  button.click()                                   # what is hidden stays so
  button.blur()
  button.focus()
  assert not lit()


def test_a_row_lights_its_point(visit, summary):
  page = visit(reduced_motion='reduce')
  _, point = find(summary, 'Lossy', .3)
  link, lit = page.locator(f'a[href="{point}"]'), page.locator(f'{point}.on')
  away = lambda: page.mouse.move(1, 1)
  for light, leave in ((link.hover, away), (link.focus, link.blur)):
    light()
    assert lit.count() == 1 == page.locator('.point.on').count()
    assert page.locator('#tip').is_hidden()
    leave()
    assert not page.locator('.on').count()


def test_what_the_pointer_leaves_goes_back_to_the_focus(visit, summary):
  page = visit(reduced_motion='reduce')
  (first, at), (second, over) = (find(summary, 'Lossy', .3),
                                 find(summary, 'TokenV3', .8))
  page.locator(at).focus()
  for _ in range(2):
    assert figures(page) == expected(first)
    page.mouse.move(*centre(page, over))
    assert figures(page) == expected(second)
    page.mouse.move(1, 1)
  assert figures(page) == expected(first)


def test_a_plot_stays_in_the_tab_order_when_its_first_curve_is_hidden(
    visit, summary):
  page = visit()
  page.get_by_role('button', name='verifier').click()
  page.locator('#intervals').focus()
  page.keyboard.press('Tab')
  row, _ = find(summary, 'drafter')
  assert figures(page) == expected(row)


def test_a_point_and_its_row_lead_to_each_other(visit, summary):
  page = visit(reduced_motion='reduce')
  row, point = find(summary, 'OPT', 1.)
  link = page.locator(f'a[href="{point}"]')
  page.mouse.click(*centre(page, point))
  assert focused(page) == point
  playwright.expect(link).to_be_in_viewport()
  assert link.evaluate('x => getComputedStyle(x.parentElement).backgroundColor'
                       ) != LIGHT
  page.get_by_role('button', name='OPT').click()
  assert page.locator(point).is_hidden()
  link.click()                                     # shows its curve again
  playwright.expect(page.locator(point)).to_be_in_viewport()
  assert page.locator(point).evaluate('x => x === document.activeElement')
  assert figures(page) == expected(row)


def test_all_intervals_show_on_demand(visit):
  page = visit(reduced_motion='reduce')
  assert opacity(page, '.point .whisker') == 0
  page.get_by_role('button', name='all intervals').click()
  assert opacity(page, '.point .whisker') > .4
  page.get_by_role('button', name='all intervals').click()
  assert opacity(page, '.point .whisker') == 0


def test_a_tap_shows_the_figures_and_another_leads_to_the_row(visit, summary):
  page = visit(360, 640, has_touch=True, reduced_motion='reduce')
  row, point = find(summary, 'Lossy', .7)
  page.touchscreen.tap(*centre(page, point))
  assert figures(page) == expected(row)
  page.touchscreen.tap(*centre(page, point))
  assert focused(page) == point


def test_a_tap_elsewhere_hides_the_figures(visit, summary):
  page = visit(360, 640, has_touch=True, reduced_motion='reduce')
  row, point = find(summary, 'Lossy', .7)
  page.touchscreen.tap(*centre(page, point))
  assert figures(page) == expected(row)
  page.locator('h1').tap()
  assert page.locator('#tip').is_hidden()


@pytest.mark.parametrize('width', [360, *(
    pytest.param(x, marks=pytest.mark.slow) for x in (900, 1600))])
def test_nothing_is_wider_than_the_window(visit, width):
  page = visit(width)
  assert page.evaluate('document.documentElement.scrollWidth') == width
  for point in page.locator('.point').all():
    point.focus()
    box = page.locator('#tip').bounding_box()
    assert 0 <= box['x'] and box['x'] + box['width'] <= width
    assert page.evaluate('document.documentElement.scrollWidth') == width


def luminance(colour):
  """Of 'rgb(r, g, b)', after WCAG 2."""
  parts = [int(x) / 255 for x in colour[4:-1].split(',')]
  linear = [x / 12.92 if x <= .04045 else ((x + .055) / 1.055)**2.4
            for x in parts]
  return sum(w * x for w, x in zip((.2126, .7152, .0722), linear))


@pytest.mark.parametrize('scheme, paper', [('light', LIGHT), ('dark', DARK)])
def test_colours_follow_the_scheme_and_stand_out(visit, scheme, paper):
  page = visit(color_scheme=scheme)
  colours = lambda selector, name: set(page.locator(selector).evaluate_all(
      '(all, name) => all.map(x => getComputedStyle(x)[name])', name))
  assert colours('body', 'backgroundColor') == {paper}
  ground = luminance(paper)
  for selector, name, least in (
      ('body, .soft, th', 'color', 4.5), ('svg text', 'fill', 4.5),
      ('.mark', 'fill', 3), ('.line', 'stroke', 3)):
    for colour in colours(selector, name):
      low, high = sorted([ground, luminance(colour)])
      assert (high + .05) / (low + .05) >= least, (selector, colour)


def test_the_page_is_whole_without_javascript(visit, summary):
  page = visit(java_script_enabled=False)
  row, point = find(summary, 'Diff', .1)
  title = page.locator(f'{point} title').text_content()
  assert f'Diff, alpha 0.1, T 1: BLEU {row.quality:.2f}' in title
  assert page.locator('#intervals').is_hidden()
  assert page.get_by_role('button', name='Diff').is_disabled()
  page.locator(point).focus()
  page.keyboard.press('Enter')
  playwright.expect(page.locator(f'a[href="{point}"]')).to_be_in_viewport()


def test_print_has_figures_with_intervals_and_no_controls(visit):
  page = visit(720, reduced_motion='reduce')
  page.emulate_media(media='print')
  assert page.locator('#intervals').is_hidden()
  assert opacity(page, '.point .whisker') > .4
  assert page.evaluate('document.documentElement.scrollWidth') == 720
  assert page.pdf().startswith(b'%PDF')
