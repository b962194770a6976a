"use strict";

// The page is whole without this script. It gives the table of nodes filters,
// an order and the details of each node, out of the data below it. Texts of
// nodes become text only, never markup.
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const get = (id) => document.getElementById(id);
  const word = (place) => (place < 0 ? "" : data.words[place]);
  const table = get("table");
  const body = table.tBodies[0];
  const dialog = get("node");
  const order = new Intl.Collator("en", { numeric: true });
  const slice = 200; // rows painted at once
  const byName = -1; // where a column is asked for
  const asGiven = -2; // as in the inventory

  const state = {
    statuses: new Set(), // none: all
    search: [],
    only: null, // a column and the word to be in it
    odd: false,
    narrow: false,
    fold: true,
    sort: { column: asGiven, down: false },
    open: new Set(), // groups whose nodes are shown
  };

  // make makes an element; children are elements or texts. An attribute that is
  // null is none.
  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value !== null) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  // ---- what is shown ----

  const isOdd = (cell, column) => {
    const norm = data.columns[column].norm;
    return norm >= 0 && cell >= 0 && cell !== norm;
  };

  // oddity is the class of a cell that is odd.
  const oddity = (cell, column) => `odd ${data.columns[column].must.includes(cell) ? "must" : "may"}`;

  const nodes = data.nodes.map((node) => ({
    ...node,
    name: word(node.name),
    differs: node.status !== "ok" || node.cells.some(isOdd),
    text: [node.name, ...node.cells, node.error].map(word).join("\n").toLowerCase(),
  }));

  const groups = data.groups.map((group) => ({ ...group, name: word(group.name), size: 0 }));
  for (const node of nodes) groups[node.group].size++;

  function matches(node) {
    return (
      (state.statuses.size === 0 || state.statuses.has(node.status)) &&
      (!state.odd || node.differs) &&
      (!state.only || node.cells[state.only.column] === state.only.word) &&
      state.search.every((part) => node.text.includes(part))
    );
  }

  // rows are what the table shows: nodes, or groups of which all nodes match.
  function rows(matching) {
    const found = new Map();
    for (const node of matching) {
      if (!found.has(node.group)) found.set(node.group, []);
      found.get(node.group).push(node);
    }
    const single = (node) => ({ node, name: node.name, cells: node.cells });
    const all = [];
    for (const [at, members] of found) {
      const { name, cells, size } = groups[at];
      if (members.length > 1 && members.length === size) all.push({ group: at, name, cells, members });
      else all.push(...members.map(single));
    }
    const sorted = sort(state.fold ? all : matching.map(single));
    const open = (row) => row.members && state.open.has(row.group);
    const below = (row) => row.members.map((node) => ({ ...single(node), member: true }));
    return sorted.flatMap((row) => (open(row) ? [row, ...below(row)] : [row]));
  }

  // sort orders rows by a column.
  function sort(all) {
    const { column, down } = state.sort;
    const text = (row) => (column === byName ? row.name : word(row.cells[column]));
    return column === asGiven ? all : all.sort((a, b) => (down ? -1 : 1) * order.compare(text(a), text(b)));
  }

  // ---- the table ----

  let columns = []; // the places of those that are shown
  let current = []; // rows, painted or not
  let painted = 0;

  function head() {
    const title = (text, column, number) => {
      const sorted = state.sort.column !== column ? null : state.sort.down ? "descending" : "ascending";
      const button = make("button", { type: "button", "data-sort": column }, text);
      return make("th", { scope: "col", class: number ? "number" : null, "aria-sort": sorted }, button);
    };
    const titles = columns.map((at) => title(data.columns[at].title, at, data.columns[at].number));
    table.tHead.rows[0].replaceChildren(title("Node", byName), ...titles);
  }

  // version puts the local part of a version on a line of its own.
  function version(text) {
    const [main, ...local] = text.split("+");
    return local.length ? [main, make("span", { class: "local" }, "+" + local.join("+"))] : [text];
  }

  function cell(place, column, status) {
    if (data.columns[column].key === "status") {
      return make("td", null, make("span", { class: `status is-${status}` }, word(place)));
    }
    const { number, norm, whose } = data.columns[column];
    if (!isOdd(place, column)) return make("td", { class: number ? "number" : null }, ...version(word(place)));
    return make(
      "td",
      { class: oddity(place, column), title: `${whose}: ${word(norm)}` },
      make("span", { "aria-hidden": "true" }, "≠\u00a0"),
      make("span", { class: "aside" }, `differs from ${word(norm)}: `),
      ...version(word(place)),
    );
  }

  function line(row, at) {
    const folded = row.members !== undefined;
    const open = folded && state.open.has(row.group);
    const opens = folded ? { "aria-expanded": open } : { "aria-haspopup": "dialog" };
    const name = make("th", { scope: "row" }, make("button", { type: "button", ...opens }, row.name));
    if (folded) name.append(" ", make("small", null, `${row.members.length} nodes`));
    const kind = folded ? (open ? "group open" : "group") : row.member ? "member" : null;
    const { status } = folded ? row.members[0] : row.node;
    const cells = columns.map((column) => cell(row.cells[column], column, status));
    return make("tr", { class: kind, "data-row": at }, name, ...cells);
  }

  // paint adds a slice of rows; what is far below is painted once it is near.
  function paint(count = slice) {
    body.querySelector(".more")?.remove();
    const part = document.createDocumentFragment();
    const end = Math.min(painted + count, current.length);
    for (; painted < end; painted++) part.append(line(current[painted], painted));
    if (painted < current.length) {
      const more = make("button", { type: "button" }, `${current.length - painted} more rows`);
      part.append(make("tr", { class: "more" }, make("td", { colspan: columns.length + 1 }, more)));
    }
    if (current.length === 0) {
      part.append(make("tr", null, make("td", { colspan: columns.length + 1 }, "No node matches.")));
    }
    body.append(part);
    const more = body.querySelector(".more");
    if (more) near.observe(more);
  }

  const near = new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && paint(), {
    rootMargin: "600px",
  });

  function show() {
    const matching = nodes.filter(matches);
    current = rows(matching);
    columns = [...data.columns.keys()].filter((at) => !state.narrow || at === 0 || data.columns[at].norm >= 0);
    painted = 0;
    near.disconnect();
    body.replaceChildren();
    head();
    paint();
    const some = matching.length < nodes.length;
    get("shown").textContent = `${some ? `${matching.length} of ` : ""}${nodes.length} nodes in ${current.length} rows`;
    get("pill").hidden = !state.only;
    if (state.only) get("pill").textContent = `${data.columns[state.only.column].title} = ${word(state.only.word)}`;
    get("clear").hidden = !(
      some ||
      state.statuses.size ||
      state.odd ||
      state.narrow ||
      !state.fold ||
      state.sort.column !== asGiven
    );
    for (const button of document.querySelectorAll("[data-status]")) {
      button.setAttribute("aria-pressed", state.statuses.has(button.dataset.status));
    }
  }

  // ---- the details of a node ----

  // reasons is what is said about a node, in the words of the report.
  function reasons(node) {
    if (word(node.error) === "") return [];
    const [before, command, after] = node.hint.map(word);
    const said = make("li", { class: `is-${node.status}` }, make("p", { class: "said" }, word(node.error)));
    if (before || command) {
      const hint = make("p", { class: "hint" }, before);
      if (command) hint.append(make("code", null, command), after, " ", copier(command, "Copy the command"));
      said.append(hint);
    }
    return [make("ul", { class: "reasons" }, said)];
  }

  // ended says at which step a node came to its end.
  function ended(node) {
    const step = word(node.cells[data.columns.findIndex((column) => column.key === "step")]);
    return step && node.status !== "ok" && node.status !== "skipped" ? ` at ${step}` : "";
  }

  function compared(node) {
    const rows = [];
    data.columns.forEach((column, at) => {
      const place = node.cells[at];
      if (word(place) === "" || !column.compared) return;
      const has = make("td", null, word(place));
      if (isOdd(place, at)) {
        has.className = oddity(place, at);
        has.prepend("≠ ");
        has.append(make("small", null, ` ${column.whose}: ${word(column.norm)}`));
      }
      rows.push(make("tr", null, make("th", { scope: "row" }, column.title), has));
    });
    return make("table", null, make("tbody", null, ...rows));
  }

  function steps(node) {
    const longest = Math.max(...node.seconds, 0.001);
    const rows = data.steps.flatMap((step, at) => {
      if (!node.seconds[at]) return [];
      const bar = make("span", { class: "took" });
      bar.style.width = `${(100 * node.seconds[at]) / longest}%`;
      return [
        make(
          "tr",
          null,
          make("th", { scope: "row" }, step),
          make("td", null, `${node.seconds[at].toFixed(1)} s`),
          make("td", { "aria-hidden": "true" }, bar),
        ),
      ];
    });
    return rows.length
      ? [make("h3", null, "Time by step"), make("table", { class: "steps" }, make("tbody", null, ...rows))]
      : [];
  }

  function known(node) {
    const parts = [];
    let part = null;
    data.details.forEach((title, at) => {
      const text = word(node.details[at]);
      if (title.startsWith("# ")) {
        part = { title: title.slice(2), rows: [] };
        parts.push(part);
      } else if (text !== "") {
        part.rows.push(make("tr", null, make("th", { scope: "row" }, title), make("td", null, text)));
      }
    });
    return parts
      .filter((p) => p.rows.length)
      .flatMap((p) => [make("h3", null, p.title), make("table", null, make("tbody", null, ...p.rows))]);
  }

  function details(node) {
    const shown = current.filter((row) => row.node).map((row) => row.node);
    const at = shown.indexOf(node);
    const turn = (to, text) => {
      const button = make("button", { type: "button", disabled: at < 0 || !shown[to] ? "" : null }, text);
      button.addEventListener("click", () => details(shown[to]));
      return button;
    };
    const close = make("button", { type: "button", "aria-label": "Close" }, "✕");
    close.addEventListener("click", () => dialog.close());
    dialog.replaceChildren(
      make("nav", null, turn(at - 1, "← previous"), turn(at + 1, "next →"), close),
      make("h2", { id: "node-name" }, node.name),
      make("p", null, make("span", { class: `status is-${node.status}` }, word(node.cells[0])), ended(node)),
      ...reasons(node),
      compared(node),
      ...steps(node),
      ...known(node),
    );
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    dialog.focus(); // what had it may be gone
  }

  // ---- copying ----

  function copier(text, label) {
    return make("button", { type: "button", class: "copy", "data-copy": text, "aria-label": label }, "Copy");
  }

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
    const field = make("textarea", { class: "aside" });
    field.value = text;
    (dialog.open ? dialog : document.body).append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }

  // ---- what is clicked and typed ----

  function choose(row) {
    if (row.node) return details(row.node);
    state.open.has(row.group) ? state.open.delete(row.group) : state.open.add(row.group);
    const [left, top] = [table.parentElement.scrollLeft, table.parentElement.scrollTop];
    show();
    table.parentElement.scrollTo(left, top);
    const at = current.findIndex((other) => other.group === row.group);
    body.querySelector(`[data-row="${at}"] button`)?.focus({ preventScroll: true });
  }

  function sortBy(column) {
    state.sort = { column, down: state.sort.column === column && !state.sort.down };
    show();
    table.querySelector(`[data-sort="${column}"]`)?.focus();
  }

  function clear() {
    state.statuses.clear();
    Object.assign(state, {
      search: [],
      only: null,
      odd: false,
      narrow: false,
      fold: true,
      sort: { column: asGiven, down: false },
    });
    show();
  }

  document.addEventListener("click", (event) => {
    const at = (selector) => event.target.closest(selector);
    let hit;
    if ((hit = at("[data-copy]"))) return copy(hit);
    if ((hit = at("[data-sort]"))) return sortBy(Number(hit.dataset.sort));
    if (at(".more")) return paint();
    // Who marks a text of a row does not choose the row.
    if ((hit = at("[data-row]")) && (at("button") || getSelection().isCollapsed))
      return choose(current[hit.dataset.row]);
    if ((hit = at("[data-status]"))) {
      const { status } = hit.dataset;
      state.statuses.has(status) ? state.statuses.delete(status) : state.statuses.add(status);
      return show();
    }
    if ((hit = at("[data-column]"))) {
      state.only = { column: Number(hit.dataset.column), word: Number(hit.dataset.word) };
      show();
      get("nodes").scrollIntoView();
    }
    if (event.target === dialog) dialog.close(); // beside it
  });

  let typing;
  get("search").addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      state.search = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      show();
    }, 80);
  });
  for (const id of ["odd", "narrow", "fold"]) {
    get(id).addEventListener("change", (event) => {
      state[id] = event.target.checked;
      show();
    });
  }
  get("pill").addEventListener("click", () => {
    state.only = null;
    show();
  });
  document.querySelector(".tools").addEventListener("reset", clear);
  document.querySelector(".tools").addEventListener("submit", (event) => event.preventDefault());
  dialog.addEventListener("keydown", (event) => {
    const turn = { ArrowLeft: 0, ArrowRight: 1 }[event.key];
    if (turn !== undefined) dialog.querySelectorAll("nav button")[turn].click();
  });
  addEventListener("beforeprint", () => {
    paint(Infinity);
    for (const title of table.tHead.rows[0].cells) title.replaceChildren(title.textContent); // pages repeat no buttons
  });
  addEventListener("afterprint", head);

  for (const element of document.querySelectorAll(".tools, button.copy, button.only")) element.hidden = false;
  for (const button of document.querySelectorAll("[data-status]")) button.disabled = false;
  show();
}
