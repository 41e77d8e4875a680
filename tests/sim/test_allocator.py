import gc
import json
import re
import xml.etree.ElementTree as ET
from string import ascii_lowercase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.sim.allocator.controls import Allocator
from gpulab.sim.allocator.model import MOST_COMMANDS, Command, read, run
from gpulab.sim.allocator.picture import draw
from gpulab.sim.allocator.result import EXAMPLES, limits, simulate
from virtualgpu.memory.blocks import MiB
from virtualgpu.memory.caching import CachingAllocator
from virtualgpu.memory.settings import Settings
from virtualgpu.pictures import svg

from .page import Page

DEFAULT = {"script": "fragmentation", "step": MOST_COMMANDS, "memory": 100, "max_split": 0, "expandable": False}


def state(**values):
    return simulate(**DEFAULT | values)


@st.composite
def scripts(draw_from, most=MOST_COMMANDS):
    """Commands that are right: only living names are freed."""
    sizes = st.sampled_from(
        [
            "1B",
            "1KiB",
            "512KiB",
            "1MiB",
            "1.01MiB",
            "1.5MB",
            "5.25MiB",
            "8MiB",
            "9.9MiB",
            "10MiB",
            "11MiB",
            "12MB",
            "19MiB",
            "20MiB",
            "24MiB",
            "60MiB",
            "2GiB",
            "0023.125MiB",
            "9999.999KiB",
        ]
    )
    words, living = [], []
    prefix = draw_from(st.sampled_from(["t", "layer", "mmmmmm"]))
    for place in range(draw_from(st.integers(0, most))):
        kind = draw_from(st.sampled_from(["make", "make", "make", "free", "free", "cache", "again"]))
        if kind == "cache":
            words.append("empty_cache")
        elif kind == "free" and living:
            name = living.pop(draw_from(st.integers(0, len(living) - 1)))
            words.append(f"free {name}")
        else:
            name = living[-1] if kind == "again" and living else f"{prefix}{place}"
            words.append(f"{name}={draw_from(sizes)}")
            living += [] if name in living else [name]
    return "; ".join(words)


@st.composite
def states(draw_from):
    script = draw_from(st.one_of(st.sampled_from(sorted(EXAMPLES)), scripts()))
    return {
        "script": script,
        "step": draw_from(st.integers(0, limits({"script": script})["step"].high)),
        "memory": draw_from(st.integers(32, 512)),
        "max_split": draw_from(st.sampled_from([0, 20, 32, 64, 128])),
        "expandable": draw_from(st.booleans()),
    }


class TestRead:
    def test_spaces_lines_and_semicolons_part_commands(self):
        expected = ["a=12MB", "b=30MB", "free a", "empty_cache"]
        for text in (
            "a=12MB b=30MB free a empty_cache",
            "a=12MB;b=30MB;del a;empty_cache()",
            "a = 12 MB\nb=30 MB\nfree a\nempty_cache",
        ):
            assert [str(command) for command in read(text)] == expected

    def test_names_with_commas_are_a_command_each(self):
        assert [str(command) for command in read("a, b,c=8MiB free a,c")] == [
            *("a=8MiB", "b=8MiB", "c=8MiB"),
            *("free a", "free c"),
        ]

    def test_units(self):
        sizes = [command.nbytes for command in read("a=1B b=1KiB c=1.5MiB d=2GiB e=1KB f=1MB g=1GB")]
        assert sizes == [1, 1024, 1572864, 2**31, 1000, 10**6, 10**9]

    def test_the_text_of_what_was_read_is_read_the_same(self):
        for text in EXAMPLES.values():
            once = read(text)
            assert read("; ".join(map(str, once))) == once

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a=12", "a=12: it has no unit. Known: B, KiB, MiB, GiB, KB, MB, GB."),
            ("a=12Mib", "a=12Mib: 'Mib' is no unit."),
            ("a=0MiB", "a=0MiB: the size must be from 1 B to 1024 GiB."),
            ("a=2000GiB", "the size must be from 1 B to 1024 GiB."),
            ("a=1MiB free b", "free b: nothing is called b at that point."),
            ("a=1MiB free a free a", "free a: nothing is called a at that point."),
            ("alloc 12MiB", "'alloc' is no command. Known: a=12MiB, free a, empty_cache"),
            ("a=1MiB free a b", "'b' is no command."),
            ("a=-1MiB", "'a=-1MiB' is no command."),
            ("free=1MiB", "'free=1MiB' is no command."),
            ("empty_cached", "'empty_cached' is no command."),
            ("a=1MiB " * 61, "61 commands; there may be up to 60."),
        ],
    )
    def test_what_is_wrong_is_named(self, text, message):
        with pytest.raises(ValueError, match=re.escape(message)):
            read(text)

    @given(text=st.text(max_size=40))
    def test_any_text_is_read_or_refused_in_words(self, text):
        try:
            read(text)
        except ValueError as error:
            said = str(error)
        else:
            said = "."
        assert said.endswith(".")


