"""All settings. Runs with no environment at all (the embedded default); production sets the
variables that .env.example lists."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from webapp import env
from workers import embedded_redis

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = env.path("DATA_DIR", BASE_DIR / "data")
STORAGE_ROOT = env.path("STORAGE_ROOT", DATA_DIR / "storage")
SCRATCH_ROOT = env.path("SCRATCH_ROOT", DATA_DIR / "scratch")

DEBUG = env.boolean("DEBUG", False)
ALLOWED_HOSTS = env.words("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.words("CSRF_TRUSTED_ORIGINS", [])


def _secret_key() -> str:
    """From the environment, or made once and kept in a private file of the data folder."""
    given = env.text("SECRET_KEY", "")
    if given:
        return given
    keep = DATA_DIR / "secret-key"
    try:
        DATA_DIR.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not keep.exists():
            # Two processes may start at once: a name appears only with its content, and the first one stays.
            with tempfile.NamedTemporaryFile("w", dir=DATA_DIR, prefix="secret-key-") as file:
                file.write(secrets.token_urlsafe(50))
                file.flush()
                with contextlib.suppress(FileExistsError):
                    os.link(file.name, keep)
    except OSError as error:
        raise ImproperlyConfigured(f"DATA_DIR: {DATA_DIR} cannot be written ({error.strerror}).") from None
    return keep.read_text().strip()


SECRET_KEY = _secret_key()

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "csp",
    "jobs",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "webapp.static_files.StaticFiles",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "jobs.middleware.LoginMiddleware",
    "jobs.middleware.AccountMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "webapp.urls"
ASGI_APPLICATION = "webapp.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]


def _database(url: str) -> dict[str, object]:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": unquote(parts.path),
            # One writer at a time, readers beside it; a transaction takes its lock when it begins,
            # so that it waits its turn instead of failing half-way.
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-32768; PRAGMA mmap_size=268435456;",
            },
        }
    if parts.scheme in {"postgres", "postgresql"}:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(parts.path.lstrip("/")),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": unquote(parts.hostname or ""),
            "PORT": str(parts.port or ""),
        }
    raise ImproperlyConfigured(f"DATABASE_URL must begin with postgresql:// or sqlite://, not “{parts.scheme}://”.")


# An open event stream must not keep a connection: hence CONN_MAX_AGE = 0, Django's default.
DATABASES = {"default": _database(env.text("DATABASE_URL", f"sqlite://{DATA_DIR / 'evenkeel.sqlite3'}"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The embedded server listens on a socket file in the data folder; `manage.py up` starts it.
REDIS_URL = env.text("REDIS_URL", f"unix://{embedded_redis.socket_path(DATA_DIR)}")

LEASE_S = env.number("LEASE_S", 60.0)
GRACE_S = env.number("GRACE_S", 30.0)
# Of one upload, and of all datasets of a user who is not staff.
UPLOAD_LIMIT_BYTES = env.integer("UPLOAD_LIMIT_BYTES", 4 * 2**30)
UPLOAD_QUOTA_BYTES = env.integer("UPLOAD_QUOTA_BYTES", 50 * 2**30)
# Of a request as a whole, and of the parts in which the page sends larger files.
WHOLE_BODY_LIMIT_BYTES = 64 * 2**20
UPLOAD_PART_BYTES = 8 * 2**20
# Folders on the shared disk from which users may take datasets; the hosts must have the same.
DATASET_ROOTS = env.paths("DATASET_ROOTS")
LOG_CAP_BYTES = env.integer("LOG_CAP_BYTES", 64 * 2**20)

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "jobs.passwords.LongEnough", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "login"
# After so many refused logins of one name from one address nothing is tried for so long: jobs/throttle.py.
LOGIN_FAILURES = env.integer("LOGIN_FAILURES", 8)
LOGIN_LOCK_S = env.number("LOGIN_LOCK_S", 900.0)
LOGIN_REDIRECT_URL = "job_list"
LOGOUT_REDIRECT_URL = "login"

LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("zh-hans", _("Simplified Chinese"))]
LOCALE_PATHS = [BASE_DIR / "locale"]
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = True

STATIC_URL = "/static/"
STATIC_ROOT = env.path("STATIC_ROOT", DATA_DIR / "static")
STATICFILES_DIRS: list[Path | tuple[str, Path]] = [BASE_DIR / "webapp" / "static"]
UPLOT = env.path("UPLOT_DIR", BASE_DIR / "node_modules" / "uplot" / "dist")
if UPLOT.is_dir():  # npm has run; commands that serve no pages work without
    STATICFILES_DIRS.append(("uplot", UPLOT))
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True

# Scripts, styles and connections from here only; nothing inline.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "img-src": [SELF, "data:"],
        "object-src": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}
HTTPS = env.boolean("HTTPS", False)
# Only behind a proxy that knows X-Accel-Redirect: web then checks who asks, and the proxy sends the file.
PROXY_DOWNLOADS = env.boolean("PROXY_DOWNLOADS", False)
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = HTTPS
# The page's scripts read the token of CSRF from forms, so no script needs any cookie.
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = LANGUAGE_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = LANGUAGE_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = env.integer("SESSION_AGE_S", 14 * 86400)
LANGUAGE_COOKIE_AGE = 365 * 86400
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.text("LOG_LEVEL", "INFO")},
}
