// Actions: a dialog that asks for the fields of an action, shows the same as a command, and calls the API.
import { el, toast } from "./dom.js";
import { refresh } from "./live.js";

const dialog = document.getElementById("dialog");

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]");
  if (button && !button.disabled) openAction(JSON.parse(button.dataset.action));
});

/** Open the dialog of an action. */
export function openAction(action) {
  const inputs = action.fields.map(input);
  const command = el("code");
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const send = el("button", { type: "submit", class: `button ${action.tone}` }, action.title);
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "dialog-title" }, action.title),
    el("p", {}, action.sentence),
    ...inputs.map((each) => each.row),
    problem,
    el(
      "p",
      { class: "cli" },
      command,
      el("button", { type: "button", class: "copy", onclick: () => navigator.clipboard.writeText(command.textContent) }, "Copy"),
    ),
    el(
      "p",
      { class: "buttons" },
      el("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Back"),
      send,
    ),
  );
  const describe = () => (command.textContent = commandOf(action, inputs));
  form.addEventListener("input", describe);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.hidden = true;
    send.disabled = true;
    try {
      const answer = await call(action, bodyOf(action, inputs));
      if (action.reveals) {
        reveal(action, answer[action.reveals]);
        return;
      }
      dialog.close();
      toast(action.done);
      refresh();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    } finally {
      send.disabled = false;
    }
  });
  describe();
  dialog.replaceChildren(form);
  dialog.showModal();
  (form.querySelector("input:not([type=checkbox]), textarea, select") ?? send).focus();
}

/** Show a secret of the answer once. It is nowhere but in the dialog, and is removed when that is closed. */
function reveal(action, secret) {
  const text = el("code", { class: "secret", id: "revealed", tabindex: "0" }, secret);
  const copied = el("span", { class: "dim", role: "status" });
  const copy = el("button", { type: "button", class: "button primary" }, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(secret);
      copied.textContent = "Copied.";
    } catch {
      // Browsers refuse the clipboard on plain HTTP: select the text instead.
      getSelection().selectAllChildren(text);
      copied.textContent = "Selected: press Ctrl C.";
    }
  });
  // Escape would lose it by accident.
  const stay = (event) => event.preventDefault();
  dialog.addEventListener("cancel", stay);
  dialog.addEventListener(
    "close",
    () => {
      dialog.removeEventListener("cancel", stay);
      dialog.replaceChildren();
      // Not before: the action may have ended the session of this page, which then loads the sign-in page.
      refresh();
    },
    { once: true },
  );
  dialog.replaceChildren(
    el("h2", { id: "dialog-title" }, action.done),
    el("p", {}, "It is shown here once and stored nowhere. Copy it now."),
    el("p", { class: "reveal" }, text),
    el("p", { class: "buttons" }, copied, copy, el("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Close")),
  );
  copy.focus();
}

function input(field) {
  const shared = { id: `field-${field.name}`, name: field.name, required: field.is_required };
  let control;
  if (field.kind === "select") {
    control = el("select", shared, ...field.choices.map((each) => new Option(each, each, false, each === field.value)));
  } else if (field.kind === "textarea" || field.kind === "json") {
    control = el("textarea", { ...shared, rows: 4, spellcheck: "false" });
    control.value = field.value;
  } else if (field.kind === "checkbox") {
    control = el("input", { ...shared, type: "checkbox", checked: field.value === "true", required: null });
  } else {
    control = el("input", { ...shared, type: field.kind, value: field.value, autocomplete: "off" });
  }
  const hint = field.hint ? el("span", { class: "dim" }, field.hint) : null;
  return { field, control, row: el("label", { class: "field", for: shared.id }, el("span", {}, field.label), control, hint) };
}

function valueOf({ field, control }) {
  if (field.kind === "checkbox") return control.checked;
  if (control.value.trim() === "") return undefined;
  if (field.is_list) return parts(control.value);
  if (field.kind === "number") return Number(control.value);
  if (field.kind === "json") {
    try {
      return JSON.parse(control.value);
    } catch {
      throw new Error(`${field.label}: this is not JSON. A text is written in double quotes.`);
    }
  }
  return control.value;
}

function bodyOf(action, inputs) {
  const body = structuredClone(action.body);
  for (const each of inputs) {
    const value = valueOf(each);
    if (value === undefined) continue;
    const names = each.field.name.split(".");
    let owner = body;
    for (const name of names.slice(0, -1)) owner = owner[name] ??= {};
    owner[names.at(-1)] = value;
  }
  return body;
}

function commandOf(action, inputs) {
  return action.cli.replace(/( --[a-z-]+ )?\{([a-z_.]+)\}/g, (whole, option, name) => {
    const found = inputs.find((each) => each.field.name === name);
    if (!found) return whole;
    const { field, control } = found;
    if (option && !control.value.trim() && !field.is_required) return "";
    const values = field.is_list ? parts(control.value) : [control.value].filter(Boolean);
    return (values.length ? values : [field.label.toUpperCase()]).map((each) => (option ?? "") + quoted(each)).join("");
  });
}

function parts(text) {
  return text.split(/[\s,]+/).filter(Boolean);
}

function quoted(text) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

/** Call the API and return its answer. Throws an `Error` with the detail of the problem. */
export async function call(action, body) {
  const headers = { "content-type": "application/json" };
  if (action.ifMatch) headers["if-match"] = action.ifMatch;
  const token = document.querySelector("meta[name=csrf]")?.content;
  if (token) headers["headgate-csrf"] = token;
  const hasBody = action.method !== "DELETE" || Object.keys(body).length > 0;
  let answer;
  try {
    answer = await fetch(action.path, { method: action.method, headers, body: hasBody ? JSON.stringify(body) : undefined });
  } catch {
    throw new Error("The server does not answer. Nothing is known of the outcome: look before you try again.");
  }
  const text = await answer.text();
  let content = {};
  try {
    content = text ? JSON.parse(text) : {};
  } catch {
    content = { detail: text };
  }
  if (!answer.ok) throw new Error(content.detail || `${answer.status} ${answer.statusText}`);
  return content;
}
