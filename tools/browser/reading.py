"""What the browser tests read off a simulator's box on the page: names, numbers, contrast. It asserts nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from courselib.patience import HANG_SECONDS
from playwright.sync_api import Locator, Page

from browser.notebook_page import Node, NotebookPage

OPERABLE = {"button", "checkbox", "combobox", "image", "link", "radio", "radiogroup", "slider", "spinbutton", "textbox"}

LOWEST_CONTRAST = "(root) => gpulabPage.lowestContrast(root)"  # and the words it was found at


def slider(box: Locator, name: str) -> Locator:
    return box.get_by_role("slider", name=name, exact=True)


def picture(box: Locator) -> tuple[str | None, ...]:
    """The headline of a simulator, and all its numbers as text."""
    return tuple(box.locator(part).text_content() for part in (".gs-headline", ".gs-numbers"))


def settled(box: Locator) -> tuple[str, str]:
    """The same once the kernel has answered all that was asked, and nothing more comes."""
    title, numbers = box.evaluate("(box, limit) => gpulabPage.settled(box, limit)", HANG_SECONDS)
    return title, numbers


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
