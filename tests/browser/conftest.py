"""A JupyterLab server and a Chromium, which begin anew with each file of tests, and where the screenshots go.

How they are driven is in tools/browser/. Without a Chromium every test is skipped,
and says so.
"""

import os
from pathlib import Path

import pytest
from browser.lab_server import LabServer, chromium, chromium_path
from browser.notebook_page import NotebookPage
from courselib.lanes import CHROMIUM


@pytest.fixture(scope="package")  # not for the session: while Playwright runs, no other test can use asyncio
def browser():
    path = chromium_path()
    if path is None:
        pytest.skip(f"browser tests NOT run: no Chromium on PATH ({', '.join(CHROMIUM)})")
    with chromium(path) as running:
        yield running


@pytest.fixture(scope="package")
def server(browser, tmp_path_factory):
    running = LabServer(tmp_path_factory.mktemp("lab"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def lab(server):
    """The server, as it started."""
    yield server
    server.begin_anew()


@pytest.fixture(scope="module")
def open_notebook(browser, lab):
    """Open a notebook in a window of its own; all of them are closed at the end."""
    pages = []

    def open_one(path):
        pages.append(NotebookPage(browser, lab, path))
        return pages[-1]

    yield open_one
    for page in pages:
        page.close()


@pytest.fixture(scope="module")
def shoot():
    """Take a screenshot of a notebook's window into the folder GPULAB_SCREENSHOTS, where somebody will look at it."""
    told = os.environ.get("GPULAB_SCREENSHOTS")
    if told:
        Path(told).mkdir(parents=True, exist_ok=True)

    def take(notebook, name):
        notebook.drawn()
        if told:
            notebook.page.wait_for_timeout(300)  # for what moves by itself
            notebook.page.screenshot(path=Path(told, f"{name}.png"))

    return take
