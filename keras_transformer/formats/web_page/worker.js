/**
 * Translates beside the page, so that typing never waits.
 *
 * It takes {id, lines} and answers with {kind: "line", id, place, translations,
 * milliseconds} for each line, then {kind: "done", id}. A newer request takes the place
 * of an unfinished one. While it loads it tells {kind: "progress"}, then {kind: "ready"};
 * {kind: "error"} ends it.
 *
 * This is no module: LiteRT.js loads its WebAssembly with `importScripts`, which workers
 * that are modules lack.
 */

"use strict";

const MOST_REMEMBERED = 500; // Lines: while one is edited, the others are not repeated.

const base = new URL("./", self.location).href;
const remembered = new Map();
let wanted; // The newest request that has not begun.
let isBusy = false;

const loading = start();

self.onmessage = ({ data }) => {
  wanted = data;
  if (!isBusy) work();
};

async function start() {
  const begin = performance.now();
  let lastTold = 0;
  const onProgress = ({ received, total }) => {
    const now = performance.now();
    if (received < total && now - lastTold < 50) return;
    lastTold = now;
    postMessage({ kind: "progress", received, total });
  };
  try {
    const { load } = await import("./translator.js");
    const { translator, description, isKept } = await load(base, onProgress);
    await translator.translate("."); // The first run prepares memory.
    const milliseconds = performance.now() - begin;
    postMessage({ kind: "ready", description, isKept, milliseconds });
    return translator;
  } catch (error) {
    tell(error);
    return undefined;
  }
}

async function work() {
  isBusy = true;
  try {
    const translator = await loading;
    while (wanted && translator) {
      const { id, lines } = wanted;
      wanted = undefined;
      for (const [place, text] of lines.entries()) {
        postMessage({ kind: "line", id, place, ...(await translated(translator, text)) });
        await messages();
        if (wanted) break;
      }
      if (!wanted) postMessage({ kind: "done", id });
    }
  } catch (error) {
    tell(error);
  } finally {
    isBusy = false;
  }
}

async function translated(translator, text) {
  let result = remembered.get(text);
  if (result === undefined) {
    const begin = performance.now();
    const translations = await translator.translate(text);
    result = { translations, milliseconds: performance.now() - begin };
    if (remembered.size >= MOST_REMEMBERED) remembered.clear();
    remembered.set(text, result);
  }
  return result;
}

/** Lets the messages in that came during a translation. */
function messages() {
  return new Promise((resolve) => setTimeout(resolve));
}

function tell(error) {
  postMessage({ kind: "error", message: error?.message || String(error) });
}
