// <hg-graph>: a layered graph, left to right, that can be moved, zoomed and expanded by a hop.
//
// data-graph: {"nodes": [{"id", "label", "kind", "tone", "href", "note", "more": {"up": n, "down": n}}],
//   "edges": [[from, to], ...], "focus": id}
// data-expand: address that returns the same form for `?node=ID&way=up|down`; the nodes are added.
import { el, svg, toast } from "./dom.js";

const WIDE = 190;
const HIGH = 46;
const GAP_X = 70;
const GAP_Y = 16;

class Graph extends HTMLElement {
  static observedAttributes = ["data-graph"];
  // Set before the first attribute is reported, which comes before the connection.
  added = { nodes: [], edges: [], ways: new Set() };
  view = null;

  connectedCallback() {
    this.draw();
  }

  attributeChangedCallback() {
    if (this.isConnected) this.draw();
  }

  data() {
    const given = JSON.parse(this.dataset.graph);
    const nodes = new Map([...this.added.nodes, ...given.nodes].map((each) => [each.id, each]));
    const edges = new Map([...this.added.edges, ...given.edges].map((each) => [each.join("\u0000"), each]));
    const known = [...edges.values()].filter(([from, to]) => nodes.has(from) && nodes.has(to));
    return { nodes: [...nodes.values()], edges: known, focus: given.focus };
  }

  draw() {
    const { nodes, edges, focus } = this.data();
    if (!nodes.length) {
      this.replaceChildren(el("p", { class: "dim" }, "Nothing is connected to it."));
      return;
    }
    const places = layout(nodes, edges);
    const size = [...places.values()].reduce((most, each) => ({ x: Math.max(most.x, each.x + WIDE), y: Math.max(most.y, each.y + HIGH) }), { x: 0, y: 0 });
    const height = Math.min(560, Math.max(120, size.y + 40));
    const root = svg("svg", { class: "graph", height, width: "100%", role: "group", "aria-label": `Graph of ${nodes.length} nodes and ${edges.length} edges` });
    const scene = svg("g");
    const lit = focus ? path(edges, focus) : null;
    for (const [from, to] of edges) {
      const [a, b] = [places.get(from), places.get(to)];
      const [x1, y1, x2, y2] = [a.x + WIDE, a.y + HIGH / 2, b.x, b.y + HIGH / 2];
      const bend = Math.max(30, Math.abs(x2 - x1) / 2);
      const isLit = lit === null || (lit.has(from) && lit.has(to));
      scene.append(svg("path", { class: isLit ? "edge" : "edge faint", d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, "marker-end": "url(#arrow)" }));
    }
    for (const node of nodes) scene.append(this.node(node, places.get(node.id), node.id === focus));
    root.append(svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8Z" }))), scene);
    this.replaceChildren(root, this.tools(root));
    this.move(root, scene, size, height, places.get(focus));
  }

  node(node, place, isFocus) {
    const box = svg("g", { class: `node ${node.tone ?? "plain"}${isFocus ? " focus" : ""}`, transform: `translate(${place.x} ${place.y})` });
    const text = [
      svg("rect", { width: WIDE, height: HIGH, rx: 6 }),
      svg("rect", { class: "edge-tone", width: 5, height: HIGH, rx: 2 }),
      svg("text", { x: 14, y: 19 }, cut(node.label, 23)),
      svg("text", { x: 14, y: 36, class: "note" }, cut([node.kind, node.note].filter(Boolean).join(" · "), 27)),
      svg("title", {}, [node.label, node.kind, node.note].filter(Boolean).join("\n")),
    ];
    box.append(node.href ? svg("a", { href: node.href }, ...text) : svg("g", {}, ...text));
    for (const [way, x] of [["up", -9], ["down", WIDE + 9]]) {
      const count = node.more?.[way] ?? 0;
      if (!count || !this.dataset.expand || this.added.ways.has(`${way} ${node.id}`)) continue;
      const button = svg("g", { class: "expand", role: "button", tabindex: 0, "aria-label": `Show ${count} more ${way}stream of ${node.label}`, transform: `translate(${x} ${HIGH / 2})` }, svg("circle", { r: 9 }), svg("text", { "text-anchor": "middle", y: 4 }, "+"));
      button.addEventListener("click", () => this.expand(node.id, way));
      button.addEventListener("keydown", (event) => event.key === "Enter" && this.expand(node.id, way));
      box.append(button);
    }
    return box;
  }

  async expand(id, way) {
    const answer = await fetch(`${this.dataset.expand}?${new URLSearchParams({ node: id, way })}`, { headers: { accept: "application/json" } });
    const found = await answer.json();
    if (!answer.ok) {
      toast(found.detail ?? "The server could not answer.", "bad");
      return;
    }
    this.added.nodes.push(...found.nodes);
    this.added.edges.push(...found.edges);
    this.added.ways.add(`${way} ${id}`);
    this.view = null;
    this.draw();
  }

  tools(root) {
    const zoom = (factor) => () => root.dispatchEvent(new CustomEvent("zoom", { detail: factor }));
    return el("div", { class: "graph-tools" }, el("button", { type: "button", "aria-label": "Zoom in", onclick: zoom(1.25) }, "+"), el("button", { type: "button", "aria-label": "Zoom out", onclick: zoom(0.8) }, "−"), el("button", { type: "button", onclick: zoom(0) }, "Fit"));
  }

  move(root, scene, size, height, focus) {
    const width = this.clientWidth || 800;
    const fit = () => {
      const scale = Math.min(1, (width - 40) / size.x, (height - 30) / size.y);
      const middle = focus && scale < 0.55 ? { scale: 0.8, x: width / 2 - focus.x * 0.8 - WIDE / 2, y: height / 2 - focus.y * 0.8 } : null;
      return middle ?? { scale, x: (width - size.x * scale) / 2, y: (height - size.y * scale) / 2 };
    };
    this.view ??= fit();
    const apply = () => scene.setAttribute("transform", `translate(${this.view.x} ${this.view.y}) scale(${this.view.scale})`);
    const zoom = (factor, x, y) => {
      const scale = Math.min(2, Math.max(0.1, this.view.scale * factor));
      const real = scale / this.view.scale;
      this.view = { scale, x: x - (x - this.view.x) * real, y: y - (y - this.view.y) * real };
      apply();
    };
    root.addEventListener("zoom", ({ detail }) => (detail ? zoom(detail, width / 2, height / 2) : ((this.view = fit()), apply())));
    root.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 0.9 : 1.1, event.offsetX, event.offsetY);
    }, { passive: false });
    root.addEventListener("pointerdown", (event) => {
      if (event.target.closest("a, .expand")) return;
      const start = { x: event.clientX - this.view.x, y: event.clientY - this.view.y };
      root.setPointerCapture(event.pointerId);
      const drag = (moved) => ((this.view = { ...this.view, x: moved.clientX - start.x, y: moved.clientY - start.y }), apply());
      root.addEventListener("pointermove", drag);
      root.addEventListener("pointerup", () => root.removeEventListener("pointermove", drag), { once: true });
    });
    apply();
  }
}

