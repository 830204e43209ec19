from tests.workers.trainer.conftest import begin, dataset, train, zygote  # noqa: F401
