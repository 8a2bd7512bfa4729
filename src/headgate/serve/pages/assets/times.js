// Times: shows every absolute time in the chosen zone, with the zone's name.

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
document.addEventListener("headgate:refreshed", show);
show();
