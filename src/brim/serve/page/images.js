// Images of a message: taken from files, the clipboard or by dropping, made small enough to be sent, and shown.
//
// They are drawn on canvases: the page loads images from nowhere, not even from itself.

import { $, el, say } from "./dom.js";

const LONGEST_SIDE = 1568, THUMBNAIL = 96, SHOWN = 240;
const MOST = 8;

let attached = []; // data URLs
let taken = false; // whether the model takes images

export function prepare(model) {
  taken = (model.input_modalities ?? []).includes("image");
  $("chat-attach").hidden = !taken;
}

export function listen() {
  $("chat-attach").addEventListener("click", () => $("chat-files").click());
  $("chat-files").addEventListener("change", () => {
    add([...$("chat-files").files]);
    $("chat-files").value = "";
  });
  $("chat-text").addEventListener("paste", (event) => {
    const files = imageFiles(event.clipboardData);
    if (!files.length) return;
    event.preventDefault();
    add(files);
  });
  const panel = $("talk");
  panel.addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    panel.classList.toggle("dropping", taken);
  });
  for (const name of ["dragleave", "drop"]) panel.addEventListener(name, () => panel.classList.remove("dropping"));
  panel.addEventListener("drop", (event) => {
    event.preventDefault();
    add(imageFiles(event.dataTransfer));
  });
}

const imageFiles = (data) => [...(data?.files ?? [])].filter((file) => file.type.startsWith("image/"));

async function add(files) {
  if (!taken) {
    if (files.length) say($("chat-attached-said"), "This model takes text only.");
    return;
  }
  for (const file of files) {
    if (attached.length >= MOST) {
      say($("chat-attached-said"), `At most ${MOST} images in a message.`);
      return;
    }
    try {
      attached.push(await sendable(file));
    } catch {
      say($("chat-attached-said"), `${file.name || "The image"} cannot be read as an image.`);
      continue;
    }
    list();
  }
}

// What was attached, for the message that is sent now.
export function take() {
  const found = attached;
  attached = [];
  list();
  return found;
}

export function restore(images) {
  attached = images;
  list();
}

export const waiting = () => attached.length;

function list() {
  const remove = (number) => () => {
    attached.splice(number, 1);
    list();
    $("chat-text").focus();
  };
  $("chat-attached").hidden = !attached.length;
  $("chat-attached").replaceChildren(
    ...attached.map((image, number) =>
      el(
        "li",
        {},
        picture(image, `Image ${number + 1}`, THUMBNAIL),
        el("button", { type: "button", class: "small", onclick: remove(number), "aria-label": `Remove image ${number + 1}` }, "×"),
      ),
    ),
  );
  say($("chat-attached-said"), attached.length ? `${attached.length} attached` : "");
}

export const shown = (image, name) => picture(image, name, SHOWN);

function picture(image, name, most) {
  const canvas = el("canvas", { role: "img", "aria-label": name, width: most, height: most });
  bitmap(blobOf(image)).then(
    (found) => draw(canvas, found, most),
    () => canvas.replaceWith(el("span", { class: "quiet" }, `${name}: cannot be shown`)),
  );
  return canvas;
}

function draw(canvas, found, most) {
  const scale = Math.min(1, most / Math.max(found.width, found.height));
  canvas.width = Math.max(1, Math.round(found.width * scale));
  canvas.height = Math.max(1, Math.round(found.height * scale));
  canvas.getContext("2d").drawImage(found, 0, 0, canvas.width, canvas.height);
  found.close();
  return canvas;
}

const bitmap = (blob) => createImageBitmap(blob, { imageOrientation: "from-image" });

// Small files of a kind that servers read are sent as they are, others as JPEG.
async function sendable(file) {
  const found = await bitmap(file);
  const fits = Math.max(found.width, found.height) <= LONGEST_SIDE && file.size < 1 << 20;
  if (fits && ["image/png", "image/jpeg", "image/webp"].includes(file.type)) {
    found.close();
    return dataUrl(file);
  }
  const canvas = draw(document.createElement("canvas"), found, LONGEST_SIDE);
  return canvas.toDataURL("image/jpeg", 0.9);
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function blobOf(url) {
  const [head, body] = url.split(",", 2);
  const bytes = Uint8Array.from(atob(body), (one) => one.charCodeAt(0));
  return new Blob([bytes], { type: head.slice(5).split(";")[0] });
}
