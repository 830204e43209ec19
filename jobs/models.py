"""The truth. Reads are QuerySet methods (jobs/queries.py), writes are verbs (jobs/services.py);
nothing happens in save() and there are no signals."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from jobs.queries import (
    AttemptQuerySet,
    CheckpointQuerySet,
    DatasetQuerySet,
    HostQuerySet,
    JobQuerySet,
    PlacementQuerySet,
    TrialQuerySet,
)
from workers.contract.messages import Kind, Request
from workers.contract.states import ENDED, EndReason, Status

USER = settings.AUTH_USER_MODEL

STATUS_LABELS = {
    Status.CHECKING: _("Checking"),
    Status.QUEUED: _("Queued"),
    Status.STARTING: _("Starting"),
    Status.RUNNING: _("Running"),
    Status.UNRESPONSIVE: _("Unresponsive"),
    Status.SUCCEEDED: _("Succeeded"),
    Status.FAILED: _("Failed"),
    Status.CANCELLED: _("Cancelled"),
    Status.PAUSED: _("Paused"),
}
STATUS_CHOICES = [(status.value, label) for status, label in STATUS_LABELS.items()]

END_REASON_LABELS = {
    EndReason.COMPLETED: _("completed"),
    EndReason.FINISHED_EARLY: _("finished early"),
    EndReason.CANCELLED: _("cancelled"),
    EndReason.PAUSED: _("paused"),
    EndReason.PREEMPTED: _("preempted"),
    EndReason.DRAINED: _("host shut down"),
    EndReason.SUPERSEDED: _("superseded"),
    EndReason.NON_FINITE: _("NaN or infinity"),
    EndReason.LOSS_SCALE_COLLAPSED: _("loss scale collapsed"),
    EndReason.DIVERGED: _("diverged"),
    EndReason.RANKS_DIFFER: _("ranks differ"),
    EndReason.OUT_OF_MEMORY: _("out of memory"),
    EndReason.DISK_FULL: _("disk full"),
    EndReason.BAD_DATA: _("bad data"),
    EndReason.BAD_SETTINGS: _("bad settings"),
    EndReason.MODEL_UNAVAILABLE: _("model unavailable"),
    EndReason.TRAINER_ERROR: _("trainer error"),
    EndReason.CRASHED_BY_SIGNAL: _("killed by a signal"),
    EndReason.LAUNCH_FAILED: _("launch failed"),
    EndReason.SUPERVISOR_LOST: _("supervisor lost"),
    EndReason.HOST_LOST: _("host lost"),
    EndReason.TIME_LIMIT: _("time limit"),
}
END_REASON_CHOICES = [(reason.value, label) for reason, label in END_REASON_LABELS.items()]


def _ended_rule() -> Q:
    """An ended row has a reason that fits its status and a time; a live one has neither."""
    rule = Q(status__in=[s.value for s in Status if s not in ENDED], end_reason="", ended_at__isnull=True)
    for status in (status for status in Status if status in ENDED):
        fitting = [reason.value for reason in EndReason if reason.status is status]
        rule |= Q(status=status.value, end_reason__in=fitting, ended_at__isnull=False)
    return rule


class Dataset(models.Model):
    """One version of a dataset. Once it is ready nothing of its content changes; its files lie below STORAGE_ROOT."""

    class State(models.TextChoices):
        UPLOADING = "uploading", _("uploading")
        MAPPING = "mapping", _("to be described")
        CHECKING = "checking", _("being checked")
        READY = "ready", _("ready")
        REFUSED = "refused", _("refused")

    class Kind(models.TextChoices):
        """Of what it is made; a recipe takes one kind (workers/contract/datasets.py)."""

        TEXTS = "texts", _("texts with labels")
        NUMBERS = "numbers", _("texts with numbers")
        SEQUENCES = "sequences", _("numeric sequences")
        TOKENS = "tokens", _("tokens with tags")
        IMAGES = "images", _("pictures with labels")
        LINES = "lines", _("pictures of text lines")

    name = models.CharField(_("name"), max_length=100)
    version = models.PositiveIntegerField(_("version"), default=1)
    owner = models.ForeignKey(USER, models.CASCADE, null=True, blank=True, related_name="datasets")
    shared = models.BooleanField(_("shared"), default=False, help_text=_("Every user may train on it."))
    description = models.TextField(_("description"), blank=True)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.READY)
    kind = models.CharField(_("kind"), max_length=20, choices=Kind.choices, default=Kind.TEXTS)
    # Where the rows come from: {"files": [SourceFile and its size], "paddlenlp": name, "uploads": folder}.
    source = models.JSONField(default=dict)
    reading = models.JSONField(default=dict)  # a dump of Reading

    # The newest check: its uid is the fence, the number is that of the try.
    check_uid = models.CharField(max_length=32, blank=True, editable=False)
    check_try = models.PositiveIntegerField(default=0)
    check_host = models.CharField(max_length=100, blank=True)
    check_sent_at = models.DateTimeField(null=True, blank=True)
    check_progress = models.JSONField(default=dict)
    checked_at = models.DateTimeField(null=True, blank=True)
    findings = models.JSONField(default=list)  # dumps of Finding

    # Folder below STORAGE_ROOT with train.jsonl and dev.jsonl.
    key = models.CharField(max_length=200, blank=True)
    bytes = models.BigIntegerField(default=0)
    content_hash = models.CharField(max_length=64, blank=True)
    columns = models.JSONField(default=list)
    labels = models.JSONField(default=list)
    splits = models.JSONField(default=dict)
    # Counts, lengths, duplicates, baselines, sample rows: whatever the check measured.
    statistics = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now)

    objects = DatasetQuerySet.as_manager()

    class Meta:
        ordering = ["name", "-version", "-id"]
        verbose_name = _("dataset")
        verbose_name_plural = _("datasets")
        indexes = [models.Index(fields=["state"])]
        constraints = [
            models.UniqueConstraint(fields=["owner", "name", "version"], name="dataset_version_once"),
            models.UniqueConstraint(
                fields=["owner", "name", "content_hash"], condition=Q(state="ready"), name="dataset_content_once"
            ),
            models.CheckConstraint(
                condition=~Q(state="ready") | ~Q(key="") & ~Q(content_hash=""), name="dataset_ready_has_content"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class Host(models.Model):
    """A GPU (or CPU) host, as its worker last described it."""

    name = models.CharField(_("name"), max_length=100, unique=True)
    address = models.CharField(_("address"), max_length=100, blank=True)
    boot = models.CharField(max_length=64, blank=True)
    beat_seq = models.BigIntegerField(default=0)
    devices = models.JSONField(default=list)  # of messages.Device
    versions = models.JSONField(default=dict)
    disk_total_bytes = models.BigIntegerField(default=0)
    disk_free_bytes = models.BigIntegerField(default=0)
    memory_total_bytes = models.BigIntegerField(default=0)
    load1 = models.FloatField(default=0.0)
    usage = models.JSONField(default=dict)  # a dump of messages.HostUsage
    # By the controller's own clock, only moved by a beat with a new number.
    last_seen_at = models.DateTimeField(null=True, blank=True)
    # Written by the controller: false after UNRESPONSIVE_S without a new beat while Redis was readable.
    online = models.BooleanField(_("online"), default=False)
    # No new attempts; live ones are asked to checkpoint and leave.
    draining = models.BooleanField(_("draining"), default=False)
    enabled = models.BooleanField(_("enabled"), default=True, help_text=_("Takes new attempts."))
    created_at = models.DateTimeField(default=timezone.now)

    objects = HostQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        verbose_name = _("host")
        verbose_name_plural = _("hosts")

    def __str__(self) -> str:
        return self.name


class Job(models.Model):
    """What a user asked for. Its status and end reason are those of its newest attempt."""

    owner = models.ForeignKey(USER, models.PROTECT, related_name="jobs")
    name = models.CharField(_("name"), max_length=120)
    recipe = models.CharField(_("recipe"), max_length=60)
    dataset = models.ForeignKey(Dataset, models.PROTECT, null=True, blank=True, related_name="jobs")
    priority = models.SmallIntegerField(_("priority"), default=0)
    # A few steps to see how it would go (jobs/dry_run.py): it keeps nothing and is never retried or resumed.
    dry_run = models.BooleanField(_("dry run"), default=False)
    cloned_from = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="+")
    status = models.CharField(_("status"), max_length=20, choices=STATUS_CHOICES, default=Status.QUEUED.value)
    end_reason = models.CharField(_("end reason"), max_length=30, choices=END_REASON_CHOICES, blank=True)
    notes = models.TextField(_("notes"), blank=True)
    # Rules of retention leave it alone.
    pinned = models.BooleanField(_("keep"), default=False)
    # Out of the way: not in the list, and otherwise as it was.
    archived_at = models.DateTimeField(_("archived"), null=True, blank=True)
    # The word that it is gone; files and rows follow (jobs/controller/remove.py).
    deleted_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(_("created"), default=timezone.now)
    ended_at = models.DateTimeField(null=True, blank=True)
    newest = models.OneToOneField("Attempt", models.SET_NULL, null=True, blank=True, related_name="+")

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        indexes = [models.Index(fields=["owner", "-id"]), models.Index(fields=["status", "-priority", "id"])]
        constraints = [models.CheckConstraint(condition=_ended_rule(), name="job_end_fits_status")]

    def __str__(self) -> str:
        return f"#{self.pk} {self.name}"


class JobTag(models.Model):
    job = models.ForeignKey(Job, models.CASCADE, related_name="tags")
    name = models.CharField(max_length=40)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["job", "name"], name="tag_once")]
        indexes = [models.Index(fields=["name"])]

    def __str__(self) -> str:
        return self.name


class DeletedJob(models.Model):
    """What is left to say of a job that was deleted."""

    number = models.BigIntegerField(_("number"), unique=True)
    name = models.CharField(_("name"), max_length=120)
    owner = models.ForeignKey(USER, models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("owner"))
    created_at = models.DateTimeField(_("created"))
    deleted_at = models.DateTimeField(_("deleted"), default=timezone.now)
    deleted_by = models.ForeignKey(
        USER, models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("deleted by")
    )
    # A RetentionRule.What, if no person did it.
    rule = models.CharField(_("rule"), max_length=20, blank=True)
    freed_bytes = models.BigIntegerField(_("freed bytes"), default=0)
    # Files and rows are gone, too.
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-deleted_at"]
        verbose_name = _("deleted job")
        verbose_name_plural = _("deleted jobs")

    def __str__(self) -> str:
        return f"#{self.number} {self.name}"


class RetentionRule(models.Model):
    """What goes by itself after so many days; see jobs/retention.py for what holds without a row."""

    class What(models.TextChoices):
        DRY_RUNS = "dry_runs", _("Dry runs")
        FAILED_CHECKPOINTS = "failed_checkpoints", _("Checkpoints of failed and cancelled jobs")
        CHECKPOINTS = "checkpoints", _("Checkpoints of jobs that have succeeded")
        LOGS = "logs", _("Logs of jobs that have ended")
        ARCHIVED = "archived", _("Archived jobs")

    class Keep(models.TextChoices):
        LAST = "last", _("the newest good one stays")
        BEST = "best", _("the one at the best evaluation stays")
        BOTH = "both", _("both of them stay")
        NONE = "none", _("none stays")

    what = models.CharField(max_length=20, choices=What.choices, unique=True)
    days = models.PositiveIntegerField(null=True, blank=True)  # None: never
    keep = models.CharField(max_length=10, choices=Keep.choices, default=Keep.LAST)
    changed_by = models.ForeignKey(USER, models.SET_NULL, null=True, blank=True, related_name="+")
    changed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = _("rule of retention")
        verbose_name_plural = _("rules of retention")

    def __str__(self) -> str:
        return self.get_what_display()


class Attempt(models.Model):
    """One try at a job: frozen settings, one place, its own records. `uid` is its name on hosts and the fence."""

    class Cause(models.TextChoices):
        SUBMIT = "submit", _("submitted")
        RETRY = "retry", _("retried")
        RESUME = "resume", _("resumed")
        DRAIN = "drain", _("continued after a host shut down")

    uid = models.CharField(max_length=32, unique=True, default="", editable=False)
    job = models.ForeignKey(Job, models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    status = models.CharField(_("status"), max_length=20, choices=STATUS_CHOICES, default=Status.QUEUED.value)
    end_reason = models.CharField(_("end reason"), max_length=30, choices=END_REASON_CHOICES, blank=True)
    # The particulars, in English, with the step and the rank: "Loss was NaN at step 341 on rank 1 …".
    end_detail = models.TextField(blank=True)
    end_said = models.JSONField(default=list, blank=True)  # its parts, for other languages: jobs/texts.py
    end_step = models.BigIntegerField(null=True, blank=True)
    end_rank = models.IntegerField(null=True, blank=True)

    settings = models.JSONField()
    # [{"name": "optimizer.learning_rate", "old": …, "new": …}] against the attempt before.
    settings_changed = models.JSONField(default=list)
    cause = models.CharField(max_length=10, choices=Cause.choices, default=Cause.SUBMIT)
    asked_by = models.ForeignKey(USER, models.SET_NULL, null=True, blank=True, related_name="+")
    start_from = models.ForeignKey("Checkpoint", models.RESTRICT, null=True, blank=True, related_name="+")
    model_key = models.CharField(max_length=300, blank=True)  # exported weights of another job
    nodes = models.PositiveSmallIntegerField(default=1)
    devices_per_node = models.PositiveSmallIntegerField(default=1)

    # Requests are facts beside the status; the newest asked stands.
    leave = models.CharField(max_length=10, blank=True, choices=[(r.value, r.value) for r in Request])
    leave_asked_at = models.DateTimeField(null=True, blank=True)
    leave_asked_by = models.ForeignKey(USER, models.SET_NULL, null=True, blank=True, related_name="+")
    checkpoint_asked = models.PositiveIntegerField(default=0)
    # Instead of the settings' own limit; 0 is none.
    time_limit_asked_s = models.FloatField(null=True, blank=True)

    created_at = models.DateTimeField(default=timezone.now)
    placed_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)  # first seen running
    ended_at = models.DateTimeField(null=True, blank=True)
    complete_at = models.DateTimeField(null=True, blank=True)  # every byte of every stream is stored

    # Kept by ingest from rank 0's records and events.
    stage = models.CharField(max_length=200, blank=True)
    plan = models.JSONField(default=dict)  # the trainer's "plan" event
    attempted = models.BigIntegerField(default=0)
    applied = models.BigIntegerField(default=0)
    skipped = models.BigIntegerField(default=0)
    clipped = models.BigIntegerField(default=0)
    non_finite = models.BigIntegerField(default=0)
    newest_record = models.JSONField(default=dict)  # NaN and infinities as strings
    environment = models.JSONField(default=dict)  # what "claimed" and "environment" said: see jobs/reproduction.py
    peak_memory = models.JSONField(default=dict)  # "rank0", "<node>/gpu0" -> the most bytes seen
    rank_states = models.JSONField(default=dict)  # "0" -> {"pid", "exit_code", "signal", "first", "ended_at"}

    # Of step records and logs in the database, as last measured by the controller; None: not yet.
    stored_bytes = models.BigIntegerField(null=True, blank=True)
    log_removed_at = models.DateTimeField(null=True, blank=True)

    objects = AttemptQuerySet.as_manager()

    class Meta:
        ordering = ["job", "number"]
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        indexes = [models.Index(fields=["status", "id"])]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number_once"),
            models.CheckConstraint(condition=_ended_rule(), name="attempt_end_fits_status"),
            models.CheckConstraint(condition=~Q(uid=""), name="attempt_has_uid"),
            models.UniqueConstraint(
                fields=["job"],
                condition=Q(status__in=[status.value for status in Status if status not in ENDED]),
                name="attempt_live_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id}.{self.number}"

    @staticmethod
    def new_uid() -> str:
        return uuid.uuid4().hex

    @property
    def time_limit_s(self) -> float | None:
        """Of the time on its hosts; what was asked beside the settings stands."""
        return self.time_limit_set_s if self.time_limit_asked_s is None else self.time_limit_asked_s or None

    @property
    def time_limit_set_s(self) -> float | None:
        """As the settings have it."""
        hours = (self.settings.get("limits") or {}).get("time_limit_hours")
        return None if hours is None else hours * 3600


class Placement(models.Model):
    """An attempt's devices on one host. Devices are taken while `released_at` is null, by the rows of DeviceHold."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="placements")
    host = models.ForeignKey(Host, models.PROTECT, related_name="placements")
    node = models.PositiveSmallIntegerField(default=0)
    device_kind = models.CharField(max_length=3)
    devices = models.JSONField()
    sent_at = models.DateTimeField(null=True, blank=True)  # the start message
    claimed_at = models.DateTimeField(null=True, blank=True)  # the supervisor's word
    running_at = models.DateTimeField(null=True, blank=True)  # every rank of the node is ready
    verdict = models.JSONField(default=dict)  # what "ended" said
    complete_bytes = models.JSONField(default=dict)  # what "complete" said: "<rank>/<kind>" -> bytes
    complete_said = models.BooleanField(default=False)
    ended_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)
    # After a lost lease the devices are in quarantine until the host reports without this attempt.
    quarantined = models.BooleanField(default=False)

    objects = PlacementQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "node"], condition=Q(released_at__isnull=True), name="placement_node_once"
            )
        ]


