// Small conveniences of every page; all of it works without them.
"use strict";

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

// An open menu closes when one turns to something else.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && document.querySelector("details.menu[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});

// A hidden tab asks for nothing.
document.addEventListener("htmx:beforeRequest", (event) => {
  const polls = (event.detail.elt.getAttribute("hx-trigger") || "").startsWith("every");
  if (polls && document.hidden) event.preventDefault();
});

// The validation errors of a form come with status 422 and are shown like any other page.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status === 422) event.detail.shouldSwap = true;
});

// Marks what differs from the attempt before, or from the preset, while one types. The server does the same.
const typed = (input) => (input.type === "checkbox" ? (input.checked ? "on" : "") : input.value.trim());
const differs = (input) => {
  const [now, old] = [typed(input), input.dataset.old];
  if (now === old) return false;
  return now === "" || old === "" || Number.isNaN(Number(now)) || Number(now) !== Number(old);
};

function compare(form) {
  const table = document.getElementById("differences");
  if (!table) return;
  // A checkbox is "on" or "" to the form, and a word to people.
  const shown = (input, value) => (input.type === "checkbox" ? table.dataset[value ? "on" : "off"] : value || "—");
  const rows = [];
  for (const input of form.querySelectorAll("[data-old]")) {
    const field = input.closest(".field");
    const changed = differs(input);
    field.classList.toggle("changed", changed);
    const before = field.querySelector(".old-value");
    if (before) before.hidden = !changed;
    if (!changed) continue;
    const row = document.createElement("tr");
    row.className = "changed";
    const title = field.querySelector("label");
    for (const [tag, text] of [["th", title.textContent.trim()], ["td", shown(input, input.dataset.old)], ["td", shown(input, typed(input))]]) {
      const cell = document.createElement(tag);
      cell.textContent = text;
      if (tag === "td") cell.className = "number";
      row.append(cell);
    }
    rows.push(row);
  }
  table.tBodies[0].replaceChildren(...rows);
  table.hidden = rows.length === 0;
  document.getElementById("no-difference").hidden = rows.length > 0;
}

const compareAll = () => document.querySelectorAll("form[data-compare]").forEach(compare);
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-compare]");
  if (form) compare(form);
});
for (const name of ["htmx:afterSettle", "morphed"]) document.addEventListener(name, compareAll);
compareAll();

// A setting that does nothing with the mode, optimizer or source that is chosen is out of the way, unless it was changed.
function hideUnused(form) {
  for (const field of form.querySelectorAll("[data-only]")) {
    const [name, values] = field.dataset.only.split("=");
    const chosen = form.elements[name]?.value;
    field.hidden = chosen !== undefined && !values.split(",").includes(chosen) && !field.classList.contains("changed");
  }
}
const hideAll = () => document.querySelectorAll("form:has([data-only])").forEach(hideUnused);
document.addEventListener("input", (event) => {
  if (event.target.matches("select") && event.target.form) hideUnused(event.target.form);
});
for (const name of ["htmx:afterSettle", "morphed"]) document.addEventListener(name, hideAll);
hideAll();

// What was typed while an answer was on its way is not in it: the form is checked again.
document.addEventListener("morphed", (event) => {
  const check = event.detail.later && document.getElementById("check");
  // Not before this request is over.
  if (check && check.closest("form").contains(event.target)) setTimeout(() => htmx.trigger(check, "again"));
});

// A second press while the first is on its way would submit twice. A page that is shown again from memory starts afresh.
const PATIENCE_MS = 10000;
const sentAt = new WeakMap();
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post" || event.submitter?.value === "yaml") return;
  if (Date.now() - (sentAt.get(form) ?? 0) < PATIENCE_MS) event.preventDefault();
  else sentAt.set(form, Date.now());
  if (event.defaultPrevented || !event.submitter) return;
  // Until the next page is here, the button shows that it was pressed.
  event.submitter.setAttribute("aria-busy", "true");
  setTimeout(() => event.submitter.removeAttribute("aria-busy"), PATIENCE_MS);
});
window.addEventListener("pageshow", () => {
  document.querySelectorAll("form").forEach((form) => sentAt.delete(form));
  document.querySelectorAll("button[aria-busy]").forEach((button) => button.removeAttribute("aria-busy"));
});

