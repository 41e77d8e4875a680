"""What holds for every simulator; a new one is tested by being listed in `gpulab.sim.__all__`."""

import dataclasses
import functools
import inspect
import itertools
import json
import math
import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpulab
from gpulab.sim.base.controls import Choice, Control, Flag, Script, Slider
from virtualgpu.pictures import svg

from . import states


@pytest.fixture(params=gpulab.sim.__all__)
def simulator(request):
    return getattr(gpulab.sim, request.param)


class TestEverySimulator:
    def test_the_controls_are_the_arguments_of_the_model(self, simulator):
        assert [control.name for control in simulator.controls] == list(inspect.signature(simulator.model).parameters)

    def test_each_control_takes_its_default_and_both_ends(self, simulator):
        for control in simulator.controls:
            for value in ends(control):
                assert control.check(value, "test") == value

    def test_the_class_is_exported_under_its_own_name(self, simulator):
        assert getattr(gpulab.sim, simulator._name()) is simulator

    def test_labels_fit_beside_their_sliders(self, simulator):
        for control in simulator.controls:
            if not isinstance(control, Flag):
                shown = f"{control.label} ({control.unit})" if isinstance(control, Slider) else control.label
                assert len(shown.removesuffix(" ()")) <= 24
            if isinstance(control, Choice):
                assert max(map(len, control.options.values())) <= 29

    def test_it_says_what_it_leaves_out(self, simulator):
        assert simulator.leaves_out.endswith(".")
        assert simulator.leaves_out.split(".")[0] in simulator().svg()

    def test_every_end_of_every_control_is_drawn_without_a_clash(self, simulator, check_picture):
        for control in simulator.controls:
            for value in ends(control):
                sim = simulator()
                asked = sim._asked | {control.name: value}
                picture = simulator.draw(simulator.model(**sim._within(asked)))
                check_picture(picture.text(note=simulator.leaves_out))
                check_picture(living(picture).text())

    def test_the_picture_keeps_its_size(self, simulator):
        sizes = set()
        for control in simulator.controls:
            for value in ends(control):
                sim = simulator()
                root = ET.fromstring(
                    simulator.draw(simulator.model(**sim._within(sim._asked | {control.name: value}))).text()
                )
                sizes.add(root.get("viewBox"))
        assert len(sizes) == 1

    def test_every_row_says_where_its_number_comes_from(self, simulator):
        for _, value, source in simulator().result.rows():
            assert source.split(":")[0] in ("measured", "virtual", "recorded", "")
            assert value

    def test_the_text_is_the_same_in_another_process(self, simulator):
        sim = simulator()
        here = f"{sim!r}\n{sim.svg()}\n{sim._still()}\n"
        assert elsewhere(hash_seed=1)[simulator._name()] == elsewhere(hash_seed=2)[simulator._name()] == here

    def test_the_widget_view_stays_out_of_the_saved_sizes(self, simulator):
        bundle = simulator()._repr_mimebundle_()
        assert len(json.dumps(bundle)) < 70_000


def living(picture: svg.Picture) -> svg.Picture:
    """A still picture of all that a living page shows."""
    return dataclasses.replace(picture, body=tuple(map(str, picture.body)))


def test_drawing_loads_no_torch_and_no_widgets():
    code = """
import sys, gpulab
for name in gpulab.sim.__all__:
    getattr(gpulab.sim, name)().svg()
print([name for name in ("torch", "ipywidgets", "matplotlib", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@functools.cache
def elsewhere(hash_seed: int) -> dict[str, str]:
    """What each simulator is in another process."""
    code = """
