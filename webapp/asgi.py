"""The ASGI application that uvicorn serves."""

import os

from django.conf import settings
from django.core.asgi import get_asgi_application

from webapp.bodies import LimitedBodies

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
application = LimitedBodies(get_asgi_application(), settings.WHOLE_BODY_LIMIT_BYTES)
