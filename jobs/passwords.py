from __future__ import annotations

from django.contrib.auth.password_validation import MinimumLengthValidator
from django.utils.translation import gettext as _


class LongEnough(MinimumLengthValidator):
    """Django 5.2 says it in words that its own Chinese catalogue does not have."""

    def get_error_message(self) -> str:
        return _("This password is too short: it must have at least %(count)d characters.") % {"count": self.min_length}
