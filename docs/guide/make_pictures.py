"""Makes the guide's pictures: starts Evenkeel with its sample data in a folder of its own, lets the sample job and one that
goes NaN run to their ends, and photographs the pages in a real browser. `make pictures`, about ten minutes.

With PICTURES_DATA=/some/folder the data is kept there, and the next run needs a minute.
With PICTURES=form,job only those are made.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "pictures"
ACCOUNTS = "demo-accounts.txt"
EXAMPLE = ROOT / "docs" / "examples" / "reviews.yaml"
WIDE, HIGH = 1280, 900


@dataclass
class Site:
    url: str
    env: dict[str, str]
    browser: Browser
    jobs: dict[str, int]

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(command, cwd=ROOT, env=self.env, capture_output=True, text=True)

    def page(self, name: str) -> Page:
        """A new window, signed in as `name` through the form."""
        context = self.browser.new_context(base_url=self.url, viewport={"width": WIDE, "height": HIGH}, locale="en")
        page = context.new_page()
        page.goto("/login/")
        page.fill("input[name=username]", name)
        page.fill("input[name=password]", self.password(name))
        page.press("input[name=password]", "Enter")
        page.wait_for_url(self.url + "/")
        return page

    def password(self, name: str) -> str:
        for line in (Path(self.env["DATA_DIR"]) / ACCOUNTS).read_text(encoding="utf-8").splitlines():
            words = line.replace(":", " ").split()
            if words and words[0] == name:
                return words[-1]
        raise SystemExit(f"{ACCOUNTS} has no account “{name}”.")


# --- what is photographed ------------------------------------------------------------------


def job_list(page: Page, site: Site) -> None:
    page.goto("/")


def form(page: Page, site: Site) -> None:
    page.goto("/jobs/new/")
    page.fill("#id_name", "Reviews, a calmer rate")


def warnings(page: Page, site: Site) -> None:
    page.goto(f"/jobs/new/?clone={site.jobs['sample']}")
    page.fill("[name='optimizer.learning_rate']", "0.05")
    page.click("main button.primary:visible >> nth=-1")
    page.wait_for_selector(".note.warning[role=alert]:visible")


def job(page: Page, site: Site) -> None:
    page.goto(f"/jobs/{site.jobs['sample']}/")
    page.wait_for_selector(".plot canvas")


def results(page: Page, site: Site) -> None:
    job(page, site)
    page.wait_for_selector("#results .plot canvas")


def failed(page: Page, site: Site) -> None:
    page.goto(f"/jobs/{site.jobs['nan']}/")
    page.wait_for_selector(".plot canvas")


def retry(page: Page, site: Site) -> None:
    page.goto(f"/jobs/{site.jobs['nan']}/retry/")


def dry_run(page: Page, site: Site) -> None:
    page.goto(f"/jobs/{site.jobs['dry']}/")


def try_it(page: Page, site: Site) -> None:
    page.goto(f"/jobs/{site.jobs['sample']}/")
    page.fill("#id_try", "房间很干净，服务员态度也很好。\n等了两个小时，菜还是凉的。")
    page.click("form.try button")
    page.wait_for_selector("#try-answer meter, #try-answer progress", timeout=120_000)


def dataset(page: Page, site: Site) -> None:
    page.goto("/datasets/")
    page.click("main tbody a:has-text('reviews')")


def describe(page: Page, site: Site) -> None:
    page.goto("/datasets/new/")
    rows = "评论,类别,来源\n房间很干净,好,酒店\n菜是凉的,差,外卖\n".encode("gb18030")
    page.set_input_files("#id_file", {"name": "comments.csv", "mimeType": "text/csv", "buffer": rows})
    page.fill("#id_name", f"comments-{int(time.time())}")
    page.click("main .actions button.primary")
    page.wait_for_selector("table.preview")


def delete(page: Page, site: Site) -> None:
    page.goto(f"/jobs/{site.jobs['nan']}/delete/")


def storage(page: Page, site: Site) -> None:
    page.goto("/storage/")


def retention(page: Page, site: Site) -> None:
    page.goto("/retention/")


def hosts(page: Page, site: Site) -> None:
    page.goto("/hosts/")


def people(page: Page, site: Site) -> None:
    page.goto("/people/")


@dataclass(frozen=True)
class Picture:
    name: str
    scene: Callable[[Page, Site], None]
    user: str = "demo"
    part: str | None = None  # a selector: only that part of the page
    whole: bool = False  # the page to its end, not only what a window shows


PICTURES = [
    Picture("job-list", job_list),
    Picture("form", form),
    Picture("warnings", warnings),
    Picture("job", job),
    Picture("results", results, part="#results"),
    Picture("failed", failed),
    Picture("retry", retry),
    Picture("dry-run", dry_run),
    Picture("try", try_it, part="#try"),
    Picture("dataset", dataset),
    Picture("dataset-describe", describe),
    Picture("delete", delete),
    Picture("storage", storage),
    Picture("retention", retention, "admin"),
    Picture("hosts", hosts, "admin"),
    Picture("people", people, "admin"),
]


# --- the running product -------------------------------------------------------------------


@contextmanager
def running(data_dir: Path) -> Iterator[Site]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"DATA_DIR": str(data_dir), "PORT": str(port)}
    said = data_dir / "pictures.log"
    said.parent.mkdir(parents=True, exist_ok=True)
    with said.open("w") as log:
        command = [sys.executable, "manage.py", "up", "--demo"]
        up = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        wait(lambda: "Evenkeel is at" in said.read_text() or up.poll() is not None, "web", 300.0)
        if up.poll() is not None:
            raise SystemExit(said.read_text())
        with sync_playwright() as playwright:
            path = shutil.which("chromium") or shutil.which("google-chrome")
            if path is None:
                raise SystemExit("Pictures need Chromium: install Debian's package chromium.")
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
            yield Site(url, env, browser, {})
            browser.close()
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(120)


def wait(until: Callable[[], bool], what: str, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not until():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} is not there after {limit_s:.0f} s.")
        time.sleep(1)


def prepare(site: Site) -> None:
    """The jobs that the pages show: the sample, one whose rate is absurd, a dry run. Those of an earlier run serve as well."""
    known = Path(site.env["DATA_DIR"]) / "pictures.json"
    if known.is_file():
        site.jobs.update(json.loads(known.read_text()))
        return
    site.jobs["sample"] = 1
    site.jobs["nan"] = submitted(
        site,
        "Reviews, an absurd rate",
        *("--set", "optimizer.learning_rate=1.0e+30", "--set", "precision.mode=float32", "--set", "training.epochs=1"),
        "--wait",
    )
    site.jobs["dry"] = submitted(site, "Reviews, a wider model", "--set", "model.hidden_size=192", "--dry-run")
    known.write_text(json.dumps(site.jobs))


def submitted(site: Site, name: str, *options: str) -> int:
    """The sample job under another name, with other settings."""
    text = EXAMPLE.read_text(encoding="utf-8")
    old = next(line for line in text.splitlines() if line.startswith("name:"))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text.replace(old, f"name: {name}"))
        file.flush()
        answer = site.manage("submit", file.name, "--owner", "demo", "--anyway", "--json", *options)
    if not answer.stdout.strip():
        raise SystemExit(f"“{name}” was not taken:\n{answer.stderr}")
    return int(json.loads(answer.stdout)["job"])


def main() -> None:
    wanted = set(filter(None, os.environ.get("PICTURES", "").split(",")))
    unknown = wanted - {picture.name for picture in PICTURES}
    if unknown:
        raise SystemExit(f"No such pictures: {', '.join(sorted(unknown))}")
    kept = os.environ.get("PICTURES_DATA")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running(Path(kept or folder)) as site:
        prepare(site)
        pages: dict[str, Page] = {}
        for picture in PICTURES:
            if wanted and picture.name not in wanted:
                continue
            page = pages.get(picture.user) or pages.setdefault(picture.user, site.page(picture.user))
            picture.scene(page, site)
            page.wait_for_load_state("load")
            page.wait_for_timeout(500)
            target = FOLDER / f"{picture.name}.png"
            if picture.part:
                # What sticks to the window would lie across it.
                page.evaluate("document.querySelectorAll('.page-nav').forEach((nav) => nav.remove())")
                page.locator(picture.part).first.screenshot(path=target)
            else:
                page.screenshot(path=target, full_page=picture.whole)
            print(target.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main()