class DeviceHold(models.Model):
    """One device in use. The unique rule is what makes it impossible for two attempts to share it."""

    placement = models.ForeignKey(Placement, models.CASCADE, related_name="holds")
    host = models.ForeignKey(Host, models.CASCADE, related_name="holds")
    kind = models.CharField(max_length=3)
    index = models.PositiveSmallIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "kind", "index"], name="device_held_once")]


class JobEvent(models.Model):
    """What happened, when, and who or what did it. Written in the transaction of the change itself."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="events")
    attempt = models.ForeignKey(Attempt, models.CASCADE, null=True, blank=True, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=30)
    old = models.CharField(max_length=20, blank=True)
    new = models.CharField(max_length=20, blank=True)
    reason = models.CharField(max_length=30, blank=True)
    # A person, or the name of a part: controller, supervisor, rank 0 …
    actor = models.ForeignKey(USER, models.SET_NULL, null=True, blank=True, related_name="+")
    actor_name = models.CharField(max_length=150, blank=True)
    step = models.BigIntegerField(null=True, blank=True)
    rank = models.IntegerField(null=True, blank=True)
    message = models.TextField(blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["job", "id"]), models.Index(fields=["attempt", "kind"])]
        verbose_name = _("event")
        verbose_name_plural = _("events")


class Checkpoint(models.Model):
    """A published, verified, complete checkpoint below STORAGE_ROOT."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="checkpoints")
    step = models.BigIntegerField()
    applied = models.BigIntegerField()
    key = models.CharField(max_length=300)
    bytes = models.BigIntegerField()
    files = models.JSONField(default=dict)
    good = models.BooleanField()
    created_at = models.DateTimeField(default=timezone.now)
    removed_at = models.DateTimeField(null=True, blank=True)

    objects = CheckpointQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["attempt", "step"], name="checkpoint_once")]
        verbose_name = _("checkpoint")
        verbose_name_plural = _("checkpoints")


