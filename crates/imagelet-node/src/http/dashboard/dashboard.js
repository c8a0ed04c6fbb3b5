// Follows the pulls by server-sent events, and replaces sections of the page by their next state.
"use strict";

const REFRESH_MS = 15000;
const DONE_MS = 5000;
const UNSEEN_MS = 5000;
// The running pulls are reported at once when the stream opens.
const FIRST_MS = 1000;

function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (number >= 999.5 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  const places = unit === 0 || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
  const text = number.toFixed(places);
  return (places ? text.replace(/\.?0+$/, "") : text) + units[unit];
}

function duration(milliseconds) {
  const seconds = Math.ceil(milliseconds / 1000);
  if (seconds < 60) return seconds + "s";
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? minutes + "m" + (seconds % 60) + "s" : Math.floor(minutes / 60) + "h" + (minutes % 60) + "m";
}

function phase(pull) {
  if (pull.failure) return pull.phase + ": " + pull.failure;
  return standing(pull) + (pull.retry ? ", " + retry(pull.retry) : "");
}

function retry({ host, requested, remainingMs }) {
  return host + (requested ? " limits requests" : " failed") + ", next try in " + Math.ceil(remainingMs / 1000) + " s";
}

function standing(pull) {
  if (pull.bytesTotal) return bytes(pull.bytesReceived) + " of " + bytes(pull.bytesTotal);
  return pull.position ? pull.phase + ", place " + pull.position : pull.phase;
}

function cell(row, label) {
  let found = Array.from(row.cells).find((cell) => cell.dataset.label === label);
  if (!found) {
    found = row.insertCell();
    found.dataset.label = label;
    if (label === "Rate" || label === "Left") found.className = "number";
    if (label === "Progress") {
      const bar = document.createElement("progress");
      bar.setAttribute("aria-label", "Progress");
      const text = document.createElement("span");
      text.className = "phase";
      found.append(bar, " ", text);
    }
  }
  return found;
}

function showPull(pull) {
  const table = document.getElementById("pull-rows");
  if (!table) return;
  const key = pull.pull ? String(pull.pull) : pull.image;
  const rows = Array.from(table.tBodies[0].rows);
  // A pull that waited runs under its number.
  if (pull.pull) rows.filter((row) => row.dataset.key === pull.image).forEach((row) => row.remove());
  let row = rows.find((row) => row.dataset.key === key);
  if (!row) {
    row = table.tBodies[0].insertRow();
    row.dataset.key = key;
  }
  cell(row, "Image").textContent = pull.image;
  const bar = cell(row, "Progress").querySelector("progress");
  if (pull.bytesTotal) {
    bar.max = pull.bytesTotal;
    bar.value = pull.bytesReceived;
  } else {
    bar.removeAttribute("value");
  }
  row.querySelector(".phase").textContent = phase(pull);
  cell(row, "Rate").textContent = pull.bytesPerSecond ? bytes(pull.bytesPerSecond) + "/s" : "";
  cell(row, "Left").textContent = pull.remainingMs ? duration(pull.remainingMs) : "";
  cell(row, "Pod").textContent = pull.pod ? pull.namespace + "/" + pull.pod : "";
  row.dataset.phase = pull.phase;
  row.dataset.seen = Date.now();
  if (["done", "failed", "given-up"].includes(pull.phase)) {
    bar.remove();
    row.querySelector(".phase").textContent = phase(pull).replace(/^.* of /, "");
    if (pull.phase === "done") row.querySelector(".phase").textContent = "done";
    setTimeout(() => { row.remove(); showTable(); }, DONE_MS);
  }
  showTable();
}

// While the stream is open, each running or waiting pull is reported once a second: a row without a report has ended.
function removeUnseen(openSince) {
  const since = Date.now() - UNSEEN_MS;
  if (!openSince || openSince > since) return;
  const rows = document.querySelectorAll("#pull-rows tbody tr");
  rows.forEach((row) => { if (Number(row.dataset.seen || 0) < since) row.remove(); });
  showTable();
}

function showTable() {
  const table = document.getElementById("pull-rows");
  const none = document.getElementById("no-pulls");
  if (!table || !none) return;
  table.hidden = table.tBodies[0].rows.length === 0;
  none.hidden = !table.hidden;
}

function follow() {
  const events = new EventSource("/api/v1/events");
  const status = document.getElementById("live");
  let openSince = 0;
  events.addEventListener("progress", (message) => showPull(JSON.parse(message.data)));
  events.addEventListener("open", () => {
    status.textContent = "live";
    openSince = Date.now();
    setTimeout(showTable, FIRST_MS);
  });
  events.addEventListener("error", () => { status.textContent = "reconnecting"; openSince = 0; });
  setInterval(() => removeUnseen(openSince), 1000);
}

// A section with the focus stays until the reader leaves it, and an open list stays open; pulls come by events.
function replace(fresh) {
  for (const next of fresh.querySelectorAll("section[data-refresh]")) {
    const now = document.getElementById(next.id);
    if (!now || now.id === "pulls" || now.contains(document.activeElement)) continue;
    if (now.querySelector("details[open]") && !next.querySelector("details[open]")) {
      next.querySelector("details")?.setAttribute("open", "");
    }
    if (now.innerHTML !== next.innerHTML) now.innerHTML = next.innerHTML;
    now.hidden = next.hidden;
  }
}

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.status === 401) location.reload();
    if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch {
    document.getElementById("live").textContent = "the daemon does not answer";
  }
}

if (document.getElementById("pull-rows")) {
  follow();
  setInterval(refresh, REFRESH_MS);
}