// Whoever is logged out in the middle is told so, and whoever is cut off: parts of the page no longer come. What a proxy
// says for a server that does not answer (502 to 504) is no answer either; `status` is 0 if there was none at all.
function serverSaid(status) {
  if (status === 401) document.getElementById("logged-out").hidden = false;
  document.getElementById("no-answer").hidden = status > 0 && status < 502;
}
for (const name of ["htmx:sendError", "htmx:timeout"]) document.addEventListener(name, () => serverSaid(0));
document.addEventListener("htmx:beforeOnLoad", (event) => serverSaid(event.detail.xhr.status));

// What is typed into a long form is kept in this tab until it has arrived, and offered again after a login, a reload or a
// way round. `data-draft` is the button, name=value, with which the server only shows what it was sent.
const DRAFT = "draft:";
const user = document.body.dataset.user;
const keyOf = (form) => DRAFT + new URL(form.getAttribute("action") || location.pathname, location.href).pathname;

function keepDraft(form, sent) {
  const typed = [...new FormData(form)].filter(([name, value]) => name !== "csrfmiddlewaretoken" && typeof value === "string");
  try {
    sessionStorage.setItem(keyOf(form), JSON.stringify({ user, sent, typed }));
  } catch {
    // No room, or not allowed: then there is no draft.
  }
}
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-draft]");
  if (form) keepDraft(form, false);
});
document.addEventListener("submit", (event) => {
  if (event.defaultPrevented || !event.target.matches("form[data-draft]")) return;
  // Another recipe has other settings; what it shares with this one goes along.
  if (event.submitter?.value === "recipe") sessionStorage.removeItem(keyOf(event.target));
  else keepDraft(event.target, event.submitter?.value !== "yaml");
});

function offerDraft() {
  const form = document.querySelector("form[data-draft]");
  const failed = !user || document.querySelector("main .code");
  for (const key of Object.keys(sessionStorage).filter((name) => name.startsWith(DRAFT))) {
    const draft = JSON.parse(sessionStorage.getItem(key));
    const others = user && draft.user !== user;
    // Sent, and now another page is here: it has arrived.
    if (others || (draft.sent && !form && !failed)) sessionStorage.removeItem(key);
  }
  // A form that came back from the server has in it what was typed. (form.dataset would be the field of that name.)
  if (form?.hasAttribute("data-posted")) return keepDraft(form, false);
  const offer = document.getElementById("draft");
  const kept = form && sessionStorage.getItem(keyOf(form));
  if (!offer || !kept) return;
  offer.hidden = false;
  offer.querySelector("[data-restore]").addEventListener("click", () => {
    const [name, value] = form.getAttribute("data-draft").split("=");
    const again = document.createElement("form");
    again.method = "post";
    again.action = form.action;
    const token = form.querySelector("[name=csrfmiddlewaretoken]").value;
    for (const [key, text] of [["csrfmiddlewaretoken", token], ...JSON.parse(kept).typed, [name, value]]) {
      const input = document.createElement("textarea");
      input.name = key;
      input.value = text;
      again.append(input);
    }
    again.hidden = true;
    document.body.append(again);
    again.submit();
  });
  offer.querySelector("[data-forget]").addEventListener("click", () => {
    sessionStorage.removeItem(keyOf(form));
    offer.hidden = true;
  });
}
offerDraft();

// Pictures that were chosen are shown before they are sent.
document.addEventListener("change", (event) => {
  const input = event.target;
  if (!input.matches("input[type=file][data-preview]")) return;
  const images = [...input.files].filter((file) => file.type.startsWith("image/") && file.size <= Number(input.dataset.most)).slice(0, 16).map((file) => {
    const image = document.createElement("img");
    image.className = "picture";
    image.alt = file.name;
    const reader = new FileReader();
    reader.addEventListener("load", () => (image.src = reader.result));
    reader.readAsDataURL(file);
    return image;
  });
  document.getElementById(input.dataset.preview).replaceChildren(...images);
});

// Pictures of a few pixels are shown large, as the squares that they are made of.
const TINY = 64;
const magnify = (image) => image.classList.toggle("tiny", image.naturalWidth > 0 && image.naturalWidth <= TINY && image.naturalHeight <= TINY);
document.addEventListener("load", (event) => event.target.matches?.("img.picture") && magnify(event.target), true);
const magnifyAll = () => document.querySelectorAll("img.picture").forEach(magnify);
document.addEventListener("morphed", magnifyAll);
magnifyAll();
