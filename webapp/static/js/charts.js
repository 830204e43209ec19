// Charts of one job: every attempt on one step axis, marks that are never sampled away, one shared zoom.
// Data comes in the shape of jobs/steps/chart.py; numbers may be the strings "nan", "inf" and "-inf".
"use strict";

const COLOURS = 6;

class Series {
  // Columns of one attempt, as drawn: buckets from the server, then live records one by one.
  constructor(answer) {
    this.number = answer.number;
    this.available = answer.available;
    this.step = answer.step;
    this.bucket = answer.bucket;
    this.fields = answer.fields;
    this.marks = answer.marks;
    this.rewound = answer.rewound || [];
    this.appended = 0;
    this.spikes = []; // of live records; the server knows of those before
    for (const field of Object.values(this.fields)) {
      field.min = field.min || field.mean.slice();
      field.max = field.max || field.mean.slice();
    }
  }

  get newest() {
    return this.step.length ? this.step[this.step.length - 1] : 0;
  }

  // Columns of newer records. Returns false where the steps go back: a rewind, and the server knows better.
  append(columns) {
    const from = columns.step.findIndex((step) => step > this.newest);
    if (from < 0) return columns.step.length === 0 || columns.step[columns.step.length - 1] === this.newest;
    for (let i = from; i < columns.step.length; i++) {
      const step = columns.step[i];
      if (step <= this.newest) return false;
      this.step.push(step);
      for (const [name, field] of Object.entries(this.fields)) {
        const value = columns[name] === undefined ? null : columns[name][i];
        field.mean.push(value);
        field.min.push(value);
        field.max.push(value);
        if (typeof value === "string") {
          field.non_finite.push([step, +(value === "nan"), +(value === "inf"), +(value === "-inf")]);
        }
      }
      if (columns.skipped[i]) this.marks.skipped.push([step, 1]);
      if (columns.clipped[i]) this.marks.clipped.push([step, 1]);
      if (columns.found_inf[i]) this.marks.found_inf.push([step, 1]);
      if (columns.spike[i]) this.spikes.push(step);
      this.appended += 1;
    }
    return true;
  }

  // The name to draw under `wanted`: a run on one rank may have no mean over ranks.
  pick(wanted) {
    const field = this.fields[wanted];
    if (wanted === "loss_all" && field && field.mean.every((value) => value === null)) return "loss";
    return wanted;
  }
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const finite = (value) => typeof value === "number";

function short(value) {
  if (value === null || value === undefined) return "—";
  if (value === "nan") return "NaN";
  if (value === "inf") return "∞";
  if (value === "-inf") return "−∞";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  return String(Number(value.toPrecision(4)));
}

// Of a log scale only whole powers of ten get a line.
function decades(low, high) {
  const [from, to] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
  const by = Math.max(1, Math.ceil((to - from) / 6));
  const lines = [];
  for (let exponent = from; exponent <= to; exponent += by) lines.push(10 ** exponent);
  return lines;
}

function power(exponent) {
  const raised = (text) => text.replace(/[-0-9]/g, (digit) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(digit)]);
  return Number.isInteger(exponent) ? `2${raised(String(exponent))}` : `2^${short(exponent)}`;
}

class Chart {
  constructor(board, element) {
    this.board = board;
    this.element = element;
    this.field = element.dataset.field;
    this.second = element.dataset.second || element.dataset.threshold || null;
    this.log = element.dataset.scale === "log";
    this.power = element.dataset.scale === "log2";
    this.value = element.parentElement.querySelector(".value");
    this.plot = null;
    this.shape = "";
    new ResizeObserver(() => this.resize()).observe(element);
  }

  // What is drawn of a value: powers of two for the loss scale; nothing for NaN, and for ≤ 0 on a log scale.
  y(value) {
    if (!finite(value)) return null;
    if (this.power) return value > 0 ? Math.log2(value) : null;
    return this.log && value <= 0 ? null : value;
  }

