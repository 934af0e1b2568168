// A check is a named async function that throws when the client or the server misbehaves. `report` prints the counts.
import { isDeepStrictEqual } from "node:util";

export const BASE = `${process.env.TREADLE_URL}/v1`;
export const MODEL = process.env.TREADLE_MODEL;

const SECONDS = 30;
let passed = 0;
let failed = 0;

export async function check(name, body) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no end after ${SECONDS} s`)), SECONDS * 1000);
  });
  try {
    await Promise.race([body(), late]);
    passed += 1;
    console.log(`PASS ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}: ${error?.message ?? error}`);
  } finally {
    clearTimeout(timer);
  }
}

export function equal(found, wanted, what) {
  if (!isDeepStrictEqual(found, wanted)) {
    throw new Error(`${what}: expected ${JSON.stringify(wanted)}, found ${JSON.stringify(found)}`);
  }
}

export function holds(condition, what) {
  if (!condition) throw new Error(what);
}

export function report(title) {
  console.log(`${title}: ${passed} passed, ${failed} failed`);
  process.exit(failed === 0 ? 0 : 1);
}
