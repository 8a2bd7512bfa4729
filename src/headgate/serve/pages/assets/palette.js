// Palette: Ctrl-K opens a search over pages, pipelines, datasets, incidents, runs, executions and fan-outs.
import { el } from "./dom.js";

const dialog = document.getElementById("palette");
const button = document.querySelector("[data-palette]");
let asked = 0;

function open() {
  const list = el("ul", { role: "listbox", id: "palette-list" });
  const input = el("input", { type: "search", placeholder: "A name or an id", "aria-label": "Search", "aria-controls": "palette-list", autocomplete: "off", spellcheck: "false" });
  input.addEventListener("input", () => search(input.value, list));
  input.addEventListener("keydown", (event) => {
    const links = [...list.querySelectorAll("a")];
    const index = links.findIndex((each) => each.getAttribute("aria-selected") === "true");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const next = links[(index + (event.key === "ArrowDown" ? 1 : links.length - 1) + links.length) % Math.max(1, links.length)];
      for (const each of links) each.removeAttribute("aria-selected");
      next?.setAttribute("aria-selected", "true");
      next?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter") {
      event.preventDefault();
      (links[index] ?? links[0])?.click();
    }
  });
  dialog.replaceChildren(input, list);
  dialog.showModal();
  input.focus();
  search("", list);
}

async function search(text, list) {
  const number = (asked += 1);
  const answer = await fetch(`/ui/search?${new URLSearchParams({ q: text })}`, { headers: { accept: "application/json" } });
  // A later question may have been answered already.
  if (number !== asked || !answer.ok) return;
  const found = await answer.json();
  list.replaceChildren(
    ...found.items.map((each, index) =>
      el("li", {}, el("a", { href: each.href, role: "option", "aria-selected": index === 0 ? "true" : null }, el("span", { class: "kind" }, each.kind), " ", each.label, each.note ? el("span", { class: "dim" }, ` ${each.note}`) : null)),
    ),
    ...(found.items.length ? [] : [el("li", { class: "dim" }, "Nothing has this name.")]),
  );
}

dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (!dialog.open) open();
  }
});
if (button) {
  button.hidden = false;
  button.addEventListener("click", open);
}
