"""A pair of random T5s, and a browser: each made once."""
import os
import shutil

import pytest
import tinypair

from spec_cascades.evaluation import report

BROWSERS = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')


@pytest.fixture(scope='session')
def pair_dir(tmp_path_factory):
  return tinypair.make(tmp_path_factory.mktemp('pair'))


@pytest.fixture(scope='module')
def chromium():
  playwright = pytest.importorskip('playwright.sync_api')
  with playwright.sync_playwright() as driver:
    found = [driver.chromium.executable_path, *map(shutil.which, BROWSERS)]
    path = next((x for x in found if x and os.path.exists(x)), None)
    if path is None:
      pytest.skip('needs a browser: none of '
                  f'{", ".join(BROWSERS)} is on the path')
    browser = driver.chromium.launch(executable_path=path)
    yield browser
    browser.close()


@pytest.fixture(scope='module')
def url(summary, tmp_path_factory):
  """The report on a module's own `summary`."""
  directory = tmp_path_factory.mktemp('report')
  report.write(directory, summary)
  return (directory / report.PAGE).as_uri()


@pytest.fixture
def visit(chromium, url):
  """Opens the page; in the end it must have asked for and reported nothing."""
  contexts, told, requests = [], [], []

  def run(width=900, height=900, **options):
    contexts.append(chromium.new_context(
        viewport=dict(width=width, height=height), offline=True, **options))
    page = contexts[-1].new_page()
    page.on('console', lambda message: told.append(message.text))
    page.on('pageerror', lambda error: told.append(str(error)))
    page.on('request', lambda request: requests.append(request.url))
    page.goto(url)
    return page

  yield run
  for context in contexts:
    context.close()
  assert not told and requests == [url] * len(contexts)
