// Runs a bundle: tokens with their truncation and special tokens, the model, and the predictions of its decoder.

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

export function sigmoid(logit) {
  return 1 / (1 + Math.exp(-logit));
}

/** The index of the largest value. */
function best(values) {
  return values.indexOf(Math.max(...values));
}

// The spaces of Python, which are not all those of a browser.
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";

const BLANK = new RegExp(`^[${SPACE}]*$`);

/** The words and punctuation marks of a text: `[start, end]` of each in UTF-16 units. */
export function splitWords(text) {
  const pattern = new RegExp(`[\\p{L}\\p{N}_][\\p{L}\\p{N}_\\p{M}]*|[^\\p{L}\\p{N}_${SPACE}]\\p{M}*`, "gu");
  return Array.from(text.matchAll(pattern), (match) => [match.index, match.index + match[0].length]);
}

// Letters of languages without spaces: Thai, Lao, Tibetan, Burmese, Khmer, Chinese and Japanese.
const UNSPACED = new RegExp(
  "^[\\u0e00-\\u0fff\\u1000-\\u109f\\u1780-\\u17ff\\u2e80-\\u2fdf\\u3005-\\u3007\\u3021-\\u3029\\u3031-\\u3035\\u3040-\\u30ff" +
  "\\u3100-\\u312f\\u31f0-\\u31ff\\u3400-\\u4dbf\\u4e00-\\u9fff\\ua9e0-\\ua9ff\\uaa60-\\uaa7f\\uf900-\\ufaff\\uff66-\\uff9f" +
  "\\u{20000}-\\u{323af}]", "u");
const MARK = /^\p{M}/u;
const FIRST_MARK = new RegExp(`^([^\\p{L}\\p{N}\\p{M}_${SPACE}])\\p{M}*`, "u");
const LAST_MARK = new RegExp(`([^\\p{L}\\p{N}\\p{M}_${SPACE}])\\p{M}*$`, "u");

/** What is between the spaces of a text: `[start, end]` of each in UTF-16 units. */
function splitSpaces(text) {
  return Array.from(text.matchAll(new RegExp(`[^${SPACE}]+`, "gu")), (match) => [match.index, match.index + match[0].length]);
}

/** As `splitWords`, and each letter of a language without spaces by itself. */
function splitCharacters(text) {
  return splitWords(text).flatMap(([first, last]) => {
    const spans = [];
    let place = first;
    for (const letter of text.slice(first, last)) {
      const begun = spans.at(-1);
      const isApart = begun && (UNSPACED.test(text.slice(begun[0], begun[1])) || UNSPACED.test(letter)) && !MARK.test(letter);
      if (!begun || isApart) spans.push([place, place + letter.length]);
      else begun[1] = place + letter.length;
      place += letter.length;
    }
    return spans;
  });
}

/** The length of the mark at one edge of a chunk that is no part of its word, 0 without one; several alike may be a word. */
function countEdge(chunk, isFirst, whole, attached) {
  const match = chunk.match(isFirst ? FIRST_MARK : LAST_MARK), mark = match?.[1];
  if (!match || attached.includes(mark)) return 0;
  let run = 0;
  const isRun = (size) => (isFirst ? chunk.startsWith(mark, size) : chunk.endsWith(mark, chunk.length - size));
  while (run < chunk.length && run < 65 * mark.length && isRun(run)) run += mark.length;
  return run && run < 65 * mark.length && whole.has(isFirst ? chunk.slice(0, run) : chunk.slice(-run)) ? run : match[0].length;
}

/** The words of what is between `first` and `last`, where some may be `'s`, `n't` or `l'`. */
function splitApostrophe(text, first, last, whole) {
  const spans = [];
  for (let place = first + 1; place < last - 1 && !whole.has(text.slice(first, last)); place++) {
    if (!"'\u2019".includes(text[place])) continue;
    const isWhole = (cut) => whole.has(cut > place ? text.slice(first, cut) : text.slice(cut, last));
    const cut = [place - 1, place, place + 1].find((place) => first < place && isWhole(place));
    if (cut === undefined) continue;
    spans.push([first, cut]);
    first = cut;
    place = Math.max(place, cut);
  }
  return first < last ? [...spans, [first, last]] : spans;
}

