// The live view: rows from a stream of server-sent events, in a ring of 500.

const ROWS_MAX = 500;
const RESUMED_WITHIN_MS = 15 * 60 * 1000;
const list = document.querySelector("#live-rows");
const state = document.querySelector("#live-state");
const pauseButton = document.querySelector("#pause");
let source = null;
let paused = false;
let shown = 0;
let skipped = 0;
let usedAt = Date.now();

function say(text) {
  state.textContent = text;
}

function tell() {
  const count = (number) => number.toLocaleString("en");
  say(`${paused ? "paused" : "live"} · ${count(shown)} shown` + (skipped ? ` · ${count(skipped)} skipped` : ""));
}

function cell(row, label, text, name = "td") {
  const made = document.createElement(name);
  if (label) made.dataset.label = label;
  made.textContent = text;
  row.append(made);
  return made;
}

function rowOf(message) {
  const row = document.createElement("tr");
  row.className = "live-row";
  const time = document.createElement("time");
  time.dateTime = message.at;
  time.textContent = message.at;
  cell(row, "Stored", "").append(time);
  const head = cell(row, "", "", "th");
  head.scope = "row";
  const link = document.createElement("a");
  link.href = message.href;
  link.dataset.dialog = "";
  link.textContent = message.place;
  head.append(link);
  cell(row, "Keys", message.keys).className = "keys";
  cell(row, "Tag", message.tag);
  cell(row, "Size", message.size).className = "number";
  cell(row, "", message.text).className = "preview mono";
  return row;
}

function take(event) {
  const news = JSON.parse(event.data);
  shown += news.rows.length;
  skipped += news.skipped;
  const rows = document.createDocumentFragment();
  for (const message of news.rows.reverse()) rows.append(rowOf(message));
  list.prepend(rows);
  while (list.rows.length > ROWS_MAX) list.deleteRow(-1);
  showTimes(list);
  tell();
}

function open() {
  if (source || paused || document.hidden) return;
  source = new EventSource(list.dataset.stream);
  source.addEventListener("message", take);
  source.addEventListener("rest", () => {
    close();
    if (Date.now() - usedAt < RESUMED_WITHIN_MS) open();
    else pause("paused after 15 minutes without a sign of life");
  });
  source.addEventListener("trouble", (event) => pause(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    if (source?.readyState === EventSource.CLOSED) pause("the console refused the stream: too many live views, or no login");
    else say("the connection was lost; trying again");
  });
  tell();
}

function close() {
  source?.close();
  source = null;
}

function pause(reason) {
  paused = true;
  close();
  pauseButton.textContent = "Resume";
  if (reason) say(reason);
  else tell();
}

pauseButton.addEventListener("click", () => {
  if (!paused) return pause();
  paused = false;
  pauseButton.textContent = "Pause";
  open();
});
document.querySelector("#clear").addEventListener("click", () => {
  list.replaceChildren();
  shown = skipped = 0;
  tell();
});
document.querySelector("#speak").addEventListener("change", (event) => {
  list.setAttribute("aria-live", event.target.checked ? "polite" : "off");
});
// A browser has six connections to a host, so a hidden tab lets go of its own.
document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, () => (usedAt = Date.now()));
open();
