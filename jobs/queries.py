"""Reads, as QuerySet methods named like adjectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Q

from workers.contract.states import ACTIVE, ON_HOST, Status

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser, AnonymousUser


def _is_staff(user: AbstractBaseUser | AnonymousUser) -> bool:
    return bool(getattr(user, "is_staff", False)) and bool(getattr(user, "is_active", False))


class JobQuerySet(models.QuerySet[Any]):
    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> JobQuerySet:
        return self if _is_staff(user) else self.filter(owner_id=user.pk)


class AttemptQuerySet(models.QuerySet[Any]):
    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> AttemptQuerySet:
        return self if _is_staff(user) else self.filter(job__owner_id=user.pk)

    def active(self) -> AttemptQuerySet:
        return self.filter(status__in=[status.value for status in ACTIVE])

    def on_host(self) -> AttemptQuerySet:
        return self.filter(status__in=[status.value for status in ON_HOST])

    def queued(self) -> AttemptQuerySet:
        return self.filter(status=Status.QUEUED.value)


class DatasetQuerySet(models.QuerySet[Any]):
    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> DatasetQuerySet:
        return self if _is_staff(user) else self.filter(Q(shared=True) | Q(owner_id=user.pk))


class HostQuerySet(models.QuerySet[Any]):
    def accepting(self) -> HostQuerySet:
        return self.filter(online=True, enabled=True, draining=False)
