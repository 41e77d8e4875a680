"""The monitor's live view in JupyterLab in Chromium: it shows, and it ends with its button, its cell, or an interrupt.

What it draws and collects is tested without a browser, in tests/monitor.
"""

import pytest

pytestmark = pytest.mark.browser

# A block trains for some seconds, or until the test has seen enough: at its own pace, however busy the machine is.
TRAIN = """
def train(seconds=0.0, until=""):
    net, end = torch.nn.Linear(512, 512, device="cuda"), time.monotonic() + seconds
    while time.monotonic() < end or (until and not os.path.exists(until)):
        net(torch.ones(256, 512, device="cuda")).sum().backward()
        torch.cuda.synchronize()
"""
CELLS = (
    'import os, threading, time, torch, gpulab\nfrom gpulab import monitor\ngpulab.setup("T4")\n' + TRAIN,
    "with monitor.watch(every=0.2) as seen:\n    train(until='seen')",
    "monitor.watch(every=0.2)",
    "with monitor.watch(every=0.2):\n    train(1)\n    1 / 0",
    "with monitor.watch(every=0.2):\n    train(until='never')",
    'print([thread.name for thread in threading.enumerate() if thread.name == "gpulab.monitor"])',
)
SETUP, BLOCK, BESIDE, FAILS, LONG, THREADS = range(len(CELLS))


@pytest.fixture(scope="module")
def notebook(lab, open_notebook):
    notebook = open_notebook(lab.write("notebooks/monitor.ipynb", *CELLS))
    notebook.run(SETUP)
    return notebook


@pytest.fixture(autouse=True)
def nothing_stays(notebook):
    yield
    if notebook.is_busy():  # a test has failed: its block would train on
        notebook.interrupt()
    notebook.run(THREADS)
    assert notebook.output_text(THREADS) == "[]\n", "a thread goes on"
    assert notebook.console == []


def begin(notebook, cell):
    """Run a cell and do not wait for it; returns its live view, once that is drawn."""
    notebook.select(cell)
    notebook.page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-cell')")
    view = notebook.shown(cell).locator(".gpulab-monitor")
    view.get_by_role("img").wait_for()
    return view


def changes(notebook, view):
    """Wait until another picture is drawn than the one that is seen now."""
    description = view.locator("svg > desc")
    before = description.text_content()
    notebook.page.wait_for_function(
        "([node, before]) => node.querySelector('svg > desc').textContent !== before",
        arg=[view.element_handle(), before],
    )


def still(notebook, cell):
    """The alt text of the picture that is left, after the live view has gone."""
    output = notebook.shown(cell).locator(".jp-OutputArea-output")
    output.locator("img").wait_for()
    assert output.locator(".gpulab-monitor").count() == 0
    return output.locator("img").get_attribute("alt")


def test_a_block_is_seen_while_it_runs_and_leaves_a_picture_and_its_text(lab, notebook, shoot):
    view = begin(notebook, BLOCK)
    changes(notebook, view)
    assert view.get_by_role("button").count() == 0, "a kernel does not answer one while a cell runs"
    names = [node.name for node in notebook.spoken(view) if node.role in ("image", "img")]
    assert len(names) == 1
    assert names[0].startswith("GPU 0 (cuda:0), virtual: ")
    shoot(notebook, "monitor_live")
    (lab.course / "notebooks" / "seen").touch()
    notebook._settle()
    assert still(notebook, BLOCK).startswith("GPU 0 (cuda:0), virtual: busy")
    shoot(notebook, "monitor_still")
    (output,) = notebook.cells()[BLOCK]["outputs"]
    assert set(output["data"]) == {"text/plain", "image/svg+xml", "text/html"}
    assert "Tesla T4, virtual: busy" in notebook.output_text(BLOCK)


def test_beside_the_cells_it_runs_until_its_button_is_pressed(notebook):
    view = begin(notebook, BESIDE)
    notebook._settle()
    changes(notebook, view)
    notebook.run(THREADS)
    assert notebook.output_text(THREADS) == "['gpulab.monitor']\n", "it lives on while other cells run"
    view = notebook.shown(BESIDE).locator(".gpulab-monitor")
    changes(notebook, view)
    button = view.get_by_role("button", name="Stop watching", exact=True)
    button.focus()
    notebook.page.keyboard.press("Enter")
    assert "virtual" in still(notebook, BESIDE)


def test_run_again_it_is_one_watch_and_not_two(notebook):
    for _ in range(2):
        begin(notebook, BESIDE)
        notebook._settle()
    notebook.run(THREADS)
    assert notebook.output_text(THREADS) == "['gpulab.monitor']\n"
    notebook.shown(BESIDE).get_by_role("button", name="Stop watching", exact=True).click()
    still(notebook, BESIDE)


def test_an_exception_ends_it_and_is_shown_as_ever(notebook):
    notebook.run(FAILS)
    assert "ZeroDivisionError" in notebook.output_text(FAILS)
    assert "virtual" in still(notebook, FAILS)


def test_an_interrupt_ends_it(notebook):
    view = begin(notebook, LONG)
    changes(notebook, view)
    notebook.interrupt()
    assert "KeyboardInterrupt" in notebook.output_text(LONG)
    assert "virtual" in still(notebook, LONG)
