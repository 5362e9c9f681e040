// Runs a bundle: tokens with their truncation and special tokens, the model, and the predictions.

/** The lengths to which a text, or the two of a pair, are cut: the longer one of a pair loses first. */
export function cutLengths(lengths, limit) {
  if (lengths.length === 1) return [Math.min(lengths[0], limit)];
  let [short, long] = [Math.min(...lengths), Math.max(...lengths)];
  long = short > limit ? short : Math.max(short, limit - short);
  if (short + long > limit) {
    short = Math.floor(limit / 2);
    long = short + (limit % 2);
  }
  const cut = lengths[0] > lengths[1] ? [long, short] : [short, long];
  return lengths.map((length, i) => Math.min(length, cut[i]));
}

export function softmax(logits) {
  const largest = Math.max(...logits);
  const exponentials = logits.map((logit) => Math.exp(logit - largest));
  const sum = exponentials.reduce((a, b) => a + b, 0);
  return exponentials.map((value) => value / sum);
}

export class Bundle {
  /**
   * @param description of the bundle, as `description.json` has it.
   * @param tokenizer of @huggingface/tokenizers.
   * @param session of onnxruntime.
   * @param Tensor the class of onnxruntime.
   */
  constructor(description, tokenizer, session, Tensor) {
    Object.assign(this, { description, tokenizer, session, Tensor });
  }

  /** The ids and the types of a text, or of a pair of texts, cut to the longest that the model reads. */
  encode(texts) {
    const { max_length, truncation_side, special } = this.description;
    const parts = special[texts.length === 2 ? "pair" : "single"];
    const given = texts.map((text) => Array.from(this.tokenizer.encode(text, { add_special_tokens: false }).ids, Number));
    const added = parts.reduce((sum, part) => sum + (part.ids ? part.ids.length : 0), 0);
    const lengths = cutLengths(given.map((ids) => ids.length), max_length - added);
    const cut = given.map((ids, i) =>
      truncation_side === "left" ? ids.slice(ids.length - lengths[i]) : ids.slice(0, lengths[i]));
    const ids = [], types = [];
    for (const part of parts) {
      const piece = part.ids || cut[part.text];
      ids.push(...piece);
      types.push(...piece.map(() => part.type));
    }
    return { ids, types, isCut: given.some((all, i) => all.length > lengths[i]) };
  }

  /** The prediction for a text, or for a pair `[first, second]`. */
  async predict(record) {
    const { ids, types, isCut } = this.encode(Array.isArray(record) ? record : [record]);
    const columns = { input_ids: ids, attention_mask: ids.map(() => 1), token_type_ids: types };
    const feed = {};
    for (const name of this.description.inputs) {
      feed[name] = new this.Tensor("int64", BigInt64Array.from(columns[name], BigInt), [1, ids.length]);
    }
    const { logits } = await this.session.run(feed);
    return { ...this.decode(Array.from(logits.data)), isCut };
  }

  decode(logits) {
    const { decoder, labels, threshold } = this.description;
    if (decoder === "number") return { value: logits[0] };
    const values = softmax(logits);
    const best = values.indexOf(Math.max(...values));
    const withheld = threshold !== null && values[best] < threshold;
    return {
      label: withheld ? null : labels[best],
      probability: values[best],
      probabilities: Object.fromEntries(labels.map((label, i) => [label, values[i]])),
    };
  }
}
