// Vercel's AI SDK through both of its Responses providers: text, streams, objects and tool loops.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { BASE, MODEL, check, equal, holds, report } from "./checks.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const providers = {
  "@ai-sdk/open-responses": createOpenResponses({ name: "treadle", url: `${BASE}/responses`, apiKey: "none" })(MODEL),
  "@ai-sdk/openai": createOpenAI({ baseURL: BASE, apiKey: "none" }).responses(MODEL),
};

function weatherTool(asked) {
  return tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      asked.push(city);
      return `sunny in ${city}`;
    },
  });
}

async function collect(result) {
  const parts = [];
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    parts.push(part);
  }
  return parts;
}

for (const [name, model] of Object.entries(providers)) {
  const common = { model, maxRetries: 0 };

  await check(`${name} generateText`, async () => {
    const result = await generateText({ ...common, system: "Be short.", prompt: "Reply with exactly: ahoy" });
    equal([result.text, result.finishReason], ["ahoy", "stop"], "text and finish reason");
    holds(result.usage.totalTokens > 0, "no usage");
  });

  await check(`${name} streamText`, async () => {
    const parts = await collect(streamText({ ...common, prompt: "Reply with exactly: one two three" }));
    const deltas = parts.filter((part) => part.type === "text-delta").map((part) => part.text);
    equal(deltas.join(""), "one two three", "text");
    holds(deltas.length > 1, "the text came in one piece");
    equal(parts.at(-1).finishReason, "stop", "finish reason");
  });

  await check(`${name} structured output`, async () => {
    const schema = z.object({ name: z.string(), count: z.number() });
    const result = await generateText({ ...common, output: Output.object({ schema }), prompt: "Give me one." });
    equal(result.output, { name: "San Francisco, CA", count: 1.5 }, "object");
  });

  await check(`${name} tool loop, generateText`, async () => {
    const asked = [];
    const result = await generateText({
      ...common,
      tools: { weather: weatherTool(asked) },
      stopWhen: stepCountIs(4),
      prompt: "How is the weather?",
    });
    equal([result.steps.length, asked], [2, ["San Francisco, CA"]], "steps and calls");
    holds(result.text.includes("sunny in San Francisco, CA"), `the result did not reach the model: ${result.text}`);
  });

  await check(`${name} tool loop, streamText`, async () => {
    const asked = [];
    const parts = await collect(
      streamText({
        ...common,
        tools: { weather: weatherTool(asked) },
        stopWhen: stepCountIs(4),
        prompt: "How is the weather?",
      }),
    );
    const kinds = parts.map((part) => part.type);
    holds(kinds.includes("tool-call") && kinds.includes("tool-result"), `no tool call in ${kinds}`);
    const text = parts.filter((part) => part.type === "text-delta").map((part) => part.text).join("");
    equal(asked, ["San Francisco, CA"], "calls");
    holds(text.includes("sunny in San Francisco, CA"), `the result did not reach the model: ${text}`);
  });
}

report("AI SDK");
