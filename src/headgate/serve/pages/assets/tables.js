// Tables: copy buttons, sorting by a column, and moving between rows with the keyboard.

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) {
    await navigator.clipboard.writeText(button.dataset.copy);
    const text = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = text), 1500);
    return;
  }
  const head = event.target.closest("table[data-sortable] thead th");
  if (head) sort(head);
});

function sort(head) {
  const table = head.closest("table");
  const column = [...head.parentNode.children].indexOf(head);
  const isDown = head.getAttribute("aria-sort") === "ascending";
  for (const each of head.parentNode.children) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
  const body = table.tBodies[0];
  const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const rows = [...body.rows].sort((one, other) => value(one).localeCompare(value(other), "en", { numeric: true }));
  body.append(...(isDown ? rows.reverse() : rows));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !/^[jk]$/.test(event.key)) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "")) return;
  if (document.querySelector("dialog[open]")) return;
  const links = [...document.querySelectorAll("main tbody tr a[data-row], main .card a[data-row]")];
  if (!links.length) return;
  const index = links.indexOf(document.activeElement);
  const next = links[Math.min(links.length - 1, Math.max(0, index + (event.key === "j" ? 1 : -1)))];
  next.focus();
});
