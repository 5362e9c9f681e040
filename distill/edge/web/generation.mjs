// Writes text with a bundle: tokens one after the other, and the text of whole characters that they make.

const LONGEST_PART = 3;  // Bytes, and so tokens, that are part of a character in UTF-8 and not all of it, at most.
const CONTEXT = 8;  // Tokens of a prompt that decide how its first new tokens are written, such as with a space.
const LONGEST_FRAME = 16;  // Milliseconds without a pause, in which a page is drawn and its buttons are read.
const MOST_LOGITS = 2 ** 25;  // In a pass over a prompt: a longer one is read in several passes.
const MOST_BEAMS = 64;

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

/** The places of the `count` largest values, or of all, the largest one first and the first of equal ones. */
function sortLargest(values, count) {
  const places = [];
  for (let i = 0; i < values.length; i++) {
    if (places.length === count && values[i] <= values[places[count - 1]]) continue;
    let place = places.length;
    while (place > 0 && values[i] > values[places[place - 1]]) place--;
    places.splice(place, 0, i);
    if (places.length > count) places.pop();
  }
  return places;
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
  options.beams ??= null;
  options.repetitionPenalty ??= null;
  const check = (name, isValid, expected) => {
    if (options[name] !== null && !isValid(options[name])) throw new Error(`${name} is ${options[name]}, expected ${expected}.`);
  };
  const isCount = (value) => Number.isSafeInteger(value) && value > 0;
  check("maxNewTokens", isCount, "a whole number of at least 1");
  check("temperature", (value) => Number.isFinite(value) && value > 0, "a number above 0, or none for the most probable token each time");
  check("topK", isCount, "a whole number of at least 1");
  check("topP", (value) => value > 0 && value <= 1, "a number above 0 and at most 1");
  check("seed", (value) => Number.isSafeInteger(value) && value >= 0, "a whole number of at least 0");
  check("beams", (value) => isCount(value) && value <= MOST_BEAMS, `a whole number from 1 to ${MOST_BEAMS}`);
  check("repetitionPenalty", (value) => Number.isFinite(value) && value > 0, "a number above 0");
  check("stop", (texts) => texts.every((text) => text && text.isWellFormed()), "texts that are not empty");
  const alone = ["topK", "topP", "seed"].find((name) => options[name] !== null);
  if (options.temperature === null && alone) throw new Error(`${alone} needs a temperature, by which tokens are sampled.`);
  if (options.temperature !== null && options.beams > 1) {
    throw new Error(`beams is ${options.beams} and temperature is ${options.temperature}, expected one of the two.`);
  }
  return options;
}

/** The tokens that may not follow `written` ones, `length` of them behind the prompt, unless one is forced. */
function findForbidden(written, length, { eos, rules }) {
  const found = written.length < rules.min_length || length < rules.min_new_tokens ? [...eos] : [];
  const endsWith = (tokens) => tokens.every((token, i) => token === written[written.length - tokens.length + i]);
  const size = rules.no_repeat_ngram_size;
  for (let begin = 0; size && begin + size <= written.length; begin++) {
    if (endsWith(written.slice(begin, begin + size - 1))) found.push(written[begin + size - 1]);
  }
  for (const word of rules.bad_words_ids) {
    if (word.length > 1 ? endsWith(word.slice(0, -1)) : !eos.includes(word[0])) found.push(word.at(-1));
  }
  return found;
}