class Evaluation(models.Model):
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="evaluations")
    step = models.BigIntegerField()
    applied = models.BigIntegerField()
    epoch = models.PositiveIntegerField()
    metrics = models.JSONField()  # NaN and infinities as strings
    seconds = models.FloatField()
    best = models.BooleanField(default=False)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["attempt", "step"], name="evaluation_once")]


class WorstRows(models.Model):
    """The dev rows that the best weights get most wrong, worst first. Contents of the dataset: not for everybody who sees the job."""

    attempt = models.OneToOneField(Attempt, models.CASCADE, related_name="worst_rows")
    step = models.BigIntegerField()
    dev_rows = models.BigIntegerField()
    rows = models.JSONField()  # [{"row": from 1, "loss": …, what the recipe shows}]; NaN and infinities as strings
    at = models.DateTimeField(default=timezone.now)


class Artifact(models.Model):
    """A published result: "model" (PaddleNLP folder) or "inference" (Paddle Inference), as one .tar below STORAGE_ROOT."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="artifacts")
    name = models.CharField(max_length=60)
    # A folder with the files, and beside it `<key>.tar` for download.
    key = models.CharField(max_length=300)
    bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    files = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["attempt", "name"], name="artifact_once")]


class Cursor(models.Model):
    """How far a byte stream of an attempt is stored. A batch is taken only at `offset`; moved by filtered updates."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="cursors")
    rank = models.IntegerField()
    kind = models.CharField(max_length=10, choices=[(k.value, k.value) for k in Kind])
    offset = models.BigIntegerField(default=0)
    lines = models.BigIntegerField(default=0)
    # What ingest must remember of the lines before: see jobs/steps/tail.py and jobs/controller/marks.py.
    state = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "rank", "kind"], name="cursor_once")]


