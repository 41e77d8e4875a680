"""Wrong answers that students give to the exercises, by lesson; `bank` is what their tests share."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.bank")
