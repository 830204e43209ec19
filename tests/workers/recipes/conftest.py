import pytest

from tests.workers.trainer.conftest import begin, dataset, train, zygote  # noqa: F401


@pytest.fixture
def exports() -> bool:
    return True
