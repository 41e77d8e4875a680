"""What of JupyterLab's log is a complaint: every error, whole; not what Jupyter itself says when something is ended."""

import pytest
from browser.lab_server import errors_of

pytestmark = pytest.mark.browser

# As they stood in the log of a busy machine.
PAGE_CLOSED = """\
Task exception was never retrieved
future: <Task finished name='Task-957' coro=<WebSocketProtocol13.write_message.<locals>.wrapper() done>>
Traceback (most recent call last):
  File "tornado/websocket.py", line 1140, in wrapper
    await fut
tornado.iostream.StreamClosedError: Stream is closed

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "tornado/websocket.py", line 1142, in wrapper
    raise WebSocketClosedError()
tornado.websocket.WebSocketClosedError
"""
PAGE_CLOSED_IN_A_CALLBACK = """\
[E 2026-11-28 00:30:36.326 ServerApp] Exception in callback functools.partial(<function ZMQStream>)
    Traceback (most recent call last):
      File "tornado/ioloop.py", line 756, in _run_callback
        ret = callback()
              ^^^^^^^^^^
    tornado.websocket.WebSocketClosedError
"""
INTERRUPTED = """\
[IPKernelApp] ERROR | Exception in message handler:
Traceback (most recent call last):
  File "ipykernel/kernelbase.py", line 508, in dispatch_shell
    await result
KeyboardInterrupt
"""
SOCKET_CLOSED = """\
[IPKernelApp] ERROR | Exception in message handler:
Traceback (most recent call last):
  File "zmq/backend/cython/_zmq.py", line 190, in zmq.backend.cython._zmq._check_rc
zmq.error.ZMQError: Socket operation on non-socket
"""
QUIET = "[NbGrader | WARNING] No nbgrader_config.py file found\n"
OURS = """\
Traceback (most recent call last):
  File "gpulab/asleep.py", line 51, in _before_saving
    data["text/html"]
KeyError: 'text/html'"""
OF_THE_SERVER = """\
[E 2026-11-28 00:30:36.326 ServerApp] Uncaught exception GET /api/contents
    Traceback (most recent call last):
      File "jupyter_server/handlers.py", line 12, in get
    PermissionError: no"""


@pytest.mark.parametrize("ended", [PAGE_CLOSED, PAGE_CLOSED_IN_A_CALLBACK, INTERRUPTED, SOCKET_CLOSED, QUIET])
def test_what_jupyter_says_when_something_is_ended_is_no_complaint(ended):
    assert errors_of(QUIET + ended + QUIET) == []


@pytest.mark.parametrize(
    "error",
    [OURS, OF_THE_SERVER, "[E 2026-11-28 00:30:36.326 ServerApp] 500 GET /lab"],
    ids=["traceback", "of the server", "one line"],
)
def test_any_other_error_is_told_whole_wherever_it_stands(error):
    for before, after in (("", ""), (QUIET, "\n" + QUIET), (PAGE_CLOSED, ""), (INTERRUPTED, "\n" + PAGE_CLOSED)):
        assert errors_of(before + error + after) == [error]


def test_one_that_is_not_yet_written_to_its_end_is_told():
    begun = OURS.rsplit("\n", 1)[0]
    assert errors_of(QUIET + begun) == [begun]
