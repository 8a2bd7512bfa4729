// Live pages: refetches the page content when the server reports a change.
// Without this script pages work by reloading.
"use strict";

(() => {
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

  function showButtons() {
    for (const button of main.querySelectorAll("button.copy")) button.hidden = !navigator.clipboard;
  }

  function isBusy() {
    // Do not refresh while the user selects text or edits a form.
    const marked = document.getSelection();
    const field = document.activeElement;
    return (marked && !marked.isCollapsed) || (field && main.contains(field) && /^(INPUT|SELECT)$/.test(field.tagName));
  }

  async function refresh() {
    if (isFetching || isBusy()) {
      isAskedAgain = true;
      return;
    }
    isFetching = true;
    isAskedAgain = false;
    try {
      const answer = await fetch(location.href, { headers: { "headgate-fragment": "main" } });
      const text = await answer.text();
      if (answer.ok && !isBusy()) {
        const open = [...main.querySelectorAll("details[open]")].map((each) => each.id);
        main.innerHTML = text;
        for (const id of open) document.getElementById(id)?.setAttribute("open", "");
        showButtons();
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

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });

  showButtons();
  if (!address) return;
  document.addEventListener("visibilitychange", restart);
  setInterval(() => {
    if (!document.hidden && source) refresh();
  }, AGES_MS);
  setInterval(() => {
    if (isAskedAgain) refresh();
  }, 1000);
  restart();
})();
