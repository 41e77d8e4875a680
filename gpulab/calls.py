"""Check functions that are handed over to be called once: wrong ones are told with a remedy."""

from __future__ import annotations

import inspect


def check_function(fn: object, name: str, who: str) -> None:
    """Raise TypeError, with a remedy, unless `fn` can be called without arguments."""
    if not callable(fn):
        raise TypeError(
            f"{name} must be a function without arguments, not {fn!r:.60} ({type(fn).__name__}): it looks as if the "
            f"function was called before {who} could call it; write {who}(lambda: step(x)), not {who}(step(x))"
        )
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(
            f"{name} is a coroutine or generator function: calling it runs nothing of its body; give {who} a function "
            "that runs it to the end, such as lambda: list(fn())"
        )
    try:
        inspect.signature(fn).bind()
    except ValueError:
        pass  # written in C, without a signature: the call will tell
    except TypeError as error:
        raise TypeError(
            f"{name} must be callable without arguments ({error}); wrap it: {who}(lambda: {_name(fn)}(x))"
        ) from None


def check_result(result: object, name: str, what: str) -> None:
    """Raise TypeError if `result` is a generator or coroutine: the body of the function `name` has not run."""
    if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
        kind = "generator" if inspect.isgenerator(result) else "coroutine"
        if not inspect.isasyncgen(result):
            result.close()  # else Python warns that it was never awaited
        inside = "lambda: list(batches())" if kind == "generator" else "lambda: asyncio.run(step())"
        raise TypeError(
            f"{name} gave a {kind}, whose body has not run: there is nothing to {what}; run it to the end inside "
            f"{name}, such as {inside}"
        )


def _name(fn: object) -> str:
    name = getattr(fn, "__name__", "fn")
    return name if name.isidentifier() else "fn"
