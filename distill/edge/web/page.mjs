// The page: loads the bundle, then predicts what is typed, or writes the text that follows.
const $ = (id) => document.getElementById(id);

function element(name, text, className) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

/** A probability or a cosine, as the metrics of the page with decimals. */
function decimals(value) {
  return value.toFixed(3);
}

/** Bars of `[name, share, is it given]`. */
function bars(values) {
  return values.map(([name, value, isGiven]) => {
    const row = element("div", undefined, "row");
    const bar = element("div", undefined, "bar");
    bar.style.width = `${100 * Math.max(0, value)}%`;
    row.append(element(isGiven ? "strong" : "span", name), bar, element("span", decimals(value)));
    return row;
  });
}

/** The text with its entities marked, each with its type. */
function marked(text, entities) {
  const node = element("div"), points = Array.from(text);
  let end = 0;
  for (const entity of entities) {
    const mark = element("mark", entity.text);
    mark.append(element("small", `${entity.type} ${decimals(entity.score)}`));
    node.append(points.slice(end, entity.start).join(""), mark);
    end = entity.end;
  }
  node.append(points.slice(end).join(""));
  return node;
}

// What a card shows below its text, by the decoder of the bundle.
const SHOWN = {
  number: ({ value }) => [element("strong", value.toFixed(4))],
  classes: ({ label, probabilities }) => [
    ...(label === null ? [element("div", "Too unsure for a label.", "note")] : []),
    ...bars(Object.entries(probabilities).map(([name, value]) => [name, value, name === label]).sort(byShare).slice(0, 8)),
  ],
  labels: ({ labels, probabilities }) => {
    const given = new Set(labels.map(({ label }) => label));
    return [
      ...(given.size ? [] : [element("div", "No label reaches its threshold.", "note")]),
      ...bars(Object.entries(probabilities).map(([name, value]) => [name, value, given.has(name)]).sort(byShare)
        .slice(0, Math.max(8, given.size))),
    ];
  },
  choices: ({ choice, index, probabilities }, { choices }) => [
    ...(choice === null ? [element("div", "Too unsure for a choice.", "note")] : []),
    ...bars(choices.map((name, i) => [name, probabilities[i], choice !== null && i === index])),
  ],
  tags: ({ entities }, text) => [
    entities.length ? marked(text, entities) : element("div", "No entities.", "note"),
  ],
  vectors: ({ vector, similarity }) => (similarity === undefined
    ? [element("div", `A vector of ${vector.length} numbers, which the other texts are compared with.`, "note")]
    : bars([["cosine", similarity, true]])),
};

function byShare(first, second) {
  return second[1] - first[1];
}

function card(line, record, prediction, decoder) {
  const node = element("div", undefined, "result");
  const shown = SHOWN[decoder](prediction, record);
  if (decoder !== "tags" || !prediction.entities.length) node.append(element("div", record.question ?? line, "text"));
  if (prediction.isCut) node.append(element("div", "The text is longer than the model reads and was cut.", "note"));
  node.append(...shown);
  return node;
}

function describe(description) {
  const { metrics, teacher, file } = description;
  const rows = Object.entries(metrics).map(([name, value]) => {
    const row = element("tr");
    const reference = teacher && teacher.metrics[name];
    row.append(element("td", nameMetric(name)), element("td", value.toFixed(4)),
      element("td", reference === undefined || reference === null ? "" : reference.toFixed(4)));
    return row;
  });
  $("metrics").append(...rows);
  $("file").textContent = file;
  $("teacher").textContent = teacher ? `teacher (${teacher.name})` : "";
  $("label").textContent = ask(description);
  $("texts").placeholder = showExample(description);
}

