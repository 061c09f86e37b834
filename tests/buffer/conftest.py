"""What several tests of the buffer share."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from relive.buffer import _core


@pytest.fixture(params=["avx2", "portable"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test with each of the two compiled kernels that this processor can run."""
    before = _core.kernels()
    if not _core.use_kernels(request.param):
        pytest.skip("this processor has no AVX2")
    yield request.param
    _core.use_kernels(before)


@pytest.fixture
def fits() -> Callable[[npt.ArrayLike, npt.ArrayLike], bool]:
    """Whether counts agree with expected counts: Pearson's chi-square at p > 0.01.

    The critical value is Wilson and Hilferty's (1931) approximation for k - 1 degrees of freedom.
    """

    def check(counts: npt.ArrayLike, expected: npt.ArrayLike) -> bool:
        counts, expected = np.asarray(counts, float), np.asarray(expected, float)
        statistic = float(((counts - expected) ** 2 / expected).sum())
        k = len(counts) - 1
        critical = k * (1 - 2 / (9 * k) + 2.3263 * (2 / (9 * k)) ** 0.5) ** 3
        return statistic < critical

    return check
