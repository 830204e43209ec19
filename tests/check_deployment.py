"""`make check-deployment`: the deployment's files under the tools that read them. Not part of `make test`, because it
needs nginx (1.22 or later), openssl, curl with HTTP/2, docker-compose and systemd-analyze; without one of them it fails.

No container engine is needed and none is asked: images are not built here.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.models import Artifact, Job
from tests.end_to_end.conftest import scripted  # noqa: F401
from tests.end_to_end.stack import DatabaseOf, Stack, free_port, until

ROOT = Path(__file__).parents[1]
DEPLOYMENT = ROOT / "docs/deployment"
TOOLS = ("nginx", "openssl", "curl", "docker-compose", "systemd-analyze")
COMPOSE_ENV = {"POSTGRES_PASSWORD": "p", "REDIS_PASSWORD": "r", "SECRET_KEY": "s", "ALLOWED_HOSTS": "train.example.org"}


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing:
        pytest.exit(
            f"make check-deployment needs {', '.join(missing)}. On Debian, as root: "
            "apt-get install nginx-light openssl curl docker-compose systemd",
            returncode=2,
        )


def run(*command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin"} | more.pop("env", {})
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, **more)


# --- compose and systemd -----------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_docker_compose_reads_its_file(profile: str) -> None:
    result = run("docker-compose", "--profile", profile, "config", "-q", cwd=ROOT, env=COMPOSE_ENV)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("missing", COMPOSE_ENV)
def test_docker_compose_asks_for_what_has_no_default(missing: str, tmp_path: Path) -> None:
    (tmp_path / "docker-compose.yml").write_text((ROOT / "docker-compose.yml").read_text())
    given = {name: value for name, value in COMPOSE_ENV.items() if name != missing}
    result = run("docker-compose", "--profile", "cpu", "config", "-q", cwd=tmp_path, env=given)
    assert result.returncode != 0 and "set it in .env" in result.stderr


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_docker_compose_reads_the_file_of_a_host(profile: str, tmp_path: Path) -> None:
    text = (DEPLOYMENT / "compose.worker.yml").read_text()
    (tmp_path / "worker.env").write_text("REDIS_URL=redis://:r@train.example.org:6379/0\n")
    (tmp_path / "compose.yml").write_text(text.replace("/etc/evenkeel/worker.env", str(tmp_path / "worker.env")))
    result = run("docker-compose", "-f", str(tmp_path / "compose.yml"), "--profile", profile, "config", "-q")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("unit", sorted(DEPLOYMENT.glob("systemd/*.service")), ids=lambda path: path.stem)
def test_systemd_has_nothing_to_say_about_a_unit(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    # The programs are here and not there.
    copy.write_text(unit.read_text().replace("/opt/evenkeel", str(ROOT)))
    result = run("systemd-analyze", "verify", "--man=no", str(copy))
    assert result.returncode == 0 and not result.stdout + result.stderr


# --- nginx in front of the real thing ----------------------------------------------------------------


class Proxy:
    """nginx with the image's own configuration; only paths, ports and where web listens are changed."""

    def __init__(self, folder: Path, web_port: int) -> None:
        self.folder = folder
        self.port, self.plain_port = free_port(), free_port()
        for name in ("tls", "static", "storage", "etc", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        certificate = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        files = ["-keyout", str(folder / "tls/privkey.pem"), "-out", str(folder / "tls/fullchain.pem")]
        assert run("openssl", "req", "-x509", *certificate, *files).returncode == 0
        changes = {
            # First: the others' new values may lie there.
            "/tmp/": f"{folder}/tmp/",  # noqa: S108
            "/etc/evenkeel/tls": folder / "tls",
            "/srv/evenkeel/static": folder / "static",
            "/srv/evenkeel/storage": folder / "storage",
            "/etc/nginx/evenkeel": folder / "etc",
            "listen [::]:8080;": "",
            "listen [::]:8443 ssl http2;": "",
            "listen 8080": f"listen 127.0.0.1:{self.plain_port}",
            "listen 8443": f"listen 127.0.0.1:{self.port}",
            "127.0.0.1:8000": f"127.0.0.1:{web_port}",
        }

        def changed(name: str) -> str:
            text = (DEPLOYMENT / "nginx" / name).read_text()
            for old, new in changes.items():
                text = text.replace(old, str(new))
            return text

        (folder / "etc/site.conf").write_text(changed("site.conf"))
        (folder / "etc/upstream.conf").write_text(changed("upstream.conf"))
        self.as_image = folder / "etc/image.conf"
        self.as_image.write_text(changed("container.conf"))
        # Here is no name server that knows `web`: the variant of a machine without containers.
        start, end = self.as_image.read_text().split("    # The engine's own name server")
        site = end[end.index("    include") :]
        self.config = folder / "etc/nginx.conf"
        self.config.write_text(f"{start}    include {folder}/etc/upstream.conf;\n{site}")
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, config: Path, *more: str) -> list[str]:
        settings = "daemon off;" + (" user root;" if os.getuid() == 0 else "")
        return ["nginx", "-c", str(config), "-p", str(self.folder), "-g", settings, *more]

    def start(self) -> None:
        env = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin"}
        with (self.folder / "nginx.log").open("ab") as log:
            self.process = subprocess.Popen(self.command(self.config), stdout=log, stderr=log, env=env)
        until(lambda: self.curl("/proxy-healthz", plain=True).stdout == "ok\n", "nginx", 10)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)

    def url(self, path: str, *, plain: bool = False) -> str:
        return f"http://localhost:{self.plain_port}{path}" if plain else f"https://localhost:{self.port}{path}"

    def curl(self, path: str, *options: str, plain: bool = False) -> subprocess.CompletedProcess[str]:
        return run("curl", "-sS", "--insecure", "--max-time", "20", *options, self.url(path, plain=plain))

    def headers(self, path: str, *options: str) -> tuple[int, dict[str, str]]:
        head = self.curl(path, "-D", "-", "-o", "/dev/null", *options).stdout
        first, *lines = head.strip().splitlines()
        return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines if ": " in line)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("proxied")
    stack = Stack(
        folder,
        HTTPS="true",
        PROXY_DOWNLOADS="true",
        STORAGE_ROOT=str(folder / "storage"),
        STATIC_ROOT=str(folder / "static"),
    )
    try:
        stack.prepare()
        stack.manage("collectstatic", "--noinput", "-v0")
        with django_db_blocker.unblock(), DatabaseOf(stack.data_dir):
            stack.start()
            yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def proxy(stack: Stack) -> Iterator[Proxy]:
    proxy = Proxy(stack.data_dir.parent, stack.port)
    try:
        proxy.start()
        yield proxy
    finally:
        proxy.stop()


