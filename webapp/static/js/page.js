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

// Retry: marks what differs from the attempt before while one types. The server does the same on "Preview".
const retryForm = document.getElementById("retry-form");
if (retryForm) {
  const table = document.getElementById("differences");
  const nothing = document.getElementById("no-difference");
  const typed = (input) => (input.type === "checkbox" ? (input.checked ? "on" : "") : input.value.trim());
  // A checkbox is "on" or "" to the form, and a word to people.
  const shown = (input, value) => (input.type === "checkbox" ? table.dataset[value ? "on" : "off"] : value || "—");
  const differs = (input) => {
    const [now, old] = [typed(input), input.dataset.old];
    if (now === old) return false;
    return now === "" || old === "" || Number.isNaN(Number(now)) || Number(now) !== Number(old);
  };
  const refresh = () => {
    const rows = [];
    for (const input of retryForm.querySelectorAll("[data-old]")) {
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
    nothing.hidden = rows.length > 0;
  };
  retryForm.addEventListener("input", refresh);
  refresh();
}
