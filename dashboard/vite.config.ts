import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";

const HERE = import.meta.dirname;
const OUT = process.env.LETHE_DASHBOARD_OUT ?? resolve(HERE, "../coordinator/api/dashboard");

/** The script that certificate pages and verify.html carry, as a module: without its part that drives a page of its own. */
function verification(): Plugin {
  const names = "keysOf, verifyCertificate, judge, factsOf, fingerprintIn, bytesOfBase64";
  return {
    name: "lethe-verification",
    enforce: "pre",
    load(id) {
      if (!id.endsWith("/services/audit/pages/verify.js")) return;
      const code = readFileSync(id, "utf-8");
      const end = code.indexOf("// --- the page");
      if (end < 0) throw new Error("verify.js has no part `the page` to leave out");
      return { code: `${code.slice(0, end)}\nexport { ${names} };\n`, map: null };
    },
  };
}

/** Scripts and styles are kept compressed only: the coordinator serves them as they are. */
function compressed(): Plugin {
  return {
    name: "lethe-compressed",
    writeBundle() {
      const folder = resolve(OUT, "assets");
      for (const name of readdirSync(folder)) {
        const file = resolve(folder, name);
        const bytes = readFileSync(file);
        writeFileSync(resolve(OUT, `${name}.gz`), gzipSync(bytes, { level: 9 }));
        const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length };
        writeFileSync(resolve(OUT, `${name}.br`), brotliCompressSync(bytes, { params }));
      }
      rmSync(folder, { recursive: true });
    },
  };
}

export default defineConfig({
  root: HERE,
  plugins: [verification(), react(), compressed()],
  resolve: { alias: { "lethe-client": resolve(HERE, "../openapi/clients/typescript/src") } },
  build: {
    outDir: OUT,
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    reportCompressedSize: false,
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8440", "/verify.html": "http://127.0.0.1:8440" } },
});