/** Return all nodes on a path to or from the focus. */
function path(edges, focus) {
  const found = new Set([focus]);
  for (const [one, other] of [[0, 1], [1, 0]]) {
    const next = new Map();
    for (const edge of edges) next.set(edge[one], [...(next.get(edge[one]) ?? []), edge[other]]);
    const queue = [focus];
    const seen = new Set(queue);
    while (queue.length) {
      for (const each of next.get(queue.pop()) ?? []) {
        if (seen.has(each)) continue;
        seen.add(each);
        found.add(each);
        queue.push(each);
      }
    }
  }
  return found;
}

/** Place nodes in layers by their longest path, and order each layer by the mean place of its neighbours. */
export function layout(nodes, edges) {
  const layer = new Map(nodes.map((each) => [each.id, 0]));
  // Bounded by the number of nodes, so that a cycle ends.
  for (let round = 0; round < nodes.length; round += 1) {
    let isChanged = false;
    for (const [from, to] of edges) {
      const least = layer.get(from) + 1;
      if (layer.get(to) < least && least < nodes.length) {
        layer.set(to, least);
        isChanged = true;
      }
    }
    if (!isChanged) break;
  }
  // A source stands right before its first reader, not at the far left.
  const readers = new Map();
  for (const [from, to] of edges) readers.set(from, Math.min(readers.get(from) ?? Infinity, layer.get(to)));
  const hasWriter = new Set(edges.map(([, to]) => to));
  for (const { id } of nodes) if (!hasWriter.has(id) && readers.has(id)) layer.set(id, readers.get(id) - 1);
  const layers = new Map();
  for (const { id } of nodes) layers.set(layer.get(id), [...(layers.get(layer.get(id)) ?? []), id]);
  const order = new Map();
  const numbers = [...layers.keys()].sort((one, other) => one - other);
  for (const ids of layers.values()) ids.forEach((id, index) => order.set(id, index));
  const near = new Map(nodes.map((each) => [each.id, []]));
  for (const [from, to] of edges) {
    near.get(from).push(to);
    near.get(to).push(from);
  }
  for (let round = 0; round < 4; round += 1) {
    for (const number of round % 2 ? [...numbers].reverse() : numbers) {
      const ids = layers.get(number);
      const mean = new Map(ids.map((id) => [id, near.get(id).length ? near.get(id).reduce((sum, each) => sum + order.get(each), 0) / near.get(id).length : order.get(id)]));
      ids.sort((one, other) => mean.get(one) - mean.get(other));
      ids.forEach((id, index) => order.set(id, index));
    }
  }
  const tallest = Math.max(...[...layers.values()].map((each) => each.length));
  const places = new Map();
  numbers.forEach((number, column) => {
    const ids = layers.get(number);
    const offset = ((tallest - ids.length) * (HIGH + GAP_Y)) / 2;
    ids.forEach((id, index) => places.set(id, { x: column * (WIDE + GAP_X), y: offset + index * (HIGH + GAP_Y) }));
  });
  return places;
}

function cut(text, characters) {
  if (text.length <= characters) return text;
  const half = Math.floor((characters - 1) / 2);
  return `${text.slice(0, half)}…${text.slice(-half)}`;
}

customElements.define("hg-graph", Graph);
