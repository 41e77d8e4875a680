"""Any state that a simulator's controls can take, drawn from `Simulator.controls`: no test restates a range."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.sim.base.controls import Choice, Flag, Script, Sizes, Slider


def of_control(control):
    """A value that a control takes by itself: the ends, what its slider stops at, and what lies between."""
    if isinstance(control, Choice):
        return st.sampled_from(list(control.options))
    if isinstance(control, Flag):
        return st.booleans()
    if isinstance(control, Script):
        added = st.lists(st.sampled_from(list(control.buttons.values())), max_size=12)
        return st.one_of(st.sampled_from([*control.examples, control.value, ""]), added.map("; ".join))
    if not control.whole:
        return st.one_of(st.sampled_from([control.low, control.high]), st.floats(control.low, control.high))
    if control.step > 1:  # a model may take these alone, such as whole warps
        return st.integers(0, (control.high - control.low) // control.step).map(
            lambda steps: control.low + steps * control.step
        )
    stops = st.sampled_from(control.stops) if isinstance(control, Sizes) and control.stops else st.just(control.value)
    small = st.integers(control.low, min(control.high, control.low + max(10, (control.high - control.low) // 100)))
    return st.one_of(st.integers(control.low, control.high), small, stops)


def of(simulator, **own):
    """A value for each argument of the model, within what the other controls leave; `own` replaces strategies."""
    asked = st.fixed_dictionaries({c.name: own.get(c.name, of_control(c)) for c in simulator.controls})
    return asked.map(simulator()._within)


def whole_range(simulator, *, examples=None, **own):
    """A decorator: the test is called with `values` for the model."""
    few = {} if examples is None else {"max_examples": examples}
    return lambda test: settings(**few)(given(values=of(simulator, **own))(test))


def is_slider(control):
    return isinstance(control, Slider)
