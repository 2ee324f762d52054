// Keeps a live page open and says now and then, as a line of JSON, how much memory it holds after a collection.
//   node soak.mjs '{"url": ..., "chromium": ..., "seconds": 600, "every": 15}'
import { chromium } from "playwright-core";

const asked = JSON.parse(process.argv[2]);
const browser = await chromium.launch({
  executablePath: asked.chromium,
  args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"],
});
try {
  const page = await (await browser.newContext({ viewport: { width: 1440, height: 1180 } })).newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => errors.push(message.text()));
  await page.goto(asked.url);
  await page.waitForFunction(() => document.querySelector("#mode").textContent === "live", null, { timeout: 60_000 });
  const session = await page.context().newCDPSession(page);
  const began = Date.now();
  while (Date.now() - began < 1000 * asked.seconds) {
    await page.waitForTimeout(1000 * asked.every);
    await session.send("HeapProfiler.collectGarbage");
    const { usedSize } = await session.send("Runtime.getHeapUsage");
    const { nodes } = await session.send("Memory.getDOMCounters");
    const clock = await page.textContent("#clock");
    const line = { t_s: (Date.now() - began) / 1000, heap_bytes: usedSize, nodes, clock, errors };
    process.stdout.write(`${JSON.stringify(line)}\n`);
  }
} finally {
  await browser.close();
}
