// Live pages: refetches the page content when the server reports a change.
import { el, morph } from "./dom.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const address = document.body.dataset.changes;
const PASSING_MS = 30000; // refresh interval of what changes with time alone
let source = null;
let isFetching = false;
let isAskedAgain = false;
// The position in the server's change feed that the page has to show, and the digest of what it shows.
let asOf = "";
let digest = "";
let isOwnChange = false;

function say(word, text) {
  live.className = "live " + word;
  live.textContent = text;
}

function isBusy() {
  // Do not refresh while the user selects text, edits a form or drags.
  const marked = document.getSelection();
  const field = document.activeElement;
  const isEditing = field && main.contains(field) && /^(INPUT|SELECT|TEXTAREA)$/.test(field.tagName);
  return (marked && !marked.isCollapsed && main.contains(marked.anchorNode)) || isEditing;
}

/** Fetch the page again, rendered now, and show what has changed. For changes that this page itself has made. */
export function refresh() {
  isOwnChange = true;
  return refetch();
}

/** Fetch the page again as of the last change that the server reported, and show what has changed. */
async function refetch() {
  if (isFetching || isBusy()) {
    isAskedAgain = true;
    return;
  }
  isFetching = true;
  isAskedAgain = false;
  try {
    const headers = { "headgate-fragment": "main" };
    if (asOf && !isOwnChange) headers["headgate-as-of"] = asOf;
    if (digest) headers["if-none-match"] = digest;
    isOwnChange = false;
    const answer = await fetch(location.href, { headers });
    const text = await answer.text();
    if (answer.status === 401 && document.querySelector("dialog[open]")) isAskedAgain = true;
    else if (answer.status === 401) location.reload();
    // What the page showed was deleted: lead to the list that had it.
    else if (answer.status === 404) location.href = document.querySelector(".crumbs a:last-of-type")?.href ?? "/ui";
    else if (answer.status === 304) document.dispatchEvent(new CustomEvent("headgate:unchanged", { detail: answer.headers.get("date") }));
    // Refused because the server is busy. The request is cheap, and not all pages repeat it at once.
    else if (answer.status === 503 || answer.status === 429) setTimeout(refetch, 300 + 400 * Math.random());
    else if (answer.ok && isBusy()) isAskedAgain = true;
    else if (answer.ok) {
      const next = el("main", { id: "main" });
      next.append(document.createRange().createContextualFragment(text));
      const counts = next.querySelector("template[data-counts]");
      if (counts) showCounts(JSON.parse(counts.dataset.counts));
      counts?.remove();
      morph(main, next);
      digest = answer.headers.get("etag") ?? "";
      document.dispatchEvent(new CustomEvent("headgate:refreshed"));
    }
  } catch {
    // The event stream reports the outage and reconnects.
  } finally {
    isFetching = false;
  }
}

/** Show in the rail how much needs someone, by page. */
function showCounts(counts) {
  for (const link of document.querySelectorAll(".rail a[data-nav]")) {
    const shown = link.querySelector(".count");
    const count = counts[link.dataset.nav];
    if (shown && count && shown.title === count.about) continue;
    shown?.remove();
    if (!count) continue;
    const text = [el("span", { "aria-hidden": "true" }, count.text), el("span", { class: "hidden" }, count.about)];
    link.append(el("span", { class: "count", title: count.about }, ...text));
  }
}

function follow() {
  source = new EventSource(address);
  source.addEventListener("ready", (message) => {
    say("on", "live");
    catchUp(message);
  });
  source.addEventListener("changed", catchUp);
  source.addEventListener("error", () => {
    say("off", "not live: reconnecting");
    // A refusal closes the stream for good; after a server restart the browser reconnects. Not all pages at once.
    if (source.readyState === EventSource.CLOSED) setTimeout(restart, 3000 + 4000 * Math.random());
  });
}

function catchUp(message) {
  asOf = JSON.parse(message.data).as_of;
  refetch();
}

function restart() {
  if (source) source.close();
  source = null;
  // A hidden tab closes its connection: browsers allow few per server.
  if (!document.hidden) follow();
}

if (address) {
  document.addEventListener("visibilitychange", restart);
  setInterval(() => {
    if (!document.hidden && source) refetch();
  }, PASSING_MS);
  setInterval(() => {
    if (isAskedAgain) refetch();
  }, 1000);
  restart();
}
