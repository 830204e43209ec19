// hx-swap="morph" (the inside of the target) and "morph-outer" (the target itself): only what differs from the answer is
// changed. What stays keeps its focus, caret, selection and scrolling, what was opened in it, and what was typed into it
// since the request was sent. Nothing moves while the pointer is down: a click lands where it began.
"use strict";

(() => {
  // A click comes shortly after the pointer is up.
  const CLICK_MS = 50;
  const CONTROLS = "input, select, textarea";
  const sent = new WeakMap(); // request -> { number, posted, values: control -> value }
  const answered = new WeakMap(); // target -> the same of the request whose answer it was given
  const changed = new WeakMap(); // target -> number of the newest request when it was changed
  const waiting = new Map(); // target -> how it is changed when the pointer is up
  const opened = new WeakMap(); // details -> whether the server had it open
  let requests = 0;
  let down = false;
  let letGo = 0;

  const ticked = (control) => control.type === "checkbox" || control.type === "radio";
  const valueOf = (control) => (ticked(control) ? control.checked : control.value);
  function initialOf(control) {
    if (ticked(control)) return control.defaultChecked;
    if (control.localName !== "select") return control.defaultValue;
    return ([...control.options].find((option) => option.defaultSelected) || control.options[0])?.value ?? "";
  }

  // An element with a key is only ever itself: a button does not become another one under the pointer.
  function keyOf(element) {
    const own = element.getAttribute("data-key") || element.getAttribute("id");
    if (own) return own;
    const asked = (name) => element.getAttribute(name) || "";
    switch (element.localName) {
      case "a": return asked("href");
      case "form": return `${asked("action")} ${asked("data-confirm")}`;
      case "button": return `${asked("name")}=${asked("value")} ${element.textContent.trim()}`;
      case "input": return ticked(element) ? `${asked("name")}=${asked("value")}` : asked("name");
      case "option": return asked("value") || element.textContent;
      case "select": case "textarea": return asked("name");
      default: return "";
    }
  }
  const alike = (old, now) =>
    old.nodeName === now.nodeName && (old.nodeType !== Node.ELEMENT_NODE || keyOf(old) === keyOf(now));

  function noteOpened(part) {
    for (const details of part.querySelectorAll("details")) if (!opened.has(details)) opened.set(details, details.open);
  }
  noteOpened(document);

  function change(target, fragment, outer, mine) {
    if (!target.isConnected) return;
    // All around it is newer than the answer.
    for (let around = target.parentElement; around; around = around.parentElement) if (changed.get(around) >= mine.number) return;
    changed.set(target, requests);
    // Of an answer to what was sent, what was typed later stays; of news, whatever was typed.
    const kept = (control) =>
      (mine.values.has(control) && valueOf(control) !== mine.values.get(control)) ||
      (!mine.posted && valueOf(control) !== initialOf(control));
    const fresh = [];
    let later = false;

    function attributes(old, now) {
      let restart = false;
      const foldable = old.localName === "details";
      for (const { name } of [...old.attributes]) {
        // A button that was pressed (js/page.js) is busy still.
        if (now.hasAttribute(name) || name === "aria-busy" || (foldable && name === "open")) continue;
        old.removeAttribute(name);
        restart ||= name.startsWith("hx-");
      }
      for (const { name, value } of now.attributes) {
        if (old.getAttribute(name) === value || (foldable && name === "open")) continue;
        old.setAttribute(name, value);
        restart ||= name.startsWith("hx-");
      }
      if (restart) fresh.push(old);
      // What the reader opened and closed stays, until the server thinks otherwise than before.
      if (foldable && now.open !== (opened.get(old) ?? now.open)) old.open = now.open;
      if (foldable) opened.set(old, now.open);
    }

    function node(old, now) {
      if (old.nodeType !== Node.ELEMENT_NODE) {
        if (old.data === now.data) return;
        // Text that only grows keeps what is selected in it.
        if (now.data.startsWith(old.data)) old.appendData(now.data.slice(old.data.length));
        else old.data = now.data;
        return;
      }
      const control = old.matches(CONTROLS) && old.type !== "file";
      const typed = control && kept(old);
      const value = control && valueOf(typed ? old : now);
      later ||= typed;
      attributes(old, now);
      children(old, now);
      if (control && valueOf(old) !== value) old[ticked(old) ? "checked" : "value"] = value;
    }

    function children(old, now) {
      const claims = new Map();
      const claimed = new Set();
      const before = [...old.children];
      const keys = before.map(keyOf);
      let from = 0;
      for (const child of now.children) {
        const key = keyOf(child);
        const same = key
          ? before.find((one, at) => keys[at] === key && !claimed.has(one) && one.nodeName === child.nodeName)
          : before.find((one, at) => at >= from && !claimed.has(one) && one.isEqualNode(child));
        if (!same) continue;
        claims.set(child, same);
        claimed.add(same);
        from = Math.max(from, before.indexOf(same) + 1);
      }
      let at = old.firstChild;
      for (const child of [...now.childNodes]) {
        let same = claims.get(child);
        for (let one = at; !same && one && !claimed.has(one); one = one.nextSibling) if (alike(one, child)) same = one;
        if (!same) {
          old.insertBefore(child, at);
          if (child.nodeType === Node.ELEMENT_NODE) fresh.push(child);
          continue;
        }
        while (at !== same && at && !claimed.has(at)) at = remove(at);
        if (at === same) at = at.nextSibling;
        else old.insertBefore(same, at);
        node(same, child);
      }
      while (at) at = remove(at);
    }

    function remove(old) {
      const next = old.nextSibling;
      old.remove();
      return next;
    }

    if (outer) node(target, fragment.firstElementChild);
    else children(target, fragment);
    noteOpened(target);
    for (const element of fresh) if (element.isConnected) htmx.process(element);
    target.dispatchEvent(new CustomEvent("morphed", { bubbles: true, detail: { later } }));
  }

  document.addEventListener("htmx:beforeRequest", ({ detail }) => {
    const controls = [...detail.target.querySelectorAll(CONTROLS)];
    sent.set(detail.xhr, {
      number: ++requests,
      posted: detail.requestConfig.verb !== "get",
      values: new Map(controls.map((control) => [control, valueOf(control)])),
    });
  });

  // Of two requests for the same part, the later one is what is wanted, whichever is answered first. After js/page.js,
  // which says what of an error is shown.
  addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, target, shouldSwap } = event.detail;
    const mine = sent.get(xhr);
    if (!mine || !shouldSwap) return;
    if (answered.get(target)?.number > mine.number) event.preventDefault();
    else answered.set(target, mine);
  });

  htmx.defineExtension("morph", {
    handleSwap(style, target, fragment) {
      if (style !== "morph" && style !== "morph-outer") return false;
      const outer = style === "morph-outer";
      if (outer && !fragment.firstElementChild) return true;
      const mine = answered.get(target) || { number: requests, posted: false, values: new Map() };
      if (down) waiting.set(target, () => change(target, fragment, outer, mine));
      else change(target, fragment, outer, mine);
      return true;
    },
  });

  addEventListener("pointerdown", () => {
    clearTimeout(letGo);
    down = true;
  }, true);
  function up() {
    if (!down) return;
    clearTimeout(letGo);
    letGo = setTimeout(() => {
      down = false;
      const changes = [...waiting.values()];
      waiting.clear();
      for (const one of changes) one();
    }, CLICK_MS);
  }
  for (const name of ["pointerup", "pointercancel", "dragend"]) addEventListener(name, up, true);
  // It may be let go where this page does not see it.
  addEventListener("blur", (event) => event.target === window && up());
  addEventListener("pointermove", (event) => !event.buttons && up(), true);
})();
