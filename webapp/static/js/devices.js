// Charts of what an attempt's hosts, ranks and GPUs used, over the time since its first sample. Fetched when they come
// into view; while the attempt is live, each announcement brings what is newer.
"use strict";

(() => {
  const section = document.getElementById("devices");
  if (!section) return;
  const words = JSON.parse(document.getElementById("device-words").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const COLOURS = 6;
  const MOST_NEWER = 360;
  const POWERS_OF_TWO = Array.from({ length: 60 }, (_, i) => 2 ** i);
  const SI = ["", "k", "M", "G", "T"];

  function bytes(value) {
    // A hair below 1 GiB is not 1020 MiB.
    const power = value > 0 ? Math.min(Math.floor((Math.log2(value) + 0.01) / 10), 4) : 0;
    return `${Number((value / 2 ** (10 * power)).toPrecision(3))} ${power ? SI[power].toUpperCase() + "iB" : "B"}`;
  }
  const percent = (value) => `${Number((100 * value).toPrecision(3))} %`;
  const plain = (unit) => (value) => `${Number(value.toPrecision(3))}${unit}`;

  // In this order; those of which nothing is known are left out. `of` finds the lines of a chart among the fields.
  const KINDS = [
    { key: "gpu_utilisation", of: /^gpu(\d+)\.utilisation$/, show: percent, top: 1 },
    { key: "gpu_memory", of: /^gpu(\d+)\.memory$/, show: bytes, topOf: /^gpu\d+\.memory_total$/ },
    { key: "gpu_temperature", of: /^gpu(\d+)\.temperature$/, show: plain(" °C") },
    { key: "gpu_power", of: /^gpu(\d+)\.power$/, show: plain(" W") },
    { key: "rank_cpu", of: /^rank(\d+)\.cpu$/, show: plain("") },
    { key: "rank_memory", of: /^rank(\d+)\.memory$/, show: bytes },
    { key: "host_cpu", of: /^(cpu)$/, show: percent, top: 1 },
    { key: "host_load", of: /^(load1)$/, show: plain("") },
    { key: "host_memory", of: /^(memory_available)$/, show: bytes },
    { key: "host_disk", of: /^(disk_free)$/, show: bytes },
  ];

  // Hours and minutes since the start, or minutes and seconds.
  function elapsed(seconds) {
    const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.round(seconds) % 60];
    const two = (number) => String(number).padStart(2, "0");
    return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
  }

  class DeviceChart {
    constructor(parent, kind, names, node, began) {
      Object.assign(this, { kind, names, node, began, plot: null });
      const card = document.createElement("div");
      card.className = "chart";
      const title = document.createElement("h3");
      title.textContent = words[kind.key];
      this.value = document.createElement("span");
      this.value.className = "value";
      title.append(this.value);
      this.element = document.createElement("div");
      this.element.className = "plot small";
      card.append(title, this.element);
      parent.append(card);
      new ResizeObserver(() => this.plot && this.element.clientWidth && this.plot.setSize(this.size())).observe(this.element);
      this.draw();
    }

    size() {
      return { width: Math.max(this.element.clientWidth, 50), height: this.element.clientHeight };
    }

    data() {
      return [this.node.t.map((time) => time - this.began), ...this.names.map((name) => this.node.fields[name].mean)];
    }

    draw() {
      if (this.plot) {
        this.plot.setData(this.data());
        this.label();
        return;
      }
      const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), size: 4 }, font: "11px system-ui, sans-serif" };
      const lines = this.names.map((_, i) => ({ stroke: css(`--series-${(i % COLOURS) + 1}`), width: 1.4, points: { show: this.node.t.length < 3, size: 5 }, spanGaps: false }));
      this.plot = new uPlot({
        ...this.size(),
        legend: { show: false },
        padding: [8, 8, 0, 0],
        scales: {
          x: { time: false },
          y: { range: () => this.range() },
        },
        axes: [
          { ...axis, size: 26, incrs: [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800], values: (_, ticks) => ticks.map(elapsed) },
          { ...axis, size: 62, ...(this.kind.show === bytes ? { incrs: POWERS_OF_TWO } : {}), values: (_, ticks) => ticks.map((tick) => this.kind.show(tick)) },
        ],
        series: [{}, ...lines],
        cursor: { sync: { key: "devices", scales: ["x", null] }, drag: { x: true, y: false, dist: 8 }, points: { size: 6 } },
        hooks: { setCursor: [() => this.label()], drawAxes: [(plot) => this.bands(plot)] },
      }, this.data(), this.element);
      this.label();
    }

    range() {
      let [low, high] = [0, this.kind.top || 0];
      for (const name of this.names) {
        for (const value of this.node.fields[name].max || this.node.fields[name].mean) high = Math.max(high, value || 0);
      }
      if (this.kind.topOf) {
        for (const [name, field] of Object.entries(this.node.fields)) {
          if (this.kind.topOf.test(name)) for (const value of field.mean) high = Math.max(high, value || 0);
        }
      }
      return [low, high ? high * 1.05 : 1];
    }

    // Of a bucket everything between its least and its greatest value.
    bands(plot) {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.globalAlpha = 0.18;
      this.names.forEach((name, i) => {
        const field = this.node.fields[name];
        if (!field.max) return;
        ctx.fillStyle = css(`--series-${(i % COLOURS) + 1}`);
        for (let at = 1; at < this.node.t.length; at++) {
          if (field.max[at] === null || field.max[at] === field.min[at]) continue;
          const [left, right] = [at - 1, at].map((one) => plot.valToPos(this.node.t[one] - this.began, "x", true));
          const [top, bottom] = [field.max[at], field.min[at]].map((value) => plot.valToPos(value, "y", true));
          ctx.fillRect(left, top, Math.max(right - left, 1), Math.max(bottom - top, 1));
        }
      });
      ctx.restore();
    }

    // Beside the title: the values under the cursor, else the newest.
    label() {
      let at = this.node.t.length - 1;
      const cursor = this.plot && this.plot.cursor.left >= 0 ? this.plot.cursor.idx : null;
      if (cursor !== null && cursor !== undefined) at = cursor;
      const values = this.names.map((name) => this.node.fields[name].mean[at]);
      const known = values.filter((value) => value !== null && value !== undefined);
      const show = (value) => (value === null || value === undefined ? "—" : this.kind.show(value));
      // Of many lines the least and the greatest.
      const shown = values.length <= 4 || !known.length ? values.slice(0, 4).map(show).join(" · ") : `${show(Math.min(...known))} … ${show(Math.max(...known))}`;
      this.value.textContent = (cursor === null || cursor === undefined ? "" : `${elapsed(this.node.t[at] - this.began)}: `) + shown;
    }
  }

  const body = section.querySelector(".device-charts");
  let nodes = [];
  let charts = [];
  let began = 0;
  let busy = false;
  let missed = false;
  let seen = false;
  const open = new Set();

  async function ask(after) {
    const query = new URLSearchParams({ attempt: section.dataset.attempt });
    if (after) query.set("after", after);
    const response = await fetch(`${section.dataset.devices}?${query}`, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(20000) });
    if (!response.ok) throw new Error(`${response.status}`);
    return (await response.json()).nodes;
  }

  // Everything again: at first, when new devices turn up, and now and then, as single samples pile up.
  async function load() {
    nodes = await ask();
    began = Math.min(...nodes.map((node) => node.t[0]));
    show();
  }

  async function follow() {
    if (!seen || document.hidden) return;
    // What was announced while the answer was on its way may not be in it.
    if (busy) {
      missed = true;
      return;
    }
    busy = true;
    missed = false;
    try {
      if (!nodes.length || nodes.some((node) => node.added > MOST_NEWER)) {
        await load();
        return;
      }
      const newer = await ask(Math.min(...nodes.map((node) => node.t.at(-1))));
      if (!newer.every(take) || nodes.some((node) => kindsOf(node).length > node.kinds)) await load();
      else charts.forEach((chart) => chart.draw());
    } catch {
      // The next announcement tries again. What is there stays.
      if (!nodes.length) section.dataset.state = "failed";
    } finally {
      busy = false;
      if (missed) follow();
    }
  }

  // Appends what is new of one node. False where that cannot be: another node, another device.
  function take(newer) {
    const node = nodes.find((one) => one.node === newer.node);
    if (!node) return false;
    for (const name of Object.keys(newer.fields)) if (!(name in node.fields)) return false;
    newer.t.forEach((time, at) => {
      if (time <= node.t.at(-1)) return;
      node.t.push(time);
      node.added = (node.added || 0) + 1;
      for (const [name, field] of Object.entries(node.fields)) {
        const value = newer.fields[name] ? newer.fields[name].mean[at] : null;
        for (const column of Object.values(field)) column.push(value);
      }
    });
    return true;
  }

  function show() {
    charts.forEach((chart) => chart.plot && chart.plot.destroy());
    charts = [];
    body.replaceChildren();
    section.dataset.state = nodes.length ? "shown" : "empty";
    for (const node of nodes) {
      const head = document.createElement("div");
      head.className = "chart-bar";
      const title = document.createElement("h3");
      title.textContent = nodes.length > 1 ? `${words.node} ${node.node}: ${node.host}` : node.host;
      head.append(title, legend(node));
      // What others on the host use as well comes second.
      const own = grid();
      const whole = grid();
      const more = document.createElement("details");
      const summary = document.createElement("summary");
      summary.textContent = words.host;
      more.append(summary, whole);
      more.open = open.has(node.node);
      more.addEventListener("toggle", () => (more.open ? open.add(node.node) : open.delete(node.node)));
      body.append(head, own, more);
      const kinds = kindsOf(node);
      node.kinds = kinds.length;
      for (const [kind, names] of kinds) {
        charts.push(new DeviceChart(kind.key.startsWith("host") ? whole : own, kind, names, node, began));
      }
    }
  }

  // What is known of a node. It may become more: a first sample says nothing of rates, a driver little of a GPU.
  function kindsOf(node) {
    const known = (name) => node.fields[name].mean.some((value) => value !== null);
    return KINDS.map((kind) => [kind, Object.keys(node.fields).filter((name) => kind.of.test(name))]).filter(([, names]) => names.some(known));
  }

  function grid() {
    const made = document.createElement("div");
    made.className = "charts small";
    return made;
  }

  // Ranks and GPUs have the colours of their place on the node.
  function legend(node) {
    const list = document.createElement("ul");
    list.className = "legend";
    for (const [what, of] of [["gpu", KINDS[0].of], ["rank", KINDS[4].of]]) {
      Object.keys(node.fields).filter((name) => of.test(name)).forEach((name, i) => {
        const entry = document.createElement("li");
        const swatch = document.createElement("span");
        swatch.className = `swatch s${(i % COLOURS) + 1}`;
        entry.append(swatch, `${words[what]} ${name.match(of)[1]}`);
        list.append(entry);
      });
    }
    return list;
  }

  function begin() {
    section.dataset.state = "loading";
    follow();
  }

  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    seen = true;
    begin();
  }, { rootMargin: "300px" }).observe(section);
  section.querySelector("[data-again]").addEventListener("click", begin);
  document.addEventListener("devices", follow);
  document.addEventListener("visibilitychange", () => !document.hidden && section.dataset.live && follow());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => nodes.length && show());
})();
