// Times: shows every absolute time in the chosen zone, with the zone's name, and keeps relative times current.

const KEY = "headgate.zone";
const select = document.querySelector("select[data-zone]");
const own = Intl.DateTimeFormat().resolvedOptions().timeZone;

function zone() {
  try {
    return localStorage.getItem(KEY) || "UTC";
  } catch {
    return "UTC";
  }
}

function formatter(options) {
  return new Intl.DateTimeFormat("en-GB", { timeZone: zone(), hourCycle: "h23", ...options });
}

/** Return a time as date, time and zone. */
export function stamp(at) {
  return parts(at, { second: "2-digit" });
}

/** Return the time of day and the zone, with the date unless it is today. */
export function clock(at) {
  const day = { year: "numeric", month: "2-digit", day: "2-digit" };
  const isToday = formatter(day).format(new Date(at)) === formatter(day).format(new Date());
  return isToday ? `${formatter({ hour: "2-digit", minute: "2-digit" }).format(new Date(at))} ${label(at)}` : parts(at);
}

function parts(at, more = {}) {
  const day = formatter({ year: "numeric", month: "2-digit", day: "2-digit" }).formatToParts(new Date(at));
  const get = (type) => day.find((each) => each.type === type).value;
  const time = formatter({ hour: "2-digit", minute: "2-digit", ...more }).format(new Date(at));
  return `${get("year")}-${get("month")}-${get("day")} ${time} ${label(at)}`;
}

function label(at) {
  if (zone() === "UTC") return "UTC";
  const named = formatter({ timeZoneName: "short" }).formatToParts(new Date(at));
  return named.find((each) => each.type === "timeZoneName").value;
}

function span(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 && days < 10 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** Return a time relative to a time of the server, in the words of the server. */
export function ago(at, nowMs) {
  const seconds = (nowMs - Date.parse(at)) / 1000;
  if (seconds < 0) return `in ${span(-seconds)}`;
  return seconds < 5 ? "just now" : `${span(seconds)} ago`;
}

// The clock of this machine may be wrong: ages are counted from the server's.
let serverMs = null;
let ownMs = 0;

function setServerTime() {
  const rendered = document.querySelector("time.rendered");
  serverMs = rendered ? Date.parse(rendered.getAttribute("datetime")) : null;
  ownMs = performance.now();
}

function showAges() {
  if (serverMs === null) return;
  const nowMs = serverMs + performance.now() - ownMs;
  for (const each of document.querySelectorAll("#main time[datetime]:not(.stamp, .moment)")) {
    const at = each.getAttribute("datetime");
    const text = each.firstChild;
    if (Number.isNaN(Date.parse(at)) || text?.nodeType !== Node.TEXT_NODE) continue;
    const age = ago(at, nowMs) + (each.querySelector(".clock") ? " " : "");
    if (text.nodeValue !== age) text.nodeValue = age;
  }
}

function show() {
  for (const each of document.querySelectorAll("time[datetime]")) {
    const at = each.getAttribute("datetime");
    if (Number.isNaN(Date.parse(at))) continue;
    each.title = stamp(at);
    const short = each.querySelector(".clock");
    if (short) short.textContent = clock(at);
    if (each.classList.contains("stamp")) each.textContent = stamp(at);
  }
}

if (select) {
  const names = [...new Set(["UTC", own, zone()])];
  select.replaceChildren(...names.map((each) => new Option(each, each, false, each === zone())));
  select.closest("label").hidden = names.length < 2;
  select.addEventListener("change", () => {
    localStorage.setItem(KEY, select.value);
    show();
    document.dispatchEvent(new CustomEvent("headgate:zone"));
  });
}
document.addEventListener("headgate:refreshed", () => {
  setServerTime();
  show();
});
document.addEventListener("headgate:unchanged", ({ detail }) => {
  for (const each of document.querySelectorAll("time.rendered")) each.setAttribute("datetime", new Date(detail).toISOString());
  setServerTime();
  show();
  showAges();
});
setInterval(showAges, 5000);
setServerTime();
show();
