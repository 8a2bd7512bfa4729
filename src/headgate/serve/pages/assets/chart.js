// <hg-chart>: a time series as lines, steps or bars, with a threshold, an expected range and marks.
//
// data-chart: {"series": [{"name", "points": [[ms, value], ...], "kind": "line"|"step"|"bar", "tone"}],
//   "unit", "band": [[ms, low, high], ...], "threshold": number, "marks": [[ms, text], ...], "from": ms, "to": ms}
import { el, svg } from "./dom.js";
import { Drawing } from "./drawing.js";
import { stamp } from "./times.js";

const HEIGHT = 140;
const LEFT = 48;
const BOTTOM = 20;
const TOP = 8;
const RIGHT = 8;
const BAR_MAX = 18;

class Chart extends Drawing {
  static observedAttributes = ["data-chart"];

  draw() {
    const data = JSON.parse(this.dataset.chart);
    const width = Math.max(200, this.clientWidth);
    const series = data.series.filter((each) => each.points.length);
    if (!series.length) {
      this.replaceChildren(el("p", { class: "dim" }, "No data in this range."));
      return;
    }
    const frame = scales(data, series, width);
    const label = `${series.map((each) => each.name).join(", ")}: ${series[0].points.length} values`;
    const root = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label });
    root.append(...axes(frame, data.unit ?? ""));
    // Bars would hide a range that is drawn before them.
    const isBars = series.some((each) => each.kind === "bar");
    const range = data.band?.length ? [band(frame, data.band)] : [];
    const shapes = series.flatMap((each) => drawn(frame, each));
    root.append(...(isBars ? [...shapes, ...range] : [...range, ...shapes]));
    if (data.threshold !== undefined && data.threshold !== null) {
      const y = frame.y(data.threshold);
      root.append(svg("line", { class: "threshold", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
    }
    for (const [at, text] of data.marks ?? []) {
      const x = frame.x(at);
      root.append(svg("g", { class: "mark" }, svg("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }), svg("title", {}, `${text}, ${stamp(at)}`)));
    }
    const tip = el("div", { class: "tip", hidden: true });
    const line = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, x1: -1, x2: -1 });
    root.append(line);
    root.addEventListener("pointermove", (event) => hover(event, root, frame, series, data.unit ?? "", tip, line));
    root.addEventListener("pointerleave", () => ((tip.hidden = true), line.setAttribute("x1", -1), line.setAttribute("x2", -1)));
    this.replaceChildren(root, tip, series.length > 1 ? legend(series) : "");
  }
}

function scales(data, series, width) {
  const times = series.flatMap((each) => each.points.map((point) => point[0]));
  const values = series.flatMap((each) => each.points.map((point) => point[1]));
  for (const [, low, high] of data.band ?? []) values.push(low, high);
  if (typeof data.threshold === "number") values.push(data.threshold);
  const from = data.from ?? Math.min(...times);
  const to = Math.max(data.to ?? Math.max(...times), from + 1);
  const low = Math.min(0, ...values);
  const high = Math.max(...values) === low ? low + 1 : Math.max(...values);
  // Bars stand around their time: without room at the ends, the first would cover the labels of the axis.
  const inset = series.some((each) => each.kind === "bar") ? BAR_MAX / 2 + 1 : 0;
  const [start, length] = [LEFT + inset, width - LEFT - RIGHT - 2 * inset];
  return {
    width, from, to, low, high,
    x: (at) => start + ((at - from) / (to - from)) * length,
    y: (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - BOTTOM - TOP),
    at: (x) => from + ((x - start) / length) * (to - from),
  };
}

function axes(frame, unit) {
  const parts = [];
  for (const value of ticks(frame.low, frame.high, 3)) {
    const y = frame.y(value);
    parts.push(svg("line", { class: "grid-line", x1: LEFT, x2: frame.width - RIGHT, y1: y, y2: y }));
    parts.push(svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, `${short(value)}${unit}`));
  }
  const count = Math.max(2, Math.floor(frame.width / 180));
  for (let index = 0; index <= count; index += 1) {
    const at = frame.from + ((frame.to - frame.from) * index) / count;
    const anchor = index === 0 ? "start" : index === count ? "end" : "middle";
    const text = stamp(at);
    const isShort = frame.to - frame.from < 2 * 86400000;
    parts.push(svg("text", { x: frame.x(at), y: HEIGHT - 5, "text-anchor": anchor }, isShort ? text.slice(11, 19) : text.slice(5, 16)));
  }
  return parts;
}

function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
  return found;
}

/** Return a number in a few characters. */
export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return `${+value.toPrecision(4)}`;
}

function band(frame, points) {
  const up = points.map(([at, , high]) => `${frame.x(at)},${frame.y(high)}`);
  const down = points.map(([at, low]) => `${frame.x(at)},${frame.y(low)}`).reverse();
  return svg("polygon", { class: "band", points: [...up, ...down].join(" ") });
}

function drawn(frame, { points, kind, tone }) {
  const tint = `series ${tone ?? "busy"}`;
  if (kind === "bar") {
    const wide = Math.max(2, Math.min(BAR_MAX, (frame.width - LEFT - RIGHT) / points.length - 2));
    const zero = frame.y(Math.max(0, frame.low));
    return points.map(([at, value]) => {
      const y = frame.y(value);
      return svg("rect", { class: `${tint} bar`, x: frame.x(at) - wide / 2, y: Math.min(y, zero), width: wide, height: Math.max(1, Math.abs(zero - y)) });
    });
  }
  let path = "";
  points.forEach(([at, value], index) => {
    const [x, y] = [frame.x(at).toFixed(1), frame.y(value).toFixed(1)];
    if (index === 0) path = `M${x} ${y}`;
    else path += kind === "step" ? `H${x}V${y}` : `L${x} ${y}`;
  });
  const line = svg("path", { class: tint, d: path });
  const [at, value] = points.at(-1);
  return points.length < 40
    ? [line, ...points.map(([each, seen]) => svg("circle", { class: `${tint} dot`, cx: frame.x(each), cy: frame.y(seen), r: 2 }))]
    : [line, svg("circle", { class: `${tint} dot`, cx: frame.x(at), cy: frame.y(value), r: 2.5 })];
}

function hover(event, root, frame, series, unit, tip, line) {
  const box = root.getBoundingClientRect();
  const at = frame.at(((event.clientX - box.left) / box.width) * frame.width);
  const lines = series.map(({ name, points }) => {
    const near = points.reduce((best, each) => (Math.abs(each[0] - at) < Math.abs(best[0] - at) ? each : best));
    return { name, near };
  });
  const x = frame.x(lines[0].near[0]);
  line.setAttribute("x1", x);
  line.setAttribute("x2", x);
  const rows = lines.map(({ name, near }) => el("div", {}, `${name} `, el("strong", {}, `${short(near[1])}${unit}`)));
  tip.replaceChildren(el("div", { class: "dim" }, stamp(lines[0].near[0])), ...rows);
  tip.hidden = false;
  tip.style.left = `${Math.min(x + 12, frame.width - 180)}px`;
}

function legend(series) {
  const items = series.map((each) => el("li", {}, el("span", { class: `key ${each.tone ?? "busy"}` }), each.name));
  return el("ul", { class: "legend" }, ...items);
}

customElements.define("hg-chart", Chart);