/** Logits or log-probabilities of a row as `adjust` of distill.edge has them: with a penalty, forced tokens and rules. */
function adjust(scores, written, length, { repetitionPenalty }, endings) {
  const { forcedEos, most, rules } = endings, adjusted = scores.slice();
  const bos = written.length - length <= 1 ? endings.forcedBos : null;  // A longer prompt has a beginning.
  const forced = (length === most - 1 ? forcedEos : null) ?? (length === 0 ? bos : null);
  const forbid = (tokens) => tokens.forEach((token) => token < scores.length && (adjusted[token] = -Infinity));
  if (forced !== null) {
    adjusted.fill(-Infinity);
    [forced].flat().forEach((token) => (adjusted[token] = 0));
  } else {
    for (const token of repetitionPenalty === 1 ? [] : new Set(written)) {
      adjusted[token] = scores[token] < 0 ? scores[token] * repetitionPenalty : scores[token] / repetitionPenalty;
    }
    forbid(findForbidden(written, length, endings));
  }
  forbid(rules.suppress_tokens);
  if (length === Number(bos !== null)) forbid(rules.begin_suppress_tokens);
  return adjusted;
}

/** Log-probabilities of logits. */
function logSoftmax(logits) {
  const largest = logits[findLargest(logits)];
  const logSum = Math.log(logits.reduce((total, logit) => total + Math.exp(logit - largest), 0));
  return Float32Array.from(logits, (logit) => logit - largest - logSum);
}

/** Chooses one token after the other, as `OneToken` of distill.edge. */
class OneToken {
  constructor(prompt, options, endings) {
    Object.assign(this, { prompt, options, endings, random: createRandom(options.seed), tokens: [], score: null });
  }

  /** How the rows go on after the logits of each: `{ rows, tokens }`, or null if the text has ended. */
  advance([logits]) {
    const scores = adjust(logits, [...this.prompt, ...this.tokens], this.tokens.length, this.options, this.endings);
    const token = this.options.temperature === null ? findLargest(scores) : sample(scores, this.options, this.random);
    this.tokens.push(token);
    if (this.endings.eos.includes(token) || this.tokens.length === this.endings.most) return null;
    return { rows: [0], tokens: [token] };
  }
}

/** Chooses the text of a beam search, as `Beams` of distill.edge; its tokens and its score are those of the end. */
class Beams {
  constructor(prompt, options, endings) {
    Object.assign(this, { prompt, options, endings, tokens: [], score: null, running: [[]], scores: [0], whole: [], length: 0 });
  }

  advance(logits) {
    const { beams } = this.options, { eos, most, lengthPenalty } = this.endings;
    const best = this.findBest(logits);
    this.length++;
    const isEnd = ({ token }) => this.length === most || eos.includes(token);
    for (const each of best.slice(0, beams).filter(isEnd)) {
      this.whole.push({ score: each.score / this.length ** lengthPenalty, tokens: [...this.running[each.row], each.token] });
    }
    this.whole = this.whole.sort((a, b) => b.score - a.score).slice(0, beams);
    const following = best.filter((each) => !isEnd(each)).slice(0, beams);
    if (!following.length || !this.canImprove(following[0].score)) {
      Object.assign(this, this.whole[0]);
      return null;
    }
    this.running = following.map(({ row, token }) => [...this.running[row], token]);
    this.scores = following.map(({ score }) => score);
    return { rows: following.map(({ row }) => row), tokens: following.map(({ token }) => token) };
  }

  /** Score, row and token of the best continuations, the best one first. */
  findBest(logits) {
    const size = logits[0].length, scores = new Float32Array(size * logits.length);
    logits.forEach((own, row) => {
      let adjusted = adjust(logSoftmax(own), [...this.prompt, ...this.running[row]], this.length, this.options, this.endings);
      if (this.endings.renormalizes) adjusted = logSoftmax(adjusted);
      adjusted.forEach((score, token) => (scores[row * size + token] = score + this.scores[row]));
    });
    return sortLargest(scores, Math.max(2, 1 + this.endings.eos.length) * this.options.beams)
      .map((place) => ({ score: scores[place], row: Math.floor(place / size), token: place % size }));
  }

  /** Whether the search goes on, whose best running beam has this sum of log-probabilities. */
  canImprove(best) {
    const { most, lengthPenalty, earlyStopping } = this.endings;
    if (this.whole.length < this.options.beams) return true;
    if (earlyStopping === true) return false;
    const length = earlyStopping === "never" && lengthPenalty > 0 ? most : this.length;
    return best / length ** lengthPenalty > this.whole.at(-1).score;
  }
}

