// Opens a page in Debian's chromium, uses it as a reader would, and prints what was seen as JSON.
//   node drive.mjs '{"url": ..., "shots": directory, "scheme": "light", "hash": "t=1", "axe": true}'
import { createRequire } from "node:module";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { chromium } from "playwright-core";

const asked = JSON.parse(process.argv[2]);
const browser = await chromium.launch({
  executablePath: asked.chromium,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});
const seen = { console: [], errors: [], requests: [], failed: [] };
try {
  const context = await browser.newContext({
    viewport: asked.viewport ?? { width: 1440, height: 1180 }, colorScheme: asked.scheme ?? "light",
    bypassCSP: Boolean(asked.axe), // the page itself lets no foreign script in, axe neither
  });
  const page = await context.newPage();
  page.on("console", (message) => seen.console.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => seen.errors.push(String(error.stack ?? error)));
  page.on("request", (request) => seen.requests.push(request.url()));
  page.on("requestfailed", (request) => seen.failed.push(request.url()));
  const look = () => page.evaluate(() => {
    const all = (selector, read) => [...document.querySelectorAll(selector)].map(read);
    const text = (selector) => document.querySelector(selector).textContent.trim();
    return {
      theme: document.documentElement.dataset.theme,
      clock: text("#clock"),
      links: all("#map .link", (link) => link.dataset.link),
      titles: all("#map .link title", (title) => title.textContent),
      sites: all("#map .site", (site) => site.dataset.site),
      edges: all("#map g[data-edge]", (edge) => edge.dataset.edge),
      auxiliary: all("#map g[data-auxiliary]", (hop) => hop.dataset.auxiliary),
      auxiliary_said: all("#auxiliary-list li", (item) => item.textContent),
      ringed: all('#map .ring[visibility="visible"]', (ring) => ring.parentElement.dataset.site),
      roots: all("#roots button", (button) => button.textContent.trim()),
      chosen: all('#roots [aria-checked="true"]', (button) => button.textContent.trim()),
      schedulers: all("#schedulers li", (item) => item.textContent.trim()),
      now: all("#now dd", (value) => value.textContent),
      events: all("#events li", (item) => item.textContent),
      rows: all("#links tbody tr", (row) => [...row.cells].map((cell) => cell.textContent.trim())),
      charts: all(".chart canvas", (canvas) => canvas.width > 100 && canvas.height > 30),
      verdict: text("#verdict"), mode: text("#mode"), problem: document.querySelector("#problem").hidden ? "" : text("#problem"),
    };
  });

  await page.goto(`${asked.url}#${asked.hash ?? ""}`);
  await page.waitForSelector("body[data-ready]", { timeout: 60_000 });
  seen.first = await look();
  if (asked.shots) await page.screenshot({ path: join(asked.shots, `${asked.name}.png`), fullPage: true });
  if (asked.opened) {
    // A live page is open once its stream is.
    await page.waitForFunction(() => document.querySelector("#mode").textContent === "live", null, { timeout: 60_000 });
    seen.first = await look();
    writeFileSync(asked.opened, "");
  }
  seen.steps = [];
  for (const step of asked.keys ?? []) {
    await page.keyboard.press(step);
    seen.steps.push({ key: step, ...await look() });
  }
  // What is to appear, one after the other; of each the moment and the page, and a file that tells whoever makes it so.
  seen.untils = [];
  for (const words of asked.untils ?? []) {
    await page.waitForFunction((text) => document.body.innerText.includes(text), words, { timeout: 60_000 });
    seen.untils.push({ at_s: Date.now() / 1000, ...await look() });
    if (asked.opened) writeFileSync(`${asked.opened}-${seen.untils.length}`, "");
  }
  if (asked.untils && asked.shots) {
    await page.screenshot({ path: join(asked.shots, `${asked.name}-until.png`), fullPage: true });
  }
  if (asked.axe) {
    const source = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
    await page.addScriptTag({ content: readFileSync(source, "utf8") });
    const found = await page.evaluate(() => axe.run());
    seen.faults = found.violations.map((fault) =>
      ({ id: fault.id, impact: fault.impact, nodes: fault.nodes.slice(0, 4).map((node) => node.html.slice(0, 200)) }));
  }
} finally {
  await browser.close();
}
process.stdout.write(JSON.stringify(seen));
