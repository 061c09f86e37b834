// Draws the charts: each figure inside an element with data-chart gets one series of its strict JSON.
"use strict";
(() => {
  const HEIGHT = 180;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const day = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);

  function draw(figure, data) {
    const name = figure.dataset.series;
    const values = data[name];
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: figure.clientWidth,
      height: HEIGHT,
      legend: { live: true },
      cursor: { y: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: { x: { time: true }, y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [axis, { ...axis, size: 60 }],
      series: [
        { label: "day", value: (_plot, seconds) => (seconds === null ? "–" : day(seconds)) },
        {
          label: name,
          stroke: colour("--accent"),
          fill: colour("--tint"),
          width: 2,
          paths: uPlot.paths.bars({ size: [0.7, 40] }),
          points: { show: false },
          value: (_plot, value) => (value === null ? "–" : name === "spend" ? "$" + value.toFixed(4) : String(value)),
        },
      ],
    };
    return new uPlot(options, [data.days, values], figure);
  }

  function drawAll() {
    for (const box of document.querySelectorAll("[data-chart]")) {
      const data = JSON.parse(box.dataset.chart);
      const plots = [...box.querySelectorAll("figure")].map((figure) => [figure, draw(figure, data)]);
      new ResizeObserver(() => {
        for (const [figure, plot] of plots) plot.setSize({ width: figure.clientWidth, height: HEIGHT });
      }).observe(box);
    }
  }

  document.addEventListener("DOMContentLoaded", drawAll);
})();
