"""Reads, as QuerySet methods named like adjectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models
from django.db.models import Q

from workers.contract.states import ACTIVE, ENDED, ON_HOST, Status

if TYPE_CHECKING:
    from typing_extensions import Self

    from jobs.models import Attempt, Checkpoint, Dataset, Host, Job, Placement, Trial  # noqa: F401 (used in strings)
    from workers.recipes.registry import Recipe


def _is_staff(user: AbstractBaseUser | AnonymousUser) -> bool:
    return bool(getattr(user, "is_staff", False)) and bool(getattr(user, "is_active", False))


class JobQuerySet(models.QuerySet["Job"]):
    def there(self) -> Self:
        """Those that nobody has deleted: of deleted ones only files and rows are left, and not for long."""
        return self.filter(deleted_at__isnull=True)

    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        return self.there() if _is_staff(user) else self.there().filter(owner_id=user.pk)

    def ended(self) -> Self:
        return self.there().filter(status__in=[status.value for status in ENDED])


class AttemptQuerySet(models.QuerySet["Attempt"]):
    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        there = self.filter(job__deleted_at__isnull=True)
        return there if _is_staff(user) else there.filter(job__owner_id=user.pk)

    def active(self) -> Self:
        return self.filter(status__in=[status.value for status in ACTIVE])

    def on_host(self) -> Self:
        return self.filter(status__in=[status.value for status in ON_HOST])

    def queued(self) -> Self:
        return self.filter(status=Status.QUEUED.value)

    def incomplete(self) -> Self:
        """Something of these may still arrive: live ones, and ended ones whose last bytes are on their way."""
        return self.filter(complete_at__isnull=True).exclude(placements__isnull=True).distinct()


class DatasetQuerySet(models.QuerySet["Dataset"]):
    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        return self if _is_staff(user) else self.filter(Q(shared=True) | Q(owner_id=user.pk))

    def managed_by(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """They may describe, share and delete these."""
        return self if _is_staff(user) else self.filter(owner_id=user.pk)

    def ready(self) -> Self:
        """These may be trained on."""
        return self.filter(state="ready")

    def for_recipe(self, recipe: Recipe) -> Self:
        """Of the kind that it takes."""
        return self.filter(kind=recipe.dataset_kind)


class HostQuerySet(models.QuerySet["Host"]):
    def accepting(self) -> Self:
        return self.filter(online=True, enabled=True, draining=False)


class PlacementQuerySet(models.QuerySet["Placement"]):
    def holding(self) -> Self:
        """Their devices are taken, or in quarantine."""
        return self.filter(released_at__isnull=True)

    def unclaimed(self) -> Self:
        return self.holding().filter(claimed_at__isnull=True, ended_at__isnull=True)


class CheckpointQuerySet(models.QuerySet["Checkpoint"]):
    def usable(self) -> Self:
        """An attempt can start from these."""
        return self.filter(good=True, removed_at__isnull=True)


class TrialQuerySet(models.QuerySet["Trial"]):
    def waiting(self) -> Self:
        return self.filter(state="waiting")

    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """What somebody typed is for nobody else, staff included; a job that they may no longer see takes it along."""
        seen = self if _is_staff(user) else self.filter(artifact__attempt__job__owner_id=user.pk)
        return seen.filter(asked_by_id=user.pk)
