// node predict.mjs BUNDLE "a text" "another one"     npm install onnxruntime-node @huggingface/tokenizers
// A whole reader of bundles of the decoders `classes` and `number`, for single texts.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import ort from "onnxruntime-node";
import { Tokenizer } from "@huggingface/tokenizers";

const [directory, ...texts] = process.argv.slice(2);
const read = (name) => readFileSync(join(directory, name));
const bundle = JSON.parse(read("bundle.json"));
if (bundle.format !== 1 || bundle.pair || !["classes", "number"].includes(bundle.decoder)) {
  throw new Error(`cannot read format ${bundle.format}, pair ${bundle.pair}, decoder ${bundle.decoder}`);
}
const file = bundle.models[bundle.recommended];
for (const name of [file, "tokenizer.json"]) {
  const digest = createHash("sha256").update(read(name)).digest("hex");
  if (digest !== bundle.files[name]) throw new Error(`${name} is damaged`);
}
const tokenizer = new Tokenizer(JSON.parse(read("tokenizer.json")), {});
const session = await ort.InferenceSession.create(join(directory, file));

for (const text of texts) {
  const plain = tokenizer.encode(text, { add_special_tokens: false }).ids;
  const whole = tokenizer.encode(text).ids;
  const start = whole.findIndex((_, i) => plain.every((id, j) => id === whole[i + j])); // Special tokens before the text.
  const kept = Math.min(plain.length, bundle.max_length - (whole.length - plain.length));
  const cut = bundle.truncation_side === "left" ? plain.slice(plain.length - kept) : plain.slice(0, kept);
  const ids = [...whole.slice(0, start), ...cut, ...whole.slice(start + plain.length)];
  const columns = { input_ids: ids, attention_mask: ids.map(() => 1), token_type_ids: ids.map(() => 0) };
  const tensor = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, ids.length]);
  const { logits } = await session.run(Object.fromEntries(bundle.inputs.map((name) => [name, tensor(columns[name])])));
  const powers = Array.from(logits.data, (logit) => Math.exp(logit - Math.max(...logits.data)));
  const sum = powers.reduce((a, b) => a + b);
  const probabilities = Object.fromEntries(bundle.labels.map((label, i) => [label, powers[i] / sum]));
  console.log(JSON.stringify(bundle.decoder === "number" ? { value: logits.data[0] } : probabilities));
}
