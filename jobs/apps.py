from __future__ import annotations

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
            name = model._meta.verbose_name
            if type(name) is str:
                model._meta.verbose_name, model._meta.verbose_name_plural = _(name), _(f"{name}s")
            for field in model._meta.fields:
                if type(field.verbose_name) is str:
                    field.verbose_name = _(field.verbose_name)