class StepTail(models.Model):
    """The open tail: raw lines as the rank wrote them, one row per accepted batch. `start` is the number of records before."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="+")
    rank = models.IntegerField()
    start = models.BigIntegerField()
    count = models.PositiveIntegerField()
    last_step = models.BigIntegerField()  # the greatest
    body = models.BinaryField()
    # The charted fields of the same lines, ready for numpy: see jobs/steps/packed.py.
    packed = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "rank", "start"], name="tail_once")]


class StepBlock(models.Model):
    """BLOCK sealed records, numbers index × BLOCK and on, as a compressed Arrow record batch: see jobs/steps/block.py."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="+")
    rank = models.IntegerField()
    index = models.PositiveIntegerField()
    count = models.PositiveIntegerField()
    first_step = models.BigIntegerField()
    last_step = models.BigIntegerField()
    body = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "rank", "index"], name="block_once")]


class StepLevel(models.Model):
    """Buckets of `bucket` sealed records with min, max, mean and counts per field: see jobs/steps/levels.py."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="+")
    rank = models.IntegerField()
    bucket = models.PositiveIntegerField()
    index = models.PositiveIntegerField()
    count = models.PositiveIntegerField()
    body = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "rank", "bucket", "index"], name="level_once")]


class LogChunk(models.Model):
    """A stretch of a rank's output at its byte offset: see jobs/logs.py."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="+")
    rank = models.IntegerField()
    offset = models.BigIntegerField()
    length = models.PositiveIntegerField()
    body = models.BinaryField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["offset"]
        constraints = [models.UniqueConstraint(fields=["attempt", "rank", "offset"], name="log_once")]


