import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// Names without hashes: the bundle is checked in, and a diff of it names what changed.
export default defineConfig({
  base: "/console/",
  plugins: [svelte()],
  build: {
    outDir: process.env["CONSOLE_BUNDLE"] ?? "../bundle",
    emptyOutDir: true,
    modulePreload: false,
    license: { fileName: "licenses.md" },
    rolldownOptions: {
      output: {
        codeSplitting: false,
        entryFileNames: "console.js",
        assetFileNames: "console[extname]",
      },
    },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8000" } },
});
