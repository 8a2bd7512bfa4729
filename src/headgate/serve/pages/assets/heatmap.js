// <hg-heatmap>: one cell a chunk on a canvas, up to 100,000, coloured by state or by duration, with selection.
//
// data-src: address that returns {"states": ["DONE", ...], "ids": [chunk id, ...], "cells": base64 of one state number a
//   chunk, "durations": base64 of one little-endian uint32 of milliseconds a chunk}
// data-version: changes when the cells have changed. data-page: the address below which each chunk has its page.
import { openAction } from "./actions.js";
import { el } from "./dom.js";
import { lasted } from "./gantt.js";

const PAUSE_MS_MAX = 30000;

class Heatmap extends HTMLElement {
  static observedAttributes = ["data-version", "data-src"];

  connectedCallback() {
    this.isByDuration = false;
    this.canvas = el("canvas", { role: "img", tabindex: 0 });
    this.tip = el("div", { class: "tip", hidden: true });
    this.legend = el("ul", { class: "legend" });
    const mode = el("button", { type: "button", class: "copy", onclick: () => ((this.isByDuration = !this.isByDuration), (mode.textContent = this.isByDuration ? "Colour by state" : "Colour by duration"), this.draw()) }, "Colour by duration");
    this.replaceChildren(el("div", { class: "heat-tools" }, this.legend, mode), this.canvas, this.tip);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("pointerdown", (event) => this.begin(event));
    this.canvas.addEventListener("pointerup", (event) => this.end(event));
    this.resizing = new ResizeObserver(() => this.draw());
    this.resizing.observe(this);
    this.load();
  }

  disconnectedCallback() {
    this.resizing?.disconnect();
  }

  attributeChangedCallback(_name, before, after) {
    if (this.isConnected && this.canvas && before !== after) this.load();
  }

  async load() {
    if (this.isLoading) {
      this.isStale = true;
      return;
    }
    this.isLoading = true;
    this.isStale = false;
    const begun = performance.now();
    try {
      const answer = await fetch(this.dataset.src);
      if (answer.ok) {
        const data = await answer.json();
        this.states = data.states;
        this.cells = bytes(data.cells);
        this.durations = new Uint32Array(bytes(data.durations).buffer);
        this.ids = data.ids;
        this.draw();
      }
    } finally {
      // A map that takes long is fetched less often; the counts above it are current all the same.
      setTimeout(() => {
        this.isLoading = false;
        if (this.isStale && this.isConnected) this.load();
      }, Math.min(PAUSE_MS_MAX, 10 * (performance.now() - begun)));
    }
  }

  draw() {
    if (!this.cells) return;
    const width = Math.max(200, this.clientWidth);
    const count = this.cells.length;
    const most = 360;
    // The largest cell with which all of them fit.
    let size = 16;
    while (size > 2 && Math.ceil(count / Math.floor(width / size)) * size > most) size -= 1;
    this.size = size;
    this.columns = Math.floor(width / size);
    const height = Math.ceil(count / this.columns) * size;
    const density = window.devicePixelRatio || 1;
    this.canvas.width = width * density;
    this.canvas.height = Math.max(size, height) * density;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${Math.max(size, height)}px`;
    const context = this.canvas.getContext("2d");
    context.scale(density, density);
    const tones = this.states.map((each) => colour(this, each));
    const slowest = this.isByDuration ? percentile(this.durations, 0.99) : 1;
    const gap = size > 4 ? 1 : 0;
    for (let index = 0; index < count; index += 1) {
      context.fillStyle = this.isByDuration ? heat(this.durations[index] / slowest) : tones[this.cells[index]];
      context.fillRect((index % this.columns) * size, Math.floor(index / this.columns) * size, size - gap, size - gap);
    }
    if (this.range) {
      context.strokeStyle = getComputedStyle(this).getPropertyValue("--text");
      context.lineWidth = 2;
      for (let index = this.range[0]; index <= this.range[1]; index += 1) {
        context.strokeRect((index % this.columns) * size, Math.floor(index / this.columns) * size, size - gap, size - gap);
      }
    }
    const counts = new Array(this.states.length).fill(0);
    for (const each of this.cells) counts[each] += 1;
    const items = this.states.map((each, index) => [each, counts[index], tones[index]]).filter((each) => each[1]);
    this.legend.replaceChildren(...items.map(([name, number]) => el("li", {}, el("span", { class: `key chunk-${name.toLowerCase()}` }), `${name.toLowerCase()} ${number.toLocaleString("en")}`)));
    this.canvas.setAttribute("aria-label", `${count} chunks: ${items.map(([name, number]) => `${number} ${name.toLowerCase()}`).join(", ")}`);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const index = Math.floor((event.clientY - box.top) / this.size) * this.columns + Math.floor((event.clientX - box.left) / this.size);
    return this.cells && index >= 0 && index < this.cells.length ? index : null;
  }

  hover(event) {
    const index = this.at(event);
    if (index === null) {
      this.tip.hidden = true;
      return;
    }
    if (this.begun !== undefined && event.buttons) {
      this.range = [Math.min(this.begun, index), Math.max(this.begun, index)];
      this.draw();
    }
    const duration = this.durations[index] ? `, ${lasted(this.durations[index])}` : "";
    this.tip.textContent = `${this.ids[index]}: ${this.states[this.cells[index]].toLowerCase()}${duration}`;
    this.tip.hidden = false;
    this.tip.style.left = `${Math.min(event.offsetX + 12, this.clientWidth - 220)}px`;
    this.tip.style.top = `${event.offsetY + 40}px`;
  }

  begin(event) {
    this.begun = this.at(event) ?? undefined;
    this.range = null;
  }

  end(event) {
    const index = this.at(event);
    if (this.begun === undefined || index === null) return;
    const [first, last] = [Math.min(this.begun, index), Math.max(this.begun, index)];
    this.begun = undefined;
    this.range = first === last ? null : [first, last];
    this.draw();
    if (first === last) location.href = this.dataset.page + encodeURIComponent(this.ids[first]);
    else this.redrive(this.ids.slice(first, last + 1));
  }

  redrive(ids) {
    const address = this.dataset.src.replace(/\/cells$/, "/redrive");
    openAction({
      method: "POST",
      path: address,
      body: { chunk_ids: ids },
      fields: [{ name: "reason", label: "Reason", kind: "text", value: "", is_required: true, choices: [], hint: "Recorded in the audit log." }],
      title: "Redrive the selection",
      sentence: `Queues those of the ${ids.length.toLocaleString("en")} selected chunks again that have failed.`,
      cli: `headgate fanout redrive ${decodeURIComponent(address.split("/").at(-2))} ${ids.slice(0, 3).join(" ")}${ids.length > 3 ? " …" : ""} --reason {reason}`,
      tone: "primary",
      ifMatch: "",
      done: "The failed chunks of the selection are queued again.",
    });
  }
}

function bytes(text) {
  return Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
}

function colour(element, state) {
  const probe = el("span", { class: `key chunk-${state.toLowerCase()}` });
  element.append(probe);
  const found = getComputedStyle(probe).backgroundColor;
  probe.remove();
  return found;
}

function percentile(values, share) {
  const sorted = Uint32Array.from(values).sort();
  return Math.max(1, sorted[Math.floor(share * (sorted.length - 1))]);
}

function heat(share) {
  const level = Math.min(1, share);
  return level === 0 ? "rgba(128,128,128,0.25)" : `hsl(${220 - 220 * level} 75% 50%)`;
}

customElements.define("hg-heatmap", Heatmap);
