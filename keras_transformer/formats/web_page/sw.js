/**
 * A service worker: after the first visit the page loads without a network.
 *
 * The export puts the version and the files in. The page's files come from the cache of
 * that version; translator.js puts the large ones there, once it has checked them. Any
 * other address, also one with a query, is the server's: other pages may lie beside ours.
 */

"use strict";

const VERSION = "{version}";
const FILES = ["{files}"];
const OTHERS = ["{others}"];

const base = new URL("./", self.location).href;
const prefix = `keras-transformer ${base} `;
const name = prefix + VERSION;
const own = new Set([...FILES, ...OTHERS].map((file) => new URL(file, base).href));

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("fetch", (event) => {
  const { method, cache } = event.request;
  const [url] = event.request.url.split("#");
  // translator.js asks with "no-store" for what it checks and keeps itself.
  if (method === "GET" && own.has(url) && cache !== "no-store") event.respondWith(answer(url));
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
  const kept = await cache.match(url);
  if (kept) return kept;
  const response = await fetch(url);
  if (response.ok) await cache.put(url, response.clone());
  return response;
}
