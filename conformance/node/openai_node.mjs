// The official Node client: responses, streams, tool loops, conversations, and the errors it raises.
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { BASE, MODEL, check, equal, holds, report } from "./checks.mjs";

const client = new OpenAI({ baseURL: BASE, apiKey: "none", maxRetries: 0 });
const weather = {
  type: "function",
  name: "get_weather",
  description: "The weather in a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  strict: false,
};

await check("create, retrieve, delete", async () => {
  const made = await client.responses.create({ model: MODEL, input: "Reply with exactly: ahoy" });
  equal(made.output_text, "ahoy", "text");
  const read = await client.responses.retrieve(made.id);
  equal(read.output, made.output, "stored output");
  await client.responses.delete(made.id);
  const gone = await client.responses.retrieve(made.id).then(() => null, (error) => error);
  holds(gone instanceof OpenAI.NotFoundError, `expected NotFoundError, found ${gone}`);
});

await check("plain stream", async () => {
  const stream = await client.responses.create({ model: MODEL, input: "Reply with exactly: one two three", stream: true });
  const types = [];
  let text = "";
  for await (const event of stream) {
    types.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  equal(text, "one two three", "text");
  equal([types[0], types.at(-1)], ["response.created", "response.completed"], "first and last event");
});

await check("stream helper", async () => {
  const stream = client.responses.stream({ model: MODEL, input: "Reply with exactly: one two" });
  let text = "";
  stream.on("response.output_text.delta", (event) => {
    text = event.snapshot;
  });
  const final = await stream.finalResponse();
  equal([text, final.output_text, final.status], ["one two", "one two", "completed"], "snapshot and final response");
});

await check("stream helper with a schema", async () => {
  const Shape = z.object({ name: z.string(), count: z.number().int() });
  const stream = client.responses.stream({
    model: MODEL,
    input: "Give me one.",
    text: { format: zodTextFormat(Shape, "shape") },
  });
  const final = await stream.finalResponse();
  equal(final.output_parsed, { name: "San Francisco, CA", count: 3 }, "parsed output");
});

await check("tool loop by previous_response_id", async () => {
  const first = await client.responses.create({ model: MODEL, input: "How is the weather?", tools: [weather] });
  const call = first.output.find((item) => item.type === "function_call");
  equal(JSON.parse(call.arguments), { city: "San Francisco, CA" }, "arguments");
  const second = await client.responses.create({
    model: MODEL,
    previous_response_id: first.id,
    input: [{ type: "function_call_output", call_id: call.call_id, output: "sunny" }],
    tools: [weather],
  });
  equal(second.output_text, "The tool said: sunny", "answer");
});

await check("streamed tool loop without state on the server", async () => {
  const input = [{ role: "user", content: "How is the weather?" }];
  const options = { model: MODEL, tools: [weather], store: false };
  const first = await client.responses.stream({ ...options, input }).finalResponse();
  const call = first.output.find((item) => item.type === "function_call");
  input.push(...first.output, { type: "function_call_output", call_id: call.call_id, output: "windy" });
  const second = await client.responses.stream({ ...options, input }).finalResponse();
  equal(second.output_text, "The tool said: windy", "answer");
});

await check("conversation and paging", async () => {
  const conversation = await client.conversations.create();
  for (const word of ["one", "two", "three"]) {
    await client.responses.create({ model: MODEL, conversation: conversation.id, input: `Reply with exactly: ${word}` });
  }
  const texts = [];
  for await (const item of client.conversations.items.list(conversation.id, { limit: 4, order: "asc" })) {
    if (item.role === "assistant") texts.push(item.content[0].text);
  }
  equal(texts, ["one", "two", "three"], "answers");
});

await check("chat, embeddings, models", async () => {
  const chat = await client.chat.completions.create({
    model: MODEL,
    messages: [{ role: "user", content: "Reply with exactly: yes" }],
  });
  equal(chat.choices[0].message.content, "yes", "chat answer");
  const embedded = await client.embeddings.create({ model: MODEL, input: "word" });
  holds(embedded.data[0].embedding.every((value) => typeof value === "number"), "an embedding is not made of numbers");
  const model = await client.models.retrieve(MODEL);
  equal(model.id, MODEL, "model");
});

await check("errors carry code and param", async () => {
  const missing = await client.responses
    .create({ model: MODEL, input: "Hi", previous_response_id: "resp_nowhere" })
    .then(() => null, (error) => error);
  holds(missing instanceof OpenAI.BadRequestError, `expected BadRequestError, found ${missing}`);
  equal([missing.code, missing.param], ["previous_response_not_found", "previous_response_id"], "code and param");
});

report("openai-node");