// Metrics whose names are no words.
const METRICS = {
  f1: "F1", micro_f1: "F1 of all labels together", macro_f1: "mean F1 of the labels", matthews: "Matthews' correlation",
  exact_match: "exact match", pearson: "Pearson's correlation", spearman: "Spearman's correlation", mae: "mean absolute error",
  has_answer_f1: "F1 of questions with an answer", has_answer_exact_match: "exact match of questions with an answer",
  no_answer_f1: "F1 of questions without an answer", no_answer_exact_match: "exact match of questions without an answer",
  "ndcg@10": "nDCG of the first 10", "mrr@10": "reciprocal rank in the first 10", "recall@10": "recall of the first 10",
  rouge1: "ROUGE-1", rouge2: "ROUGE-2", rougeL: "ROUGE-L", bleu: "BLEU", chrf: "chrF",
};

/** The name of a metric in words; that of tags as a text says so. */
function nameMetric(name) {
  if (name.startsWith("text_")) return `${nameMetric(name.slice(5))} of plain text`;
  return Object.hasOwn(METRICS, name) ? METRICS[name] : name.replaceAll("_", " ");
}

/** An example of what to type. */
function showExample({ decoder, pair }) {
  if (decoder === "choices") return "What does a cow give? || milk || honey";
  if (decoder === "tags") return "Marie Curie was born in Warsaw.";
  if (decoder === "vectors") return "A man plays a guitar.\nSomebody makes music.\nThe price of oil falls.";
  if (decoder === "continuation") return "Once upon a time";
  return pair ? "A man plays a guitar. || Somebody makes music." : "A lovely film, from its first scene to the last.";
}

/** What to type, in words. */
function ask({ decoder, pair }) {
  if (decoder === "choices") return "A question and its choices, with tabs or || between them, one question on each line";
  if (decoder === "vectors") return "Texts, one on each line: the first one is compared with the others";
  if (decoder === "continuation") return "The beginning of a text, which the model continues";
  if (decoder === "seq2seq") return "A text, from which the model writes another";
  return pair ? "Two texts, with a tab or || between them, one pair on each line" : "Texts, one on each line";
}

/** The record of a line. */
function read(line, { decoder, pair }) {
  const parts = line.split(/\t|\s*\|\|\s*/);
  if (decoder === "choices") {
    const [question, ...choices] = parts;
    if (choices.length < 2 || !parts.every((part) => part.trim())) {
      throw new Error(`${JSON.stringify(line)}: expected a question and at least two choices, with tabs or || between them`);
    }
    return { question, choices };
  }
  if (!pair) return line;
  if (parts.length !== 2) throw new Error(`${JSON.stringify(line)}: expected two texts, with a tab or || between them`);
  return parts;
}

/** The predictions of records; those of vectors have their `similarity` to the first one. */
async function predict(bundle, records) {
  const predictions = [];
  for (const record of records) predictions.push(await bundle.predict(record));
  for (const prediction of predictions.slice(1)) {
    if (prediction.vector) prediction.similarity = bundle.compare(predictions[0].vector, prediction.vector);
  }
  return predictions;
}

// The fields of the options of a text, and how each is read; an empty one is none.
const OPTIONS = {
  maxNewTokens: Number, temperature: Number, topK: Number, topP: Number, seed: Number, beams: Number,
  repetitionPenalty: Number,
  stop: (value) => value.split("\n").filter(Boolean).map((line) => line.replaceAll("\\n", "\n")),
};

function readFields() {
  return Object.fromEntries(Object.entries(OPTIONS).map(([name, read]) =>
    [name, $(name).value === "" ? (name === "stop" ? [] : null) : read($(name).value)]));
}

const ENDS = {
  eos: "The model ended the text.", stop: "A stop text was reached.", length: "The most tokens were reached.", aborted: "Stopped.",
};

/** Writes the text of what is typed, piece by piece. */
async function write(writer, prompt, signal) {
  const node = element("div", undefined, "result"), written = element("span", undefined, "written");
  const note = element("div", "", "note");
  node.append(element(writer.encoder ? "div" : "span", prompt, "text written"), written, note);
  // A prompt is cut at its beginning, because the text goes on at its end.
  const options = { ...readFields(), truncate: writer.encoder ? writer.description.truncation_side : "left" };
  const pieces = writer.write(prompt, options, signal), begun = performance.now();
  for (;;) {
    const { done, value } = await pieces.next();
    if (!node.isConnected) $("results").replaceChildren(node);
    if (done) {
      const seconds = (performance.now() - begun) / 1000;
      note.textContent = (value.isCut ? "The text is longer than the model reads and was cut. " : "") + ENDS[value.finish];
      show(`${value.tokens.length} tokens in ${seconds.toFixed(1)} s, ${(value.tokens.length / seconds).toFixed(1)} per second`);
      return;
    }
    written.append(value);
  }
}

