// <hg-gantt>: rows of spans and marks on one time axis, with the wheel to zoom and a line for now.
//
// data-gantt: {"from": ms, "to": ms, "now": ms|null,
//   "rows": [{"label", "href", "indent", "spans": [{"from", "to"|null, "tone", "text"}], "marks": [{"at", "tone", "text"}]}]}
import { el, svg } from "./dom.js";
import { Drawing } from "./drawing.js";
import { stamp } from "./times.js";

const ROW = 24;
const HEAD = 22;

class Gantt extends Drawing {
  static observedAttributes = ["data-gantt"];

  draw() {
    const data = JSON.parse(this.dataset.gantt);
    const width = Math.max(300, this.clientWidth);
    const left = Math.min(260, width * 0.32);
    const end = data.now === null ? data.to : Math.max(data.to, data.now);
    const whole = [data.from, Math.max(end, data.from + 1)];
    const [from, to] = this.range ?? whole;
    const x = (at) => left + ((at - from) / (to - from)) * (width - left - 8);
    const clamp = (at) => Math.min(Math.max(x(at), left), width - 8);
    const height = HEAD + data.rows.length * ROW + 4;
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `Timeline of ${data.rows.length} rows` });
    for (const [at, anchor] of [[from, "start"], [(from + to) / 2, "middle"], [to, "end"]]) {
      root.append(svg("text", { x: x(at), y: 14, "text-anchor": anchor, class: "axis" }, stamp(at).slice(to - from > 86400000 ? 5 : 11)));
    }
    data.rows.forEach((row, index) => {
      const y = HEAD + index * ROW;
      root.append(svg("line", { class: "grid-line", x1: 0, x2: width, y1: y, y2: y }));
      const label = svg("text", { x: 4 + 14 * (row.indent ?? 0), y: y + 16, class: "label" }, cut(row.label, (left - 14 * (row.indent ?? 0)) / 7));
      label.append(svg("title", {}, row.label));
      root.append(row.href ? svg("a", { href: row.href }, label) : label);
      for (const span of row.spans ?? []) {
        const stop = span.to ?? data.now ?? to;
        if (stop < from || span.from > to) continue;
        const [start, wide] = [clamp(span.from), Math.max(3, clamp(stop) - clamp(span.from))];
        const bar = svg("rect", { class: `span ${span.tone}${span.to === null ? " open" : ""}`, x: start, y: y + 4, width: wide, height: ROW - 8, rx: 3 });
        bar.append(svg("title", {}, `${span.text ?? row.label}\n${stamp(span.from)} – ${span.to === null ? "now" : stamp(span.to)}\n${lasted(stop - span.from)}`));
        root.append(bar);
        if (wide > 60) root.append(svg("text", { class: "span-text", x: start + 6, y: y + 16 }, cut(span.text ?? lasted(stop - span.from), wide / 7)));
      }
      for (const mark of row.marks ?? []) {
        if (mark.at < from || mark.at > to) continue;
        const at = x(mark.at);
        const shape = svg("path", { class: `mark ${mark.tone}`, d: `M${at} ${y + 5}l6 7l-6 7l-6-7Z` });
        shape.append(svg("title", {}, `${mark.text}\n${stamp(mark.at)}`));
        root.append(shape);
      }
    });
    if (data.now !== null && data.now >= from && data.now <= to) {
      root.append(svg("line", { class: "now", x1: x(data.now), x2: x(data.now), y1: HEAD - 4, y2: height }));
    }
    root.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      const box = root.getBoundingClientRect();
      const at = from + ((event.clientX - box.left - left) / (box.width - left)) * (to - from);
      const factor = event.deltaY > 0 ? 1.25 : 0.8;
      const next = [at - (at - from) * factor, at + (to - at) * factor];
      this.range = next[1] - next[0] >= whole[1] - whole[0] ? null : next;
      this.draw();
    }, { passive: false });
    const reset = this.range ? el("button", { type: "button", class: "copy", onclick: () => ((this.range = null), this.draw()) }, "Whole range") : null;
    this.replaceChildren(root, reset ?? "");
  }
}

function cut(text, characters) {
  return text.length <= characters ? text : `${text.slice(0, Math.max(1, characters - 1))}…`;
}

/** Return a duration of milliseconds in words. */
export function lasted(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

customElements.define("hg-gantt", Gantt);
