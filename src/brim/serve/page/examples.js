// What to say to a model that nobody has said anything to: prompts to try, and what a toy is.

import { $, el } from "./dom.js";

const TOY_NOTE =
  "brim-tiny is a toy of 4.7 million parameters that comes with Brim. It remembers what it is told, does small sums, counts and repeats; it knows nothing of the world.";
const RANDOM_NOTE = "This model comes with Brim and has random weights: what it writes means nothing.";
const TOY_PROMPTS = ["My name is Ada. What is my name?", "What is 3 plus 4?", "Count from 1 to 5.", "What can you do?"];
const PROMPTS = [
  "Explain what a KV cache is, in three sentences.",
  "Write a Python function that merges two sorted lists.",
  "Compare tea and coffee in a table.",
  "Summarise the plot of Hamlet as a list.",
];
const IMAGE_PROMPT = "Describe the image.";

// `choose` is called with a prompt that was clicked.
export function showExamples(model, choose) {
  const random = ["brim-random", "brim-tiny-vl"].includes(model.id), toy = model.id === "brim-tiny";
  const sees = (model.input_modalities ?? []).includes("image");
  const prompts = random ? [] : toy ? TOY_PROMPTS : sees ? [IMAGE_PROMPT, ...PROMPTS.slice(0, 3)] : PROMPTS;
  $("chat-toy").hidden = !toy && !random;
  $("chat-toy").textContent = random ? RANDOM_NOTE : TOY_NOTE;
  $("chat-examples").replaceChildren(
    ...prompts.map((prompt) => el("li", {}, el("button", { type: "button", class: "small", onclick: () => choose(prompt) }, prompt))),
  );
}
