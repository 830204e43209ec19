#!/usr/bin/env python
"""Django's command line."""

import importlib
import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        importlib.import_module(os.environ["DJANGO_SETTINGS_MODULE"])
    except ImproperlyConfigured as error:  # a wrong variable is one sentence, not a traceback
        sys.exit(str(error))
    execute_from_command_line(sys.argv)
