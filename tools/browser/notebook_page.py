"""A notebook open in JupyterLab in Chromium, driven as a student drives it: run, scrolled, typed into, listened to.

For the browser tests and the benchmarks. It asserts nothing; `lab_server` serves what it opens.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any, NamedTuple

from courselib.patience import HANG_SECONDS
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, ViewportSize

from browser.lab_server import LabServer

WINDOW: ViewportSize = {"width": 1440, "height": 900}

SCRIPT = Path(__file__).with_name("page.js")
_PANEL = "gpulabPage.panel()"


class Node(NamedTuple):
    """One thing of the page as a screen reader is told of it."""

    role: str
    name: str
    value: str


class NotebookPage:
    """One notebook open in JupyterLab, in a window of its own. `console` holds the browser's complaints."""

    def __init__(self, browser: Browser, server: LabServer, path: str) -> None:
        self.page: Page = browser.new_page(viewport=WINDOW)
        self.page.add_init_script(path=SCRIPT)
        self.page.set_default_timeout(HANG_SECONDS * 1000)
        self.page.set_default_navigation_timeout(HANG_SECONDS * 1000)
        self.console: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.console.append(f"page error: {error}"))
        self.page.goto(server.url(path))
        self.wait_for_kernel(path)

    def close(self) -> None:
        self.page.close()

    def wait_for_kernel(self, path: str) -> None:
        """Wait until the notebook at `path` is in front and its kernel idle."""
        self.page.wait_for_function("(path) => gpulabPage.isReady(path)", arg=path)

    def switch_to(self, path: str) -> None:
        """Open another notebook in this window, or go back to one that is open."""
        self._command("docmanager:open", {"path": path})
        self.wait_for_kernel(path)

    def run_all(self) -> float:
        """Run all cells and wait for the last; returns the seconds that it took."""
        began = time.monotonic()
        self._command("notebook:run-all-cells")
        self._settle()
        return time.monotonic() - began

    def run(self, *cells: int) -> None:
        """Run these cells one after the other, as with Shift+Enter."""
        for cell in cells:
            self.select(cell)
            self._command("notebook:run-cell")
        self._settle()

    def path(self) -> str:
        """The notebook that is in front."""
        path: str = self.page.evaluate(f"{_PANEL}.context.path")
        return path

    def cells(self) -> list[dict[str, Any]]:
        """The cells as they would be saved, outputs included."""
        cells: list[dict[str, Any]] = self.page.evaluate(f"{_PANEL}.content.model.toJSON().cells")
        return cells

    def find(self, text: str) -> int:
        """The number of the one code cell that has `text` in its source."""
        found = [
            i for i, cell in enumerate(self.cells()) if cell["cell_type"] == "code" and text in "".join(cell["source"])
        ]
        if len(found) != 1:
            raise LookupError(f"{len(found)} code cells have {text!r} in their source, not one")
        return found[0]

    def write(self, cell: int, source: str) -> None:
        """Replace the source of a cell."""
        self.page.evaluate(
            f"([cell, source]) => {_PANEL}.content.model.cells.get(cell).sharedModel.setSource(source)", [cell, source]
        )

    def output_text(self, cell: int) -> str:
        """All text of the outputs of a cell, tracebacks included."""
        parts = []
        for output in self.cells()[cell]["outputs"]:
            texts = (output.get("text"), output.get("traceback"), output.get("data", {}).get("text/plain"))
            parts += ["".join(text) if isinstance(text, str) else "\n".join(text) for text in texts if text]
        return "\n".join(parts)

    def select(self, cell: int) -> None:
        """Make a cell the active one, as a click beside it does; the keyboard then is in command mode."""
        self.page.evaluate("(cell) => gpulabPage.select(cell)", cell)
        self.shown(cell).evaluate("(node) => node.focus()")

    def shown(self, cell: int) -> Locator:
        """The cell on the page, scrolled to its top: JupyterLab draws only what is near the window."""
        self.page.evaluate(f"(cell) => {_PANEL}.content.scrollToItem(cell, 'start')", cell)
        found = self.page.locator(f'.jp-NotebookPanel:not(.lm-mod-hidden) [data-windowed-list-index="{cell}"]')
        found.wait_for(state="attached")
        found.evaluate("(node) => gpulabPage.atTop(node)")
        return found

    def leaf_through(self) -> None:
        """Scroll to each cell in turn, so that JupyterLab has drawn all of them once."""
        self.page.evaluate("(limit) => gpulabPage.leafThrough(limit)", HANG_SECONDS)

    def theme(self, name: str) -> None:
        """Change JupyterLab's theme: "JupyterLab Light" or "JupyterLab Dark"."""
        self._command("apputils:change-theme", {"theme": name})
        self.page.wait_for_function("(name) => document.body.dataset.jpThemeName === name", arg=name)
        # where the next change begins before, JupyterLab removes its splash twice, and fails
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def spoken(self, within: Locator) -> list[Node]:
        """What Chromium tells a screen reader of what is in `within`, at one moment: a picture may change meanwhile."""
        session = self.page.context.new_cdp_session(self.page)
        mark = secrets.token_hex(4)
        within.evaluate("(node, mark) => { node.dataset.gpulabMark = mark; }", mark)
        root = session.send("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
        query = {"nodeId": root, "selector": f'[data-gpulab-mark="{mark}"]'}
        marked = session.send("DOM.querySelector", query)["nodeId"]
        itself = session.send("DOM.describeNode", {"nodeId": marked})["node"]["backendNodeId"]
        nodes = session.send("Accessibility.queryAXTree", {"nodeId": marked})["nodes"]
        session.detach()

        def text(node: dict[str, Any], key: str) -> str:
            return str(node.get(key, {}).get("value", ""))

        return [
            Node(text(node, "role"), text(node, "name"), text(node, "value"))
            for node in nodes
            if not node["ignored"] and node.get("backendDOMNodeId") != itself
        ]

    def _command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        self.page.evaluate("(given) => gpulabPage.command(given)", [name, arguments or {}, HANG_SECONDS])

    def is_busy(self) -> bool:
        """Whether the kernel runs a cell."""
        busy: bool = self.page.evaluate("gpulabPage.kernel().status !== 'idle'")
        return busy

    def interrupt(self) -> None:
        """Press stop, and wait until the kernel is idle."""
        self._command("notebook:interrupt-kernel")
        self._settle()

    def restart(self) -> None:
        """Give the notebook a new kernel, as after a break; what is on the page stays."""
        self.page.evaluate(f"{_PANEL}.sessionContext.restartKernel()")
        self._settle()

    def save(self) -> None:
        """Save the notebook, as Ctrl+S does."""
        self._command("docmanager:save")

    def at_rest(self) -> None:
        """Wait until the kernel has taken what the page has sent it, and the page has drawn what came back."""
        self._settle()
        self.drawn()

    def drawn(self) -> None:
        """Wait until the page has drawn what has come."""
        self.page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")

    def _settle(self) -> None:
        # A command ends with the kernel's reply, and outputs may come after it: a round trip of our own is the last.
        self.page.evaluate("() => gpulabPage.roundTrip()")
        self.wait_for_kernel(self.path())

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.console.append(f"console: {message.text} ({message.location.get('url', '')})")


def key_to_picture_ms(
    notebook: NotebookPage, cell: int, slider: str, presses: int, *, at_end: bool = False
) -> list[float]:
    """The milliseconds from each press of an arrow key on a slider of a simulator to the picture it leads to.

    `at_end` says that the slider stands at its highest value. The keys are real ones; the browser's own clock runs
    from the key event to the frame that shows the picture.
    """
    box = notebook.shown(cell).locator(".gpulab-sim")
    box.locator("details").evaluate_all("(folded) => folded.forEach((one) => { one.open = true; })")
    box.get_by_role("slider", name=slider, exact=True).focus()
    box.evaluate("(box) => gpulabPage.stopwatch(box)")
    times = []
    for press in range(presses):
        notebook.page.wait_for_timeout(200)  # so that each finds the page at rest
        notebook.page.evaluate("window.gpulabTime = null")
        notebook.page.keyboard.press("ArrowRight" if (press % 2 == 0) != at_end else "ArrowLeft")
        times.append(float(notebook.page.wait_for_function("window.gpulabTime").json_value()))
    return times


def frames_per_second(notebook: NotebookPage, cell: int, slider: str, seconds: float) -> float:
    """The pictures a second while Play moves this slider of the simulator in `cell`, from its first frame on."""
    box = notebook.shown(cell).locator(".gpulab-sim")
    box.get_by_role("slider", name=slider, exact=True).focus()
    notebook.page.keyboard.press("Home")
    box.get_by_role("button", name="Play", exact=True).click()
    notebook.page.wait_for_timeout(500)  # it is running evenly by then
    rate = float(box.evaluate("(box, milliseconds) => gpulabPage.frames(box, milliseconds)", 1000 * seconds))
    box.get_by_role("button", name="Stop and go back", exact=True).click()  # also where it has come to its end
    return rate
