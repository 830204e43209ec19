// Small conveniences of every page; all of it works without them.
"use strict";

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
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
document.addEventListener("htmx:afterSettle", compareAll);
compareAll();

// The preview of a new job stays open over its updates.
document.addEventListener("htmx:beforeSwap", (event) => {
  const preview = document.getElementById("preview");
  if (preview && event.detail.target.id === "check") previewOpen = preview.open;
});
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target.id === "check") document.getElementById("preview").open = previewOpen;
});
let previewOpen = false;
