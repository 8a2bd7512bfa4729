// DOM: builds elements and morphs one tree into another.

const SVG = "http://www.w3.org/2000/svg";

/** Return an HTML element with attributes and children; a null attribute is left out. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Return an SVG element with attributes and children. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return element;
}

/**
 * Change a tree into another with as few edits as possible, so that scroll positions, open details and focus stay.
 * The content of a custom element is its own; only its attributes change.
 */
export function morph(from, to) {
  attributes(from, to);
  if (from.localName.includes("-")) return;
  let here = from.firstChild;
  for (const next of [...to.childNodes]) {
    const match = matching(here, next);
    if (match === null) {
      from.insertBefore(next, here);
      continue;
    }
    while (here !== match) {
      const gone = here;
      here = here.nextSibling;
      gone.remove();
    }
    here = match.nextSibling;
    if (match.nodeType === Node.ELEMENT_NODE) morph(match, next);
    else if (match.nodeValue !== next.nodeValue) match.nodeValue = next.nodeValue;
  }
  while (here !== null) {
    const gone = here;
    here = here.nextSibling;
    gone.remove();
  }
}

/** Return the first node from `node` on that can become `next`, or null. An id is never given to another element. */
function matching(node, next) {
  for (let each = node, steps = 0; each !== null && steps < 30; each = each.nextSibling, steps += 1) {
    if (each.nodeType !== next.nodeType) continue;
    if (each.nodeType !== Node.ELEMENT_NODE) return each;
    if (each.localName === next.localName && key(each) === key(next)) return each;
  }
  return null;
}

function key(element) {
  return element.id || element.dataset?.key || "";
}

function attributes(from, to) {
  for (const { name } of [...from.attributes]) {
    // What a person opened stays open.
    if (!to.hasAttribute(name) && !(name === "open" && from.localName === "details")) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
}

/** Show a message for some seconds. `tone` is "good" or "bad"; a bad one stays until it is closed. */
export function toast(text, tone = "good") {
  const close = el("button", { type: "button", "aria-label": "Close", onclick: () => note.remove() }, "×");
  const note = el("div", { class: `toast ${tone}` }, el("span", {}, text), close);
  document.getElementById("toasts").append(note);
  if (tone !== "bad") setTimeout(() => note.remove(), 6000);
}