/** What is between spaces, without the marks at its edges, unless the splitter has them as a part of a word. */
function splitEdges(text, splitter) {
  const whole = new Set(splitter.whole);
  return splitSpaces(text).flatMap(([first, last]) => {
    const before = [], behind = [];
    while (first < last && !whole.has(text.slice(first, last))) {
      const chunk = text.slice(first, last), leading = countEdge(chunk, true, whole, splitter.leading);
      const size = leading || countEdge(chunk, false, whole, splitter.trailing);
      if (!size) break;
      if (leading) before.push([first, (first += size)]);
      else behind.unshift([last - size, (last -= size) + size]);
    }
    return [...before, ...splitApostrophe(text, first, last, whole), ...behind];
  });
}

const SPLITTERS = { punctuation: splitWords, edges: splitEdges, characters: splitCharacters, spaces: splitSpaces };

/** The words of a text by the splitter of a bundle, as `Splitter` of distill.edge finds them. */
export function split(text, splitter) {
  return SPLITTERS[splitter.name](text, splitter);
}

/** The words with a token of their own: `{ word, piece }`, each with the words right behind it that share its last one. */
export function joinWords(text, words, pieces) {
  const joined = [];
  let behind = null;
  words.forEach(([start, end], i) => {
    const last = joined.at(-1);
    if (pieces[i] !== null) joined.push({ word: [start, end], piece: pieces[i] });
    else if (start !== behind) return;
    else if (!/^\p{C}/u.test(text.slice(start, end))) last.word[1] = end;  // A control character has no token at all.
    behind = end;
  });
  return joined;
}

/**
 * The first token of each word, null for a word without a token of its own.
 *
 * The tokenizer does not tell the characters of its tokens. They follow from the tokens of the beginning of a text up to
 * a word: those that it has in common with the whole text end before the word.
 *
 * @param ids of the whole text.
 * @param encode returns the ids of a text.
 * @param unknown the id of the unknown token, or null.
 */
export function findFirstPieces(text, words, ids, encode, unknown) {
  const pieces = new Array(words.length).fill(null);
  let first = 0, next = 0;
  for (const { 0: chunk, index } of text.matchAll(/[\t\n\r\p{Z}]*[^\t\n\r\p{Z}]+|[\t\n\r\p{Z}]+/gu)) {
    // Some tokenizers read the space before a word as a part of it, and others add one.
    const shown = [chunk, chunk.replace(/^[\t\n\r\p{Z}]+/u, "")].find((part) =>
      encode(part).every((id, i) => id === ids[first + i]));
    if (shown === undefined) throw new Error("The tokens of this text do not follow its words.");
    const own = encode(shown), start = index + chunk.length - shown.length;
    const countCommon = (length) => {
      const before = encode(shown.slice(0, length));
      const common = before.findIndex((id, i) => id !== own[i]);
      if (common >= 0) return { whole: common, begun: common + 1 };
      // The unknown token at the end may stand for more than this beginning.
      const goesOn = before.at(-1) === unknown && String(encode(shown.slice(length))) !== String(own.slice(before.length));
      return { whole: before.length - goesOn, begun: before.length };
    };
    // The last of several spaces may be a token by itself, or a part of the word after it.
    const countSpaces = (length) => {
      const before = countCommon(length - 1).whole, last = encode(shown.slice(length - 1, length));
      const isAlone = /^[\t\n\r\p{Z}]+$/u.test(shown.slice(0, length)) && last.every((id, i) => id === own[before + i]);
      return before + (isAlone ? last.length : 0);
    };
    let ended = 0, taken = -1;
    for (; next < words.length && words[next][0] < index + chunk.length; next++) {
      const [from, to] = words[next].map((place) => place - start);
      ended = Math.max(ended, countCommon(from).whole, from > 0 ? countSpaces(from) : 0);
      if (ended < Math.min(own.length, countCommon(to).begun) && ended !== taken) {
        taken = ended;
        pieces[next] = first + taken;
      }
    }
    first += own.length;
  }
  if (first !== ids.length) throw new Error("The tokens of this text do not follow its words.");
  return pieces;
}