class TestByHand:
    def test_the_default_runs_out_of_memory_with_memory_free(self):
        result = state()
        assert result.run.now.error.shortage.requested == 60 * MiB
        assert (result.free, result.run.free, result.cached) == (76 * MiB, 40 * MiB, 36 * MiB)
        assert result.run.largest == 40 * MiB
        assert result.fragmentation == pytest.approx(36 / 76)
        assert result.finding == "d = 60 MiB does not fit: at most 40 MiB of the 76 MiB free are in one piece"

    @pytest.mark.parametrize("remedy", [{"max_split": 20}, {"max_split": 32}, {"expandable": True}])
    def test_each_remedy_makes_the_default_fit(self, remedy):
        result = state(**remedy)
        assert result.run.failures == 0
        assert result.run.now.allocated == 84 * MiB

    def test_a_small_request_in_the_large_pool_takes_twenty_mib(self):
        result = state(script="segments", step=1)
        assert (result.run.now.allocated, result.run.now.reserved) == (3 * MiB // 2, 20 * MiB)
        assert "takes 20 MiB from the driver: 1.5 MiB for a, and 18.5 MiB for what comes next" in result.finding

    @pytest.mark.parametrize(("asked", "block", "segment"), [(11, 12, 12), (19, 20, 20), (10, 10, 10), (9, 9, 20)])
    def test_rests_of_up_to_one_mib_are_not_split_off(self, asked, block, segment):
        result = state(script=f"a={asked}MiB")
        assert (result.run.now.allocated, result.run.now.reserved) == (block * MiB, segment * MiB)
        assert ("is not split off" in result.finding) == (block > asked)

    def test_up_to_one_mib_comes_from_segments_of_two(self):
        result = state(script="small_pool")
        assert [(s.small, s.nbytes // MiB) for s in result.run.segments] == [(True, 2), (False, 20)]
        assert [piece.name for piece in result.run.segments[0].pieces] == ["a", "b", "c", ""]

    def test_empty_cache_gives_nothing_back_where_each_segment_holds_a_tensor(self):
        result = state(script="empty_cache")
        assert result.run.now.given == 0
        assert result.run.now.reserved == 80 * MiB
        assert "gives nothing back: each of the 4 segments holds a tensor, and 48 MiB" in result.finding

    def test_empty_cache_gives_back_whole_segments(self):
        result = state(script="a=60MiB b=12MiB free a empty_cache")
        assert result.run.now.given == 60 * MiB
        assert result.finding.startswith("empty_cache gives 60 MiB back to the driver")
        assert "12 MiB stay" in result.finding

    def test_freed_neighbours_become_one_block(self):
        result = state(script="merging")
        assert result.finding == "e = 12 MiB fits into a free block: the driver is not asked"
        assert "(8 MiB with what is free beside it)" in state(script="merging", step=5).finding
        before = state(script="merging", step=5)
        assert [piece.nbytes // MiB for piece in before.run.segments[0].pieces if not piece.name] == [6, 8]

    def test_freeing_changes_what_is_allocated_and_not_what_is_reserved(self):
        result = state(step=2)
        assert (result.run.now.allocated, result.run.now.reserved) == (0, 60 * MiB)
        assert result.finding == "free a gives 60 MiB back to the cache: 0 MiB allocated, still 60 MiB reserved"

    def test_growing_requests_end_in_a_retry_that_expandable_segments_spare(self):
        assert "a slow retry" in state(script="growing").finding
        assert state(script="growing").run.retries == 1
        assert state(script="growing", expandable=True).run.retries == 0

    def test_a_name_given_anew_holds_both_for_a_moment(self):
        assert state(script="a=40MiB a=40MiB").run.peak == 80 * MiB
        assert state(script="a=60MiB a=60MiB").run.failures == 1
        assert state(script="a=60MiB a=60MiB").run.now.allocated == 60 * MiB

    def test_what_was_never_allocated_can_be_freed(self):
        assert "was never allocated" in state(script="a=200MiB free a").finding

    def test_eight_mib_may_fail_where_twelve_fit(self):
        result = state(script="a=88MiB b=8MiB")
        assert result.run.now.error.shortage.tried == 20 * MiB
        assert result.run.largest == 12 * MiB
        assert "b = 8 MiB fails where 12 MiB would fit" in result.finding

    def test_a_real_shortage_is_not_called_fragmentation(self):
        assert state(script="a=90MiB b=60MiB").finding == "b = 60 MiB does not fit: only 10 MiB are free in all"

    def test_the_error_is_pytorchs_own(self):
        result = state()
        allocator = CachingAllocator(100 * MiB)
        a = allocator.allocate(60 * MiB)
        allocator.free(a)
        allocator.allocate(12 * MiB)
        allocator.allocate(12 * MiB)
        with pytest.raises(RuntimeError) as caught:
            allocator.allocate(60 * MiB)
        assert result.error == f"torch.OutOfMemoryError: {caught.value}"
        assert result.describe().endswith(result.error)
        assert " ".join(str(result).split()).endswith(" ".join(result.error.split()))
        assert max(map(len, str(result).splitlines())) < 130


class TestOverTheWholeRange:
    @given(values=states())
    def test_totals_add_up(self, values):
        result = simulate(**values)
        now, segments = result.run.now, result.run.segments
        assert sum(segment.nbytes for segment in segments) == now.reserved
        assert sum(segment.used for segment in segments) == now.allocated
        assert now.reserved + result.run.free == result.capacity
        assert 0 <= result.run.requested <= now.allocated <= now.reserved <= result.run.peak <= result.capacity
        assert sum(m.taken - m.given for m in result.run.moments) == now.reserved
        assert 0 <= result.fragmentation <= 1
        assert result.run.largest <= result.free
        assert result.run.failures == sum(m.error is not None for m in result.run.moments)
        assert len(result.run.moments) == result.step + 1

    @given(values=states())
    def test_each_living_tensor_is_one_block(self, values):
        result = simulate(**values)
        names = [piece.name for segment in result.run.segments for piece in segment.pieces if piece.name]
        assert len(names) == len(set(names))
        failed = {c.name for c, m in zip(result.commands, result.run.moments[1:], strict=False) if m.error}
        living = {}
        for command in result.commands[: result.step]:
            if command.nbytes is not None:
                living[command.name] = command.nbytes
            elif command.name:
                living.pop(command.name, None)
        assert set(names) <= set(living)
        assert set(living) - set(names) <= failed

    @given(values=states())
    def test_the_picture_of_any_script_is_whole(self, values, check_picture):
        picture = draw(simulate(**values))
        check_picture(picture.text(note=Allocator.leaves_out))
        room = picture.width - 2 * svg.MARGIN
        assert len(svg.wrap(picture.title, room, svg.HEAD, bold=True)) <= picture.head_lines

    @settings(max_examples=40)
    @given(
        script=scripts(most=14),
        memory=st.integers(32, 120),
        max_split=st.sampled_from([None, 20, 32, 64]),
        expandable=st.booleans(),
    )
    def test_the_largest_request_is_the_largest_of_all(self, script, memory, max_split, expandable):
        commands, chosen = tuple(read(script)), Settings(max_split_size_mb=max_split, expandable_segments=expandable)
        found = run(commands, memory * MiB, chosen).largest

        def granted(mib):
            return run((*commands, Command("", "one more", mib * MiB)), memory * MiB, chosen).now.error is None

        assert found == max((mib for mib in range(1, memory + 2) if granted(mib)), default=0) * MiB

    @given(values=states())
    def test_a_step_changes_nothing_before_it(self, values):
        whole = simulate(**values | {"step": MOST_COMMANDS})
        part = simulate(**values)
        assert [(m.allocated, m.reserved) for m in whole.run.moments[: part.step + 1]] == [
            (m.allocated, m.reserved) for m in part.run.moments
        ]


class TestPicture:
    def words(self, sim):
        return [element.text for element in ET.fromstring(sim.svg()).iter() if element.text]

    def test_the_default_state_shows_the_error_and_the_pieces(self):
        words = self.words(Allocator())
        assert any(
            word.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 60.00") for word in words
        )
        assert {"b", "c", "36 MiB free in the segment", "40 MiB free on the device", "36 MiB of 76 MiB"} <= set(words)
        assert "✗ 60 MiB asked: no free piece is as long; a block cannot cross a segment’s border" in words
        assert {"36 MiB", "24 MiB beyond the border", "a’s old segment: 60 MiB, 24 MiB allocated"} <= set(words)
        assert "d=60MiB ✗" in words  # of the script
        assert "b and c hold the whole segment" in self.words(Allocator(**Allocator.states[1].values))
        assert "b and c hold the whole segment" not in words

    def test_a_segment_that_has_grown_shows_where_it_ended(self):
        words = self.words(Allocator(expandable=True))
        assert {"✓ 60 MiB asked", "old end of the segment", "40 MiB added, in pages of 20 MiB"} <= set(words)
        pages = "✗ 60 MiB asked: no free piece is as long; the segment grows by pages of 20 MiB"
        assert pages in self.words(Allocator(expandable=True, memory=96))
        assert "✓ no error, with PYTORCH_ALLOC_CONF=expandable_segments:True" in words
        marks = [
            e for e in ET.fromstring(Allocator(expandable=True).svg()).iter() if e.get("stroke-dasharray") == "5 3"
        ]
        assert float(marks[0].get("x1")) == pytest.approx(18 + 8.24 * 60, abs=0.1)

    @pytest.mark.parametrize(
        ("script", "start", "asked", "words"),
        [
            ("fragmentation", 24, 60, "no free piece is as long; a block cannot cross a segment’s border"),
            ("a=88MiB b=8MiB", 80, 20, "it needs a new segment of 20 MiB"),  # to the end, where 12 are free
            ("a=90MiB b=60MiB", 40, 60, "only 10 MiB are free"),
            ("a=60MiB free a b=24MiB", 0, 24, ""),
        ],
    )
    def test_what_was_asked_lies_below_the_memory_to_scale(self, script, start, asked, words):
        sim = Allocator(script=script)
        (bar,) = [
            e for e in ET.fromstring(sim.svg()).iter() if e.get("height") == "20" and e.get("stroke-width") == "2"
        ]
        assert float(bar.get("x")) == pytest.approx(18 + 8.24 * start, abs=0.1)
        assert float(bar.get("width")) == pytest.approx(8.24 * asked, abs=0.1)
        assert any(word.endswith(words) for word in self.words(sim))

    def test_what_is_rounded_up_is_hatched(self):
        assert "".join(draw(state(script="a=19MiB")).body).count("<path") > "".join(
            draw(state(script="a=20MiB")).body
        ).count("<path")

    def test_small_segments_are_enlarged_and_those_left_out_counted(self):
        words = self.words(Allocator(script=" ".join(f"t{i}=1MiB" for i in range(9))))
        assert "small segments, enlarged" in words
        assert "+ 2 more" in words  # of five
        assert "small segments, enlarged" not in self.words(Allocator())

    def test_blocks_are_to_scale_on_the_whole_memory(self):
        memory = 824  # pixels from margin to margin
        pieces = [e for e in ET.fromstring(Allocator().svg()).iter() if e.get("height") == "84"]
        wide = [float(e.get("width")) for e in pieces]
        assert {round(memory * part / 100, 1) for part in (12, 36, 60, 40)} <= set(wide)


class TestTouched:
    def labels(self, sim, mark):
        found = ET.fromstring(sim.picture.inner()).iter()
        return {e.get("data-label"): e.get(mark) for e in found if e.get(mark)}

    def after(self, sim, command):
        """The simulator after a click, as front.js makes it of `data-add` and `data-after`."""
        groups = [e for e in ET.fromstring(sim.picture.inner()).iter() if e.get("data-after")]
        (found,) = [e for e in groups if any(inner.get("data-add") == command for inner in e.iter())]
        before, values = json.loads(found.get("data-after"))
        sim.set(script="; ".join(filter(None, (before, json.loads(command)[1]))), **values)
        return sim.result

    @pytest.mark.parametrize("step", [0, 3, 5])
    def test_a_click_frees_or_allocates_after_the_present_step(self, step):
        for label, command in self.labels(Allocator(step=step), "data-add").items():
            sim = Allocator(step=step)
            before = sim.result.run.now.allocated
            result = self.after(sim, command)
            assert result.step == len(result.commands) == step + 1
            if label.startswith("Free"):
                size = label.split(", ")[1]
                assert before - result.run.now.allocated == float(size.removesuffix(" MiB")) * MiB
            elif label.startswith("Allocate") and not result.error:
                assert result.run.now.allocated > before

    def test_no_living_name_is_taken_for_what_is_dropped(self):
        script = "; ".join(f"{name}=1MiB" for name in [*ascii_lowercase, "t0"])
        (name,) = {
            json.loads(c)[1].split("=")[0]
            for c in self.labels(Allocator(script=script), "data-add").values()
            if "=" in c
        }
        assert name == "t1"

    def test_it_is_dropped_onto_the_memory(self):
        (zone,) = {e.get("data-drop") for e in ET.fromstring(Allocator().picture.inner()).iter() if e.get("data-drop")}
        left, top, wide, high = map(float, zone.split())
        (b,) = [
            e
            for e in ET.fromstring(Allocator().picture.inner()).iter()
            if e.get("height") == "84" and e.get("width") == "494.4"
        ]
        assert left <= float(b.get("x"))
        assert top < float(b.get("y")) < float(b.get("y")) + 84 < top + high
        assert wide == 824

    def test_the_step_is_dragged_where_the_chart_has_it(self):
        for sim in (Allocator(), Allocator(script="growing", step=3)):
            (grip,) = [e for e in ET.fromstring(sim.picture.inner()).iter() if e.get("data-drag") == "step"]
            low, high, start, end = (float(grip.get(f"data-{key}")) for key in ("low", "high", "from", "to"))
            assert (low, high) == (0, len(sim.result.commands))
            (cursor,) = [e for e in grip.iter() if e.get("x1")]
            there = low + (float(cursor.get("x1")) - start) / (end - start) * (high - low)
            assert there == pytest.approx(sim.result.step, abs=0.01)

    def test_a_command_of_the_script_goes_to_its_step(self):
        steps = [json.loads(values)["step"] for values in self.labels(Allocator(), "data-set").values()]
        assert steps == [1, 2, 3, 4, 5]


class TestStates:
    def test_each_makes_its_point(self):
        fails, cache, grows = (Allocator(**one.values).result for one in Allocator.states)
        assert fails.finding == Allocator().result.finding
        assert fails.run.now.error
        assert fails.free > 60 * MiB > fails.run.largest
        assert cache.finding.startswith("empty_cache gave nothing back, so d = 60 MiB still does not fit")
        assert cache.run.moments[5].given == 0
        before = Allocator(**Allocator.states[1].values | {"step": 5}).result
        assert "gives nothing back: the segment holds a tensor" in before.finding
        assert not grows.run.failures
        assert grows.commands == fails.commands


class TestControls:
    def test_the_last_step_is_where_it_opens(self):
        for name in EXAMPLES:
            sim = Allocator(script=name)
            assert sim.values["step"] == len(sim.result.commands)

    def test_own_script(self):
        sim = Allocator(script="a=12MB b=30MB free a")
        assert sim.values["step"] == 3
        assert [str(c) for c in sim.result.commands] == ["a=12MB", "b=30MB", "free a"]

    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"script": "a=12"}, ValueError, "allocator(script='a=12'): a=12: it has no unit."),
            ({"script": "fragmented"}, ValueError, "Or the name of an example: fragmentation, empty_cache"),
            ({"step": 6}, ValueError, "allocator(step=6): step must be from 0 to 5: the script has 5 commands"),
        ],
    )
    def test_bad_values_are_named(self, values, error, message):
        with pytest.raises(error) as caught:
            Allocator(**values)
        assert message in str(caught.value)

    def test_set_moves_the_picture(self):
        sim = Allocator()
        before = sim.svg()
        sim.set(expandable=True)
        assert sim.svg() != before
        assert "OutOfMemory" not in sim.svg()

    def test_a_thousand_frames_leave_nothing_behind(self):
        sim = Allocator(script="growing")
        page = Page(sim)

        def play(times):
            for _ in range(times):
                for step in range(8):
                    assert page.ask(step=step)["svg"].startswith("<svg")
                    assert sim.values["step"] == step
            gc.collect()
            return len(gc.get_objects())

        before = play(5)
        assert play(125) <= before + 50
