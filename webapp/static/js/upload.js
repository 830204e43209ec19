// Uploads in parts, with progress; a part that is lost is sent again from where the server's file ends.
// Without this script the form sends the whole file at once.
"use strict";

const FILE_FIELDS = ["file", "dev_file", "label_file"];
const RETRY_MS = [1000, 2000, 5000, 10000];

class UploadFailed extends Error {}

function post(url, body, token, onProgress) {
  return new Promise((resolve, reject) => {
    const xhr = new XMLHttpRequest();
    xhr.open("POST", url);
    xhr.setRequestHeader("Accept", "application/json");
    xhr.setRequestHeader("X-CSRFToken", token);
    if (body instanceof Blob) xhr.setRequestHeader("Content-Type", "application/octet-stream");
    xhr.responseType = "json";
    if (onProgress) xhr.upload.addEventListener("progress", (event) => onProgress(event.loaded));
    xhr.addEventListener("load", () => resolve(xhr));
    xhr.addEventListener("error", () => reject(new Error("connection")));
    xhr.send(body);
  });
}

// One bar for all files of an upload.
function bar(form, total) {
  const box = form.querySelector(".upload-progress");
  const [progress, number, status] = [box.querySelector("progress"), box.querySelector("span"), box.querySelector("[role=status]")];
  const format = (bytes) => (bytes / 2 ** 20).toFixed(1);
  box.hidden = false;
  return {
    at(done) {
      progress.value = (100 * done) / total;
      number.textContent = `${Math.floor((100 * done) / total)} % · ${format(done)} / ${format(total)} MiB`;
    },
    say: (text) => { status.textContent = text; },
  };
}

async function send(file, url, part, token, before, shown, lost) {
  let offset = 0;
  let tries = 0;
  while (offset < file.size) {
    const start = offset;
    let answer;
    try {
      answer = await post(`${url}?offset=${start}`, file.slice(start, start + part), token, (sent) => shown.at(before + start + sent));
    } catch {
      answer = { status: 0 };
    }
    if (answer.status === 200 || answer.status === 409) {
      // 409: the server has more, or less, than we thought; it says where to go on.
      offset = answer.response.offset;
      tries = answer.status === 200 ? 0 : tries + 1;
      shown.say("");
    } else if (answer.status === 0 || answer.status >= 500) {
      shown.say(lost);
      await new Promise((done) => setTimeout(done, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]));
      tries += 1;
    } else {
      const errors = answer.response && answer.response.errors;
      throw new UploadFailed(errors ? Object.values(errors).join(" ") : "");
    }
    if (tries > 50) throw new UploadFailed("");
    shown.at(before + offset);
  }
}

function showErrors(form, errors) {
  for (const place of form.querySelectorAll("[data-error-of]")) {
    const text = errors[place.dataset.errorOf] || "";
    place.textContent = text;
    place.hidden = !text;
    const input = form.elements[place.dataset.errorOf];
    if (input instanceof HTMLElement) text ? input.setAttribute("aria-invalid", "true") : input.removeAttribute("aria-invalid");
  }
  const first = form.querySelector("[data-error-of]:not([hidden])");
  if (first) first.scrollIntoView({ block: "center" });
}

async function run(form, files, part, begin) {
  const button = form.querySelector("button");
  const token = form.elements.csrfmiddlewaretoken.value;
  button.disabled = true;
  try {
    const answer = await begin(token);
    if (!answer) return;
    const shown = bar(form, files.reduce((sum, file) => sum + file.size, 0));
    let before = 0;
    for (const [i, file] of files.entries()) {
      await send(file, answer.uploads[i], part, token, before, shown, form.dataset.lost);
      before += file.size;
    }
    window.location.assign(answer.next);
  } catch (error) {
    showErrors(form, { __all__: (error instanceof UploadFailed && error.message) || form.dataset.failed });
  } finally {
    button.disabled = false;
  }
}

const uploadForm = document.getElementById("upload-form");
if (uploadForm) {
  uploadForm.addEventListener("submit", (event) => {
    if (uploadForm.elements.source.value !== "file") return;
    event.preventDefault();
    const inputs = FILE_FIELDS.map((name) => uploadForm.elements[name]).filter((input) => input.files.length);
    const files = inputs.map((input) => input.files[0]);
    run(uploadForm, files, Number(uploadForm.dataset.part), async (token) => {
      const data = new FormData(uploadForm);
      for (const name of FILE_FIELDS) data.delete(name);
      data.set("announced", JSON.stringify(inputs.map((input, i) => ({ field: input.name, name: files[i].name, bytes: files[i].size }))));
      const answer = await post(window.location.pathname, data, token);
      if (answer.status === 200 && answer.response) {
        showErrors(uploadForm, {});
        return answer.response;
      }
      showErrors(uploadForm, (answer.response && answer.response.errors) || { __all__: uploadForm.dataset.failed });
      return null;
    });
  });
  // The name of the file is a good name for the dataset.
  uploadForm.elements.file.addEventListener("change", () => {
    const [file] = uploadForm.elements.file.files;
    if (file && !uploadForm.elements.name.value) uploadForm.elements.name.value = file.name.replace(/(\.tar)?\.[^.]*$/, "");
  });
}

const resumeForm = document.getElementById("resume-form");
if (resumeForm) {
  resumeForm.addEventListener("submit", (event) => {
    event.preventDefault();
    const inputs = [...resumeForm.querySelectorAll("input[type=file]")];
    const files = inputs.map((input) => input.files[0]);
    if (files.some((file, i) => !file || file.size !== Number(inputs[i].dataset.bytes))) {
      showErrors(resumeForm, { __all__: resumeForm.dataset.other });
      return;
    }
    showErrors(resumeForm, {});
    // 8 MiB, as on the page of the upload; the server says where to go on.
    run(resumeForm, files, 8 * 2 ** 20, async () => ({ uploads: inputs.map((input) => input.dataset.url), next: window.location.pathname }));
  });
}
