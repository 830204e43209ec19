// The live side of a job page: one event stream, which brings records and says which sections to fetch again.
"use strict";

(() => {
  const element = document.getElementById("charts");
  const words = JSON.parse(document.getElementById("words").textContent);
  const board = new Board(element, words);
  const state = document.getElementById("live-state");
  // Sections by what an announcement calls the change.
  const sections = {
    status: ["status", "numbers", "evaluations", "dry_run", "attempts", "ranks", "events", "checkpoints", "storage", "environment"],
    steps: ["status", "numbers", "dry_run", "attempts"],
    events: ["events", "dry_run", "checkpoints"],
    evaluations: ["evaluations", "confusion", "worst"],
    log: ["log"],
    ranks: ["ranks"],
    artifacts: ["artifacts", "try"],
    devices: [],
  };
  const POLL_MS = 3000;
  // Numbers that every step changes need not be fetched as often as the charts move.
  const STEPS_MS = 2000;
  const NORMS_MS = 10000;
  // The server says something every 15 s. A line that was cut, or a computer that slept, says nothing at all.
  const SILENCE_MS = 40000;
  let heardAt = 0;
  let normsShown = 0;
  let stepsShown = 0;
  let later = 0;
  let source = null;
  let polling = 0;
  let ended = !element.dataset.live;

  function tell(name) {
    state.dataset.state = name;
    state.textContent = ended && name !== "ended" ? "" : words[name] || "";
  }

  function refresh(names) {
    const rarely = names.includes("steps") && !names.includes("status");
    if (rarely && Date.now() - stepsShown < STEPS_MS) {
      clearTimeout(later);
      later = setTimeout(() => refresh(["steps"]), STEPS_MS);
      names = names.filter((name) => name !== "steps");
    } else if (names.includes("steps")) {
      clearTimeout(later);
      stepsShown = Date.now();
    }
    const wanted = new Set(names.flatMap((name) => sections[name] || []));
    // What speaks of thousands of steps changes slowly.
    if (names.includes("status") || (names.includes("steps") && Date.now() - normsShown >= NORMS_MS)) {
      normsShown = Date.now();
      wanted.add("norms");
    }
    if (wanted.delete("log")) followLog();
    // The answer to what somebody has typed there stays.
    if (document.getElementById("id_try")) wanted.delete("try");
    for (const id of wanted) if (document.getElementById(id)) htmx.trigger(`#${id}`, "refresh");
    if (names.includes("evaluations")) reload();
    // js/norms.js draws these.
    if (names.includes("steps") || names.includes("status")) document.dispatchEvent(new Event("steps"));
    // js/devices.js draws these.
    if (names.includes("devices")) document.dispatchEvent(new Event("devices"));
  }

  // News that take longer are asked for again.
  document.addEventListener("htmx:configRequest", ({ detail }) => {
    if (detail.triggeringEvent?.type === "refresh") detail.timeout = 20000;
  });

  // A log that someone searches, selects in or has scrolled up stays as it is, and follows when they are done.
  const AT_END = 40;
  let behind = false;
  let atEnd = true;
  function followLog() {
    const log = document.querySelector("#log .log");
    const selection = getSelection();
    const selecting = log && !selection.isCollapsed && selection.containsNode(log, true);
    behind = Boolean(log && (log.hasAttribute("data-searched") || selecting || !atEnd));
    if (!behind) htmx.trigger("#log", "refresh");
  }
  document.addEventListener("selectionchange", () => behind && followLog());
  document.addEventListener("scroll", ({ target }) => {
    if (!target.matches?.("#log .log")) return;
    atEnd = target.scrollTop + target.clientHeight >= target.scrollHeight - AT_END;
    if (behind) followLog();
  }, true);
  function toEnd() {
    const log = document.querySelector("#log .log:not([data-searched])");
    if (log && atEnd) log.scrollTop = log.scrollHeight;
  }
  document.addEventListener("morphed", (event) => {
    if (event.target.id !== "log") return;
    if (document.querySelector("#log .log[data-searched]")) atEnd = true;
    toEnd();
  });
  toEnd();

  async function reload() {
    if (!board.loaded) {
      element.dataset.state = "loading";
      board.charts.forEach((chart) => chart.say(words.loading));
    }
    try {
      await board.load();
      serverSaid(200);
      return true;
    } catch (error) {
      serverSaid(Number(error.message) || 0);
      if (!board.loaded) element.dataset.state = "failed";
      return false;
    }
  }

  function open() {
    if (ended || source || document.hidden) return;
    const query = new URLSearchParams({ attempt: element.dataset.attempt, rank: element.dataset.rank, after: board.newest || 0 });
    source = new EventSource(`${element.dataset.live}?${query}`);
    heardAt = Date.now();
    for (const name of ["open", "steps", "reset", "changed", "still"]) source.addEventListener(name, () => (heardAt = Date.now()));
    source.addEventListener("open", () => {
      clearInterval(polling);
      polling = 0;
      tell("live");
    });
    source.addEventListener("steps", (event) => {
      if (!board.append(JSON.parse(event.data))) reload();
    });
    source.addEventListener("reset", reload);
    source.addEventListener("changed", (event) => refresh(JSON.parse(event.data)));
    source.addEventListener("end", finish);
    source.addEventListener("error", () => {
      // While the browser comes back by itself, or after it has given up, plain requests bridge the gap.
      if (source && source.readyState === EventSource.CLOSED) close();
      poll();
    });
  }

  setInterval(() => {
    if (!source || Date.now() - heardAt < SILENCE_MS) return;
    close();
    begin();
  }, 5000);

  function close() {
    if (source) source.close();
    source = null;
  }

  function poll() {
    if (ended || polling || document.hidden) return;
    tell("polling");
    polling = setInterval(async () => {
      if (document.hidden) return;
      if (!(await reload())) return;
      refresh(Object.keys(sections));
      if (!source) open();
    }, POLL_MS);
  }

  async function finish() {
    close();
    clearInterval(polling);
    ended = true;
    const seen = element.dataset.attempt;
    await reload();
    refresh(Object.keys(sections));
    tell("ended");
    // Another attempt may have taken over: a page that was not asked for a certain one follows it.
    if ("pinned" in element.dataset) return;
    const response = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
    const page = new DOMParser().parseFromString((await response?.text()) || "", "text/html");
    const now = page.getElementById("charts");
    if (!now || now.dataset.attempt === seen) return;
    // What somebody has typed on this page is not lost over it.
    const typed = [...document.querySelectorAll("main input, main textarea")].some((field) => field.value !== field.defaultValue);
    if (typed) document.getElementById("went-on").hidden = false;
    else location.reload();
  }

  // Browsers open six connections to a host at most; a tab nobody looks at gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      if (!ended) tell("paused");
    } else if (!ended) {
      begin();
      refresh(Object.keys(sections));
    }
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => event.persisted && open());

  // The way through the page: without what it does not have, and with a mark on what one is looking at.
  const nav = document.querySelector(".page-nav");
  const links = [...nav.querySelectorAll("a")].map((link) => [link, document.querySelector(link.hash)]);
  function lookAround() {
    let here = null;
    for (const [link, target] of links) {
      link.hidden = !target || !target.offsetHeight;
      if (!link.hidden && target.getBoundingClientRect().top < nav.offsetHeight + 80) here = link;
    }
    if (innerHeight + scrollY >= document.documentElement.scrollHeight - 4) here = links.findLast(([link]) => !link.hidden)[0];
    for (const [link] of links) {
      if (link === here && !link.hasAttribute("aria-current")) {
        link.setAttribute("aria-current", "true");
        // Only the bar moves, not the page.
        nav.scrollTo({ left: link.offsetLeft - nav.offsetWidth / 2 });
      } else if (link !== here) link.removeAttribute("aria-current");
    }
  }
  let looking = 0;
  const lookSoon = () => (looking ||= requestAnimationFrame(() => ((looking = 0), lookAround())));
  window.addEventListener("scroll", lookSoon, { passive: true });
  new ResizeObserver(lookSoon).observe(document.body);
  lookAround();

  document.getElementById("rank-form")?.addEventListener("change", (event) => event.currentTarget.submit());

  const begin = async () => ((await reload()) ? open() : poll());
  element.querySelector("[data-again]")?.addEventListener("click", begin);
  begin();
  if (ended) tell("ended");
})();