/** The tokens `[from, to]` that are kept of `count`: no word is cut in its middle. */
export function cutBetweenWords(pieces, count, room, side) {
  if (count <= room) return [0, count];
  const cuts = pieces.filter((piece) => piece !== null);
  return side === "left"
    ? [Math.min(count, ...cuts.filter((cut) => count - cut <= room)), count]
    : [0, Math.max(0, ...cuts.filter((cut) => cut <= room))];
}

/** The likeliest valid tags of words by their logits `[n][C]`, as `TagScheme` of distill.edge decodes them. */
export function decodeTags(logits, labels, scheme) {
  if (!logits.length) return [];
  const parts = labels.map((label) => /^([BIES])(-?)(.*)$/s.exec(label)).map((found) => (found && (found[2] || !found[3])
    ? { prefix: found[1], rest: found[2] + found[3] } : { prefix: "O", rest: null }));
  const known = new Set(labels), isApart = scheme === "IOB1", hasOutside = parts.some(({ prefix }) => prefix === "O");
  const lacks = ({ rest }, prefix) => !known.has(prefix + rest);
  const isFirst = (tag) => !hasOutside || (tag.prefix === "B" ? !isApart || lacks(tag, "I")
    : "OS".includes(tag.prefix) || lacks(tag, "B") || isApart);
  const isLast = (tag) => !hasOutside || !"BI".includes(tag.prefix) || lacks(tag, "E");
  const joins = (before, tag) => "BI".includes(before.prefix) && before.rest === tag.rest &&
    ("IE".includes(tag.prefix) || (isApart && tag.prefix === "B"));
  const cost = (isValid) => (isValid ? 0 : -Infinity), [first, last] = [parts.map(isFirst), parts.map(isLast)];
  const costs = parts.map((tag, j) => parts.map((before, i) => cost(joins(before, tag) || (last[i] && first[j]))));
  const tails = [];
  let scores = logits[0].map((logit, j) => logit + cost(first[j]));
  for (const word of logits.slice(1)) {
    const from = costs.map((of) => best(of.map((value, i) => scores[i] + value)));
    scores = word.map((logit, j) => scores[from[j]] + costs[j][from[j]] + logit);
    tails.push(from);
  }
  const tags = [best(scores.map((score, j) => score + cost(last[j])))];
  for (const from of tails.reverse()) tags.unshift(from[tags[0]]);
  return tags;
}

/** The entities of tags by the rule of conlleval: `[first, last, type]` of each, with words from `first` to `last`. */
export function findEntities(tags) {
  const found = [];
  let open = null;
  tags.forEach((tag, i) => {
    const [prefix, ...rest] = tag.split("-");
    const type = rest.join("-");
    if (!["B", "I", "E", "S"].includes(prefix)) {
      open = null;
      return;
    }
    if (open !== null && open.type === type && (prefix === "I" || prefix === "E")) open.last = i + 1;
    else found.push((open = { first: i, last: i + 1, type }));
    if (prefix === "E" || prefix === "S") open = null;
  });
  return found.map(({ first, last, type }) => [first, last, type]);
}

/** The number that is left of digits, letters counting from 10, after division by 97. */
function divideIban(text) {
  const characters = text.replace(/[^A-Za-z0-9]/g, ""), turned = characters.slice(4) + characters.slice(0, 4);
  const digits = Array.from(turned, (each) => parseInt(each, 36)).join("");
  return Array.from(digits).reduce((rest, digit) => (rest * 10 + Number(digit)) % 97, 0);
}

