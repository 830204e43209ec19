"""The Django app: models, verbs, reads, views, admin and the controller."""
