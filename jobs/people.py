"""Verbs for accounts, each with its line in the record of what was done (PeopleEvent).

Staff looks after ordinary users; only a superuser makes staff and superusers, and touches their accounts: who could
reset a superuser's password would be one. Nobody takes their own rights or account away, so that a superuser who acts is
there afterwards, too. An account with jobs or datasets is never deleted, only deactivated.
"""

from __future__ import annotations

import secrets
from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.utils.translation import gettext as _

from jobs import limits
from jobs.models import Account, DefaultLimits, PeopleEvent
from jobs.services import Refused

Kind = PeopleEvent.Kind

# Without letters and digits that are taken for others; 16 of them are 78 bits.
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


def may_manage(actor: User, person: User) -> bool:
    """Edit, reset, deactivate, delete; one's own account page is another matter."""
    return actor.is_active and (actor.is_superuser or (actor.is_staff and not person.is_staff))


def account_of(user: User) -> Account:
    """As stored, or what holds without a row; the row is read once for a request."""
    known = user.__dict__.get("_account")
    if known is None:
        known = user.__dict__["_account"] = Account.objects.filter(user=user).first() or Account(user=user)
    account: Account = known
    return account


# --- what staff does -------------------------------------------------------------------------


def add(
    *, name: str, email: str = "", staff: bool = False, superuser: bool = False, password: str = "", actor: User
) -> tuple[User, str]:
    """A new account and its first password, which must be changed at the first login. Without `password` one is made."""
    errors = _not_allowed(actor, staff=staff, superuser=superuser)
    name = User.normalize_username(name.strip())
    if not name:
        errors["name"] = _("Give a user name.")
    elif len(name) > 150:
        errors["name"] = _("At most %(limit)s characters.") % {"limit": 150}
    else:
        errors |= _complaints("name", lambda: UnicodeUsernameValidator()(name))
        # No column of PostgreSQL holds a NUL, nor may one be looked for.
        if "name" not in errors and User.objects.filter(username__iexact=name).exists():
            errors["name"] = _("There is an account with this name already.")
    errors |= _wrong_email(email)
    person = User(username=name, email=email, is_staff=staff or superuser, is_superuser=superuser)
    if password:
        errors |= _complaints("password", lambda: validate_password(password, person))
    if errors:
        raise Refused(errors)
    shown = password or new_password()
    person.set_password(shown)
    try:
        with transaction.atomic():
            person.save()
            Account.objects.create(user=person, must_change_password=True)
            _event(Kind.ADDED, person, actor, {"staff": [False, person.is_staff], "superuser": [False, superuser]})
    except IntegrityError:
        raise Refused({"name": _("There is an account with this name already.")}) from None
    return person, shown


def edit(person: User, *, email: str, staff: bool, superuser: bool, actor: User) -> bool:
    """False if nothing is different."""
    errors = _wrong_email(email)
    staff = staff or superuser
    with transaction.atomic():
        actor, person = _locked(actor, person)
        if (staff, superuser) != (person.is_staff, person.is_superuser):
            errors |= _not_allowed(actor, staff=True, superuser=superuser)
            if person == actor:
                errors["staff"] = _("Nobody takes their own rights away; ask another superuser.")
        if errors:
            raise Refused(errors)
        old = {"email": person.email, "staff": person.is_staff, "superuser": person.is_superuser}
        new = {"email": email, "staff": staff, "superuser": superuser}
        if old == new:
            return False
        person.email, person.is_staff, person.is_superuser = email, staff, superuser
        person.save(update_fields=["email", "is_staff", "is_superuser"])
        _event(Kind.CHANGED, person, actor, {name: [old[name], new[name]] for name in new if old[name] != new[name]})
    return True


def reset_password(person: User, *, actor: User, password: str = "") -> str:
    """The new password, to be changed at the next login. Every session of the person ends."""
    if password and (errors := _complaints("password", lambda: validate_password(password, person))):
        raise Refused(errors)
    shown = password or new_password()
    with transaction.atomic():
        actor, person = _locked(actor, person)
        if person == actor:
            raise Refused({"": _("Change your own password on your account’s page.")})
        person.set_password(shown)
        person.save(update_fields=["password"])
        Account.objects.update_or_create(user=person, defaults={"must_change_password": True})
        _event(Kind.PASSWORD_RESET, person, actor)
    return shown