import gpulab, json
sims = {name: getattr(gpulab.sim, name)() for name in gpulab.sim.__all__}
print(json.dumps({name: f"{s!r}\\n{s.svg()}\\n{s._still()}\\n" for name, s in sims.items()}))
"""
    environ = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    texts: dict[str, str] = json.loads(done.stdout)
    return texts


def ends(control: Control) -> list[object]:
    if isinstance(control, Slider):
        return [control.low, control.value, control.high]
    if isinstance(control, Choice):
        return list(control.options)
    if isinstance(control, Script):
        return ["", control.value, *control.examples, *control.buttons.values()]
    return [False, True]


@pytest.mark.parametrize("name", gpulab.sim.__all__)
class TestOverTheWholeRange:
    """States drawn from the controls, whatever they are."""

    @settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_the_picture_is_whole_and_its_title_has_room(self, name, check_picture, data):
        simulator = getattr(gpulab.sim, name)
        picture = simulator.draw(simulator.model(**data.draw(states.of(simulator))))
        document = picture.text(note=simulator.leaves_out)
        check_picture(document)
        check_picture(living(picture).text())
        assert len(document) < 60_000
        room = picture.width - 2 * svg.MARGIN
        assert len(svg.wrap(picture.title, room, svg.HEAD, bold=True)) <= picture.head_lines

    @settings(max_examples=12)
    @given(data=st.data())
    def test_every_number_says_where_it_comes_from_and_none_is_lost(self, name, data):
        simulator = getattr(gpulab.sim, name)
        result = simulator.model(**data.draw(states.of(simulator)))
        assert result.finding
        for label, value, source in result.rows():
            assert value, label
            assert source.split(":")[0] in ("measured", "virtual", "recorded", "")
            assert not {"nan", "None"} & set(value.replace("(", " ").split()), (label, value)

    @settings(max_examples=15)
    @given(data=st.data())
    def test_the_model_gives_the_same_again(self, name, data):
        simulator = getattr(gpulab.sim, name)
        values = data.draw(states.of(simulator))
        one, other = simulator.model(**values), simulator.model(**values)
        assert (one.finding, list(one.rows())) == (other.finding, list(other.rows()))
        assert simulator.draw(one).text() == simulator.draw(other).text()


def wrong(control: Control) -> list[tuple[object, type[Exception], str]]:
    """What a control must refuse: a value, the error, a part of its text."""
    if isinstance(control, Choice):
        names = ", ".join(map(repr, control.options))
        return [("nothing of the kind", ValueError, f"must be one of {names}"), ([], ValueError, "must be one of")]
    if isinstance(control, Flag):
        return [(1, TypeError, "must be True or False, not int"), ("yes", TypeError, "must be True or False, not str")]
    if isinstance(control, Script):
        return [(3, TypeError, "must be text, not int"), ("no such command!", ValueError, "no such command!")]
    span = f"must be from {control.low} to {control.high} {control.unit}".rstrip()
    step = 1 if control.whole else 0.1
    kind = "a whole number" if control.whole else "a number"
    typed = [(bad, TypeError, f"must be {kind} from") for bad in ("3", None, True, *([2.5] if control.whole else []))]
    far = [(control.low - step, ValueError, span), (control.high + step, ValueError, span)]
    return [*far, *typed, *([] if control.whole else [(math.nan, ValueError, span)])]


class TestBadValues:
    def test_are_named_with_what_would_be_right_and_change_nothing(self, simulator):
        sim = simulator()
        before = (sim.values, repr(sim))
        calls = {simulator._name(): simulator, f"{simulator._name()}.set": sim.set}
        for control, (name, call) in itertools.product(simulator.controls, calls.items()):
            for value, error, message in wrong(control):
                with pytest.raises(error) as caught:
                    call(**{control.name: value})
                assert message in str(caught.value)
                assert f"{name}({control.name}=" in str(caught.value)
        assert (sim.values, repr(sim)) == before

    def test_numbers_of_numpy_are_numbers(self, simulator):
        for control in filter(states.is_slider, simulator.controls):
            number = numpy.int64(control.low) if control.whole else numpy.float32(control.high)
            assert control.check(number, "test") == number

    def test_an_unknown_control_is_answered_with_those_there_are(self, simulator):
        with pytest.raises(TypeError, match=r"has no control 'colour'.*; it has " + simulator.controls[0].name):
            simulator(colour="red")
