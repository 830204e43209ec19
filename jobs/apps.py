from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = _("Training jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # The admin shows rows whose names are good enough as they are; even so they are translated. Django keeps
        # what was declared for migrations, so none of this shows up in one.
        for model in self.get_models():
            model._meta.verbose_name = _in_words(model._meta.verbose_name)
            model._meta.verbose_name_plural = _in_words(model._meta.verbose_name_plural)
            for field in model._meta.fields:
                field.verbose_name = _in_words(field.verbose_name)


def _in_words(name: Any) -> Any:
    return _(name) if type(name) is str else name
