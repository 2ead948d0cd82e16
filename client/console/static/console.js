// The page works without this script; it adds local times, refreshing, keys, and the detail in a dialog.

const REFRESH_MS = 3000;
const $ = (selector, root = document) => root.querySelector(selector);
const main = $("#main");
const dialog = $("#dialog");

// ---- htmx: no page needs it before a person does something, so it is loaded after the page is drawn

const later = document.currentScript.dataset.later.split(" ");
const own = (url) => {
  if (!url.startsWith("/static/vendor/")) throw new TypeError(`${url} is no script of the console`);
  return url;
};
const policy = window.trustedTypes?.createPolicy("flintmq", { createScriptURL: own }) ?? { createScriptURL: own };
let loading = null;

function loadScript(url) {
  return new Promise((loaded, failed) => {
    const script = document.createElement("script");
    script.addEventListener("load", loaded);
    script.addEventListener("error", () => failed(new Error(`${url} cannot be loaded`)));
    script.src = policy.createScriptURL(url);
    document.head.append(script);
  });
}

async function loadHtmx() {
  for (const url of later) await loadScript(url);
}

const withHtmx = () => (loading ??= loadHtmx().catch((error) => {
  loading = null; // the next use tries again
  throw error;
}));
addEventListener("load", () => setTimeout(withHtmx));

// ---- times: the server writes UTC, the browser shows its own zone

const pad = (number, digits = 2) => String(number).padStart(digits, "0");

function showTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]:not([title])")) {
    const at = new Date(element.dateTime);
    element.title = element.textContent;
    element.textContent =
      `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ` +
      `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
  }
}

// ---- theme: in a cookie, so that the page arrives in it and no script must run before the first paint

const themes = ["system", "light", "dark"];
const themeButton = $("#theme");

const theme = () => document.documentElement.dataset.theme ?? "system";
const showTheme = () => (themeButton.textContent = `Theme: ${theme()}`);

themeButton.hidden = false;
themeButton.addEventListener("click", () => {
  const next = themes[(themes.indexOf(theme()) + 1) % themes.length];
  const terms = `path=/; samesite=strict${location.protocol === "https:" ? "; secure" : ""}`;
  if (next === "system") {
    delete document.documentElement.dataset.theme;
    document.cookie = `flintmq_theme=; max-age=0; ${terms}`;
  } else {
    document.documentElement.dataset.theme = next;
    document.cookie = `flintmq_theme=${next}; max-age=31536000; ${terms}`;
  }
  showTheme();
});
showTheme();

// ---- refreshing: the whole page is requested again and morphed, so focus, selection and scroll position stay

const live = $("#live");
let refreshing = false;

async function refresh() {
  const busy = refreshing || document.hidden || dialog.open || main.querySelector("form :focus, details[open] form");
  if (!live?.checked || busy) return;
  refreshing = true;
  try {
    await withHtmx();
    await htmx.ajax("GET", location.href, { target: "#main", select: "#main", swap: "outerMorph" });
  } finally {
    refreshing = false;
  }
}

if (live) {
  live.closest(".live").hidden = false;
  live.checked = sessionStorage.getItem("live") === "on";
  live.addEventListener("change", () => sessionStorage.setItem("live", live.checked ? "on" : "off"));
  setInterval(refresh, REFRESH_MS);
}
document.addEventListener("htmx:after:swap", () => showTimes(document));

// ---- details in a dialog; without this script the link opens a page

let opener = null;

async function openDetail(link) {
  opener = link;
  await withHtmx();
  await htmx.ajax("GET", link.href, { target: "#dialog", select: "#detail", swap: "innerHTML" });
  showTimes(dialog);
  if (!dialog.open) dialog.showModal();
  $("h1, h2", dialog)?.setAttribute("id", "dialog-title");
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-dialog]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
    event.preventDefault();
    openDetail(link);
  }
  if (event.target.closest("[data-close]")) dialog.close();
  const copied = event.target.closest("[data-copy]");
  if (copied) copy(copied);
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});
dialog.addEventListener("close", () => {
  if (dialog.open) return; // opened again before this event came
  dialog.replaceChildren();
  if (opener?.isConnected) opener.focus();
});

async function copy(button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
  } catch {
    button.textContent = "not allowed by the browser";
  }
  setTimeout(() => (button.textContent = before), 1500);
}

// ---- a filter is checked by the broker's own parser while a person types it

const CHECK_MS = 300;
let checking = 0;

async function checkFilter(input) {
  const url = `${input.dataset.check}?check=1&filter=${encodeURIComponent(input.value)}`;
  const asked = ++checking;
  const response = await fetch(url).catch(() => null);
  // An older response may arrive after a newer one. A redirect is a login.
  if (!response?.ok || response.redirected || asked !== checking) return;
  const wrong = await response.json();
  if (asked !== checking) return;
  const place = $("#filter-check");
  place.replaceChildren();
  if (wrong.error) {
    const note = document.createElement("div");
    note.className = "note bad";
    note.append(element("strong", "✕ The filter is not valid."), ` ${wrong.error}`);
    if (wrong.column) note.append(element("pre", `${wrong.filter}\n${" ".repeat(wrong.column - 1)}^`));
    place.append(note);
    input.setAttribute("aria-invalid", "true");
  } else input.removeAttribute("aria-invalid");
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

let typedAt = 0;
document.addEventListener("input", (event) => {
  if (!event.target.matches("[data-check]")) return;
  clearTimeout(typedAt);
  typedAt = setTimeout(checkFilter, CHECK_MS, event.target);
});

// ---- keys; a person can switch them off, because single letters collide with speech input

const places = { o: "/", t: "/topics", g: "/groups", d: "/dlq", w: "/waiting", s: "/store", c: "/clients", u: "/users" };
let awaitsPlace = false;
const keysOn = () => localStorage.getItem("keys") !== "off";

function step(by) {
  const rows = [...main.querySelectorAll("tbody tr")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))];
  next.querySelector("a, button, input")?.focus();
}

function showHelp() {
  const title = document.createElement("h2");
  title.id = "dialog-title";
  title.textContent = "Keys";
  const table = document.createElement("table");
  const rows = [
    ["/", "search"], ["g then o t g d w s c u", "Overview, Topics, Groups, Dead letters, Waiting, Store, Clients, Users"],
    ["j k", "next and previous row"], ["Enter", "open the row"], ["[ ]", "previous and next message in a detail"],
    ["p", "pause or resume the live view"], ["l", "refresh on or off"], ["Esc", "close"], ["?", "this list"],
  ];
  for (const [keys, meaning] of rows) {
    const row = table.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = keys;
    row.append(head);
    row.insertCell().textContent = meaning;
  }
  const off = document.createElement("label");
  off.className = "check";
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = keysOn();
  box.addEventListener("change", () => localStorage.setItem("keys", box.checked ? "on" : "off"));
  off.append(box, "use these keys");
  const close = document.createElement("button");
  close.dataset.close = "";
  close.textContent = "Close";
  dialog.replaceChildren(title, table, off, document.createElement("br"), close);
  opener = $("#help");
  dialog.showModal();
}

$("footer .keys").hidden = false;
$("#help").addEventListener("click", showHelp);
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=checkbox]), textarea, select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !keysOn()) return;
  if (awaitsPlace) {
    awaitsPlace = false;
    if (places[event.key]) location.href = places[event.key];
    return;
  }
  const actions = {
    "/": () => $("#search").focus(),
    g: () => (awaitsPlace = true),
    j: () => step(1),
    k: () => step(-1),
    l: () => live?.click(),
    p: () => $("#pause")?.click(),
    "?": showHelp,
    "[": () => $("[rel=prev]", dialog.open ? dialog : main)?.click(),
    "]": () => $("[rel=next]", dialog.open ? dialog : main)?.click(),
  };
  if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
});

showTimes(document);
