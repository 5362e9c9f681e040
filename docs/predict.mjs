// node predict.mjs BUNDLE [--model NAME] "a text" "another one"   npm install onnxruntime-node @huggingface/tokenizers
// A whole reader of bundles of the decoders `classes` and `number`, for single texts. Its lines are those of
// `python -m distill.edge BUNDLE --json`.
import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import ort from "onnxruntime-node";
import { Tokenizer } from "@huggingface/tokenizers";

const [directory, ...words] = process.argv.slice(2);
const given = words[0] === "--model" ? words.splice(0, 2)[1] : null;
const read = (name) => readFileSync(join(directory, name));
const bundle = JSON.parse(read("bundle.json"));
if (bundle.format !== 1 || bundle.pair || !["classes", "number"].includes(bundle.decoder)) {
  throw new Error(`cannot read format ${bundle.format}, pair ${bundle.pair}, decoder ${bundle.decoder}`);
}
const name = given ?? bundle.recommended, names = Object.keys(bundle.models);
if (!names.includes(name)) throw new Error(`there is no model ${name}: add --model with one of ${names.join(", ")}`);

// An int8 file of 8 bits is wrong on an x86 processor that has no dot products of int8 (VNNI).
const flags = existsSync("/proc/cpuinfo") ? readFileSync("/proc/cpuinfo", "utf8").match(/^flags.*/m)?.[0] ?? "" : "";
const hasProducts = process.arch === "arm64" || /\b(avx512_?vnni|avx_vnni|avx512_clx|avx512_icl)\b/.test(flags);
const runs = (model) => hasProducts || (bundle.targets[model] ?? "avx2") === "avx2";
if (!runs(name)) {
  const right = names.filter(runs).join(" or ") || "a model exported with export.target=avx2";
  throw new Error(`the model ${name} is for processors of the kind ${bundle.targets[name]}, and this one is avx2: add --model ${right}`);
}

for (const file of [bundle.models[name], "tokenizer.json"]) {
  const digest = createHash("sha256").update(read(file)).digest("hex");
  if (digest !== bundle.files[file]) throw new Error(`${file} is damaged`);
}
const tokenizer = new Tokenizer(JSON.parse(read("tokenizer.json")), {});
const session = await ort.InferenceSession.create(join(directory, bundle.models[name]));

/** The logits of a text, and whether it was cut. */
async function run(text) {
  const plain = tokenizer.encode(text, { add_special_tokens: false }).ids;
  const whole = tokenizer.encode(text).ids;
  const start = whole.findIndex((_, i) => plain.every((id, j) => id === whole[i + j])); // Special tokens before the text.
  const kept = Math.min(plain.length, bundle.max_length - (whole.length - plain.length));
  const cut = bundle.truncation_side === "left" ? plain.slice(plain.length - kept) : plain.slice(0, kept);
  const ids = [...whole.slice(0, start), ...cut, ...whole.slice(start + plain.length)];
  const columns = { input_ids: ids, attention_mask: ids.map(() => 1), token_type_ids: ids.map(() => 0) };
  const tensor = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, ids.length]);
  const { logits } = await session.run(Object.fromEntries(bundle.inputs.map((name) => [name, tensor(columns[name])])));
  return { logits: Array.from(logits.data), isCut: kept < plain.length };
}

/** The prediction from logits; those of a text without any letter are null. */
function decode(logits) {
  if (bundle.decoder === "number") return { value: logits && logits[0] };
  if (!logits) return { label: null, probability: null, probabilities: null };
  const powers = logits.map((logit) => Math.exp(logit - Math.max(...logits)));
  const sum = powers.reduce((a, b) => a + b), shares = powers.map((power) => power / sum);
  const probability = Math.max(...shares), isSure = probability >= (bundle.thresholds[name] ?? 0);
  const probabilities = Object.fromEntries(bundle.labels.map((label, i) => [label, shares[i]]));
  return { label: isSure ? bundle.labels[shares.indexOf(probability)] : null, probability, probabilities };
}

const isBlank = (text) => /^[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*$/.test(text);
for (const text of words) {
  const { logits, isCut } = isBlank(text) ? { logits: null, isCut: false } : await run(text);
  console.log(JSON.stringify({ text, ...decode(logits), ...(isCut ? { truncated: true } : {}) }));
}
