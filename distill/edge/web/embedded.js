"use strict";
// Loads everything from this file.
(async () => {
  const bytes = (name) => Uint8Array.from(atob(document.getElementById(name).textContent), (c) => c.charCodeAt(0));
  const text = (name) => new TextDecoder().decode(bytes(name));
  const module = (name) => import(URL.createObjectURL(new Blob([bytes(name)], { type: "text/javascript" })));
  const page = await module("page.mjs");
  page.start(async () => {
    const [ort, { Tokenizer }, { Bundle }] = await Promise.all(["ort.mjs", "tokenizers.mjs", "bundle.mjs"].map(module));
    ort.env.wasm.wasmBinary = bytes("ort-wasm-simd-threaded.wasm").buffer;
    ort.env.wasm.numThreads = 1;
    const session = await ort.InferenceSession.create(bytes("model.onnx"));
    const tokenizer = new Tokenizer(JSON.parse(text("tokenizer.json")), {});
    return new Bundle(JSON.parse(text("description.json")), tokenizer, session, ort.Tensor);
  }).catch(page.fail);
})();
