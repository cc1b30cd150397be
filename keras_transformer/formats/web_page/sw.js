/**
 * A service worker: after the first visit the page loads without a network.
 *
 * The export puts the version and the files in. The page's files come from the cache of
 * that version; translator.js puts the large ones there, once it has checked them.
 */

"use strict";

const VERSION = "{version}";
const FILES = ["{files}"];
const LITERT = "{litert}"; // Where LiteRT.js comes from.

const base = new URL("./", self.location).href;
const prefix = `keras-transformer ${base} `;
const name = prefix + VERSION;

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("fetch", (event) => {
  const { method, url, cache } = event.request;
  const isOurs = url.startsWith(base) || url.startsWith(new URL(LITERT, base).href);
  // translator.js asks with "no-store" for what it checks and keeps itself.
  if (method === "GET" && isOurs && cache !== "no-store") event.respondWith(answer(url));
});

async function install() {
  const cache = await caches.open(name);
  // From the server, not from the browser's own cache, which may hold an older export.
  await cache.addAll(FILES.map((file) => new Request(new URL(file, base), { cache: "reload" })));
  await self.skipWaiting();
}

async function activate() {
  for (const other of await caches.keys()) {
    if (other.startsWith(prefix) && other !== name) await caches.delete(other);
  }
  await self.clients.claim();
}

async function answer(url) {
  const cache = await caches.open(name);
  const kept = await cache.match(url, { ignoreSearch: true });
  if (kept) return kept;
  const response = await fetch(url);
  if (response.ok) await cache.put(url, response.clone());
  return response;
}
