// Gradient norms by part of the model, over the steps where they were recorded: a line for each part that is chosen, on a
// log axis, and below it the share of gradients that were zero. Fetched when they come into view; zoom and live news come
// from the charts above.
"use strict";

(() => {
  const section = document.getElementById("norm-groups");
  if (!section) return;
  const words = JSON.parse(document.getElementById("norm-words").textContent);
  const COLOURS = 6;
  // As many parts as can be told apart at a glance; more if one asks for them.
  const AT_FIRST = 8;
  const DASHES = [undefined, [7, 4], [2, 3], [10, 3, 2, 3], [4, 2, 1, 2]];
  const NEWS_MS = 5000;
  const remark = section.querySelector(".remark");
  const list = section.querySelector(".legend");
  const [normPlot, zeroPlot] = section.querySelectorAll(".plot");
  const zeroValue = section.querySelector(".zeros .value");
  let answer = null;
  // Name -> number of its colour and dashes; who is taken off gives its own back.
  let chosen = null;
  let plots = [];
  let shape = "";
  let range = null;
  let seen = false;
  let asked = 0;
  let loaded = 0;
  let timer = 0;

  const colour = (look) => css(`--series-${(look % COLOURS) + 1}`);
  const dashes = (look) => Math.floor(look / COLOURS) % DASHES.length;

  async function load() {
    clearTimeout(timer);
    timer = 0;
    loaded = Date.now();
    const mine = ++asked;
    const query = new URLSearchParams({ attempt: section.dataset.attempt, rank: section.dataset.rank });
    if (range) {
      query.set("first", range[0]);
      query.set("last", range[1]);
    }
    const response = await fetch(`${section.dataset.norms}?${query}`, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(20000) });
    if (!response.ok) throw new Error(`${response.status}`);
    const found = await response.json();
    if (mine !== asked) return;
    answer = found;
    show();
  }

  // What is there stays when newer does not come.
  async function attempt() {
    if (!answer) section.dataset.state = "loading";
    try {
      await load();
    } catch {
      if (!answer) section.dataset.state = "failed";
    }
  }

  function follow() {
    if (!seen || document.hidden || timer) return;
    timer = setTimeout(attempt, Math.max(0, NEWS_MS - (Date.now() - loaded)));
  }

  function show() {
    const { groups, step } = answer;
    section.dataset.state = step.length ? "shown" : "empty";
    if (!step.length) return;
    // Evenly through the model, from its first part to its last.
    if (!chosen) {
      const many = groups.length > AT_FIRST;
      const places = many ? Array.from({ length: COLOURS }, (_, i) => Math.round((i * (groups.length - 1)) / (COLOURS - 1))) : groups.map((_, i) => i);
      chosen = new Map(places.map((place, i) => [groups[place].name, i]));
    }
    const remarks = [];
    if (answer.bucket > 1) remarks.push(words.greatest.replace("%(count)s", answer.bucket));
    if (answer.every > 1) remarks.push(words.sampled.replace("%(count)s", answer.every));
    remark.textContent = remarks.join(" · ");
    const now = groups.map((group) => group.name).join("\n");
    if (now !== shape) {
      shape = now;
      legend();
      anew();
    } else draw();
  }

  function legend() {
    const entries = answer.groups.map((group, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.group = i;
      const swatch = document.createElement("span");
      swatch.className = "swatch";
      const name = document.createElement("code");
      name.textContent = group.name;
      const value = document.createElement("span");
      value.className = "value";
      button.append(swatch, name, value);
      button.addEventListener("click", () => choose(answer.groups.map((one) => one.name).filter((name) => chosen.has(name) !== (name === group.name))));
      button.addEventListener("pointerenter", () => highlight(i));
      button.addEventListener("pointerleave", () => highlight(null));
      return button;
    });
    for (const [word, of] of [[words.all, () => answer.groups.map((group) => group.name)], [words.none, () => []]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "quiet";
      button.textContent = word;
      button.addEventListener("click", () => choose(of()));
      entries.push(button);
    }
    list.replaceChildren(...entries.map((entry) => {
      const item = document.createElement("li");
      item.append(entry);
      return item;
    }));
  }

  function choose(names) {
    const kept = new Map([...chosen].filter(([name]) => names.includes(name)));
    const taken = new Set(kept.values());
    let look = 0;
    for (const name of names) {
      if (kept.has(name)) continue;
      while (taken.has(look)) look += 1;
      taken.add(look);
      kept.set(name, look);
    }
    chosen = kept;
    anew();
  }

  // A line keeps its look in uPlot, so that a new choice is a new plot.
  function anew() {
    plots.forEach((plot) => plot.destroy());
    plots = [];
    draw();
  }

  function highlight(i) {
    if (plots[0] && (i === null || chosen.has(answer.groups[i].name))) plots[0].setSeries(i === null ? null : i + 1, { focus: true });
  }

  function draw() {
    const { groups, step, zeros } = answer;
    // Nothing is the logarithm of 0; such points are marked at the foot.
    const norms = groups.map((group) => group.norm.map((value) => (value > 0 ? value : null)));
    if (!plots.length) {
      plots = [
        make(normPlot, norms, true, groups.map((group) => look(group.name))),
        make(zeroPlot, [zeros], false, [{ stroke: css("--muted"), width: 1.4 }]),
      ];
    } else {
      plots[0].setData([step, ...norms], false);
      plots[1].setData([step, zeros], false);
    }
    for (const plot of plots) plot.setScale("x", { min: window_()[0], max: window_()[1] });
    for (const button of list.querySelectorAll("[data-group]")) {
      const own = chosen.get(groups[+button.dataset.group].name);
      button.setAttribute("aria-pressed", own !== undefined);
      button.querySelector(".swatch").className = own === undefined ? "swatch" : `swatch s${(own % COLOURS) + 1} dash${dashes(own)}`;
    }
    label();
  }

  function look(name) {
    const own = chosen.get(name);
    return own === undefined ? { show: false } : { stroke: colour(own), dash: DASHES[dashes(own)], width: 1.5 };
  }

  function window_() {
    const { step } = answer;
    if (range) return range;
    return step.length > 1 ? [step[0], step.at(-1)] : [step[0] - 1, step[0] + 1];
  }

  function make(element, columns, log, lines) {
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), size: 4 }, font: "11px system-ui, sans-serif" };
    const few = answer.step.length < 3;
    return new uPlot({
      ...size(element),
      legend: { show: false },
      padding: [14, 16, 0, 0],
      focus: { alpha: 0.2 },
      scales: {
        x: { time: false, range: () => window_() },
        y: log ? { distr: 3, log: 10, range: () => decadesAround() } : { range: () => [0, Math.max(0.01, ...answer.zeros.map((value) => value || 0)) * 1.05] },
      },
      axes: [
        { ...axis, size: 26, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick.toLocaleString("en").replaceAll(",", " ") : "")) },
        { ...axis, size: 54, ...(log ? { splits: (_, __, low, high) => decades(low, high) } : {}), values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : log ? short(tick) : percent(tick))) },
      ],
      series: [{}, ...lines.map((line) => ({ ...line, points: { show: few, size: 5 }, spanGaps: false }))],
      cursor: {
        sync: { key: "job", scales: ["x", null] },
        drag: { x: true, y: false, setScale: false, dist: 8 },
        points: { size: 6 },
        bind: { dblclick: () => () => { ask(null); return null; } },
      },
      hooks: {
        setSelect: [(plot) => {
          if (plot.select.width < 3) return;
          const ends = [plot.select.left, plot.select.left + plot.select.width].map((left) => plot.posToVal(left, "x"));
          plot.setSelect({ width: 0, height: 0 }, false);
          ask([Math.max(1, Math.floor(ends[0])), Math.ceil(ends[1])]);
        }],
        setCursor: [() => label()],
        draw: log ? [marks] : [],
      },
    }, [answer.step, ...columns], element);
  }

  // The zoom belongs to the charts above.
  function ask(wanted) {
    document.dispatchEvent(new CustomEvent("zoom", { detail: wanted }));
  }

  const size = (element) => ({ width: Math.max(element.clientWidth, 50), height: element.clientHeight });
  const percent = (value) => `${Number((100 * value).toPrecision(3))} %`;

  // Whole decades around everything that is shown.
  function decadesAround() {
    let [low, high] = [Infinity, 0];
    for (const group of answer.groups) {
      if (!chosen.has(group.name)) continue;
      for (const value of group.norm) {
        if (!(value > 0)) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    return high ? [10 ** Math.floor(Math.log10(low) - 0.02), 10 ** Math.ceil(Math.log10(high) + 0.02)] : [0.1, 1];
  }

  // Diamonds at the top where a norm was NaN or infinite, strokes at the foot where it was 0.
  function marks(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio || 1;
    ctx.save();
    answer.groups.forEach((group) => {
      if (!chosen.has(group.name)) return;
      ctx.fillStyle = css("--bad");
      for (const [step] of group.non_finite) {
        const x = plot.valToPos(step, "x", true);
        if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) continue;
        ctx.beginPath();
        for (const [dx, dy] of [[0, -10], [5, -5], [0, 0], [-5, -5]]) ctx.lineTo(x + dx * ratio, bbox.top + dy * ratio);
        ctx.fill();
      }
      ctx.fillStyle = colour(chosen.get(group.name));
      group.norm.forEach((value, at) => {
        if (value !== 0) return;
        const x = plot.valToPos(answer.step[at], "x", true);
        if (x >= bbox.left && x <= bbox.left + bbox.width) ctx.fillRect(x - ratio, bbox.top + bbox.height - 6 * ratio, 2 * ratio, 6 * ratio);
      });
    });
    ctx.restore();
  }

  // Beside each name: its norm under the cursor, else the newest.
  function label() {
    const plot = plots.find((one) => one.cursor.left >= 0);
    const at = plot ? nearest(answer.step, plot.posToVal(plot.cursor.left, "x")) : answer.step.length - 1;
    const step = answer.step[at];
    section.querySelector(".at").textContent = step.toLocaleString("en").replaceAll(",", " ");
    for (const button of list.querySelectorAll("[data-group]")) {
      const group = answer.groups[+button.dataset.group];
      const bad = group.non_finite.find((one) => one[0] === step);
      button.querySelector(".value").textContent = bad ? short(bad[1] ? "nan" : "inf") : short(group.norm[at]);
    }
    zeroValue.textContent = answer.zeros[at] === null ? "—" : percent(answer.zeros[at]);
  }

  for (const [i, element] of [normPlot, zeroPlot].entries()) {
    new ResizeObserver(() => plots[i] && element.clientWidth && plots[i].setSize(size(element))).observe(element);
  }
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    seen = true;
    attempt();
  }, { rootMargin: "300px" }).observe(section);
  section.querySelector("[data-again]").addEventListener("click", attempt);
  document.addEventListener("steps", follow);
  document.addEventListener("zoomed", (event) => {
    range = event.detail;
    if (seen) attempt();
  });
  document.addEventListener("visibilitychange", () => !document.hidden && section.dataset.live !== undefined && follow());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (answer && answer.step.length) anew();
  });
})();
