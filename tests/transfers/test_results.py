"""How copies are told: the table, the sentences, the picture."""

import pytest

from gpulab import timing
from gpulab.transfers import Copy, Pinning, Series, Transfers, picture
from virtualgpu.pictures import style
from virtualgpu.units import decimal_size


def series(kind, latency_us, gbps, sizes=(1_000, 1_000_000, 1_000_000_000)):
    def took(nbytes):
        return timing.Timing((latency_us / 1e3 + nbytes / gbps * 1e-6,), "CUDA events", "cuda:0", "measured")

    return Series(kind, tuple(Copy(nbytes, took(nbytes)) for nbytes in sizes))


def transfers(*all_series, **other):
    arguments = {"direction": "h2d", "device": "cuda:0", "gpu": "Tesla T4", "how": "CUDA events", "numbers": "measured"}
    return Transfers(**arguments | {"series": all_series} | other)


BOTH = transfers(series("pinned", 10, 12.5), series("pageable", 20, 5), pinning=(Pinning(1_000_000, 0.5),))


def test_the_table():
    assert (
        str(BOTH)
        == repr(BOTH)
        == (
            "CPU to cuda:0 (Tesla T4): measured, median, CUDA events\n"
            "size    pinned    GB/s  pageable    GB/s  pin_memory()\n"
            "1 kB  10.08 µs  0.0992  20.20 µs  0.0495\n"
            "1 MB  90.00 µs    11.1  220.0 µs    4.55      500.0 µs\n"
            "1 GB  80.01 ms    12.5  200.0 ms    5.00\n"
            "pinned: 10.00 µs + bytes / (12.5 GB/s), half of that rate at 125 kB; the times lie on this line\n"
            "pageable: 20.00 µs + bytes / (5.00 GB/s), half of that rate at 100 kB; the times lie on this line"
        )
    )


def test_the_finding_is_one_line():
    assert BOTH.finding() == "Pinned copies reach 12.5 GB/s, pageable ones 5.00"
    assert transfers(series("on the GPU", 7, 110), direction="d2d").finding() == "Copies on the GPU reach 110 GB/s"


def test_the_description_has_every_time():
    told = BOTH.describe()
    assert told.startswith("Pinned copies reach 12.5 GB/s, pageable ones 5.00 (CPU to cuda:0, Tesla T4, measured).")
    for time in ("10.08 µs", "90.00 µs", "80.01 ms", "20.20 µs", "220.0 µs", "200.0 ms"):
        assert time in told


def test_how_far_the_times_are_from_the_line_is_told():
    one, *rest = series("pinned", 10, 12.5).copies
    slow = timing.Timing((one.ms * 2,), "CUDA events", "cuda:0", "measured")
    assert "of it" in str(Series("pinned", (Copy(one.nbytes, slow), rest[0], rest[0], rest[1])))
    assert "lie on this line" in str(series("pinned", 10, 12.5))


def test_one_size_has_no_line():
    one = series("pinned", 10, 12.5, sizes=(1_000_000,))
    assert one.fit is None
    assert str(one) == "pinned: too few sizes for a line"
    with pytest.raises(ValueError, match="latency and bandwidth cannot be computed from 1 sizes of pinned copies"):
        _ = one.bandwidth_gbps


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(1, "1 bytes"), (999, "999 bytes"), (1000, "1 kB"), (999_999, "1 MB"), (1.5e6, "1.5 MB"), (2**30, "1.07 GB")],
)
def test_sizes_are_decimal(nbytes, text):
    assert decimal_size(nbytes) == text


def drawn(found):
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context():
        style.use()
        figure = picture.plot(found)
        figure.draw_without_rendering()
    return figure


def test_the_picture_has_the_points_and_the_lines_on_log_axes():
    figure = drawn(BOTH)
    times, rates = figure.axes
    assert figure.get_suptitle() == "Pinned copies reach 12.5 GB/s, pageable ones 5.00\nCPU to cuda:0 (Tesla T4)"
    assert (times.get_xscale(), times.get_yscale(), rates.get_xscale(), rates.get_yscale()) == ("log",) * 3 + (
        "linear",
    )
    assert times.get_ylabel() == "milliseconds, measured"
    assert rates.get_ylabel() == "GB/s, measured"
    points, line, *_ = times.lines
    assert list(points.get_ydata()) == [copy.ms for copy in BOTH.pinned.copies]
    assert line.get_xdata()[0] == 1_000
    assert line.get_xdata()[-1] == pytest.approx(1e9)
    assert line.get_ydata()[-1] == pytest.approx(BOTH.pinned.copies[-1].ms)
    assert len(times.lines) == len(rates.lines) == 4


def test_a_picture_without_a_line_and_one_without_anything():
    assert len(drawn(transfers(series("pinned", 10, 12.5, sizes=(1_000_000,)))).axes[0].lines) == 1
    assert drawn(transfers(Series("pinned", ()), skipped=("1 GB left out",))).get_suptitle().startswith("No size")


def test_plot_shows_it_with_its_description_as_alt_text(monkeypatch):
    pytest.importorskip("matplotlib")
    shown = []
    monkeypatch.setattr(style, "show", lambda figure, *, alt: shown.append(alt))
    BOTH.plot()
    assert shown == [BOTH.describe()]
