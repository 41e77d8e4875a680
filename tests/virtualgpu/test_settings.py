"""PYTORCH_CUDA_ALLOC_CONF is read as PyTorch reads it, and refused with a sentence."""

import pytest

from virtualgpu.memory.settings import Settings


def test_nothing_is_the_defaults():
    assert Settings.parse("") == Settings.parse(" ") == Settings()


def test_names_values_and_spaces():
    parsed = Settings.parse(" max_split_size_mb : 128, expandable_segments:True ,garbage_collection_threshold:0.8,")
    assert parsed == Settings(max_split_size_mb=128, expandable_segments=True, garbage_collection_threshold=0.8)


def test_the_last_of_two_wins():
    assert Settings.parse("max_split_size_mb:64,max_split_size_mb:100").max_split_size_mb == 100


@pytest.mark.parametrize(
    ("text", "each"),
    [
        ("4", (4,) * 16),
        ("[256:1,512:2,1024:4,>:8]", (1,) * 9 + (2, 4) + (8,) * 5),
        ("[64:8]", (8,) * 7 + (0,) * 9),
        ("[1:8,16:2]", (8, 0, 0, 0, 2) + (0,) * 11),
        ("[>:8]", (0,) + (8,) * 15),
        ("[65536:8,>:2]", (8,) * 16),
    ],
)
def test_divisions_by_size(text, each):
    """The expected values are what PyTorch 2.15 makes of these texts."""
    assert Settings.parse(f"roundup_power2_divisions:{text}").divisions == each


def test_divisions_of_one_are_off():
    assert Settings.parse("roundup_power2_divisions:1").divisions is None


def test_settings_of_pinned_memory_and_locks_change_nothing_here():
    text = "backend:native,pinned_use_background_threads:True,release_lock_on_cudamalloc:True"
    assert Settings.parse(text) == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense:1", "'nonsense:1' is not an allocator setting. Known: max_split_size_mb, "),
        ("max_split_size_mb=64", "'max_split_size_mb=64' is not an allocator setting"),
        ("max_split_size_mb", "'max_split_size_mb' has no value; write max_split_size_mb:VALUE"),
        ("max_split_size_mb:", "has no value"),
        ("max_split_size_mb:19", "max_split_size_mb is 19; it must be at least 20"),
        ("max_split_size_mb:20.5", r"max_split_size_mb is '20\.5'; it must be a whole number"),
        ("max_split_size_mb:-30", "it must be a whole number"),
        ("large_segment_size_mb:30,max_split_size_mb:25", "max_split_size_mb is 25; it must be at least 30"),
        ("large_segment_size_mb:10", "large_segment_size_mb is 10; it must be above 10"),
        ("max_non_split_rounding_mb:5", "max_non_split_rounding_mb is 5; it must be at least 20"),
        ("garbage_collection_threshold:0", "garbage_collection_threshold is '0'; it must be between 0 and 1"),
        ("garbage_collection_threshold:1", r"garbage_collection_threshold is 1\.0; it must be between 0 and 1"),
        ("garbage_collection_threshold:much", "garbage_collection_threshold is 'much'; it must be a number"),
        ("per_process_memory_fraction:1.1", r"per_process_memory_fraction is 1\.1; it must be from 0 to 1"),
        ("expandable_segments:true", "expandable_segments is 'true'; it must be True or False"),
        ("roundup_power2_divisions:0", "roundup_power2_divisions is '0'; it must be a power of 2"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions is 3; it must be a power of 2"),
        ("roundup_power2_divisions:[3:4]", "which '3' is not"),
        ("roundup_power2_divisions:[4:3]", "it must be a power of 2, or 16 of them"),
        ("roundup_power2_divisions:[4]", "it must be a whole number"),
    ],
)
def test_what_pytorch_refuses_is_refused_with_the_right_form(text, message):
    with pytest.raises(ValueError, match=message):
        Settings.parse(text)


@pytest.mark.parametrize(
    "text", ["backend:cudaMallocAsync", "throw_on_cudamalloc_oom:True", "expandable_segments_reserve:0.5"]
)
def test_what_is_not_mirrored_is_refused_by_name(text):
    with pytest.raises(NotImplementedError, match=f"does not mirror '{text}'"):
        Settings.parse(text)