  draw() {
    const shown = this.board.series;
    const tables = shown.map((series) => {
      const field = series.fields[series.pick(this.field)];
      const columns = [series.step, field.mean.map((value) => this.y(value))];
      if (this.second && series === this.board.viewed) {
        columns.push(series.fields[this.second].mean.map((value) => this.y(value)));
      }
      return columns;
    });
    const viewed = this.board.viewed;
    const there = viewed && viewed.fields[viewed.pick(this.field)].mean.some((value) => value !== null);
    const empty = !shown.some((series) => series.step.length);
    this.say(empty ? this.board.words.nothing : this.power && viewed && viewed.step.length && !there ? this.board.words.unused : "");
    // Nulls between two points of one attempt are gaps; steps that only another attempt has are not.
    const data = tables.length === 1 ? tables[0] : tables.length ? uPlot.join(tables) : [[], []];
    const shape = shown.map((series) => series.number).join() + this.log + (this.board.viewed && this.board.viewed.number);
    if (this.plot && this.shape !== shape) {
      this.plot.destroy();
      this.plot = null;
    }
    this.shape = shape;
    if (this.plot) {
      this.plot.setData(data, false);
      this.scale();
    } else {
      this.make(data);
    }
    this.label();
  }

  make(data) {
    const board = this.board;
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), size: 4 }, font: "11px system-ui, sans-serif" };
    const series = [{}];
    for (const one of board.series) {
      series.push({ stroke: board.colour(one.number), width: one === board.viewed ? 1.6 : 1.1, alpha: one === board.viewed ? 1 : 0.65, points: { show: false }, spanGaps: false });
      if (this.second && one === board.viewed) {
        const threshold = Boolean(this.element.dataset.threshold);
        series.push({ stroke: threshold ? css("--clip") : css("--series-3"), width: threshold ? 1.6 : 1.2, dash: threshold ? [5, 4] : undefined, points: { show: false } });
      }
    }
    this.plot = new uPlot({
      width: Math.max(this.element.clientWidth, 50),
      height: this.element.clientHeight,
      legend: { show: false },
      padding: [14, 16, 0, 0],
      scales: {
        x: { time: false, range: () => this.board.window() },
        y: { distr: this.log ? 3 : 1, log: 10, range: () => this.range() },
      },
      axes: [
        { ...axis, size: 26, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick.toLocaleString("en").replaceAll(",", " ") : "")) },
        { ...axis, size: 54, ...(this.log ? { splits: (_, __, low, high) => decades(low, high) } : {}), values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : this.power ? (Number.isInteger(tick) ? power(tick) : "") : short(tick))) },
      ],
      series,
      cursor: {
        sync: { key: "job", scales: ["x", null] },
        drag: { x: true, y: false, setScale: false, dist: 8 },
        points: { size: 6 },
        bind: { dblclick: () => () => { board.zoom(null); return null; } },
      },
      hooks: {
        setSelect: [(plot) => {
          if (plot.select.width < 3) return;
          const first = plot.posToVal(plot.select.left, "x");
          const last = plot.posToVal(plot.select.left + plot.select.width, "x");
          plot.setSelect({ width: 0, height: 0 }, false);
          board.zoom([Math.max(1, Math.floor(first)), Math.ceil(last)]);
        }],
        setCursor: [() => this.label()],
        drawAxes: [(plot) => this.bands(plot)],
        draw: [(plot) => this.marks(plot)],
      },
    }, data, this.element);
  }

  scale() {
    const [first, last] = this.board.window();
    this.plot.setScale("x", { min: first, max: last });
  }

  // Over everything visible, spikes and thresholds included: the line shows means, the band shows extremes.
  range() {
    const [first, last] = this.board.window();
    let [low, high] = [Infinity, -Infinity];
    const take = (value) => {
      const y = this.y(value);
      if (y === null) return;
      if (y < low) low = y;
      if (y > high) high = y;
    };
    for (const series of this.board.series) {
      const field = series.fields[series.pick(this.field)];
      for (let i = 0; i < series.step.length; i++) {
        if (series.step[i] < first || series.step[i] > last) continue;
        take(field.min[i]);
        take(field.max[i]);
      }
    }
    const viewed = this.board.viewed;
    if (this.second && viewed) take(viewed.fields[this.second].mean.at(-1));
    if (low > high) return this.log ? [0.1, 1] : [0, 1];
    if (this.log) return [10 ** Math.floor(Math.log10(low) - 0.02), 10 ** Math.ceil(Math.log10(high) + 0.02)];
    if (this.power) return [Math.floor(low) - 1, Math.ceil(high) + 1];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [this.field === "lr" || this.field.endsWith("_ms") ? 0 : low - room, high + room];
  }

  bands(plot) {
    const { ctx } = plot;
    ctx.save();
    clip(plot);
    for (const series of this.board.series) {
      const field = series.fields[series.pick(this.field)];
      ctx.fillStyle = this.board.colour(series.number);
      ctx.globalAlpha = series === this.board.viewed ? 0.2 : 0.1;
      // One upright stroke per bucket keeps a spike of one step visible whatever its neighbours are.
      for (let i = 0; i < series.step.length; i++) {
        const [low, high] = [this.y(field.min[i]), this.y(field.max[i])];
        if (low === null || high === null || low === high) continue;
        const x = plot.valToPos(series.step[i], "x", true);
        const left = i ? plot.valToPos(series.step[i - 1], "x", true) : x - 1;
        const [top, bottom] = [plot.valToPos(high, "y", true), plot.valToPos(low, "y", true)];
        ctx.fillRect(left, top, Math.max(x - left, 1), Math.max(bottom - top, 1));
      }
      for (const old of series.rewound) this.line(plot, old, this.board.colour(series.number));
    }
    ctx.restore();
  }

  line(plot, piece, colour) {
    const field = piece.fields[this.field] || piece.fields.loss;
    if (!field) return;
    const { ctx } = plot;
    ctx.strokeStyle = colour;
    ctx.globalAlpha = 0.3;
    ctx.setLineDash([3, 3]);
    ctx.beginPath();
    piece.step.forEach((step, i) => {
      const y = this.y(field.mean[i]);
      if (y !== null) ctx.lineTo(plot.valToPos(step, "x", true), plot.valToPos(y, "y", true));
    });
    ctx.stroke();
    ctx.setLineDash([]);
  }

  marks(plot) {
    const { ctx } = plot;
    const ratio = devicePixelRatio || 1;
    const { left, top, width } = plot.bbox;
    const within = (x) => x >= left - 1 && x <= left + width + 1;
    ctx.save();
    for (const series of this.board.series) {
      ctx.globalAlpha = series === this.board.viewed ? 1 : 0.4;
      if ("threshold" in this.element.dataset) {
        const field = series.fields[this.field];
        const place = new Map(series.marks.clipped.map(([step, count]) => [step, count]));
        ctx.fillStyle = css("--clip");
        for (let i = 0; i < series.step.length; i++) {
          if (!place.has(series.step[i])) continue;
          const y = this.y(field.max[i]);
          const x = plot.valToPos(series.step[i], "x", true);
          if (y === null || !within(x)) continue;
          ctx.beginPath();
          ctx.arc(x, plot.valToPos(y, "y", true), 1.9 * ratio, 0, 2 * Math.PI);
          ctx.fill();
        }
      }
      ctx.fillStyle = css("--warn");
      for (const [step] of series.marks.skipped) {
        const x = plot.valToPos(step, "x", true);
        if (!within(x)) continue;
        ctx.beginPath();
        ctx.moveTo(x - 4 * ratio, top - 11 * ratio);
        ctx.lineTo(x + 4 * ratio, top - 11 * ratio);
        ctx.lineTo(x, top - 4 * ratio);
        ctx.fill();
      }
      ctx.fillStyle = ctx.strokeStyle = css("--bad");
      ctx.lineWidth = ratio;
      for (const [step] of series.fields[series.pick(this.field)].non_finite) {
        const x = plot.valToPos(step, "x", true);
        if (!within(x)) continue;
        ctx.beginPath();
        for (const [dx, dy] of [[0, -5], [5, 0], [0, 5], [-5, 0]]) ctx.lineTo(x + dx * ratio, top + (dy + 5) * ratio);
        ctx.fill();
      }
      ctx.strokeStyle = css("--bad");
      ctx.lineWidth = 1.4 * ratio;
      const live = series.spikes.map((step) => ({ attempt: series.number, step, kind: "spike" }));
      for (const { attempt, step, kind } of [...this.board.happened, ...live]) {
        const x = plot.valToPos(step, "x", true);
        if (attempt !== series.number || !within(x)) continue;
        ctx.beginPath();
        if (kind === "rewind") {
          ctx.setLineDash([6 * ratio, 3 * ratio]);
          ctx.moveTo(x, top - 11 * ratio);
          ctx.lineTo(x, top + plot.bbox.height);
        } else {
          for (const [dx, dy] of [[-4, -4], [0, -11], [4, -4]]) ctx.lineTo(x + dx * ratio, top + dy * ratio);
          ctx.closePath();
        }
        ctx.stroke();
        ctx.setLineDash([]);
      }
      if (this.field.startsWith("loss") && !this.power) {
        ctx.strokeStyle = this.board.colour(series.number);
        ctx.fillStyle = css("--surface");
        ctx.lineWidth = 1.6 * ratio;
        for (const evaluation of this.board.evaluations) {
          const y = this.y(evaluation.loss);
          if (evaluation.attempt !== series.number || y === null) continue;
          const x = plot.valToPos(evaluation.step, "x", true);
          if (!within(x)) continue;
          ctx.beginPath();
          ctx.arc(x, plot.valToPos(y, "y", true), 3.6 * ratio, 0, 2 * Math.PI);
          ctx.fill();
          ctx.stroke();
        }
      }
    }
    ctx.restore();
  }

  // Beside the title: the value under the cursor, else the newest.
  label() {
    const viewed = this.board.viewed;
    if (!viewed || !viewed.step.length) return;
    let at = viewed.step.length - 1;
    const cursor = this.plot && this.plot.cursor.left >= 0 ? this.plot.posToVal(this.plot.cursor.left, "x") : null;
    if (cursor !== null) at = nearest(viewed.step, cursor);
    const field = viewed.fields[viewed.pick(this.field)];
    const counted = field.non_finite.length && !finite(field.mean[at]) ? field.mean[at] : null;
    let text = counted !== null ? short(counted) : short(field.mean[at]);
    if (viewed.bucket > 1 && finite(field.min[at]) && field.min[at] !== field.max[at]) {
      text += `  [${short(field.min[at])} … ${short(field.max[at])}]`;
    }
    if (this.power && finite(field.mean[at])) text = power(Math.log2(field.mean[at]));
    this.value.textContent = cursor === null ? text : `${viewed.step[at]}: ${text}`;
  }

  say(text) {
    let note = this.element.querySelector(".nothing");
    if (!note && text) {
      note = document.createElement("p");
      note.className = "nothing";
      this.element.prepend(note);
    }
    if (note) {
      note.textContent = text;
      note.hidden = !text;
      this.element.classList.toggle("empty-plot", Boolean(text));
    }
  }

  resize() {
    if (this.plot && this.element.clientWidth) this.plot.setSize({ width: this.element.clientWidth, height: this.element.clientHeight });
  }

  // New colours or a new kind of scale need a new plot.
  renew() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
    this.draw();
  }
}

