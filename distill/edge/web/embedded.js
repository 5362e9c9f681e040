"use strict";
// Loads everything from this file.
(async () => {
  const bytes = (name) => Uint8Array.from(atob(document.getElementById(name).textContent), (c) => c.charCodeAt(0));
  const text = (name) => new TextDecoder().decode(bytes(name));
  const module = (name) => import(URL.createObjectURL(new Blob([bytes(name)], { type: "text/javascript" })));
  const page = await module("page.mjs");
  page.start(async () => {
    const modules = await Promise.all(["ort.mjs", "tokenizers.mjs", "bundle.mjs", "generation.mjs"].map(module));
    const [ort] = modules;
    ort.env.wasm.wasmBinary = bytes("ort-wasm-simd-threaded.wasm").buffer;
    ort.env.wasm.numThreads = 1;
    const open = (name) => ort.InferenceSession.create(bytes(name));
    return page.create(modules, JSON.parse(text("description.json")), JSON.parse(text("tokenizer.json")), open);
  }).catch(page.fail);
})();