/** The rows of one text that a model reads step by step, with the keys and values of their earlier tokens. */
class CachedRows {
  constructor(writer, states, sourceLength) {
    Object.assign(this, { writer, states, sourceLength, count: 1, length: 0, caches: {} });
    for (const [name, [heads, width]] of Object.entries(writer.description.writer.caches)) {
      this.caches[name] = new writer.Tensor("float32", new Float32Array(0), [1, heads, 0, width]);
    }
  }

  /** The logits after the tokens of a prompt, of the only row. */
  async read(tokens) {
    const { classes } = this.writer.description.writer;
    const size = Math.max(1, Math.floor(MOST_LOGITS / classes));
    for (let begin = 0; begin < tokens.length - size; begin += size) await this.step([tokens.slice(begin, begin + size)]);
    const rest = tokens.slice(size * (Math.ceil(tokens.length / size) - 1));
    return this.step([rest]);
  }

  /** The logits after these tokens of each row. */
  async step(tokens) {
    const { session, integers, description: { writer } } = this.writer;
    // The keys and values of a source stay as they are once it is read.
    const names = Object.keys(this.caches).filter((name) => !isOfSource(name) || this.length === 0);
    const places = tokens[0].map((_, i) => this.length + i);
    this.length += tokens[0].length;
    const same = (values) => tokens.map(() => values);
    const possible = {
      input_ids: () => integers(tokens), attention_mask: () => integers(same(new Array(this.length).fill(1))),
      position_ids: () => integers(same(places)), encoder_hidden_states: () => this.states,
      encoder_attention_mask: () => integers(same(new Array(this.sourceLength).fill(1))),
    };
    const feed = { ...this.caches };
    for (const [name, create] of Object.entries(possible)) if (session.inputNames.includes(name)) feed[name] = create();
    const presents = names.map((name) => name.replace("past_key_values", "present"));
    const outputs = await session.run(feed, ["logits", ...presents]);
    names.forEach((name, i) => (this.caches[name] = outputs[presents[i]]));
    return tokens.map((_, row) => {
      // A model may have more classes than there are tokens, such as a multiple of 64.
      const begin = ((row + 1) * tokens[0].length - 1) * writer.classes;
      const logits = outputs.logits.data.subarray(begin, begin + writer.size);
      if (!logits.every(Number.isFinite)) throw new Error("The model has logits that are not finite.");
      return logits;
    });
  }

  /** Takes these rows in this order; a row may be taken several times. */
  select(rows) {
    const isLarger = rows.length !== this.count;
    if (!isLarger && rows.every((row, i) => row === i)) return;
    for (const [name, cache] of Object.entries(this.caches)) {
      // All rows have the same source.
      if (isLarger || !isOfSource(name)) this.caches[name] = this.take(cache, rows);
    }
    if (isLarger && this.states) this.states = this.take(this.states, rows);
    this.count = rows.length;
  }

  take(tensor, rows) {
    const size = tensor.data.length / this.count, data = new Float32Array(rows.length * size);
    rows.forEach((row, i) => data.set(tensor.data.subarray(row * size, (row + 1) * size), i * size));
    return new this.writer.Tensor("float32", data, [rows.length, ...tensor.dims.slice(1)]);
  }
}