function sumLuhn(text) {
  const digits = Array.from(text.replace(/[^0-9]/g, ""), Number).reverse();
  return digits.reduce((sum, digit, i) => sum + (i % 2 ? Math.floor(digit / 5) + ((2 * digit) % 10) : digit), 0);
}

const CHECKS = { iban: (text) => divideIban(text) === 1, luhn: (text) => sumLuhn(text) % 10 === 0 };

/** The matches `[start, end]` of a pattern in UTF-16 units whose check holds, as `Pattern` of distill.edge finds them. */
export function findMatches(text, { pattern, check }) {
  const isRight = check ? CHECKS[check] : () => true, sticky = new RegExp(pattern, "uy");
  const again = (first, end) => {
    sticky.lastIndex = first;
    return sticky.exec(text.slice(0, end))?.[0];
  };
  return Array.from(text.matchAll(new RegExp(pattern, "gu"))).flatMap(({ 0: match, index }) => {
    let found = match;
    for (let end = index + match.length; !(found && isRight(found));) {
      end = check ? text.lastIndexOf(" ", end - 1) : index;
      if (end <= index) return [];
      found = again(index, end);
    }
    return [[index, index + found.length]];
  });
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

  /** The ids of a text without special tokens. */
  ids(text) {
    return Array.from(this.tokenizer.encode(text, { add_special_tokens: false }).ids, Number);
  }

  /** The special tokens around a text, or around those of a pair, and their number. */
  frame(texts) {
    const parts = this.description.special[texts.length === 2 ? "pair" : "single"];
    return { parts, added: parts.reduce((sum, part) => sum + (part.ids ? part.ids.length : 0), 0) };
  }

  /** The ids and the types of a text, or of a pair of texts, cut to the longest that the model reads. */
  encode(texts) {
    const { max_length, truncation_side } = this.description;
    const { parts, added } = this.frame(texts);
    const given = texts.map((text) => this.ids(text));
    const lengths = cutLengths(given.map((ids) => ids.length), max_length - added);
    const cut = given.map((ids, i) =>
      truncation_side === "left" ? ids.slice(ids.length - lengths[i]) : ids.slice(0, lengths[i]));
    return { ...join(parts, cut), isCut: given.some((all, i) => all.length > lengths[i]) };
  }

  /** The logits of a sequence of tokens. */
  async run({ ids, types }) {
    const columns = { input_ids: ids, attention_mask: ids.map(() => 1), token_type_ids: types };
    const shape = this.description.decoder === "choices" ? [1, 1, ids.length] : [1, ids.length];
    const feed = {};
    for (const name of this.description.inputs) {
      feed[name] = new this.Tensor("int64", BigInt64Array.from(columns[name], BigInt), shape);
    }
    return Array.from((await this.session.run(feed)).logits.data);
  }

  /** The prediction for a text, for a pair `[first, second]`, or for `{question, choices, context}`, all of Unicode. */
  async predict(record) {
    const { decoder } = this.description;
    const texts = typeof record === "string" ? [record] : Object.values(record).flat();
    if (!texts.every((text) => text.isWellFormed())) throw new Error("The text is not Unicode: it has a lone surrogate.");
    // An encoder has no vector of nothing, as in Python.
    if (decoder === "vectors" && BLANK.test(record)) throw new Error("The text is empty.");
    if (decoder === "tags") return this.tag(record);
    if (decoder === "choices") return this.choose(record);
    const encoded = this.encode(Array.isArray(record) ? record : [record]);
    return { ...this.decode(await this.run(encoded)), isCut: encoded.isCut };
  }

  decode(logits) {
    const { decoder, labels, decoding } = this.description;
    if (decoder === "number") return { value: logits[0] };
    if (decoder === "vectors") return { vector: logits };
    const named = (values) => Object.fromEntries(labels.map((label, i) => [label, values[i]]));
    if (decoder === "labels") {
      const values = logits.map(sigmoid);
      const given = labels.map((label, i) => ({ label, probability: values[i] }))
        .filter(({ probability }, i) => probability >= decoding.thresholds[i])
        .sort((a, b) => b.probability - a.probability);
      return { labels: given, probabilities: named(values) };
    }
    const values = softmax(logits), index = best(values);
    return {
      label: this.withholds(values[index]) ? null : labels[index], probability: values[index],
      probabilities: named(values),
    };
  }

  /** The cosine of two vectors. */
  compare(first, second) {
    const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
    return dot(first, second) / Math.sqrt(dot(first, first) * dot(second, second));
  }

  /** Whether the bundle gives no label with this probability. */
  withholds(probability) {
    return this.description.threshold !== null && probability < this.description.threshold;
  }

  async choose({ question, choices, context }) {
    const pairs = choices.map((choice) => (context ? [context, `${question} ${choice}`] : [question, choice]));
    const encoded = pairs.map((pair) => this.encode(pair));
    const logits = [];
    for (const sequence of encoded) logits.push(...(await this.run(sequence)));
    const probabilities = softmax(logits), index = best(probabilities), probability = probabilities[index];
    return {
      choice: this.withholds(probability) ? null : choices[index], index, probability, probabilities,
      isCut: encoded.some(({ isCut }) => isCut),
    };
  }

  async tag(text) {
    const { labels, max_length, truncation_side, unknown, decoding } = this.description;
    const { parts, added } = this.frame([text]);
    const all = this.ids(text), words = split(text, decoding.splitter);
    const pieces = findFirstPieces(text, words, all, (part) => this.ids(part), unknown);
    const [from, to] = cutBetweenWords(pieces, all.length, max_length - added, truncation_side);
    const logits = await this.run(join(parts, [all.slice(from, to)]));
    const before = parts.slice(0, parts.findIndex((part) => part.text === 0));
    const offset = before.reduce((sum, part) => sum + part.ids.length, 0) - from;
    const kept = joinWords(text, words, pieces).filter(({ piece }) => piece >= from && piece < to);
    const rows = kept.map(({ piece }) => logits.slice((piece + offset) * labels.length, (piece + offset + 1) * labels.length));
    const tags = decodeTags(rows, labels, decoding.scheme), values = rows.map(softmax);
    const points = countPoints(text), taken = new Uint8Array(text.length);
    const matches = (decoding.patterns ?? []).flatMap((pattern) =>
      findMatches(text, pattern).map(([start, end]) => ({ type: pattern.type, score: 1, start, end })));
    const tagged = findEntities(tags.map((tag) => labels[tag])).map(([first, last, type]) => {
      const scores = values.slice(first, last).map((of, i) => of[tags[first + i]]);
      const score = scores.reduce((a, b) => a + b, 0) / scores.length;
      return { type, score, start: kept[first].word[0], end: kept[last - 1].word[1] };
    });
    // A match takes the place of the entities that it overlaps, and of the matches of patterns behind its own.
    const entities = [...matches, ...tagged].filter(({ start, end }) => {
      const isFree = taken.subarray(start, end).every((value) => value === 0);
      if (isFree) taken.fill(1, start, end);
      return isFree;
    }).sort((a, b) => a.start - b.start).map(({ type, score, start, end }) =>
      ({ text: text.slice(start, end), type, score, start: points[start], end: points[end] }));
    return { entities, isCut: to - from < all.length };
  }
}

/** The number of code points before each UTF-16 unit of a text, and before its end. */
function countPoints(text) {
  const points = new Uint32Array(text.length + 1);
  for (let i = 0; i < text.length; i++) {
    points[i + 1] = points[i] + (/[\udc00-\udfff]/.test(text[i]) ? 0 : 1);
  }
  return points;
}

/** The ids and the types of a sequence with its special tokens. */
function join(parts, texts) {
  const ids = [], types = [];
  for (const part of parts) {
    const piece = part.ids || texts[part.text];
    ids.push(...piece);
    types.push(...piece.map(() => part.type));
  }
  return { ids, types };
}