/** What the button does with a bundle that writes text. */
function prepareWriting(writer) {
  $("options").hidden = $("stopping").hidden = false;
  $("button").textContent = "Write";
  const { max_new_tokens, beams, repetition_penalty } = writer.description.generation;
  Object.entries({ maxNewTokens: max_new_tokens, beams, repetitionPenalty: repetition_penalty })
    .forEach(([name, value]) => ($(name).placeholder = value));
  let controller = null;
  $("stopping").addEventListener("click", () => controller?.abort());
  return async () => {
    controller = new AbortController();
    $("stopping").disabled = false;
    try {
      await write(writer, $("texts").value, controller.signal);
    } finally {
      $("stopping").disabled = true;
    }
  };
}

/** What the button does with a bundle that predicts. */
function preparePredicting(bundle) {
  return async () => {
    const lines = $("texts").value.split("\n").filter((line) => line.trim());
    const records = lines.map((line) => read(line, bundle.description));
    const begun = performance.now();
    const predictions = await predict(bundle, records);
    const { decoder } = bundle.description;
    const cards = predictions.map((prediction, i) => card(lines[i], records[i], prediction, decoder));
    const each = (performance.now() - begun) / Math.max(1, lines.length);
    show(`${lines.length} in ${(each * lines.length).toFixed(0)} ms, ${each.toFixed(1)} ms each`);
    $("results").replaceChildren(...cards);
  };
}

/** @param load returns the bundle, or its writer. */
export async function start(load) {
  const started = performance.now();
  const bundle = await load();
  describe(bundle.description);
  const answer = bundle.description.writer ? prepareWriting(bundle) : preparePredicting(bundle);
  show(`Ready after ${((performance.now() - started) / 1000).toFixed(1)} s. Nothing leaves this page.`);
  $("button").disabled = false;
  window.bundle = bundle;
  $("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    $("button").disabled = true;
    try {
      await answer();
    } catch (error) {
      show(error.message, "error");
    }
    $("button").disabled = false;
  });
}

/**
 * The bundle, or the writer of one that writes text.
 *
 * @param modules onnxruntime, the tokenizers, and the modules `bundle.mjs` and `generation.mjs`.
 * @param open returns the session of a file.
 */
export async function create([{ Tensor }, { Tokenizer }, { Bundle }, { Writer }], description, tokenizer, open) {
  const reader = new Tokenizer(tokenizer, {}), session = await open("model.onnx");
  if (!description.writer) return new Bundle(description, reader, session, Tensor);
  const encoder = description.writer.has_encoder ? await open("encoder.onnx") : null;
  return new Writer(description, reader, session, encoder, Tensor);
}

async function loadFromFolder() {
  const modules = await Promise.all(
    ["./ort.mjs", "./tokenizers.mjs", "./bundle.mjs", "./generation.mjs"].map((name) => import(name)));
  const [description, tokenizer] = await Promise.all(
    ["description.json", "tokenizer.json"].map(async (name) => (await fetch(name)).json()));
  const [ort] = modules;
  ort.env.wasm.wasmPaths = { wasm: new URL("ort-wasm-simd-threaded.wasm", import.meta.url).href };
  ort.env.wasm.numThreads = 1;
  return create(modules, description, tokenizer, (name) => ort.InferenceSession.create(name));
}

/** Shows the status of the page. */
function show(words, className = "") {
  $("status").textContent = words;
  $("status").className = className;
}

export function fail(error) {
  show(`The model cannot be loaded: ${error.message}`, "error");
}

if (document.querySelector('script[src="page.mjs"]')) start(loadFromFolder).catch(fail);