function isOfSource(name) {
  return name.includes(".encoder.");
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
    this.integers = (rows) => new Tensor("int64", BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length]);
    this.decode = (ids) => (ids.length
      ? tokenizer.decode(ids, { skip_special_tokens: true, clean_up_tokenization_spaces: false }) : "");
  }

  /** The tokens of a prompt, or of a source with its special tokens, and whether others were cut off. */
  encode(text, options) {
    if (!text.isWellFormed()) throw new Error("The text is not Unicode: it has a lone surrogate.");
    const { special, decoding, generation: { start, eos, positions, max_new_tokens } } = this.description;
    const tokenize = (part) => Array.from(this.tokenizer.encode(part, { add_special_tokens: false }).ids, Number);
    let own = tokenize(text);
    const place = special.single.findIndex((part) => part.text === 0);
    const around = (parts) => parts.flatMap((part) => part.ids);
    let before = around(special.single.slice(0, place)), behind = around(special.single.slice(place + 1));
    let most = positions;
    if (this.encoder) {
      if (!own.length) throw new Error("The text is empty.");
      if (decoding?.prefix) own = tokenize(decoding.prefix + text);
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
   * `{ text, tokens, finish, isCut }`, and of a beam search its `score`. `finish` is `stop`, `eos` or `length`, or
   * `aborted` by the signal. The text of a beam search comes as one piece.
   *
   * @param given options: `maxNewTokens`, `temperature`, `topK`, `topP`, `seed`, `beams`, `stop`, `repetitionPenalty`
   *   and `truncate` as in Python.
   * @param signal of an AbortController, which ends the text.
   */
  async *write(prompt, given, signal) {
    const { generation } = this.description, options = this.complete(readOptions(given));
    const { ids, isCut } = this.encode(prompt, options);
    const before = this.encoder ? [generation.start] : ids;
    const choice = new (options.beams > 1 ? Beams : OneToken)(before, options, this.endings(options, before.length));
    const text = new TokenText(this.decode, this.encoder ? [] : ids, options.stop);
    const rows = new CachedRows(this, this.encoder && (await this.readSource(ids)), ids.length);
    let logits = await rows.read(before), finish = null, shown = 0, paused = performance.now();
    while (finish === null) {
      const following = choice.advance(logits);
      if (performance.now() - paused > LONGEST_FRAME) {
        await new Promise((resolve) => setTimeout(resolve));
        paused = performance.now();
      }
      for (; shown < choice.tokens.length && finish === null; shown++) {
        if (generation.eos.includes(choice.tokens[shown])) finish = "eos";
        else text.add(choice.tokens[shown]);
        if (text.isStopped) finish = "stop";
      }
      if (finish === null && following === null) finish = "length";
      else if (finish === null && signal?.aborted) finish = "aborted";
      if (finish !== null) text.end();
      const piece = text.read();
      if (piece) yield piece;
      if (finish !== null) break;
      rows.select(following.rows);
      logits = await rows.step(following.tokens.map((token) => [token]));
    }
    const score = choice.score === null ? {} : { score: choice.score };
    return { text: text.text, tokens: choice.tokens, finish, isCut, ...score };
  }

  /** The whole text: the result of `write`. */
  async writeAll(prompt, given) {
    const pieces = this.write(prompt, given);
    for (;;) {
      const { done, value } = await pieces.next();
      if (done) return value;
    }
  }

  /** The options with the beams and the penalty of the bundle where none are given. */
  complete(options) {
    const { beams, repetition_penalty } = this.description.generation;
    const own = options.temperature === null ? beams : 1;
    return { ...options, beams: options.beams ?? own, repetitionPenalty: options.repetitionPenalty ?? repetition_penalty };
  }

  /** The rules by which a text ends, whose decoder reads `count` tokens before it. */
  endings({ maxNewTokens }, count) {
    const { generation } = this.description;
    const room = generation.positions === null ? Infinity : generation.positions - count + 1;  // The last one is not read.
    return {
      eos: generation.eos, most: Math.min(maxNewTokens ?? generation.max_new_tokens, room),
      forcedBos: generation.forced_bos, forcedEos: generation.forced_eos,
      lengthPenalty: generation.length_penalty, earlyStopping: generation.early_stopping,
      renormalizes: generation.renormalizes, rules: generation.rules,
    };
  }

  async readSource(ids) {
    const possible = { input_ids: ids, attention_mask: ids.map(() => 1) };
    const feed = Object.fromEntries(this.encoder.inputNames.map((name) => [name, this.integers([possible[name]])]));
    return (await this.encoder.run(feed)).last_hidden_state;
  }
}
