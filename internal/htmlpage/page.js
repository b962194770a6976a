"use strict";

// The page is whole without this script. It searches and sorts the main table, and copies. Texts of nodes
// become text only, never markup.
{
  const get = (id) => document.getElementById(id);

  // make makes an element; children are elements or texts.
  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  // ---- the main table ----

  const table = get("table");
  const rows = [...(table?.tBodies[0].rows ?? [])].map((line) => {
    const names = line.dataset.nodes?.trim().split(" ") ?? [""];
    return { line, texts: names.map((name) => `${name} ${line.textContent}`.toLowerCase()), status: line.dataset.is };
  });
  const rowOf = new Map(rows.map((row) => [row.line, row]));
  const total = rows.reduce((sum, row) => sum + row.texts.length, 0);
  const statuses = new Set(); // none: all
  let most = 300; // rows shown: a browser needs long to lay out thousands

  // filter shows the first rows of which any node matches.
  function filter() {
    const words = get("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    let matching = 0;
    let lines = 0;
    for (const row of [...table.tBodies[0].rows].map((line) => rowOf.get(line))) {
      const wanted = statuses.size === 0 || statuses.has(row.status);
      const hits = row.texts.map((text) => wanted && words.every((word) => text.includes(word)));
      row.line.hidden = !hits.includes(true) || lines >= most;
      if (hits.includes(true)) lines++;
      matching += hits.filter(Boolean).length;
    }
    get("shown").textContent = `${matching} of ${total}`;
    get("more").hidden = lines <= most;
    get("more").textContent = `Show all ${lines} rows`;
    for (const button of document.querySelectorAll("[data-status]")) {
      button.setAttribute("aria-pressed", statuses.has(button.dataset.status));
    }
  }

  const order = new Intl.Collator("en", { numeric: true });

  // sort orders the rows by a column, downwards at the second time.
  function sort(title) {
    const at = title.cellIndex;
    const down = title.ariaSort === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    title.ariaSort = down ? "descending" : "ascending";
    const keys = new Map(rows.map((row) => [row, row.line.cells[at].textContent]));
    const sorted = [...rows].sort((a, b) => (down ? -1 : 1) * order.compare(keys.get(a), keys.get(b)));
    table.tBodies[0].append(...sorted.map((row) => row.line));
    filter();
  }

  function showAll() {
    most = Infinity;
    filter();
  }

  function clear() {
    statuses.clear();
    for (const title of table.tHead.rows[0].cells) title.removeAttribute("aria-sort");
    table.tBodies[0].append(...rows.map((row) => row.line));
    setTimeout(filter); // once the field is empty
  }

  // ---- copying ----

  async function copy(button) {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      copyOldWay(button.dataset.copy); // no clipboard for pages that came over plain http
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1200);
  }

  function copyOldWay(text) {
    const field = make("textarea", {});
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }

  // ---- what is clicked and typed ----

  document.addEventListener("click", (event) => {
    const hit = event.target.closest("[data-copy], [data-status], #table thead th");
    if (!hit) return;
    if (hit.dataset.copy !== undefined) return copy(hit);
    if (hit.dataset.status) {
      const { status } = hit.dataset;
      statuses.has(status) ? statuses.delete(status) : statuses.add(status);
      return filter();
    }
    sort(hit);
  });

  for (const button of document.querySelectorAll("button.copy")) button.hidden = false;
  if (table) {
    for (const title of table.tHead.rows[0].cells) {
      title.replaceChildren(make("button", { type: "button" }, title.textContent));
    }
    for (const button of document.querySelectorAll("[data-status]")) button.disabled = false;
    const tools = document.querySelector(".tools");
    tools.hidden = false;
    tools.addEventListener("submit", (event) => event.preventDefault());
    tools.addEventListener("reset", clear);
    get("search").addEventListener("input", filter);
    get("more").addEventListener("click", showAll);
    addEventListener("beforeprint", showAll);
    filter();
  }
}
