// <hg-log>: the output of a job, followed while it runs, with search, wrapping, download and terminal colours.
//
// data-src: address that returns {"text", "next_offset", "is_complete"} for `?offset=N`.
import { el } from "./dom.js";

const POLL_MS = 1000;
const LINES_MAX = 20000;
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

class Log extends HTMLElement {
  connectedCallback() {
    if (this.lines) return;
    this.offset = 0;
    this.rest = "";
    this.lines = el("pre", { class: "log", tabindex: 0 });
    this.state = el("span", { class: "dim", role: "status" });
    const search = el("input", { type: "search", placeholder: "Find in the log", "aria-label": "Find in the log", oninput: () => this.find(search.value) });
    const wrap = el("button", { type: "button", class: "copy", "aria-pressed": "true", onclick: () => wrap.setAttribute("aria-pressed", String(!this.lines.classList.toggle("unwrapped"))) }, "Wrap");
    this.follow = el("button", { type: "button", class: "copy", "aria-pressed": "true", onclick: () => this.follow.setAttribute("aria-pressed", String(this.follow.getAttribute("aria-pressed") !== "true")) }, "Follow");
    const load = el("a", { href: `${this.dataset.src}${this.dataset.src.includes("?") ? "&" : "?"}download=true`, download: "job.log" }, "Download");
    this.replaceChildren(el("div", { class: "log-tools" }, search, this.follow, wrap, load, this.state), this.lines);
    this.isOn = true;
    this.read();
  }

  disconnectedCallback() {
    this.isOn = false;
  }

  async read() {
    let isComplete = false;
    try {
      const answer = await fetch(`${this.dataset.src}${this.dataset.src.includes("?") ? "&" : "?"}offset=${this.offset}`);
      const found = await answer.json();
      if (!answer.ok) {
        this.state.textContent = found.detail ?? "The log cannot be read.";
        isComplete = answer.status === 404;
      } else {
        const isMore = found.next_offset > this.offset;
        this.offset = found.next_offset;
        this.append(found.text);
        isComplete = found.is_complete && !isMore;
        this.state.textContent = isComplete ? (this.lines.childElementCount ? "complete" : "The job wrote nothing.") : "following";
        if (isMore && this.isOn) {
          setTimeout(() => this.read(), 20);
          return;
        }
      }
    } catch {
      this.state.textContent = "The server does not answer; trying again.";
    }
    if (!isComplete && this.isOn) setTimeout(() => this.read(), POLL_MS);
  }

  append(text) {
    const parts = (this.rest + text).split("\n");
    this.rest = parts.pop();
    for (const part of parts) this.lines.append(el("span", { class: "log-line" }, ...coloured(part), "\n"));
    while (this.lines.childElementCount > LINES_MAX) this.lines.firstElementChild.remove();
    if (parts.length && this.follow.getAttribute("aria-pressed") === "true") this.lines.scrollTop = this.lines.scrollHeight;
    if (this.wanted) this.find(this.wanted);
  }

  find(text) {
    this.wanted = text.toLowerCase();
    let count = 0;
    for (const line of this.lines.children) {
      const isMatch = this.wanted !== "" && line.textContent.toLowerCase().includes(this.wanted);
      line.classList.toggle("match", isMatch);
      count += isMatch;
      if (isMatch && count === 1) line.scrollIntoView({ block: "nearest" });
    }
    this.state.textContent = this.wanted ? `${count} lines match` : "";
  }
}

/** Return a line as spans by its terminal colours; other control sequences are dropped. */
function coloured(line) {
  const parts = [];
  let names = [];
  for (const piece of line.split(/(\u001b\[[0-9;]*[A-Za-z])/)) {
    const code = /^\u001b\[([0-9;]*)m$/.exec(piece);
    if (code) {
      for (const each of code[1].split(";").map(Number)) {
        if (each === 0) names = [];
        else if (each === 1) names = [...names, "bold"];
        else if ((each >= 30 && each < 38) || (each >= 90 && each < 98)) names = [...names.filter((name) => name === "bold"), `ansi-${COLOURS[each % 10]}`];
        else if (each === 39) names = names.filter((name) => name === "bold");
      }
    } else if (piece && !piece.startsWith("\u001b[")) {
      parts.push(names.length ? el("span", { class: names.join(" ") }, piece) : piece);
    }
  }
  return parts;
}

customElements.define("hg-log", Log);