def set_active(person: User, active: bool, *, actor: User) -> bool:
    """Inactive, a person cannot log in and every session ends with its next request; their jobs run on. False if it was
    so already."""
    with transaction.atomic():
        actor, person = _locked(actor, person)
        if person.is_active == active:
            return False
        if person == actor:
            raise Refused({"": _("Nobody deactivates their own account; ask another superuser.")})
        person.is_active = active
        person.save(update_fields=["is_active"])
        _event(Kind.ACTIVATED if active else Kind.DEACTIVATED, person, actor)
    return True


def delete(person: User, *, actor: User) -> None:
    try:
        with transaction.atomic():
            actor, person = _locked(actor, person)
            if person == actor:
                raise Refused({"": _("Nobody deletes their own account; ask another superuser.")})
            if why := why_not_deleted(person):
                raise Refused({"": why})
            _event(Kind.DELETED, None, actor, name=person.get_username())
            person.delete()
    except (IntegrityError, ProtectedError):
        # Something of theirs has come in between.
        raise Refused({"": _kept()}) from None


def why_not_deleted(person: User) -> str:
    """Empty if nothing is left of them but the account."""
    return _kept() if person.jobs.exists() or person.datasets.exists() else ""


def _kept() -> str:
    return _("It has jobs or datasets, so it can only be deactivated.")


def set_limits(person: User | None, values: dict[str, Any], *, actor: User) -> bool:
    """Of one user, or of everybody (None). `values` has every name of limits.NAMES. False if nothing is different."""
    with transaction.atomic():
        row: Account | DefaultLimits
        if person is None:
            row = DefaultLimits.objects.select_for_update().get_or_create(pk=1)[0]
        else:
            actor, person = _locked(actor, person)
            row = Account.objects.select_for_update().get_or_create(user=person)[0]
        old = [getattr(row, name) for name in limits.NAMES]
        changes = limits.changed(old, [values[name] for name in limits.NAMES])
        if not changes:
            return False
        for name, (_old, new) in changes.items():
            setattr(row, name, new)
        row.save(update_fields=list(changes))
        _event(Kind.LIMITS if person else Kind.DEFAULTS, person, actor, changes)
    return True


# --- what people do to their own -------------------------------------------------------------


def change_password(person: User, password: str) -> None:
    """Their own choice; checked by the form. Sessions other than the one that is told so afterwards end."""
    with transaction.atomic():
        person.set_password(password)
        person.save(update_fields=["password"])
        Account.objects.update_or_create(user=person, defaults={"must_change_password": False})
        _event(Kind.PASSWORD_CHANGED, person, person)
    person.__dict__.pop("_account", None)


def set_language(person: User, language: str) -> None:
    """`language` "" is that of the browser."""
    Account.objects.update_or_create(user=person, defaults={"language": language})
    person.__dict__.pop("_account", None)


# --- shared ----------------------------------------------------------------------------------


def new_password() -> str:
    letters = [secrets.choice(_ALPHABET) for _ in range(16)]
    return "-".join("".join(letters[at : at + 4]) for at in range(0, 16, 4))


def _locked(actor: User, person: User) -> tuple[User, User]:
    """Both as they are now, until the transaction ends: two superusers cannot take each other's rights at once."""
    both = User.objects.select_for_update(no_key=True).filter(pk__in={actor.pk, person.pk})
    rows = {row.pk: row for row in both.order_by("pk")}
    if actor.pk not in rows or person.pk not in rows or not may_manage(rows[actor.pk], rows[person.pk]):
        raise Refused({"": _("Your account may not do this.")})
    return rows[actor.pk], rows[person.pk]


def _not_allowed(actor: User, *, staff: bool, superuser: bool) -> dict[str, str]:
    if (staff or superuser) and not actor.is_superuser:
        return {"staff": _("Only a superuser makes somebody staff, or takes that away.")}
    return {}


def _wrong_email(email: str) -> dict[str, str]:
    if len(email) > 254:
        return {"email": _("At most %(limit)s characters.") % {"limit": 254}}
    return _complaints("email", lambda: validate_email(email)) if email else {}


def _complaints(field: str, check: Any) -> dict[str, str]:
    try:
        check()
    except ValidationError as error:
        return {field: " ".join(error.messages)}
    return {}


def _event(
    kind: PeopleEvent.Kind, person: User | None, actor: User, changes: dict[str, Any] | None = None, *, name: str = ""
) -> None:
    PeopleEvent.objects.create(
        kind=kind,
        person=person,
        person_name=person.get_username() if person else name,
        actor=actor,
        actor_name=actor.get_username(),
        changes=changes or {},
    )
