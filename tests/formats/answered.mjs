// Standard input: {"file", "urls"}. Prints those of the addresses that a service worker, whose
// script has the address https://host.example/sw.js, answers when a page gets them.
import { readFileSync } from "node:fs";
import vm from "node:vm";

const { file, urls } = JSON.parse(readFileSync(0, "utf8"));
const listeners = {};
const self = {
  location: "https://host.example/sw.js",
  addEventListener: (kind, listener) => (listeners[kind] = listener),
};
const kept = new Map();
const cache = {
  match: async (url, options) => (options ? undefined : kept.get(url)),
  put: async (url, response) => kept.set(url, response),
};
const caches = { open: async () => cache };
const fetch = async (url) => ({ ok: true, clone: () => url });
vm.runInNewContext(readFileSync(file, "utf8"), { self, caches, fetch, URL, Request });
const answered = [];
for (const url of urls) {
  const request = { method: "GET", url, cache: "default" };
  let answer;
  listeners.fetch({ request, respondWith: (promise) => (answer = promise) });
  if (!answer) continue;
  await answer;
  answered.push(url);
}
console.log(JSON.stringify(answered));
