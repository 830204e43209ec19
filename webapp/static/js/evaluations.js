// Dev and the sample of training rows beside each other, evaluation by evaluation. Needs charts.js for its helpers.
"use strict";

(() => {
  let plots = [];

  function draw() {
    plots.forEach((plot) => plot.destroy());
    plots = [];
    const place = document.querySelector("[data-evaluations]");
    if (!place) return;
    const data = JSON.parse(document.getElementById("evaluation-chart").textContent);
    for (const element of place.querySelectorAll(".plot")) plots.push(make(element, data));
  }

  function make(element, data) {
    const [dev, train] = [data[element.dataset.dev], data[element.dataset.train]];
    const colours = [css("--series-1"), css("--series-2")];
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), size: 4 }, font: "11px system-ui, sans-serif" };
    const line = (colour, width) => ({ stroke: colour, width, points: { show: true, size: 5, fill: css("--surface"), stroke: colour } });
    const value = element.parentElement.querySelector(".value");
    const only = data.step.length === 1;

    function label(plot) {
      const at = plot.cursor.idx ?? data.step.length - 1;
      const both = [short(dev[at]), train[at] === null ? "" : short(train[at])].filter(Boolean).join(" / ");
      value.textContent = plot.cursor.idx === null || plot.cursor.idx === undefined ? both : `${data.step[at]}: ${both}`;
    }

    function marks(plot) {
      const { ctx } = plot;
      const ratio = devicePixelRatio || 1;
      ctx.save();
      // What cannot be drawn as a point is marked at the upper edge.
      ctx.fillStyle = css("--bad");
      data.step.forEach((step, i) => {
        if (typeof dev[i] !== "string" && typeof train[i] !== "string") return;
        const x = plot.valToPos(step, "x", true);
        ctx.beginPath();
        for (const [dx, dy] of [[0, -5], [5, 0], [0, 5], [-5, 0]]) ctx.lineTo(x + dx * ratio, plot.bbox.top + (dy + 5) * ratio);
        ctx.fill();
      });
      const best = data.step.indexOf(data.best);
      if (best >= 0 && finite(dev[best])) {
        ctx.strokeStyle = css("--good");
        ctx.lineWidth = 2.2 * ratio;
        ctx.beginPath();
        ctx.arc(plot.valToPos(data.best, "x", true), plot.valToPos(dev[best], "y", true), 6.5 * ratio, 0, 2 * Math.PI);
        ctx.stroke();
      }
      ctx.restore();
    }

    const plot = new uPlot({
      width: Math.max(element.clientWidth, 50),
      height: element.clientHeight,
      legend: { show: false },
      padding: [14, 12, 0, 0],
      scales: { x: { time: false, range: () => (only ? [data.step[0] - 1, data.step[0] + 1] : [data.step[0], data.step.at(-1)]) } },
      axes: [
        { ...axis, size: 26, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick.toLocaleString("en").replaceAll(",", "\u202f") : "")) },
        { ...axis, size: 54, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))) },
      ],
      series: [{}, line(colours[0], 1.8), line(colours[1], 1.4)],
      cursor: { drag: { x: false, y: false }, points: { size: 7 } },
      hooks: { setCursor: [label], draw: [marks] },
    }, [data.step, dev.map((one) => (finite(one) ? one : null)), train.map((one) => (finite(one) ? one : null))], element);
    new ResizeObserver(() => element.clientWidth && plot.setSize({ width: element.clientWidth, height: element.clientHeight })).observe(element);
    label(plot);
    return plot;
  }

  document.addEventListener("morphed", (event) => event.target.id === "evaluations" && draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
