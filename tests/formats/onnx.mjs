/** Returns the ids that translate.onnx finds for sources of ids, a row each. */
export async function found(ort, model, options, sources) {
  const session = await ort.InferenceSession.create(model, options);
  const width = Math.max(...sources.map((ids) => ids.length));
  const padded = sources.flatMap((ids) => [...ids, ...Array(width - ids.length).fill(0)]);
  const { ids } = await session.run({
    source: new ort.Tensor("int32", Int32Array.from(padded), [sources.length, width]),
    lengths: new ort.Tensor("int32", Int32Array.from(sources, (ids) => ids.length), [
      sources.length,
    ]),
  });
  const longest = ids.dims[2];
  return sources.map((_, i) => Array.from(ids.data.slice(i * longest, (i + 1) * longest)));
}

// In Node, standard input is {"ort", "model", "sources"}.
if (globalThis.process) {
  const { readFileSync } = await import("node:fs");
  const { ort, model, sources } = JSON.parse(readFileSync(0, "utf8"));
  const runtime = await import(ort);
  console.log(JSON.stringify(await found(runtime.default ?? runtime, model, {}, sources)));
}
