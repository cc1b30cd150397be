// Translations over REST from TensorFlow Serving or `keras-transformer serve`.
//
// For Node 18 or later, without packages: the model's name, then sentences; a server
// elsewhere is named in the environment, SERVER=http://HOST:PORT.
//
//     node examples/rest_client.mjs quickstart-en-de "She is tired."

const server = process.env.SERVER ?? "http://127.0.0.1:8501";

async function translate(texts, model) {
  const url = `${server}/v1/models/${encodeURIComponent(model)}:predict`;
  const body = JSON.stringify({ instances: texts.map((text) => ({ text })) });
  const signal = AbortSignal.timeout(60_000); // milliseconds
  const response = await fetch(url, { method: "POST", body, signal });
  if (!response.ok) {
    throw new Error(`${url} answered ${response.status}: ${await response.text()}`);
  }
  return (await response.json()).predictions;
}

const [model, ...texts] = process.argv.slice(2);
try {
  if (!texts.length) throw new Error("give the model's name, then sentences");
  for (const [i, found] of (await translate(texts, model)).entries()) {
    console.log(found.translation);
    if (found.truncated) console.error(`sentence ${i + 1} is too long and was cut`);
    if (found.doubts) console.error(`translation ${i + 1} is doubtful: ${found.doubts}`);
    const lost = (found.lost ?? []).filter((span) => span); // Padded.
    if (lost.length) console.error(`translation ${i + 1} lacks ${lost.join(", ")}`);
  }
} catch (error) {
  console.error(`error: ${error.message}${error.cause ? `: ${error.cause.message}` : ""}`);
  process.exitCode = 1;
}