class DeviceSamples(models.Model):
    """Up to an hour of what a node's devices and ranks used, one sample every ten seconds: see jobs/device_samples.py."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="+")
    node = models.PositiveSmallIntegerField()
    first_at = models.FloatField()  # seconds since 1970, as are the others
    last_at = models.FloatField()
    fields = models.JSONField()  # names of the columns after the first, which is seconds since `first_at`
    count = models.PositiveIntegerField()
    body = models.BinaryField()  # float32, little-endian, [count, 1 + fields]; NaN where something was not to be had

    class Meta:
        ordering = ["first_at"]
        constraints = [models.UniqueConstraint(fields=["attempt", "node", "first_at"], name="samples_once")]


class Trial(models.Model):
    """Somebody wants to see what an exported model says of what they typed. Removed after a day."""

    class State(models.TextChoices):
        WAITING = "waiting", _("waiting")
        ANSWERED = "answered", _("answered")
        FAILED = "failed", _("failed")

    uid = models.CharField(max_length=32, unique=True, editable=False)
    artifact = models.ForeignKey(Artifact, models.CASCADE, related_name="trials")
    asked_by = models.ForeignKey(USER, models.CASCADE, related_name="+")
    asked_at = models.DateTimeField(default=timezone.now)
    rows = models.JSONField()  # of contract.trials.Row
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    # The newest try: each is for one host.
    number = models.PositiveIntegerField(default=0)
    host = models.CharField(max_length=100, blank=True)
    stage = models.CharField(max_length=100, blank=True)
    result = models.JSONField(default=dict)  # a dump of TrialResult
    problem = models.JSONField(default=dict)  # {"template", "values"}

    objects = TrialQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["state", "asked_at"]), models.Index(fields=["asked_by", "state"])]


class Limits(models.Model):
    """What a user may have at once. None: as it is for everybody, and for everybody: no limit. See jobs/limits.py."""

    NONE = 2**53  # stored for "no limit", where everybody has one

    devices = models.BigIntegerField(_("devices in use at once"), null=True, blank=True)
    running = models.BigIntegerField(_("running jobs"), null=True, blank=True)
    queued = models.BigIntegerField(_("queued jobs"), null=True, blank=True)
    priority = models.BigIntegerField(_("highest priority"), null=True, blank=True)
    storage_bytes = models.BigIntegerField(_("storage"), null=True, blank=True)
    time_limit_hours = models.FloatField(_("longest time limit"), null=True, blank=True)

    class Meta:
        abstract = True


class DefaultLimits(Limits):
    """One row: what holds for users who have no limits of their own."""

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(pk=1), name="default_limits_once")]
        verbose_name = _("limits of everybody")
        verbose_name_plural = _("limits of everybody")


class Account(Limits):
    """What is known of a user beside Django's own row. Made when there is something to say; without it nothing is special."""

    user = models.OneToOneField(USER, models.CASCADE, related_name="account", primary_key=True)
    language = models.CharField(_("language"), max_length=20, blank=True)  # blank: the browser's
    must_change_password = models.BooleanField(_("must change the password"), default=False)

    class Meta:
        verbose_name = _("account")
        verbose_name_plural = _("accounts")


