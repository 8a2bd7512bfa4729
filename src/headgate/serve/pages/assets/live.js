// Live pages: refetches the page content when the server reports a change.
import { el, morph } from "./dom.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const address = document.body.dataset.changes;
const AGES_MS = 30000; // refresh interval of relative times
let source = null;
let isFetching = false;
let isAskedAgain = false;

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

/** Fetch the page again and show what has changed. */
export async function refresh() {
  if (isFetching || isBusy()) {
    isAskedAgain = true;
    return;
  }
  isFetching = true;
  isAskedAgain = false;
  try {
    const answer = await fetch(location.href, { headers: { "headgate-fragment": "main" } });
    const text = await answer.text();
    if (answer.status === 401) location.reload();
    else if (answer.ok && !isBusy()) {
      const next = el("main", { id: "main" });
      next.append(document.createRange().createContextualFragment(text));
      morph(main, next);
      document.dispatchEvent(new CustomEvent("headgate:refreshed"));
    }
  } catch {
    // The event stream reports the outage and reconnects.
  } finally {
    isFetching = false;
  }
}

function follow() {
  source = new EventSource(address);
  source.addEventListener("ready", () => {
    say("on", "live");
    refresh();
  });
  source.addEventListener("changed", refresh);
  source.addEventListener("error", () => {
    say("off", "not live: reconnecting");
    // A refusal closes the stream for good; after a server restart the browser reconnects.
    if (source.readyState === EventSource.CLOSED) setTimeout(restart, 5000);
  });
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
    if (!document.hidden && source) refresh();
  }, AGES_MS);
  setInterval(() => {
    if (isAskedAgain) refresh();
  }, 1000);
  restart();
}
