"""What a worker does with a request to try a model: claims it, finds or starts the model, and says how far it is until
the answer is written. The Celery task itself returns at once."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from workers.config import Config
from workers.contract.datasets import is_plain_key
from workers.contract.trials import PROGRESS, RESULT, ROWS, Failed, Progress, TrialResult, TrialSpec, trial_key
from workers.recipes import registry
from workers.run_folder import atomic_write_json
from workers.trials.model import Model, Question

logger = logging.getLogger(__name__)

MOST_MODELS = 2  # in memory at once, on this host
BEAT_S = 1.0
# Longer than a start and an answer together may take, with somebody else's before it.
PATIENCE_S = 200.0


class Trials:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._models: dict[Path, Model] = {}

    def start(self, spec: TrialSpec) -> None:
        """A thread of its own: a stalled storage must not hold up the start of attempts."""
        threading.Thread(target=self._guarded, args=(spec,), name=f"trial {spec.uid}", daemon=True).start()

    def _guarded(self, spec: TrialSpec) -> None:
        try:
            self.run(spec)
        except Exception:
            logger.exception("the trial %s could not be made", spec.uid)

    def run(self, spec: TrialSpec) -> None:
        folder = self._config.storage_root / trial_key(spec.uid)
        if not folder.is_dir() or (folder / RESULT).exists():
            return  # nobody waits for it any more
        try:
            # A message that comes twice starts nothing twice.
            (folder / f"claim-{spec.number}").open("x").close()
        except FileExistsError:
            return
        began = time.monotonic()
        try:
            self._say(folder, spec, answer=self._answered(folder, spec))
            logger.info("trial %s, try %d: answered in %.1f s", spec.uid, spec.number, time.monotonic() - began)
        except Failed as failure:
            self._say(folder, spec, failure=failure)
            logger.warning("trial %s, try %d: %s", spec.uid, spec.number, failure.template)

    def _answered(self, folder: Path, spec: TrialSpec) -> dict[str, Any]:
        question = Question(json.loads((folder / ROWS).read_text(encoding="utf-8")))
        seq = int(time.time() * 1000)
        deadline = time.monotonic() + PATIENCE_S
        asked = False
        while not question.done.wait(0 if not asked else BEAT_S):
            asked = asked or self._ask(spec, question)
            stage = question.stage if asked else "waiting for other models"
            seq += 1
            progress = Progress(number=spec.number, seq=seq, host=self._config.host_name, stage=stage)
            if not folder.is_dir():
                break  # nobody waits any more; what is in the model's queue is answered for nothing
            atomic_write_json(folder / PROGRESS, progress.model_dump(mode="json"))
            if time.monotonic() > deadline:
                raise Failed(
                    "%(host)s had no time for it within %(limit)s s.",
                    host=self._config.host_name,
                    limit=int(PATIENCE_S),
                )
            if not asked:
                time.sleep(BEAT_S)
        if question.failure is not None:
            raise question.failure
        return question.answer or {}

    def _ask(self, spec: TrialSpec, question: Question) -> bool:
        """Whether a model has the question; if not, all models are busy or on their way out: try again."""
        recipe = registry.RECIPES.get(spec.recipe)
        form = recipe.trial if recipe else None
        folder = self._config.storage_root / spec.artifact
        if form is None or not is_plain_key(spec.artifact):
            raise Failed("Models of this recipe cannot be tried on %(host)s.", host=self._config.host_name)
        if not folder.is_dir():
            raise Failed("The exported model is no longer in the storage.")
        with self._lock:
            model = self._models.get(folder)
            if model is not None:
                return model.ask(question)
            if len(self._models) >= MOST_MODELS:
                idle = [model for model in self._models.values() if not model.busy]
                if idle:
                    min(idle, key=lambda model: model.used_at).leave()
                return False
            model = self._models[folder] = Model(folder, form.module, self._config, self._gone)
            question.stage = "starting the model"
            model.ask(question)
            model.start()
            return True

    def _gone(self, model: Model) -> None:
        with self._lock:
            if self._models.get(model.folder) is model:
                del self._models[model.folder]

    def _say(
        self, folder: Path, spec: TrialSpec, answer: dict[str, Any] | None = None, failure: Failed | None = None
    ) -> None:
        about = {"number": spec.number, "host": self._config.host_name}
        if failure is None:
            try:
                said = TrialResult.model_validate(about | (answer or {}))
            except ValidationError as error:
                failure = Failed("The answer of the model makes no sense: %(said)s", said=str(error.errors()[0]["msg"]))
        if failure is not None:
            said = TrialResult.model_validate(about | {"template": failure.template, "values": failure.values})
        if folder.is_dir():
            atomic_write_json(folder / RESULT, said.model_dump(mode="json"))