class PeopleEvent(models.Model):
    """What was done to an account, when, and by whom. Names stay when a row goes."""

    class Kind(models.TextChoices):
        ADDED = "added", _("added")
        CHANGED = "changed", _("changed")
        PASSWORD_RESET = "password_reset", _("password reset")
        PASSWORD_CHANGED = "password_changed", _("password changed")
        DEACTIVATED = "deactivated", _("deactivated")
        ACTIVATED = "activated", _("activated")
        LIMITS = "limits", _("limits changed")
        DEFAULTS = "defaults", _("limits of everybody changed")
        UNLOCKED = "unlocked", _("login allowed again")
        DELETED = "deleted", _("deleted")

    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=20, choices=Kind.choices)
    actor = models.ForeignKey(USER, models.SET_NULL, null=True, blank=True, related_name="+")
    actor_name = models.CharField(max_length=150, blank=True)
    person = models.ForeignKey(USER, models.SET_NULL, null=True, blank=True, related_name="people_events")
    person_name = models.CharField(max_length=150, blank=True)
    changes = models.JSONField(default=dict)  # field -> [old, new]

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["person", "-id"])]
        verbose_name = _("event of an account")
        verbose_name_plural = _("events of accounts")


class LoginFailure(models.Model):
    """A login that was refused. Those since the last one that was allowed, or was lifted, are counted: jobs/throttle.py."""

    at = models.DateTimeField(default=timezone.now)
    name = models.CharField(_("name"), max_length=150)  # as typed; there may be no such user
    address = models.CharField(_("address"), max_length=64, blank=True)
    # No longer counted: the login has succeeded since, or staff has lifted the lock.
    cleared_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["name", "address", "at"]), models.Index(fields=["address", "at"])]
        verbose_name = _("refused login")
        verbose_name_plural = _("refused logins")
