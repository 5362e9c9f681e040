// Writes text with a bundle: tokens one after the other, and the text of whole characters that they make.

const LONGEST_PART = 3;  // Bytes, and so tokens, that are part of a character in UTF-8 and not all of it, at most.
const CONTEXT = 8;  // Tokens of a prompt that decide how its first new tokens are written, such as with a space.
const LONGEST_FRAME = 16;  // Milliseconds without a pause, in which a page is drawn and its buttons are read.
const MOST_LOGITS = 2 ** 25;  // In a pass over a prompt: a longer one is read in several passes.

/** Numbers from 0 to 1 that a seed repeats (mulberry32); others each time without a seed. */
function createRandom(seed) {
  if (seed === null) return Math.random;
  let state = (seed % 2 ** 32) ^ Math.imul(Math.floor(seed / 2 ** 32), 0x9e3779b1);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let value = Math.imul(state ^ (state >>> 15), 1 | state);
    value = (value + Math.imul(value ^ (value >>> 7), 61 | value)) ^ value;
    return ((value ^ (value >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The index of the largest value, the first of equal ones. */
function findLargest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** A token that is sampled from logits. */
export function sample(logits, { temperature, topK, topP }, random) {
  const largest = logits[findLargest(logits)];
  const weights = Float64Array.from(logits, (logit) => Math.exp((logit - largest) / temperature));
  let tokens = Array.from(weights.keys());
  if (topK !== null || topP !== null) tokens.sort((a, b) => weights[b] - weights[a] || a - b);
  if (topK !== null) tokens = tokens.slice(0, topK);
  const sum = (of) => of.reduce((total, token) => total + weights[token], 0);
  if (topP !== null) {
    const enough = topP * sum(tokens);
    let before = 0, count = 0;
    while (count < tokens.length && (count === 0 || before < enough)) before += weights[tokens[count++]];
    tokens = tokens.slice(0, count);
  }
  let rest = random() * sum(tokens);
  for (const token of tokens) {
    rest -= weights[token];
    if (rest < 0) return token;
  }
  return tokens.at(-1);
}

/** The text of tokens that arrive one after the other, as `TokenText` of distill.edge: never half a character. */
export class TokenText {
  /**
   * @param decode returns the text of ids.
   * @param prompt the ids that the tokens continue.
   * @param stop texts before which the text ends.
   */
  constructor(decode, prompt, stop) {
    Object.assign(this, { decode, stop, context: prompt.slice(-CONTEXT), added: [], taken: 0, whole: "", ready: 0, shown: 0 });
    this.longest = Math.max(0, ...stop.map((text) => text.length));
    this.isStopped = false;
  }

  /** The text so far, without the characters that a stop string may begin with. */
  get text() {
    return this.whole.slice(0, this.ready);
  }

  add(token) {
    this.added.push(token);
    const text = this.decode([...this.context, ...this.added]).slice(this.decode(this.context).length);
    let whole = text.replace(/\ufffd+$/, "");
    // A character would be whole: bytes before the last ones are none.
    if (this.added.length > LONGEST_PART) whole += text.slice(whole.length, Math.max(whole.length, text.length - LONGEST_PART));
    this.extend(whole.slice(this.taken));
    this.taken = Math.max(this.taken, whole.length);
    if (text && whole.length === text.length) Object.assign(this, { context: this.added, added: [], taken: 0 });
  }

  /** Makes the rest ready, which may look like the beginning of a stop string. */
  end() {
    this.ready = this.whole.length;
  }

  /** The text that was added since the last call. */
  read() {
    const piece = this.whole.slice(this.shown, this.ready);
    this.shown = this.ready;
    return piece;
  }

  extend(text) {
    const begin = Math.max(0, this.whole.length + 1 - this.longest);
    this.whole += text;
    const places = this.stop.map((stop) => this.whole.indexOf(stop, begin)).filter((place) => place >= 0);
    this.isStopped = places.length > 0;
    if (this.isStopped) this.whole = this.whole.slice(0, Math.min(...places));
    this.ready = this.whole.length - (this.isStopped ? 0 : this.countHeld());
  }

  /** How many last characters may be the beginning of a stop string. */
  countHeld() {
    for (let size = Math.min(this.longest - 1, this.whole.length); size > 0; size--) {
      const end = this.whole.slice(-size);
      if (this.stop.some((stop) => stop.length > size && stop.startsWith(end))) return size;
    }
    return 0;
  }
}

/** The options of a text with their defaults; an error names the value that is out of range. */
export function readOptions(given = {}) {
  const options = { maxNewTokens: null, temperature: null, topK: null, topP: null, seed: null, stop: [], truncate: null, ...given };
  const check = (name, isValid, expected) => {
    if (options[name] !== null && !isValid(options[name])) throw new Error(`${name} is ${options[name]}, expected ${expected}.`);
  };
  const isCount = (value) => Number.isSafeInteger(value) && value > 0;
  check("maxNewTokens", isCount, "a whole number of at least 1");
  check("temperature", (value) => Number.isFinite(value) && value > 0, "a number above 0, or none for the most probable token each time");
  check("topK", isCount, "a whole number of at least 1");
  check("topP", (value) => value > 0 && value <= 1, "a number above 0 and at most 1");
  check("seed", (value) => Number.isSafeInteger(value) && value >= 0, "a whole number of at least 0");
  check("stop", (texts) => texts.every((text) => text && text.isWellFormed()), "texts that are not empty");
  const alone = ["topK", "topP", "seed"].find((name) => options[name] !== null);
  if (options.temperature === null && alone) throw new Error(`${alone} needs a temperature, by which tokens are sampled.`);
  return options;
}

/** One sequence that a model reads step by step, with the keys and values of its earlier tokens. */
class CachedRow {
  constructor(writer, states, sourceLength) {
    Object.assign(this, { writer, states, sourceLength, length: 0, caches: {} });
    for (const [name, [heads, width]] of Object.entries(writer.description.writer.caches)) {
      this.caches[name] = new writer.Tensor("float32", new Float32Array(0), [1, heads, 0, width]);
    }
  }

  /** The logits of the token after these. */
  async read(tokens) {
    const { writer } = this, { classes } = writer.description.writer;
    const size = Math.max(1, Math.floor(MOST_LOGITS / classes));
    for (let begin = 0; begin < tokens.length - size; begin += size) await this.step(tokens.slice(begin, begin + size));
    const rest = tokens.slice(size * (Math.ceil(tokens.length / size) - 1));
    return this.step(rest);
  }

  async step(tokens) {
    const { session, integers, description: { writer } } = this.writer;
    // The keys and values of a source stay as they are once it is read.
    const names = Object.keys(this.caches).filter((name) => !name.includes(".encoder.") || this.length === 0);
    const places = tokens.map((_, i) => this.length + i);
    this.length += tokens.length;
    const possible = {
      input_ids: () => integers(tokens), attention_mask: () => integers(new Array(this.length).fill(1)),
      position_ids: () => integers(places), encoder_hidden_states: () => this.states,
      encoder_attention_mask: () => integers(new Array(this.sourceLength).fill(1)),
    };
    const feed = { ...this.caches };
    for (const [name, create] of Object.entries(possible)) if (session.inputNames.includes(name)) feed[name] = create();
    const presents = names.map((name) => name.replace("past_key_values", "present"));
    const outputs = await session.run(feed, ["logits", ...presents]);
    names.forEach((name, i) => (this.caches[name] = outputs[presents[i]]));
    // A model may have more classes than there are tokens, such as a multiple of 64.
    const begin = outputs.logits.data.length - writer.classes;
    const logits = outputs.logits.data.subarray(begin, begin + writer.size);
    if (!logits.every(Number.isFinite)) throw new Error("The model has logits that are not finite.");
    return logits;
  }
}

export class Writer {
  /**
   * @param description of the bundle, as `description.json` has it.
   * @param tokenizer of @huggingface/tokenizers.
   * @param session of onnxruntime, of the decoder.
   * @param encoder session of the encoder; null for a causal model.
   * @param Tensor the class of onnxruntime.
   */
  constructor(description, tokenizer, session, encoder, Tensor) {
    Object.assign(this, { description, tokenizer, session, encoder, Tensor });
    this.integers = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
    this.decode = (ids) => (ids.length
      ? tokenizer.decode(ids, { skip_special_tokens: true, clean_up_tokenization_spaces: false }) : "");
  }

  /** The tokens of a prompt, or of a source with its special tokens, and whether others were cut off. */
  encode(text, options) {
    if (!text.isWellFormed()) throw new Error("The text is not Unicode: it has a lone surrogate.");
    const { special, generation: { start, eos, positions, max_new_tokens } } = this.description;
    const own = Array.from(this.tokenizer.encode(text, { add_special_tokens: false }).ids, Number);
    const place = special.single.findIndex((part) => part.text === 0);
    const around = (parts) => parts.flatMap((part) => part.ids);
    let before = around(special.single.slice(0, place)), behind = around(special.single.slice(place + 1));
    let most = positions;
    if (this.encoder) {
      if (!own.length) throw new Error("The text is empty.");
    } else {
      // An end token would end the prompt.
      before = before[0] === start && before.length ? [start] : [];
      behind = [];
      if (!own.length) return { ids: [this.begin([start, ...eos])], isCut: false };
      const written = options.maxNewTokens ?? max_new_tokens;
      // A prompt that is cut has at least half of the positions, and otherwise leaves those of all new tokens.
      most = Math.max(positions - written + 1, Math.floor(positions / 2), before.length + 1);
    }
    const added = before.length + behind.length;
    if (positions === null || own.length + added <= positions) return { ids: [...before, ...own, ...behind], isCut: false };
    if (!options.truncate) throw new Error(`The text has ${own.length + added} tokens, and the model reads ${positions}.`);
    const room = most - added;
    const cut = options.truncate === "left" ? own.slice(own.length - room) : own.slice(0, room);
    return { ids: [...before, ...cut, ...behind], isCut: true };
  }

  begin(tokens) {
    const token = tokens.find((token) => token !== null);
    if (token === undefined) throw new Error("The text is empty, and the model has no token that begins a text.");
    return token;
  }

  /**
   * Yields the pieces of the text after a prompt, or of that of a source, and returns
   * `{ text, tokens, finish, isCut }`. `finish` is `stop`, `eos` or `length`, or `aborted` by the signal.
   *
   * @param given options: `maxNewTokens`, `temperature`, `topK`, `topP`, `seed`, `stop` and `truncate` as in Python.
   * @param signal of an AbortController, which ends the text.
   */
  async *write(prompt, given, signal) {
    const options = readOptions(given), { generation } = this.description;
    const { ids, isCut } = this.encode(prompt, options);
    const before = this.encoder ? [generation.start] : ids, random = createRandom(options.seed);
    const room = generation.positions === null ? Infinity : generation.positions - before.length + 1;  // The last one is not read.
    const most = Math.min(options.maxNewTokens ?? generation.max_new_tokens, room);
    const text = new TokenText(this.decode, this.encoder ? [] : ids, options.stop), tokens = [];
    const row = new CachedRow(this, this.encoder && (await this.readSource(ids)), ids.length);
    let finish = null, next = before, paused = performance.now();
    while (finish === null) {
      const logits = await row.read(next);
      const token = this.force(tokens.length, most) ?? (options.temperature === null
        ? findLargest(logits) : sample(logits, options, random));
      if (performance.now() - paused > LONGEST_FRAME) {
        await new Promise((resolve) => setTimeout(resolve));
        paused = performance.now();
      }
      tokens.push(token);
      if (generation.eos.includes(token)) finish = "eos";
      else text.add(token);
      if (text.isStopped) finish = "stop";
      else if (finish === null && tokens.length === most) finish = "length";
      else if (finish === null && signal?.aborted) finish = "aborted";
      if (finish !== null) text.end();
      const piece = text.read();
      if (piece) yield piece;
      next = [token];
    }
    return { text: text.text, tokens, finish, isCut };
  }

  /** The whole text: the result of `write`. */
  async writeAll(prompt, given) {
    const pieces = this.write(prompt, given);
    for (;;) {
      const { done, value } = await pieces.next();
      if (done) return value;
    }
  }

  /** The token that a text must have at a place; null for any. */
  force(place, most) {
    const { forced_bos, forced_eos } = this.description.generation;
    return (place === most - 1 ? forced_eos : null) ?? (place === 0 ? forced_bos : null);
  }

  async readSource(ids) {
    const possible = { input_ids: ids, attention_mask: ids.map(() => 1) };
    const feed = Object.fromEntries(this.encoder.inputNames.map((name) => [name, this.integers(possible[name])]));
    return (await this.encoder.run(feed)).last_hidden_state;
  }
}