def session(stack: Stack, user: str) -> list[str]:
    """curl's options for a browser in which `user` has signed in."""
    code = (
        "from django.contrib.auth.models import User; from django.test import Client; c = Client();"
        f"c.force_login(User.objects.get_or_create(username='{user}')[0]); print(c.cookies['sessionid'].value)"
    )
    return ["-H", f"Cookie: sessionid={stack.manage('shell', '-v0', '-c', code).stdout.strip()}"]


@pytest.fixture(scope="module")
def owner(stack: Stack) -> list[str]:
    return session(stack, "owner")


@pytest.fixture(scope="module")
def artifact(stack: Stack) -> Artifact:
    job = stack.submit([{"do": "steps", "n": 5, "ms": 1}, {"do": "artifact", "name": "model"}], ranks=1)
    stack.wait_for_end(job)
    return Artifact.objects.get(attempt__job=job)


def test_nginx_accepts_the_images_configuration_and_a_machines(proxy: Proxy) -> None:
    for config in (proxy.as_image, proxy.config):
        result = run(*proxy.command(config, "-t"))
        assert result.returncode == 0 and "warn" not in result.stderr, result.stderr


def test_pages_come_by_http_2_and_cookies_go_by_https_only(proxy: Proxy) -> None:
    result = proxy.curl("/login/", "--http2", "-o", "/dev/null", "-w", "%{http_version} %{http_code}")
    assert result.stdout == "2 200"
    status, headers = proxy.headers("/login/")
    assert status == 200 and "secure" in headers["set-cookie"] and "content-security-policy" in headers
    # Where web sends people must be under the address that they used.
    status, headers = proxy.headers("/hosts/")
    assert status == 302 and headers["location"].startswith("/login/")


def test_a_form_is_accepted_from_the_address_that_people_see_and_no_other(proxy: Proxy) -> None:
    page = proxy.curl("/login/", "-i").stdout
    token = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page)[0]
    cookie = re.findall(r"csrftoken=(\w+)", page)[0]
    form = ["-d", f"csrfmiddlewaretoken={token}&username=nobody&password=wrong", "-H", f"Cookie: csrftoken={cookie}"]
    origin = proxy.url("").rstrip("/")
    assert proxy.headers("/login/", *form, "-H", f"Origin: {origin}")[0] == 200
    assert proxy.headers("/login/", *form, "-H", "Origin: https://elsewhere.example.org")[0] == 403


def test_plain_http_is_sent_on(proxy: Proxy) -> None:
    result = proxy.curl("/jobs/1/?a=b", "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", plain=True)
    assert result.stdout == "301 https://localhost/jobs/1/?a=b"


