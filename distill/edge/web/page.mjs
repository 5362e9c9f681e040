// The page: loads the bundle, then predicts what is typed.
const $ = (id) => document.getElementById(id);

function element(name, text, className) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

function percent(value) {
  return (100 * value).toFixed(1) + "%";
}

function card(text, prediction) {
  const node = element("div", undefined, "result");
  node.append(element("div", text, "text"));
  if (prediction.isCut) node.append(element("div", "The text is longer than the model reads and was cut.", "note"));
  if ("value" in prediction) {
    node.append(element("strong", prediction.value.toFixed(4)));
    return node;
  }
  if (prediction.label === null) node.append(element("div", "Too unsure for a label.", "note"));
  for (const [label, value] of Object.entries(prediction.probabilities).sort((a, b) => b[1] - a[1]).slice(0, 8)) {
    const row = element("div", undefined, "row");
    const bar = element("div", undefined, "bar");
    bar.style.width = percent(value);
    row.append(element(label === prediction.label ? "strong" : "span", label), bar, element("span", percent(value)));
    node.append(row);
  }
  return node;
}

function describe(description) {
  const { metrics, teacher, file } = description;
  const rows = Object.entries(metrics).map(([name, value]) => {
    const row = element("tr");
    const reference = teacher && teacher.metrics[name];
    row.append(element("td", name), element("td", value.toFixed(4)),
      element("td", reference === undefined || reference === null ? "" : reference.toFixed(4)));
    return row;
  });
  $("metrics").append(...rows);
  $("file").textContent = file;
  $("teacher").textContent = teacher ? `teacher (${teacher.name})` : "";
  $("label").textContent = description.pair ? "Two texts, with a tab or || between them, one pair on each line"
    : "Texts, one on each line";
}

function read(line, pair) {
  if (!pair) return line;
  const parts = line.split(/\t|\s*\|\|\s*/);
  if (parts.length !== 2) throw new Error(`${JSON.stringify(line)}: expected two texts, with a tab or || between them`);
  return parts;
}

/** @param load returns the bundle. */
export async function start(load) {
  const started = performance.now();
  const bundle = await load();
  describe(bundle.description);
  $("status").textContent = `Ready after ${((performance.now() - started) / 1000).toFixed(1)} s. Nothing leaves this page.`;
  $("button").disabled = false;
  window.bundle = bundle;
  $("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const lines = $("texts").value.split("\n").filter((line) => line.trim());
    $("button").disabled = true;
    try {
      const records = lines.map((line) => read(line, bundle.description.pair));
      const begun = performance.now();
      const cards = [];
      for (let i = 0; i < lines.length; i++) cards.push(card(lines[i], await bundle.predict(records[i])));
      const each = (performance.now() - begun) / Math.max(1, lines.length);
      $("status").textContent = `${lines.length} in ${(each * lines.length).toFixed(0)} ms, ${each.toFixed(1)} ms each`;
      $("status").className = "";
      $("results").replaceChildren(...cards);
    } catch (error) {
      $("status").textContent = error.message;
      $("status").className = "error";
    }
    $("button").disabled = false;
  });
}

async function loadFromFolder() {
  const [ort, { Tokenizer }, { Bundle }] = await Promise.all(
    ["./ort.mjs", "./tokenizers.mjs", "./bundle.mjs"].map((name) => import(name)));
  const [description, tokenizer] = await Promise.all(
    ["description.json", "tokenizer.json"].map(async (name) => (await fetch(name)).json()));
  ort.env.wasm.wasmPaths = { wasm: new URL("ort-wasm-simd-threaded.wasm", import.meta.url).href };
  ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create("model.onnx");
  return new Bundle(description, new Tokenizer(tokenizer, {}), session, ort.Tensor);
}

export function fail(error) {
  $("status").textContent = `The model cannot be loaded: ${error.message}`;
  $("status").className = "error";
}

if (document.querySelector('script[src="page.mjs"]')) start(loadFromFolder).catch(fail);
