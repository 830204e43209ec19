"""The Django project: settings, urls, ASGI, health endpoints."""