def test_a_client_cannot_claim_another_scheme(proxy: Proxy) -> None:
    _, headers = proxy.headers("/login/", "-H", "X-Forwarded-Proto: http")
    assert "secure" in headers["set-cookie"]


def test_static_files_are_the_proxys_own(proxy: Proxy, stack: Stack) -> None:
    (stack.data_dir.parent / "static/only-here.css").write_text("a{}" * 1000)
    status, headers = proxy.headers("/static/only-here.css", "--compressed")
    assert status == 200 and headers["content-encoding"] == "gzip" and headers["cache-control"] == "no-cache"
    assert proxy.headers("/static/uplot/uPlot.min.css")[0] == 200
    assert proxy.headers("/static/../evenkeel.sqlite3", "--path-as-is")[0] in (400, 404)


def test_events_arrive_one_by_one_while_the_job_runs(proxy: Proxy, stack: Stack, owner: list[str]) -> None:
    # Few and small: a buffer anywhere on the way would not be full before the end.
    job = stack.submit([{"do": "steps", "n": 12, "ms": 700}], ranks=1)
    stack.wait_for_steps(job, 1)
    command = ["curl", "-sSN", "--insecure", "--compressed", "--max-time", "60", *owner]
    arrivals: list[float] = []
    with subprocess.Popen([*command, proxy.url(f"/jobs/{job.pk}/live/")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"data:"):
                arrivals.append(time.monotonic())
            if line.startswith(b"event: end"):
                break
        process.kill()
    assert len(arrivals) > 6
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    assert arrivals[-1] - arrivals[0] > 4 and max(gaps) < 2.5
    assert Job.objects.get(pk=job.pk).status in ("running", "succeeded")


def test_a_download_is_sent_by_nginx_whole_or_from_where_it_broke(
    proxy: Proxy, stack: Stack, owner: list[str], artifact: Artifact
) -> None:
    content = (stack.data_dir.parent / "storage" / f"{artifact.key}.tar").read_bytes()
    path = f"/jobs/{artifact.attempt.job_id}/artifacts/{artifact.pk}/"
    target = stack.data_dir / "download"
    status, headers = proxy.headers(path, *owner)
    assert status == 200 and headers["content-length"] == str(len(content))
    assert headers["content-type"] == "application/x-tar" and headers["accept-ranges"] == "bytes"
    assert "attachment" in headers["content-disposition"] and headers["cache-control"] == "private, no-transform"
    assert headers["x-content-type-options"] == "nosniff" and "x-accel-redirect" not in headers
    assert "server" not in headers or headers["server"] == "nginx"

    result = proxy.curl(path, *owner, "-o", str(target), "-w", "%{http_code} %{http_version}", "-r", "100-")
    assert result.stdout == "206 2" and target.read_bytes() == content[100:]
    etag = headers["etag"]
    result = proxy.curl(path, *owner, "-o", str(target), "-w", "%{http_code}", "-r", "0-9", "-H", f"If-Range: {etag}")
    assert result.stdout == "206" and target.read_bytes() == content[:10]
    assert proxy.headers(path, *owner, "-r", f"{len(content)}-")[0] == 416


def test_a_download_is_for_its_owner_and_a_file_has_no_address(
    proxy: Proxy, stack: Stack, owner: list[str], artifact: Artifact
) -> None:
    path = f"/jobs/{artifact.attempt.job_id}/artifacts/{artifact.pk}/"
    assert proxy.headers(path)[0] == 302
    assert proxy.headers(path, *session(stack, "somebody"))[0] == 404
    assert proxy.headers(f"/storage/{artifact.key}.tar", *owner)[0] == 404


def test_a_link_out_of_the_storage_is_not_followed(
    proxy: Proxy, stack: Stack, owner: list[str], artifact: Artifact
) -> None:
    """Web refuses it first; this is the second lock."""
    storage = stack.data_dir.parent / "storage"
    (storage / "link.tar").symlink_to(stack.data_dir / "evenkeel.sqlite3")
    Artifact.objects.filter(pk=artifact.pk).update(key="link")
    try:
        assert proxy.headers(f"/jobs/{artifact.attempt.job_id}/artifacts/{artifact.pk}/", *owner)[0] == 404
    finally:
        Artifact.objects.filter(pk=artifact.pk).update(key=artifact.key)


def test_old_protocols_are_refused(proxy: Proxy) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", proxy.port)) as plain,
        context.wrap_socket(plain) as secured,
    ):
        assert secured.version() in ("TLSv1.2", "TLSv1.3")
    assert "tls_version" not in proxy.curl("/login/").stdout
    assert proxy.curl("/login/", "--tls-max", "1.1").returncode != 0
