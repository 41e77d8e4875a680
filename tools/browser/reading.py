"""What the browser tests read off a simulator's box on the page: names, numbers, contrast. It asserts nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from courselib.patience import HANG_SECONDS
from playwright.sync_api import Locator, Page

from browser.notebook_page import Node, NotebookPage

OPERABLE = {"button", "checkbox", "combobox", "image", "link", "radio", "radiogroup", "slider", "spinbutton", "textbox"}

# The lowest contrast (WCAG 2) between letters and what lies behind them, with the words it was found at.
LOWEST_CONTRAST = """(root) => {
    const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
        const [r, g, b] = parse(colour).map((value) => linear(value / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (node) => {
        for (; node; node = node.parentElement) {
            const colour = getComputedStyle(node).backgroundColor;
            if ((parse(colour)[3] ?? 1) > 0.99) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    let lowest = [21, ''];
    for (const node of root.querySelectorAll('*')) {
        const words = [...node.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent.trim()).join('');
        if (!words || node.closest('svg') || !node.checkVisibility()) continue;
        const [one, two] = [light(getComputedStyle(node).color), light(behind(node))];
        const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
        if (ratio < lowest[0]) lowest = [ratio, words];
    }
    return lowest;
}"""


def slider(box: Locator, name: str) -> Locator:
    return box.get_by_role("slider", name=name, exact=True)


def picture(box: Locator) -> tuple[str | None, ...]:
    """The headline of a simulator, and all its numbers as text."""
    return tuple(box.locator(part).text_content() for part in (".gs-headline", ".gs-numbers"))


def settled(box: Locator) -> tuple[str, str]:
    """The same once the kernel has answered all that was asked, and nothing more comes."""
    title, numbers = box.evaluate(_SETTLED, HANG_SECONDS)
    return title, numbers


# An answer may lead to another question, so it asks until it finds what it found before; all in the page, since each
# way there and back costs as much as the kernel's answer.
_SETTLED = """async (box, limit) => {
    const frame = () => new Promise(requestAnimationFrame);
    const part = (name) => box.querySelector(name)?.textContent;
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const end = performance.now() + 1000 * limit;
    for (let last = null; performance.now() < end; ) {
        await kernel.requestExecute({ code: '', silent: true, store_history: false }).done;
        do await frame(); while (kernel.status !== 'idle' && performance.now() < end);
        await frame();
        const said = [part('.gs-headline'), part('.gs-numbers')];
        if (last && said.every((text, index) => text && text === last[index])) return said;
        last = said;
    }
    throw new Error(`the picture does not come to rest in ${limit} s`);
}"""


def wait_until(page: Page, condition: Callable[[], Any], what: str) -> None:
    """Wait for something in the kernel or on disk that the page cannot wait for."""
    end = time.monotonic() + HANG_SECONDS
    while time.monotonic() < end:
        if condition():
            return
        page.wait_for_timeout(50)
    raise TimeoutError(f"not within {HANG_SECONDS} s: {what}")


def nameless(notebook: NotebookPage, box: Locator) -> list[Node]:
    """What can be operated and has no name for a screen reader."""
    return [node for node in notebook.spoken(box) if node.role in OPERABLE and not node.name.strip()]