function clip(plot) {
  const { ctx, bbox } = plot;
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
}

function nearest(sorted, wanted) {
  let [low, high] = [0, sorted.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low && wanted - sorted[low - 1] < sorted[low] - wanted ? low - 1 : low;
}

class Board {
  constructor(element, words) {
    this.element = element;
    this.words = words;
    this.series = [];
    this.evaluations = [];
    this.happened = [];
    this.viewed = null;
    this.range = null;
    this.waiting = false;
    this.loaded = false;
    this.drawn = 0;
    this.asked = 0;
    this.charts = [...element.querySelectorAll(".plot")].map((plot) => new Chart(this, plot));
    this.fields = [...new Set(this.charts.flatMap((chart) => [chart.field, chart.second, "loss"]).filter(Boolean))].join();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.charts.forEach((chart) => chart.renew()));
    const log = document.getElementById("log-loss");
    log.addEventListener("change", () => {
      this.charts[0].log = log.checked;
      this.charts[0].renew();
    });
    this.reset = document.getElementById("reset-zoom");
    this.reset.addEventListener("click", () => this.zoom(null));
    document.addEventListener("zoom", (event) => this.zoom(event.detail));
    for (const swatch of element.querySelectorAll(".swatch")) swatch.classList.add(`s${this.index(+swatch.dataset.attempt)}`);
  }

  index(number) {
    return ((number - 1) % COLOURS) + 1;
  }

  colour(number) {
    return css(`--series-${this.index(number)}`);
  }

  window() {
    if (this.range) return this.range;
    let [first, last] = [Infinity, -Infinity];
    for (const series of this.series) {
      if (!series.step.length) continue;
      first = Math.min(first, series.step[0]);
      last = Math.max(last, series.newest);
    }
    return first > last ? [0, 10] : first === last ? [first - 1, last + 1] : [first, last];
  }

  // Fetches what is drawn; the answer to an older question is thrown away.
  async load() {
    const asked = ++this.asked;
    const query = new URLSearchParams({ attempt: this.element.dataset.attempt, rank: this.element.dataset.rank, fields: this.fields });
    if (this.range) {
      query.set("first", this.range[0]);
      query.set("last", this.range[1]);
    }
    const response = await fetch(`${this.element.dataset.chart}?${query}`, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(20000) });
    if (!response.ok) throw new Error(`${response.status}`);
    const answer = await response.json();
    if (asked !== this.asked) return;
    this.loaded = true;
    this.element.dataset.state = "shown";
    this.series = answer.attempts.map((attempt) => new Series(attempt)).sort((a, b) => a.number - b.number);
    this.viewed = this.series.find((series) => series.number === answer.viewed) || null;
    this.evaluations = answer.evaluations;
    this.happened = answer.happened;
    this.newest = Math.max(this.newest || 0, this.viewed ? this.viewed.available.last || 0 : 0);
    this.draw();
  }

  // Columns of live records. While zoomed in, only the newest number moves on.
  append(columns) {
    if (!this.viewed || !columns.step.length) return true;
    this.newest = Math.max(this.newest, columns.step[columns.step.length - 1]);
    const fits = this.range ? true : this.viewed.append(columns);
    this.later();
    // Raw points pile up; now and then the server's buckets take their place.
    return fits && this.viewed.appended < 3000;
  }

  zoom(range) {
    this.range = range;
    this.reset.hidden = !range;
    document.dispatchEvent(new CustomEvent("zoomed", { detail: range }));
    this.charts.forEach((chart) => chart.plot && chart.scale());
    return this.load().catch(() => {});
  }

  // At most four times a second, in step with the screen. A hidden page draws when it is seen again.
  later() {
    if (this.waiting) return;
    this.waiting = true;
    const wait = Math.max(0, 250 - (performance.now() - this.drawn));
    setTimeout(() => requestAnimationFrame(() => this.draw()), wait);
  }

  draw() {
    this.waiting = false;
    this.drawn = performance.now();
    for (const chart of this.charts) chart.draw();
    this.element.dataset.newestStep = this.newest || 0;
    this.element.dataset.spikes = this.viewed ? this.viewed.spikes.length : 0;
  }
}

window.Board = Board;
